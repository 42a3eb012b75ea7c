"""For the type checker alone: the settings of the tests and of the example project together."""

from pathlib import Path

from tests.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "example_project.airports"]  # noqa: F405
VAR_DIR = Path("example_project/var")
STAGING_DIR = VAR_DIR / "staging"
