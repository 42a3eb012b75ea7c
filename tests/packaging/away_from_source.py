"""Lays the tests out in another folder, so that they meet the installed package and not the source.

`python away_from_source.py FOLDER`
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED = ("tests", "example_project", "pyproject.toml")
IGNORED = shutil.ignore_patterns("__pycache__", "var")


def lay_out(folder: Path) -> None:
    """Copy what the tests need into the folder, in place of what is there under these names."""
    for name in NEEDED:
        source, target = ROOT / name, folder / name
        shutil.rmtree(target, ignore_errors=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=IGNORED)
        else:
            shutil.copy(source, target)


def check_that_the_package_is_installed() -> None:
    """Exit with an error if `django_job_batches` would be imported from the source, or not at all."""
    spec = importlib.util.find_spec("django_job_batches")
    if spec is None or spec.origin is None or Path(spec.origin).is_relative_to(ROOT / "django_job_batches"):
        sys.exit(f"django_job_batches is not installed: {spec}")


if __name__ == "__main__":
    check_that_the_package_is_installed()
    lay_out(Path(sys.argv[1]))
