"""One Redis, one database, some workers: where something happens, and is noticed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from typing import Any

from redis import Redis

from tests.chaos.servers import PostgreSQL, RedisOfRun
from tests.processes import ROOT, Record, WorkerProcess, wait_until

DIED = 9
IMPORTS = f"""
import os, signal, time
from datetime import timedelta
import django_rq
from django.db import transaction
from django_job_batches import batch_of, dispatching, job_of, outbox, retrying
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_failures
from tests.chaos.delay_scene import press
die = lambda *args, **options: os._exit({DIED})
"""
TRAFFIC = "while True: batch_of([jobs.succeed], name='traffic').dispatch(); time.sleep(5)"
"""Other batches, after whose jobs a plain worker looks around."""
SAYS = """
SELECT job.status, job.error_class, job.error_message
FROM django_job_batches_batchjob job JOIN django_job_batches_batch batch ON job.batch_id = batch.id
WHERE batch.name = 'measured' ORDER BY job.id
"""

_setting_up = Semaphore(2)
"""Many processes that start at once would wait for each other."""


@dataclass
class Way:
    """Who is there to notice."""

    name: str
    worker: str = "rq.Worker"
    traffic: bool = False
    command: bool = False


class Scene:
    """What is `noted` here, a case remembers until it is noticed."""

    noted = ""

    def __init__(self, way: Way, empty_database: Path) -> None:
        self.way = way
        self.folder = Path(tempfile.mkdtemp(prefix="delay-", dir="/tmp"))
        self.redis = RedisOfRun(self.folder)
        self.record = Record(self.folder / "record")
        self.environment = environment_of(self.folder.name) | self.redis.environment
        self.environment["TEST_RECORD"] = str(self.record.path)
        self.database = database_of(self.folder.name)
        self.empty_database = empty_database
        self.server: Any = None
        self.workers: list[WorkerProcess] = []
        self._others: list[subprocess.Popen[bytes]] = []
        self._turn = ExitStack()

    def open(self, *, has_server: bool) -> None:
        """On SQLite, or on a PostgreSQL server of its own, which can go away."""
        self.redis.start()
        if has_server:
            self._start_server()
        else:
            self.database.parent.mkdir(exist_ok=True)
            shutil.copy(self.empty_database, self.database)

    def _start_server(self) -> None:
        self.server = PostgreSQL(self.folder)
        self.server.start()
        self.environment |= {"TEST_DATABASE": "postgresql", **self.server.environment}
        self.run("from tests.chaos.report import make_database; make_database()")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While it is set up, few others are."""
        with self._turn:
            self._turn.enter_context(_setting_up)
            yield

    def let_others_begin(self) -> None:
        """What comes now takes long, and starts no processes."""
        self._turn.close()

    # What is done here

    def run(self, code: str) -> None:
        """Run this in a process of its own, which may die of it."""
        done = subprocess.run(_python(code), cwd=ROOT, env=os.environ | self.environment, check=False)
        if done.returncode not in (0, DIED):
            raise RuntimeError(f"{code!r} has failed")

    def dispatch(self, items: str, *, before: str = "", streaming: bool = False, options: str = "") -> None:
        call = f"batch_of([{items}], name='measured', allow_failures=True, {options}).dispatch()"
        self.run(f"{before}\n{call}" if streaming else f"{before}\nwith transaction.atomic(): {call}")

    def press(self, button: str, *, on_job: bool = True) -> None:
        """On django-rq's page of the only job, or else of its queue."""
        job = "BatchJob.objects.get().rq_job_id" if on_job else ""
        self.run(f"press({button!r}, {job})")

    def worker(self, worker_class: str = "") -> WorkerProcess:
        log = self.folder / f"worker-{len(self.workers)}.log"
        kind = worker_class or self.way.worker
        self.workers.append(WorkerProcess(log, worker_class=kind, env=self.environment))
        self.workers[-1].wait_until_ready(self.client(), timeout=120)
        return self.workers[-1]

    def worker_at_work(self, seconds: int = 3000, worker_class: str = "") -> WorkerProcess:
        """With a job that does not end, or not before so many seconds."""
        worker = self.worker(worker_class)
        self.dispatch(f"job_of(jobs.sleep, {seconds})")
        self.wait_for("sleep begins")
        return worker

    def watch(self) -> None:
        """From now on somebody is there to notice."""
        if self._others:
            return
        if self.way.traffic:
            self._start(_python(TRAFFIC))
        if self.way.command:
            self._start([sys.executable, "-m", "django", "reconcile_batches", "--every", "30"])

    def _start(self, command: list[str]) -> None:
        environment = os.environ | self.environment
        self._others.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL))

    # What is seen here

    def wait_for(self, line: str, timeout: float = 200) -> None:
        """Until a job has written a line that begins so."""
        wait_until(lambda: self.record.count(line), timeout, f"{line!r} is in the record")

    def client(self) -> Redis:
        return Redis(unix_socket_path=str(self.redis.socket))

    def rq_job_id(self) -> str:
        """Of the only job; from Redis, for the database may be away."""
        [key] = self.client().keys("rq:job:*")
        return str(key.decode().removeprefix("rq:job:"))

    def rq_status(self) -> str:
        return (self.client().hget(f"rq:job:{self.rq_job_id()}", "status") or b"").decode()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = self._connection()
        try:
            return list(connection.execute(query).fetchall())
        finally:
            connection.close()

    def _connection(self) -> Any:
        if self.server is None:
            return sqlite3.connect(self.database, timeout=30)
        import psycopg

        return psycopg.connect(host="127.0.0.1", port=self.server.port, user="chaos", dbname=self.folder.name)

    def says(self) -> str:
        """What the rows say."""
        return "; ".join(", ".join(filter(None, row)) for row in self.rows(SAYS))

    def end(self) -> None:
        for process in self._others:
            process.kill()
            process.wait()
        for worker in self.workers:
            worker.end()
        self.redis.stop()
        if self.server is not None and self.server.answers():
            self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.database.parent, ignore_errors=True)


def environment_of(name: str) -> dict[str, str]:
    return {
        "TEST_DATABASE": "sqlite",
        "TEST_DATABASE_NAME": name,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "COVERAGE_PROCESS_CONFIG": "",
    }


def database_of(name: str) -> Path:
    """Where tests/settings.py has it."""
    return Path(tempfile.gettempdir()) / name / f"{name}.sqlite3"


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import django; django.setup()\n{IMPORTS}\n{code}"]


def press(button: str, *rq_job_ids: str) -> None:
    """Press a button on django-rq's pages, in this process."""
    from django.contrib.auth.models import User
    from django.test import Client
    from django.test.utils import setup_test_environment
    from django.urls import reverse
    from django_rq.settings import get_queues_map

    setup_test_environment()
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    address = reverse(f"admin:django_rq_{button}", args=[get_queues_map()["default"], *rq_job_ids])
    assert client.post(address, {"post": "yes"}).status_code == 302
