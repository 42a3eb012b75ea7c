"""The short form of `make chaos`."""

from __future__ import annotations

import os
import subprocess
import sys

from django.conf import settings

from tests.processes import ROOT


def test_a_short_run_without_violations() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--database", settings.TEST_DATABASE]
    ours = ("TEST_REDIS_SOCKET", "TEST_DATABASE_NAME", "DJANGO_SETTINGS_MODULE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [*command, "--seed", "short", "--jobs", "200", "--faults", "15", "--rate", "0.004"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout
