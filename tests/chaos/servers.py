"""Servers of one run, in a folder of their own: they are killed, emptied and restarted."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from example_project.redis_server import INSTALL_HINT, find_redis_server
from tests.processes import wait_until


class MissingServerError(RuntimeError):
    """There is no such server on this machine; the message says how to get it."""


def free_port() -> int:
    """Below the ports that the system gives to clients: while the server is down, somebody could get its very port,
    even by trying to connect to it."""
    while True:
        port = random.randint(20_000, 30_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Server(ABC):
    """A server process; `environment` is what `tests.settings` needs to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = self.folder / f"{type(self).__name__}.log"
        with path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(lambda: self.answers() or self._process.poll() is not None, 60, f"{path.stem} answers; see {path}")
        if self._process.poll() is not None:
            raise RuntimeError(f"{path.stem} has ended:\n{path.read_text(errors='replace')[-2000:]}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def answers(self) -> bool: ...


class RedisOfRun(Server):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.socket = folder / "redis.sock"
        self.environment = {"TEST_REDIS_SOCKET": str(self.socket)}

    def command(self) -> list[str]:
        binary = find_redis_server()
        if binary is None:
            raise MissingServerError(INSTALL_HINT)
        options = ["--port", "0", "--dir", str(self.folder), "--unixsocket", str(self.socket)]
        return [str(binary), *options, "--save", "", "--appendonly", "yes", "--appendfsync", "always"]

    def answers(self) -> bool:
        with Redis(unix_socket_path=str(self.socket), socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False

    def forget(self) -> None:
        """Between two starts: what was on disk is gone."""
        for name in self.folder.glob("appendonly*"):
            shutil.rmtree(name) if name.is_dir() else name.unlink()


class DatabaseServer(Server):
    """A database server of this run's own, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.data = folder / "data"

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return self.is_ready()
        return False

    def is_ready(self) -> bool:
        return True


class PostgreSQL(DatabaseServer):
    """Its programs refuse to be run by root: the user `postgres` runs them then."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment = {"POSTGRES_HOST": "127.0.0.1", "POSTGRES_PORT": str(self.port), "POSTGRES_USER": "chaos"}
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self._bin = _newest("/usr/lib/postgresql/*/bin/postgres", "postgres", "apt install postgresql").parent
        if self._as:
            shutil.chown(folder, "postgres")
        make = [str(self._bin / "initdb"), "-D", str(self.data), "-U", "chaos", "-A", "trust", "--no-sync"]
        subprocess.run([*self._as, *make], check=True, stdout=subprocess.DEVNULL)

    def command(self) -> list[str]:
        options = ["-c", "max_connections=200", "-c", "unix_socket_directories=", "-c", "listen_addresses=127.0.0.1"]
        return [*self._as, str(self._bin / "postgres"), "-D", str(self.data), "-p", str(self.port), *options]

    def stop(self, number: int = signal.SIGTERM) -> None:
        """SIGTERM stands for "fast", SIGKILL for "immediate", which leaves the data as a crash does."""
        mode = "immediate" if number == signal.SIGKILL else "fast"
        command = [*self._as, str(self._bin / "pg_ctl"), "-D", str(self.data), "-m", mode, "-w", "stop"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if self._process is not None:
            self._process.wait(60)

    def is_ready(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError):
            psycopg.connect(host="127.0.0.1", port=self.port, user="chaos", dbname="postgres").close()
            return True
        return False


class MariaDB(DatabaseServer):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment = {"MYSQL_HOST": "127.0.0.1", "MYSQL_PORT": str(self.port), "MYSQL_USER": "root"}
        self._binary = _newest("/usr/sbin/mariadbd", "mariadbd", "apt install mariadb-server")
        make = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
        ]
        make += ["--skip-test-db", *(["--user=root"] if os.geteuid() == 0 else [])]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def command(self) -> list[str]:
        options = [f"--datadir={self.data}", f"--port={self.port}", f"--socket={self.folder / 'mariadb.sock'}"]
        options += ["--bind-address=127.0.0.1", "--max-connections=200", f"--pid-file={self.folder / 'mariadb.pid'}"]
        return [str(self._binary), "--no-defaults", *options, *(["--user=root"] if os.geteuid() == 0 else [])]


def _newest(pattern: str, name: str, hint: str) -> Path:
    on_path = shutil.which(name)
    found = sorted(Path("/").glob(pattern.lstrip("/"))) or ([Path(on_path)] if on_path else [])
    if not found:
        raise MissingServerError(f"There is no {name} on this machine; to get it: {hint}")
    return found[-1]


DATABASE_SERVERS: dict[str, Callable[[Path], DatabaseServer]] = {"postgresql": PostgreSQL, "mariadb": MariaDB}


def restart(server: Server, number: int = signal.SIGTERM, pause: float = 0.0) -> None:
    """Stop it by this signal, and start it again after so many seconds."""
    server.stop(number)
    time.sleep(pause)
    server.start()
