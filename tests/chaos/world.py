"""Everything at work: servers, workers and the dispatcher, which are started again when they have died."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from redis import Redis

from tests.chaos.faults import FAULTS
from tests.chaos.servers import DatabaseServer, RedisOfRun
from tests.processes import ROOT, Record, WorkerProcess

CLASSES = ("QuickWorker", "QuickBatchWorker", "QuickSimpleWorker", "QuickSimpleWorker")
TICK = 0.05


class World:
    """The processes of a run; `environment` is what they all get."""

    def __init__(self, folder: Path, redis: RedisOfRun, database: DatabaseServer | None, environment: dict[str, str]):
        self.folder = folder
        self.redis = redis
        self.database = database
        self.environment = environment
        self.workers: list[WorkerProcess] = []
        self.faults: Counter[str] = Counter()
        self.started: Counter[str] = Counter()
        self._dispatcher: subprocess.Popen[bytes] | None = None
        self._later: list[tuple[float, Callable[[], None]]] = []

    @property
    def dispatcher_pid(self) -> int:
        running = self._dispatcher is not None and self._dispatcher.poll() is None
        return self._dispatcher.pid if running and self._dispatcher else 0

    @property
    def has_dispatched(self) -> bool:
        return Path(self.environment["CHAOS_DISPATCHED"]).exists()

    def redis_client(self) -> Redis:
        return Redis(unix_socket_path=str(self.redis.socket), socket_timeout=5)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    def tick(self, seed: str, jobs: int) -> None:
        """Start what is missing, do what is due."""
        for number, kind in enumerate(CLASSES):
            if number >= len(self.workers):
                self.workers.append(self._a_worker(kind))
            elif not self.workers[number].is_alive:
                self.workers[number] = self._a_worker(kind)
        if not self.has_dispatched and not self.dispatcher_pid:
            self._dispatcher = self._a_dispatcher(f"{seed}-{self.started['dispatcher']}", jobs)
        now = time.monotonic()
        due = [action for at, action in self._later if at <= now]
        self._later = [(at, action) for at, action in self._later if at > now]
        for action in due:
            action()
        time.sleep(TICK)

    def _a_worker(self, kind: str) -> WorkerProcess:
        self.started["worker"] += 1
        log = self.folder / f"worker-{self.started['worker']}.log"
        environment = {**self.environment, "COVERAGE_PROCESS_CONFIG": ""}
        kind = f"tests.chaos.workers.{kind}"
        return WorkerProcess(log, worker_class=kind, queues=("default", "high"), scheduler=True, env=environment)

    def _a_dispatcher(self, seed: str, jobs: int) -> subprocess.Popen[bytes]:
        self.started["dispatcher"] += 1
        with (self.folder / "dispatcher.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.dispatcher", seed, str(jobs)],
                cwd=ROOT, env={**os.environ, **self.environment}, stdout=log, stderr=log,
            )  # fmt: skip

    def strike(self, rng: random.Random) -> None:
        """One fault of a random kind."""
        weights = [weight for weight, _ in FAULTS]
        fault = rng.choices([fault for _, fault in FAULTS], weights)[0]
        if fault(self, rng):
            self.faults[fault.__name__.replace("_", " ")] += 1

    def aimed(self) -> Counter[str]:
        """How often a process has killed itself at which point."""
        return Counter(Record(Path(self.environment["CHAOS_FAULTS"])).lines())

    def number_of_faults(self) -> int:
        return self.faults.total() + self.aimed().total()

    def cut_database_connections(self) -> bool:
        from django.db import DatabaseError, connection

        with suppress(DatabaseError), connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                    "AND datname = current_database() AND random() < 0.7"
                )
                return cursor.rowcount > 0
            if connection.vendor == "mysql":
                cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db <> ''")
                ids = [row[0] for row in cursor.fetchall()]
                for number in ids:
                    with suppress(DatabaseError):  # it has just ended
                        cursor.execute(f"KILL {number:d}")
                return bool(ids)
        connection.close()
        return False

    def calm_down(self) -> None:
        """No more faults: what was frozen goes on, and no process that is started from now on kills itself."""
        for _, action in self._later:
            action()
        self._later = []
        self.environment = {**self.environment, "CHAOS_RATE": "0"}
        for worker in self.workers:
            worker.kill_all()
        for key in self.redis_client().scan_iter("rq:clean_registries:*"):
            self.redis_client().delete(key)  # RQ's own lock of a worker that was killed lasts for 15 minutes

    def end(self) -> None:
        for _, action in self._later:
            action()
        if self._dispatcher is not None:
            self._dispatcher.kill()
            self._dispatcher.wait()
        for worker in self.workers:
            worker.end()
