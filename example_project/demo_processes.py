"""The processes that the demo starts, watches and stops again."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

MANAGE = Path(__file__).with_name("manage.py")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 5  # seconds that a process has to follow a signal
TAIL = 15  # lines
# What Django's runserver says.
LISTENING = re.compile(r"^Starting (?:\w+ )?development server at (http://[0-9.:]+)/$", re.MULTILINE)
PORT_TAKEN = "That port is already in use."


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Interrupted(BaseException):
    """Somebody wants the demo to stop: Ctrl-C, SIGTERM, or the end of the terminal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


@dataclass(frozen=True)
class Process:
    """A running process, and the file that it logs to."""

    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path

    @property
    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    def send(self, signal_number: int) -> None:
        if not self.has_ended:
            self.popen.send_signal(signal_number)

    def wait(self, until: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(max(0.0, until - time.monotonic()))

    def tail(self) -> str:
        """Return the last lines of the log, under its name."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL:]
        return "\n".join([f"--- {self.name}: the end of {self.log}", *lines])


class Processes:
    """A context manager that stops, when it is left, what was started in it."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self._running: list[Process] = []

    def __enter__(self) -> "Processes":
        self.log_dir.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *exception: object) -> None:
        with signals_held_back():
            self.stop()

    def start_manage(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start ``manage.py`` with these arguments, and keep what it writes as ``<name>.log``."""
        command = [sys.executable, str(MANAGE), *arguments]
        log = self.log_dir / f"{name}.log"
        with signals_held_back(), log.open("wb") as file:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
                start_new_session=True,  # a Ctrl-C reaches the demo alone, which then stops them in order
            )
            process = Process(name, popen, log)
            self._running.append(process)
        return process

    def start_web(self, port: int, give_up_at: float) -> str:
        """Start Django's web server on this port of 127.0.0.1, or on a free one if that is taken; 0 means any.

        Returns its address once it listens there, by its own word: somebody else might answer on the wanted port.
        """
        web = self.start_manage("web", "runserver", "--noreload", f"127.0.0.1:{port}")
        while True:
            had_ended, log = web.has_ended, web.log.read_text(errors="replace")
            if listening := LISTENING.search(log):
                return listening[1]
            if PORT_TAKEN in log and port:
                web.wait(give_up_at)
                self._running.remove(web)
                return self.start_web(0, give_up_at)
            if had_ended or time.monotonic() > give_up_at:
                message = "The web server did not start." if had_ended else "Waited too long for the web server."
                raise DemoError(message)
            time.sleep(0.1)

    def check(self) -> None:
        """Raise ``DemoError`` if one of them has ended by itself."""
        for process in self._running:
            if process.has_ended:
                message = f"{process.name} has ended by itself with code {process.popen.returncode}."
                raise DemoError(message)

    def wait_until(self, condition: Callable[[], bool], what: str, give_up_at: float) -> None:
        """Wait for it; ``DemoError`` at that moment of the monotonic clock, or if a process ends."""
        while not condition():
            self.check()
            if time.monotonic() > give_up_at:
                message = f"Waited too long for {what}."
                raise DemoError(message)
            time.sleep(0.1)

    def tails(self) -> str:
        """Return the last lines of each log."""
        return "\n".join(process.tail() for process in self._running)

    def stop(self) -> None:
        """Ask them to end; then tell workers to drop their jobs; then kill what is left."""
        for signal_number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            alive = [process for process in self._running if not process.has_ended]
            victims = [pid for process in alive for pid in _children(process.popen.pid)]
            for process in alive:
                process.send(signal_number)
            if signal_number == signal.SIGKILL:
                _kill(victims)
            until = time.monotonic() + PATIENCE
            for process in alive:
                process.wait(until)
        self._running.clear()


@contextmanager
def stop_signals_raise() -> Iterator[None]:
    """Let each signal that asks to stop raise ``Interrupted``, until the block is left."""

    def handler(signal_number: int, frame: FrameType | None) -> None:
        raise Interrupted(signal_number)

    with _handled_by(handler):
        yield


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Hold back the signals that ask to stop while something must not be left half-done."""
    held: list[int] = []
    with _handled_by(lambda signal_number, frame: held.append(signal_number)):
        yield
    if held:
        os.kill(os.getpid(), held[0])


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {signal_number: signal.signal(signal_number, handler) for signal_number in STOP_SIGNALS}
    try:
        yield
    finally:
        for signal_number, old in before.items():
            signal.signal(signal_number, old)


def _children(pid: int) -> list[int]:
    """The children of a process, on Linux: a worker's horse has a process group of its own."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it may have ended with its parent
            os.kill(pid, signal.SIGKILL)
