"""The admin as a site of its own: `manage.py runserver` in another process, on the tests' database and Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT, wait_until

SETTINGS = {"stock": "tests.browser.settings", "themed": "tests.browser.settings_themed"}
LISTENING = re.compile(r"^Starting (?:\w+ )?development server at (http://[0-9.:]+)/$", re.MULTILINE)


class Site:
    """A context manager: inside the `with` block the site is at `root`, and its admin at `url`."""

    def __init__(self, variant: str, log: Path) -> None:
        self.variant = variant
        self.root = ""
        self._log = log

    @property
    def url(self) -> str:
        return f"{self.root}/admin/"

    def __enter__(self) -> Site:
        if self._manage("migrate").wait(60):  # the tables of the theme, which the tests do not know of
            raise AssertionError(f"The {self.variant} site has no database:\n{self._output()}")
        self._server = self._manage("runserver", "--noreload", "--insecure", "127.0.0.1:0")
        try:
            self.root = wait_until(self._find_root, 60, f"the {self.variant} site answers")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.kill()
        self._server.wait()

    def _manage(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "django", *arguments, "--settings", SETTINGS[self.variant]],
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "COVERAGE_PROCESS_CONFIG": ""},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _find_root(self) -> str:
        if self._server.poll() is not None:
            raise AssertionError(f"The {self.variant} site did not start:\n{self._output()}")
        found = LISTENING.search(self._output())
        return found[1] if found else ""

    def _output(self) -> str:
        return self._log.read_text(errors="replace")
