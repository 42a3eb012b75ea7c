"""The fixtures of the tests.

==================  =======================================================================================
`live_db`           real transactions in both databases, `default` and `other`, visible to other processes
`workers(...)`      starts real `rqworker` processes; returns a list of `WorkerProcess` (tests/processes.py)
`drain(...)`        runs burst workers until the queues are empty; returns what they logged
`record`            what job bodies have written, one line per execution: `.lines()`, `.count(prefix)`
`redis`             a client of the private Redis, which is empty at the start of each test
`redis_down()`      `with redis_down():` there is no Redis (afterwards an empty one)
`wait_until(...)`   `wait_until(predicate, timeout=PATIENCE, message="")`: what the predicate returned at last
==================  =======================================================================================

`workers` and `drain` bring `live_db` and `record` with them. A test or module for certain databases says
`pytestmark = pytest.mark.vendors("postgresql", "mariadb")`; on others it is deselected, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from redis import Redis

from example_project.redis_server import RedisServer
from tests import processes
from tests.processes import Record, WorkerProcess
from tests.services import DATABASES


def pytest_report_header() -> str:
    isolation = "" if settings.TEST_DATABASE == "sqlite" else f", {settings.ISOLATION}"
    return f"database: {settings.TEST_DATABASE}{isolation}, named {settings.DATABASE_NAME}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for other databases, and give tests with `live_db` the marker that it stands for."""
    left_out = [item for item in items if not _is_for_this_database(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        if "live_db" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.django_db(transaction=True, databases=["default", "other"]))


def _is_for_this_database(item: pytest.Item) -> bool:
    markers = list(item.iter_markers("vendors"))
    if any(name not in DATABASES for marker in markers for name in marker.args):
        raise pytest.UsageError(f"{item.nodeid}: `vendors` takes names out of {', '.join(DATABASES)}.")
    return all(settings.TEST_DATABASE in marker.args for marker in markers)


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """The test database keeps its name (workers look for it), and nothing of an older SQLite file is left."""
    if settings.TEST_DATABASE == "sqlite":
        for leftover in (processes.ROOT / settings.DATABASES["default"]["NAME"]).parent.glob("*.sqlite3*"):
            leftover.unlink()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer | None]:
    """The private Redis of this run; None if TEST_REDIS_SOCKET named one that runs already."""
    server = RedisServer(Path(settings.REDIS_SOCKET).parent)
    if server.answers():
        yield None
        return
    with server:
        yield server


@pytest.fixture(autouse=True)
def redis(redis_server: RedisServer | None) -> Iterator[Redis]:
    """A client of the private Redis, emptied before each test."""
    with Redis(unix_socket_path=settings.REDIS_SOCKET) as client:
        client.flushall()
        yield client


@pytest.fixture
def redis_down(redis_server: RedisServer | None) -> Callable[[], AbstractContextManager[None]]:
    """`with redis_down():` nothing answers on Redis' socket; afterwards an empty Redis does."""
    if redis_server is None:
        pytest.fail("redis_down needs the tests' own Redis: unset TEST_REDIS_SOCKET.")

    @contextmanager
    def down() -> Iterator[None]:
        redis_server.stop()
        try:
            yield
        finally:
            redis_server.start()

    return down


@pytest.fixture
def live_db() -> None:
    """Both databases with real commits, which other processes see; emptied after the test (see `flush`)."""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """What the job bodies in tests/jobs.py wrote, in this process or in any worker started by the test."""
    path = tmp_path / "record"
    monkeypatch.setenv("TEST_RECORD", str(path))
    return Record(path)


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """`wait_until(predicate, timeout=PATIENCE, message="", interval=0.02)`, as in tests/processes.py."""
    return processes.wait_until


@pytest.fixture
def workers(
    live_db: None, record: Record, redis: Redis, tmp_path: Path
) -> Iterator[Callable[..., list[WorkerProcess]]]:
    """`workers(count=1, *, simple=False, queues=("default",), burst=False, scheduler=False, env=None)`.

    Starts that many `rqworker` processes and returns them, as a list of WorkerProcess, when all are ready.
    Also taken: `worker_class` (a dotted path) and `options` (more arguments of rqworker, such as
    `("--max-jobs", "1")`). `env={"COVERAGE_PROCESS_CONFIG": ""}` leaves them out of the coverage, which costs some
    15 ms per horse. All of them, and horses that outlived them, are ended when the test ends.
    """
    started: list[WorkerProcess] = []

    def start(count: int = 1, **options: Any) -> list[WorkerProcess]:
        new = [WorkerProcess(tmp_path / f"worker-{len(started) + number}.log", **options) for number in range(count)]
        started.extend(new)
        for worker in new:
            worker.wait_until_ready(redis)
        return new

    yield start
    for worker in started:
        worker.end()


@pytest.fixture
def drain(workers: Callable[..., list[WorkerProcess]], redis: Redis) -> Callable[..., str]:
    """`drain(*, simple=False, queues=("default",), scheduler=False, env=None, count=1, timeout=60)`.

    Runs burst workers until the queues are empty, and returns what they logged. Work that is scheduled for
    later stays, and so does what a lost worker left behind. An AssertionError says that a worker has failed,
    a TimeoutError that it did not end in `timeout` seconds.
    """

    def run(*, queues: Sequence[str] = ("default",), timeout: float = 60, **options: Any) -> str:
        output = ""
        while True:
            burst = workers(queues=queues, burst=True, **options)
            exit_codes = [worker.wait(timeout) for worker in burst]
            output += "".join(worker.output() for worker in burst)
            assert not any(exit_codes), output
            if not any(redis.llen(f"rq:queue:{name}") for name in queues):
                return output

    return run
