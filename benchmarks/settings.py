"""Settings of the benchmarks and of their workers: those of the tests, with one database, of their own."""

import os

os.environ.setdefault("TEST_DATABASE_NAME", "django_job_batches_benchmark")

from tests.settings import *  # noqa: F403

DATABASES = {"default": DATABASES["default"]}  # noqa: F405
LOGGING["loggers"]["django_job_batches"]["level"] = "ERROR"  # type: ignore[index]  # noqa: F405
ALLOWED_HOSTS = ["testserver"]
