from typing import Any

from django.apps import apps
from django.core.management.commands import flush
from django.db import connections, router, transaction

KEPT = {"auth.permission", "contenttypes.contenttype"}


class Command(flush.Command):
    """Empties the databases between tests: plain DELETEs, a hundred times faster than Django's way.

    Permissions and content types, which migrations made, stay.
    """

    def handle(self, **options: Any) -> None:
        alias = options["database"]
        connection = connections[alias]
        with (
            connection.constraint_checks_disabled(),
            transaction.atomic(alias),
            connection.cursor() as cursor,
        ):
            for table in _tables(alias):
                cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


def _tables(alias: str) -> list[str]:
    models = [
        model
        for model in apps.get_models(include_auto_created=True)
        if model._meta.can_migrate(alias)
        and router.allow_migrate_model(alias, model)
        and model._meta.label_lower not in KEPT
    ]
    return [model._meta.db_table for model in models if not model._meta.proxy]
