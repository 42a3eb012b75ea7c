"""The tests' settings with a quicker clock, and the points at which processes kill themselves."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as APPS

JOB_BATCHES = {
    "LOST_AFTER": 3,
    "RECONCILE_EVERY": 1,
    "SETTLE_FOR": 30,
    "CHUNK_SIZE": 50,
    "DEADLOCK_RETRIES": 20,
    "RESULT_TTL": 600,
    "FAILURE_TTL": 600,
}
INSTALLED_APPS = [*APPS, "tests.chaos.apps.ChaosConfig"]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"rq": {"level": "ERROR"}, "django_job_batches": {"handlers": ["console"], "level": "WARNING"}},
}
CHAOS_RATE = float(os.environ.get("CHAOS_RATE", "0"))
"""How likely a process kills itself at each point that it passes."""
CHAOS_BREAK = os.environ.get("CHAOS_BREAK", "")
"""Which promise is broken on purpose, to show that it is noticed; see points.py."""
