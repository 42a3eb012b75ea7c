"""``manage.py import_airports``: dispatch the import, and with ``--wait`` see it end."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from example_project.airports.imports import Variant, start_import


class Command(BaseCommand):
    help = "Dispatches a batch that validates and imports the airports; RQ workers run it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--variant", choices=Variant.values, default="plain", help="what is to happen")
        parser.add_argument("--wait", type=float, metavar="SECONDS", help="wait for the end, so long at most")

    def handle(self, *args: Any, variant: str, wait: float | None, **options: Any) -> None:
        batch = start_import(Variant(variant))
        self.stdout.write(f"Dispatched batch {batch.pk}: {batch.name}")
        if wait is not None:
            self._wait(batch, wait)

    def _wait(self, batch: Any, seconds: float) -> None:
        try:
            batch.wait(timeout=seconds)
        except TimeoutError as error:
            message = f"The batch has not ended within {seconds:g} seconds; are workers running?"
            raise CommandError(message) from error
        batch.refresh_from_db()
        if batch.status != "succeeded":
            message = f"The batch ended as {batch.status}; its page in the admin says why."
            raise CommandError(message)
        self.stdout.write(f"It succeeded within {batch.duration.total_seconds():.1f} seconds.")
