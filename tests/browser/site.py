"""The admin as a site of its own: `manage.py runserver` in another process, on the tests' database and Redis."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.processes import ROOT, wait_until

SETTINGS = {"stock": "tests.browser.settings", "themed": "tests.browser.settings_themed"}


class Site:
    """A running server; `url` is where its admin begins. It is ended by `end()`."""

    def __init__(self, variant: str, log: Path) -> None:
        self.variant = variant
        self._log = log
        self._environment = {**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS[variant], "COVERAGE_PROCESS_CONFIG": ""}
        self._manage("migrate", "--verbosity=0").check_returncode()
        port = _free_port()
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/admin/"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command("runserver", "--noreload", "--insecure", str(port)),
                cwd=ROOT,
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        wait_until(self._answers, timeout=60, message=f"{variant} answers; see {log}")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "django", *arguments]

    def _manage(self, *arguments: str) -> subprocess.CompletedProcess[Any]:
        return subprocess.run(self._command(*arguments), cwd=ROOT, env=self._environment, check=False)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}login/", timeout=10) as response:  # noqa: S310
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
