"""Checks the package as its users get it: `python -m tests.packaging`.

Builds the source distribution and, from that, the wheel, into dist/; compares the wheel with the source;
installs it into a new virtual environment; runs a batch there, on SQLite and a private Redis.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

from example_project.redis_server import RedisServer
from tests.packaging.away_from_source import ROOT

PACKAGE = "django_job_batches"
DIST = ROOT / "dist"
MUST_HAVE = {f"{PACKAGE}/py.typed", f"{PACKAGE}/migrations/0001_initial.py"}
METADATA = {"Name": "django-job-batches", "License-Expression": "MIT", "Requires-Python": ">=3.10"}


def main() -> None:
    wheel = build()
    check_contents(wheel)
    print(f"{wheel.name} holds what it should, and nothing else.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run_in_new_environment(wheel, Path(folder))
    print(f"{wheel.name} installs and runs a batch.", flush=True)


def build() -> Path:
    """Build both distributions and return the wheel's path."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)], check=True)
    (wheel,) = DIST.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Raise AssertionError unless the wheel holds all of the package, its metadata, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (metadata_file,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(metadata_file).decode())
    about = metadata_file.rpartition("/")[0]
    packaged = {name for name in names if not name.startswith(f"{about}/")}
    assert packaged == files_of_the_source(), packaged ^ files_of_the_source()
    assert packaged >= MUST_HAVE, MUST_HAVE - packaged
    assert f"{about}/licenses/LICENSE" in names
    wrong = {key: metadata[key] for key, value in METADATA.items() if metadata[key] != value}
    assert not wrong, wrong


def files_of_the_source() -> set[str]:
    """What git knows of the package, or would if it were added."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", PACKAGE]
    known = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in known if (ROOT / name).exists()}


def run_in_new_environment(wheel: Path, folder: Path) -> None:
    """Install the wheel alone into a new environment, and run `small_project` there."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    shutil.copy(Path(__file__).with_name("small_project.py"), folder)
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE")}
    with RedisServer() as redis:
        subprocess.run(
            [python, "-W", "error::RuntimeWarning", "-c", "import small_project; small_project.run()"],
            cwd=folder,
            env={**env, "DJANGO_SETTINGS_MODULE": "small_project", "REDIS_SOCKET": str(redis.socket)},
            check=True,
        )


if __name__ == "__main__":
    main()
