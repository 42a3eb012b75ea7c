"""Django, a new database and a private Redis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django


@contextmanager
def on_stage(*, keep: bool = False) -> Iterator[None]:
    """All is there in the block, and gone after it; the database stays if `keep`, and is used again."""
    django.setup()

    from django.conf import settings
    from django.test.utils import setup_databases, teardown_databases

    from example_project.redis_server import RedisServer

    with RedisServer(Path(settings.REDIS_SOCKET).parent):
        databases = setup_databases(verbosity=0, interactive=False, keepdb=keep, serialized_aliases=())
        try:
            yield
        finally:
            teardown_databases(databases, verbosity=0, keepdb=keep)
