"""Real workers for the tests: `manage.py rqworker` in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis

PROC = Path("/proc")
ROOT = Path(__file__).resolve().parent.parent
Value = TypeVar("Value")

# Seconds that a test waits for what takes one or two on a quiet machine: so many that a busy one does not matter, and
# less than the 90 after which RQ's own maintenance brings a lost job back, so that no test passes because of that.
PATIENCE = 60
BATCH_WORKER = "django_job_batches.workers.BatchWorker"


def wait_until(
    predicate: Callable[[], Value], timeout: float = PATIENCE, message: str = "", interval: float = 0.02
) -> Value:
    """Call the predicate until it returns something true, and return that.

    `timeout` and `interval` are seconds. Raises TimeoutError, with `message`, past the time-out.
    """
    give_up_at = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > give_up_at:
            what = message or getattr(predicate, "__name__", "the condition")
            raise TimeoutError(f"After {timeout} seconds still not: {what}")
        time.sleep(interval)
    return value


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended (a zombie has)."""
    return _processes().get(pid, "Z") != "Z"


def _processes() -> dict[int, str]:
    """The state of each process, as one letter; from `ps` where there is no /proc."""
    if not PROC.exists():
        listing = subprocess.run(["ps", "-axo", "pid=,stat="], capture_output=True, text=True, check=True)
        return {int(pid): state[0] for pid, state in map(str.split, listing.stdout.splitlines())}
    states = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            states[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    return states


class WorkerProcess:
    """A running `rqworker`, which leads a session of its own: its horses and scheduler are found by that."""

    def __init__(
        self,
        log: Path,
        *,
        queues: Sequence[str] = ("default",),
        simple: bool = False,
        burst: bool = False,
        scheduler: bool = False,
        worker_class: str = "",
        env: dict[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.name = f"test-{uuid.uuid4().hex}"
        self._log = log
        kind = worker_class or ("rq.SimpleWorker" if simple else "rq.Worker")
        flags = ["--burst"] * burst + ["--with-scheduler"] * scheduler
        arguments = ["rqworker", *queues, "--name", self.name, "--worker-class", kind, *flags, *options]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "django", *arguments],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                    "PYTHONUNBUFFERED": "1",
                    **(env or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of the worker itself."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker itself still runs."""
        return self._process.poll() is None

    def wait_until_ready(self, redis: Redis, timeout: float = PATIENCE) -> None:
        """Wait until the worker has registered itself, or (a burst worker with little to do) has ended."""

        def is_ready() -> bool:
            return bool(redis.exists(f"rq:worker:{self.name}")) or not self.is_alive

        wait_until(is_ready, timeout, f"worker registered\n{self.output()}")
        if self._process.poll():
            raise AssertionError(f"The worker did not start:\n{self.output()}")

    def horse_pid(self, timeout: float = PATIENCE) -> int:
        """Wait for a horse (the process that runs one job) and return its process id."""

        def find_horse() -> int:
            return next(iter(self.horses()), 0)

        return wait_until(find_horse, timeout, "a horse runs")

    def kill(self) -> None:
        """Kill the worker alone, by SIGKILL; a horse of its goes on."""
        self._process.kill()
        self._process.wait()

    def kill_horse(self, timeout: float = PATIENCE) -> int:
        """Kill the horse alone, by SIGKILL, and return what its process id was."""
        pid = self.horse_pid(timeout)
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_all(self) -> None:
        """Kill the worker, its horse and its scheduler, by SIGKILL, as if the machine had gone."""
        self.kill()
        for pid in self._session():
            _kill(pid)

    def stop(self, timeout: float = PATIENCE) -> int:
        """Ask the worker to end after its current job (SIGTERM), and return its exit code."""
        if self.is_alive:
            self._process.terminate()
        return self.wait(timeout)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait until the worker has ended by itself, and return its exit code. Raises TimeoutError."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            message = f"Worker {self.pid} still runs after {timeout} seconds:\n{self.output()}"
            raise TimeoutError(message) from None

    def end(self) -> None:
        """End all of this worker, horses that outlived it too: gently if it is idle, else by SIGKILL."""
        if self.is_alive:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        self.kill_all()

    def output(self) -> str:
        """What the worker and its horses have written so far."""
        return self._log.read_text(errors="replace")

    def horses(self) -> list[int]:
        """The process ids of the horses that run now."""
        return [pid for pid in self._session() if pid != self.pid and _leads_its_group(pid)]

    def _session(self) -> list[int]:
        return [pid for pid in _processes() if _session_of(pid) == self.pid]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _leads_its_group(pid: int) -> bool:
    """RQ puts each horse into a process group of its own; the scheduler stays in the worker's."""
    try:
        return os.getpgid(pid) == pid
    except OSError:
        return False


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Record:
    """An append-only file in which job bodies write one line per execution, in whatever process they run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        """All lines, in the order in which they were written."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, prefix: str = "") -> int:
        """How many lines begin so."""
        return sum(line.startswith(prefix) for line in self.lines())

    def clear(self) -> None:
        """Forget all lines."""
        self.path.unlink(missing_ok=True)

    def write(self, line: Any) -> None:
        """Append one line, in one write, so that lines of several processes never mix."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
