from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.db import connection, connections

from tests.concurrency import bodies, servers
from tests.concurrency.crew import Crew, take_over


@pytest.fixture
def isolation(request: pytest.FixtureRequest, live_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """New connections, this thread's too, have the level that the test names by `parametrize(…, indirect=True)`."""
    level = request.param
    if connection.vendor == "sqlite":
        yield level
        return
    value: Any = level
    if connection.vendor == "postgresql":
        from psycopg import IsolationLevel

        value = IsolationLevel[level.upper().replace(" ", "_")]
    connection.close()
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "isolation_level", value)
    yield level
    connection.close()


@pytest.fixture
def hire(live_db: None, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Callable[..., AbstractContextManager[Crew]]:
    """`with hire(16, jitter=0.2) as crew:` the crew does the work of Redis and of the workers in the block."""
    settings.JOB_BATCHES = {"TIMEOUT": -1, "CHUNK_SIZE": 100, "DEADLOCK_RETRIES": 12, "LOST_AFTER": 3600}

    @contextmanager
    def hired(size: int, *, jitter: float = 0.0) -> Iterator[Crew]:
        bodies.executions.clear()
        with monkeypatch.context() as patches, Crew(size, jitter=jitter) as crew:
            take_over(patches, crew)
            yield crew

    return hired


@pytest.fixture
def no_deadlock(live_db: None) -> Callable[[], AbstractContextManager[None]]:
    """`with no_deadlock():` the server counts none in the block. MariaDB counts for all of its databases: there, one
    that was elsewhere is passed over."""

    @contextmanager
    def watched() -> Iterator[None]:
        before = servers.deadlocks()
        yield
        number = servers.deadlocks() - before
        assert not number or not servers.latest_deadlock(), f"{number} deadlocks: {servers.latest_deadlock()}"

    return watched
