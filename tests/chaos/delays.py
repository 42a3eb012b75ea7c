"""`python -m tests.chaos.delays`: how long it takes until what was lost is noticed, with the default settings.

Each case has a Redis and a SQLite database of its own; all of them wait side by side, for some minutes. The figures
are in docs/recovery.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from redis import Redis

from tests.chaos.servers import RedisOfRun
from tests.processes import ROOT, Record, WorkerProcess, wait_until

PLAIN, BATCH = "rq.Worker", "django_job_batches.workers.BatchWorker"
PATIENCE = 900

DISPATCH = """
import os
from contextlib import nullcontext
from django.db import transaction
from django_job_batches import batch_of, dispatching, job_of, outbox
from tests import jobs, jobs_failures
{before}
with {inside}:
    batch_of([{items}], allow_failures=True).dispatch()
"""
MIGRATE = """
from django.core.management import call_command
call_command("migrate", "--run-syncdb", verbosity=0)
"""
ENDED = """
import sys
from django_job_batches.models import Batch
sys.exit(0 if Batch.objects.finished().exists() else 1)
"""
HANG = "job_of(jobs.sleep, 3000)"


class Case:
    """One Redis, one database, some workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.redis = RedisOfRun(folder)
        self.redis.start()
        self.record = Record(folder / "record")
        self.environment = {
            **self.redis.environment,
            "TEST_DATABASE": "sqlite",
            "TEST_DATABASE_NAME": folder.name,
            "TEST_RECORD": str(self.record.path),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "COVERAGE_PROCESS_CONFIG": "",
        }
        self.workers: list[WorkerProcess] = []
        self.run(
            "from django.core.management import call_command; call_command('migrate', '--run-syncdb', verbosity=0)"
        )

    def run(self, code: str) -> int:
        script = f"import django; django.setup()\n{code}"
        environment = {**os.environ, **self.environment}
        return subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=False).returncode

    def dispatch(self, items: str, before: str = "", inside: str = "transaction.atomic()") -> None:
        self.run(DISPATCH.format(items=items, before=before, inside=inside))

    def worker(self, kind: str) -> WorkerProcess:
        log = self.folder / f"worker-{len(self.workers)}.log"
        self.workers.append(WorkerProcess(log, worker_class=kind, env=self.environment))
        self.workers[-1].wait_until_ready(self.client(), timeout=120)
        return self.workers[-1]

    def client(self) -> Redis:
        return Redis(unix_socket_path=str(self.redis.socket))

    def hangs(self) -> None:
        wait_until(lambda: self.record.count("sleep begins"), timeout=120)

    def reconcile(self) -> None:
        """The command, as a service."""
        command = [sys.executable, "-m", "django", "reconcile_batches", "--every", "30"]
        self.service = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **self.environment}, stdout=subprocess.DEVNULL
        )

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        with suppress(AttributeError):
            self.service.kill()
            self.service.wait()
        self.redis.stop()


def killed_horse(case: Case, kind: str) -> float:
    case.worker(kind)
    case.dispatch(HANG)
    case.hangs()
    case.workers[0].kill_horse()
    return time.monotonic()


def silent_horse(case: Case, kind: str) -> float:
    case.worker(kind)
    case.worker(kind)
    case.dispatch("job_of(jobs_failures.end_silently)")
    wait_until(lambda: case.record.count("end_silently"), timeout=120)
    return time.monotonic()


def killed_worker(case: Case, kind: str) -> float:
    first = case.worker(kind)
    case.dispatch(HANG)
    case.hangs()
    case.worker(kind)
    first.kill_all()
    return time.monotonic()


def cold_stop(case: Case, kind: str) -> float:
    first = case.worker(kind)
    case.dispatch(HANG)
    case.hangs()
    case.worker(kind)
    os.kill(first.pid, signal.SIGTERM)
    time.sleep(1.5)
    os.kill(first.pid, signal.SIGTERM)
    return time.monotonic()


def popped(case: Case, kind: str) -> float:
    case.dispatch("job_of(jobs.succeed)")
    case.client().delete("rq:queue:default")
    case.worker(kind)
    return time.monotonic()


def flushed(case: Case, kind: str) -> float:
    case.dispatch("job_of(jobs.succeed)")
    case.client().flushall()
    case.worker(kind)
    return time.monotonic()


def not_pushed(case: Case, kind: str) -> float:
    case.worker(kind)
    case.dispatch("job_of(jobs.succeed)", before="outbox.flush = lambda *args, **options: os._exit(9)")
    return time.monotonic()


def dead_dispatcher(case: Case, kind: str) -> float:
    case.worker(kind)
    die = (
        "import os\nfrom django_job_batches import dispatching\ndispatching._Dispatch._enqueue = lambda *a: os._exit(9)"
    )
    case.dispatch("job_of(jobs.succeed)", before=die)
    return time.monotonic()


CASES: dict[str, Callable[[Case, str], float]] = {
    "a horse is killed": killed_horse,
    "a horse ends by os._exit(0)": silent_horse,
    "a worker is killed with its horse, another is idle": killed_worker,
    "a worker is stopped cold, another is idle": cold_stop,
    "a worker dies between taking a job and starting it": popped,
    "FLUSHALL, of a job that waits": flushed,
    "a process dies between a commit and its push": not_pushed,
    "a dispatcher dies half-way": dead_dispatcher,
}
WAYS = {"rq.Worker": (PLAIN, False), "BatchWorker": (BATCH, False), "rq.Worker, and the command": (PLAIN, True)}


def measure(name: str, way: str) -> float | None:
    kind, with_command = WAYS[way]
    folder = Path(tempfile.mkdtemp(prefix="delay-", dir="/tmp"))
    case = Case(folder)
    try:
        began = CASES[name](case, kind)
        if with_command:
            case.reconcile()
        while time.monotonic() - began < PATIENCE:
            if case.run(ENDED) == 0:
                return time.monotonic() - began
            time.sleep(1)
        return None
    finally:
        case.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.delays", description=__doc__)
    parser.add_argument("--way", action="append", choices=WAYS)
    options = parser.parse_args()
    pairs = [(name, way) for name in CASES for way in options.way or WAYS]
    with ThreadPoolExecutor(len(pairs)) as pool:
        seconds = dict(zip(pairs, pool.map(lambda pair: measure(*pair), pairs), strict=True))
    for (name, way), value in seconds.items():
        print(f"{name:55} {way:30} {'not within ' + str(PATIENCE) if value is None else f'{value:.0f}'} s")


if __name__ == "__main__":
    main()
