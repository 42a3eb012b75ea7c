from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_job_batches.models import Batch


class BatchError(Exception):
    """Something that cannot be done to a batch or its jobs; the message says why, and what to do."""


class BatchFinished(BatchError):
    """Items were added to a batch about which everything is decided already."""


class DuplicateBatch(BatchError):
    """An unfinished batch with the same key exists; ``batch`` is that other one."""

    def __init__(self, message: str, batch: Batch | None) -> None:
        super().__init__(message)
        self.batch = batch


class LockNotAcquired(BatchError):
    """Somebody else holds the lock."""


class WorkerLost(BatchError):
    """The process that ran the job was killed, or its host was lost, before the job had ended."""


class GiveUp(Exception):
    """Raised inside a job: fail now, no retries left."""
