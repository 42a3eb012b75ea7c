"""The tests' settings, for processes in which what is silent for a moment counts as lost."""

from tests.settings import *  # noqa: F403

JOB_BATCHES = {"LOST_AFTER": 0.4, "RECONCILE_EVERY": 3600, "CHUNK_SIZE": 3}
