"""What a function that runs as a batch job can ask about itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_job_batches.models import Batch, BatchJob

_running: ContextVar[BatchJob | None] = ContextVar("running", default=None)


def current_job() -> BatchJob | None:
    """The ``BatchJob`` that is running here, as it was claimed; None elsewhere."""
    return _running.get()


def current_batch() -> Batch | None:
    """The ``Batch`` of the job or callback that is running here; None elsewhere."""
    job = _running.get()
    return None if job is None else job.batch


@contextmanager
def running(job: BatchJob) -> Iterator[None]:
    """Make ``job`` the current one."""
    token = _running.set(job)
    try:
        yield
    finally:
        _running.reset(token)
