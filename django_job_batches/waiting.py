"""Waiting for the end of a batch."""

from __future__ import annotations

import time
import warnings

from django.db import connections

from django_job_batches.context import current_job
from django_job_batches.database import home_of
from django_job_batches.exceptions import BatchError
from django_job_batches.models import Batch

LONGEST_PAUSE = 1.0


def wait(batch: Batch, *, timeout: float | None, callbacks: bool) -> None:
    """See ``Batch.wait()``."""
    using = home_of(batch)
    if connections[using].in_atomic_block:
        raise BatchError("wait() inside atomic() would never see the end; call it after the transaction.")
    if current_job() is not None:
        warnings.warn(
            "wait() inside a job keeps a worker busy; use a callback or a chain.", RuntimeWarning, stacklevel=3
        )
    until, pause = None if timeout is None else time.monotonic() + timeout, 0.02
    while not _has_ended(batch, callbacks):
        if until is not None and time.monotonic() >= until:
            raise TimeoutError(f"Batch {batch.pk} is {batch.status} at {batch.progress} % after {timeout} seconds.")
        left = LONGEST_PAUSE if until is None else max(until - time.monotonic(), 0.001)
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _has_ended(batch: Batch, callbacks: bool) -> bool:
    batch.refresh_from_db(using=home_of(batch))
    if not callbacks or not batch.is_finished:
        return batch.is_finished
    return not batch.open_callbacks
