"""The settings, each with its type and default, read live from ``settings.JOB_BATCHES``."""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings


class Settings:
    """Attribute access reads the project's value, or else the default given here."""

    QUEUE: str = "default"
    """The queue of jobs that name none."""
    CALLBACK_QUEUE: str | None = None
    """The queue of callbacks; None: the batch's."""
    TIMEOUT: int | None = None
    """Seconds that a job's function may run; None: the queue's ``DEFAULT_TIMEOUT``; -1: no limit."""
    ON_LOST: str = "fail"
    """What becomes of a job whose worker was killed when no retries are left: "fail" or "retry"."""
    DEADLOCK_RETRIES: int = 5
    """How often a transaction is run again after a deadlock or the like."""
    DEADLOCK_BACKOFF: float = 0.05
    """Seconds before the first of these; doubled each time, with jitter."""
    SETTLE_FOR: float = 60
    """Seconds that bookkeeping is tried while the database is away."""
    RECONCILE_EVERY: float = 30
    """Seconds between two looks for work that was left behind."""
    LOST_AFTER: float = 60
    """Seconds without a sign of life after which something counts as lost."""
    RESULT_TTL: int = 3_600
    """Seconds that RQ keeps a job that succeeded."""
    FAILURE_TTL: int = 86_400
    """Seconds that RQ keeps a job that failed."""
    CHUNK_SIZE: int = 1_000
    """How many rows are written, or jobs enqueued, at a time."""
    MAX_LANES: int = 32
    """The largest number of counter rows of one batch."""
    MAX_ERROR_LENGTH: int = 10_000
    """Characters kept of an error's message, and of the end of its traceback."""
    MAX_ARGUMENTS: int = 1_000_000
    """Bytes of JSON that the arguments, or the kept result, of one job may take."""

    def __getattribute__(self, name: str) -> Any:
        default = object.__getattribute__(self, name)
        if not name.isupper():
            return default
        return getattr(django_settings, "JOB_BATCHES", {}).get(name, default)


settings = Settings()

SETTING_NAMES = frozenset(name for name in vars(Settings) if name.isupper())


def queue_names() -> frozenset[str]:
    """The queues that ``settings.RQ_QUEUES`` configures."""
    return frozenset(getattr(django_settings, "RQ_QUEUES", {}))
