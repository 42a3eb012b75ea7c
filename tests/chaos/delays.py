"""`python -m tests.chaos.delays`: how long it takes until what was lost is noticed, with the default settings.

Each case has a Redis and a SQLite database of its own; all of one way wait side by side, for some minutes. The
figures are in docs/recovery.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore

import django
from redis import Redis

from tests.chaos.servers import RedisOfRun
from tests.processes import ROOT, Record, WorkerProcess, wait_until

PATIENCE = 900

HANGS = "job_of(jobs.sleep, 3000)"
ENDED = "SELECT finished_at FROM django_job_batches_batch WHERE name = 'measured'"
TOTALS = "SELECT final_counts FROM django_job_batches_batch WHERE name = 'measured'"
ITEM_ENDED = "SELECT max(finished_at) FROM django_job_batches_batchjob WHERE role = 'item' AND status = 'succeeded'"

IMPORTS = """
import os, signal, time
import django_rq
from django.db import transaction
from django_job_batches import batch_of, dispatching, job_of, outbox, queues, retrying
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_failures
die = lambda *args, **options: os._exit(9)
"""
TRAFFIC = "while True: batch_of([jobs.succeed], name='traffic').dispatch(); time.sleep(5)"
"""Other batches, after whose jobs a plain worker looks around."""


@dataclass
class Way:
    """Who is there to notice."""

    name: str
    worker: str = "rq.Worker"
    traffic: bool = False
    command: bool = False


WAYS = [
    Way("rq.Worker, other jobs come by", traffic=True),
    Way("BatchWorker, idle", worker="django_job_batches.workers.BatchWorker"),
    Way("rq.Worker, idle, and reconcile_batches --every 30", command=True),
]


class Scene:
    """One Redis, one database, some workers."""

    def __init__(self, way: Way, empty_database: Path) -> None:
        self.way = way
        self.folder = Path(tempfile.mkdtemp(prefix="delay-", dir="/tmp"))
        self.redis = RedisOfRun(self.folder)
        self.redis.start()
        self.record = Record(self.folder / "record")
        self.environment = _environment(self.folder.name) | self.redis.environment
        self.environment["TEST_RECORD"] = str(self.record.path)
        self.database = _database(self.folder.name)
        self.database.parent.mkdir(exist_ok=True)
        shutil.copy(empty_database, self.database)
        self._workers: list[WorkerProcess] = []
        self._others: list[subprocess.Popen[bytes]] = []

    def run(self, code: str) -> None:
        """Run this in a process of its own, which may die of it."""
        subprocess.run(_python(code), cwd=ROOT, env=os.environ | self.environment, check=False)

    def dispatch(self, items: str, before: str = "", streaming: bool = False) -> None:
        call = f"batch_of([{items}], name='measured', allow_failures=True).dispatch()"
        self.run(f"{before}\n{call}" if streaming else f"{before}\nwith transaction.atomic(): {call}")

    def worker(self) -> WorkerProcess:
        log = self.folder / f"worker-{len(self._workers)}.log"
        self._workers.append(WorkerProcess(log, worker_class=self.way.worker, env=self.environment))
        self._workers[-1].wait_until_ready(self.client(), timeout=120)
        return self._workers[-1]

    def worker_at_work(self) -> WorkerProcess:
        """With a job that does not end."""
        worker = self.worker()
        self.dispatch(HANGS)
        wait_until(lambda: self.record.count("sleep begins"), timeout=120)
        return worker

    def client(self) -> Redis:
        return Redis(unix_socket_path=str(self.redis.socket))

    def watch(self) -> None:
        """From now on somebody is there to notice."""
        if self.way.traffic:
            self._start(_python(TRAFFIC))
        if self.way.command:
            self._start([sys.executable, "-m", "django", "reconcile_batches", "--every", "30"])

    def _start(self, command: list[str]) -> None:
        environment = os.environ | self.environment
        self._others.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL))

    def is_so(self, query: str) -> bool:
        connection = sqlite3.connect(self.database, timeout=30)
        try:
            row = connection.execute(query).fetchone()
        finally:
            connection.close()
        return row is not None and row[0] is not None

    def end(self) -> None:
        for process in self._others:
            process.kill()
            process.wait()
        for worker in self._workers:
            worker.end()
        self.redis.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.database.parent, ignore_errors=True)


def _environment(name: str) -> dict[str, str]:
    return {
        "TEST_DATABASE": "sqlite",
        "TEST_DATABASE_NAME": name,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "COVERAGE_PROCESS_CONFIG": "",
    }


def _database(name: str) -> Path:
    """Where tests/settings.py has it."""
    return Path(tempfile.gettempdir()) / name / f"{name}.sqlite3"


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import django; django.setup()\n{IMPORTS}\n{code}"]


# What happens; afterwards the clock runs


def horse_killed(scene: Scene) -> None:
    scene.worker_at_work().kill_horse()


def horse_ends_silently(scene: Scene) -> None:
    scene.worker()
    scene.worker()
    scene.dispatch("job_of(jobs_failures.end_silently)")
    wait_until(lambda: scene.record.count("end_silently"), timeout=120)


def time_limit_ignored(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs_failures.sleep_without_alarm, 3000).options(timeout=1)")
    wait_until(lambda: scene.record.count("sleep_without_alarm"), timeout=120)


def worker_and_horse_killed(scene: Scene) -> None:
    first = scene.worker_at_work()
    scene.worker()
    first.kill_all()


def worker_killed_alone(scene: Scene) -> None:
    first = scene.worker_at_work()
    scene.worker()
    first.kill()


def cold_stop(scene: Scene) -> None:
    first = scene.worker_at_work()
    scene.worker()
    os.kill(first.pid, signal.SIGTERM)
    time.sleep(1.5)
    os.kill(first.pid, signal.SIGTERM)


def popped(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.client().lpop("rq:queue:default")
    scene.worker()


def flushed_while_waiting(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.client().flushall()
    scene.worker()


def flushed_and_killed(scene: Scene) -> None:
    first = scene.worker_at_work()
    first.kill_all()
    scene.client().flushall()
    scene.worker()


def stopped_by_command(scene: Scene) -> None:
    scene.worker_at_work()
    scene.run("job = BatchJob.objects.get(); queues.stop(job.queue_name, job.rq_job_id)")


def cancelled_and_stopped(scene: Scene) -> None:
    scene.worker_at_work()
    scene.run("Batch.objects.get(name='measured').cancel(stop_running=True)")


def cancelled_in_rq(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.run("django_rq.get_queue('default').fetch_job(BatchJob.objects.get().rq_job_id).cancel()")
    scene.worker()


def not_pushed(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.succeed)", before="outbox.flush = die")


def dispatcher_dies(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.succeed)", before="dispatching._Dispatch._enqueue = die", streaming=True)


def retry_dies(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.fail)")
    wait_until(lambda: scene.is_so(TOTALS), timeout=120)
    scene.run("retrying._Rerun._queue = die\nBatch.objects.get(name='measured').retry()")


def sweep_dies(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.succeed).options(queue_name='low')")  # nobody claims it
    scene.run("outbox.sweep = die\nBatch.objects.get(name='measured').cancel()")


def totals_not_written(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("", before="outbox.close_books = die")


def no_scheduler(scene: Scene) -> None:
    scene.worker()
    scene.dispatch(
        "job_of(jobs.succeed).options(run_after=timedelta(seconds=1))", before="from datetime import timedelta"
    )


def redis_away(scene: Scene) -> None:
    scene.redis.stop()
    scene.dispatch("job_of(jobs.succeed)")
    scene.redis.start()
    scene.worker()


def function_removed(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.run("BatchJob.objects.update(func='tests.jobs.no_longer_there')")
    scene.worker()


CASES: list[tuple[str, Callable[[Scene], None], str]] = [
    ("a horse is killed", horse_killed, ENDED),
    ("a horse ends by os._exit(0)", horse_ends_silently, ENDED),
    ("a job that blocks SIGALRM exceeds its time (1 s)", time_limit_ignored, ENDED),
    ("a worker is killed with its horse", worker_and_horse_killed, ENDED),
    ("a worker is killed, its horse goes on for long", worker_killed_alone, ENDED),
    ("a worker is stopped twice", cold_stop, ENDED),
    ("a worker dies between taking a job and starting it", popped, ENDED),
    ("FLUSHALL: a job that waits", flushed_while_waiting, ENDED),
    ("FLUSHALL: a job that ran, and its worker died too", flushed_and_killed, ENDED),
    ("stop in RQ", stopped_by_command, ENDED),
    ("cancel(stop_running=True)", cancelled_and_stopped, ENDED),
    ("cancel() in RQ", cancelled_in_rq, ENDED),
    ("a process dies between a commit and its push", not_pushed, ENDED),
    ("a streaming dispatch dies: the job of its last chunk", dispatcher_dies, ITEM_ENDED),
    ("a streaming dispatch dies: the batch", dispatcher_dies, ENDED),
    ("a retry dies half-way", retry_dies, ENDED),
    ("a process dies between a decision and its sweep", sweep_dies, ENDED),
    ("the totals were not written", totals_not_written, TOTALS),
    ("a delayed job is due, without a scheduler", no_scheduler, ENDED),
    ("Redis is away at a dispatch", redis_away, ENDED),
    ("a function was removed", function_removed, ENDED),
]

_setting_up = Semaphore(2)
"""Many processes that start at once would wait for each other."""


def measure(way: Way, empty_database: Path, happens: Callable[[Scene], None], query: str) -> float | None:
    """Seconds until the query finds something; None if it does not for too long."""
    with _setting_up:
        scene = Scene(way, empty_database)
        happens(scene)
        began = time.monotonic()
        scene.watch()
    try:
        while not scene.is_so(query):
            if time.monotonic() - began > PATIENCE:
                return None
            time.sleep(0.2)
        return time.monotonic() - began
    finally:
        scene.end()


def _empty_database() -> Path:
    path = _database(f"delays-{os.getpid()}")
    path.parent.mkdir()
    os.environ.update(_environment(f"delays-{os.getpid()}"))
    django.setup()
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", "--run-syncdb", verbosity=0)
    connections.close_all()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.delays", description=__doc__)
    parser.add_argument("--way", type=int, choices=range(len(WAYS)), help="only this column of the table")
    options = parser.parse_args()
    empty = _empty_database()
    for way in WAYS if options.way is None else [WAYS[options.way]]:
        print(f"\n{way.name}", flush=True)
        with ThreadPoolExecutor(len(CASES)) as pool:
            all_seconds = pool.map(lambda case, way=way: measure(way, empty, *case[1:]), CASES)
            for (name, _, _), seconds in zip(CASES, all_seconds, strict=True):
                print(
                    f"{name:55} {f'{seconds:.0f} s' if seconds is not None else f'not within {PATIENCE} s'}", flush=True
                )
    shutil.rmtree(empty.parent)


if __name__ == "__main__":
    main()
