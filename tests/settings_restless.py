"""The tests' settings, for workers that look around all the time."""

from tests.settings import *  # noqa: F403

JOB_BATCHES = {"LOST_AFTER": 1, "RECONCILE_EVERY": 1}
RQ = {"WORKER_CLASS": "django_job_batches.workers.BatchWorker"}
