"""The end of an attempt: from a report of how it ended to the books.

A report is small and JSON, so that it can wait in Redis while the database is away: ``{"result", "has_result"}`` of a
function that returned, ``{"details", "final"}`` of one that raised, ``{"lost": True}``, or ``{"stopped": True}``.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django_job_batches import outcomes, transitions
from django_job_batches.conf import settings
from django_job_batches.database import at_home, home_of
from django_job_batches.models import DUE, Batch, BatchJob, JobStatus, Role
from django_job_batches.outbox import carry_out
from django_job_batches.signals import batch_progressed, job_failed
from django_job_batches.transitions import Outcome, jobs_of

logger = logging.getLogger(__name__)

LOST = {"lost": True}
STOPPED = {"stopped": True}


def settle(job: BatchJob, attempt: int, report: dict[str, Any]) -> bool:
    """Write down how the attempt ended; False if it had been settled already.

    While the database is away it is tried for ``SETTLE_FOR`` seconds; then its exception is raised.
    """
    outcome = _outcome(job, report)
    settled = carry_out(
        partial(transitions.settle, job, attempt, outcome),
        home_of(job),
        patience=settings.SETTLE_FOR,
        confirm=partial(is_settled, job, attempt),
    )
    if settled is False:
        logger.warning("Attempt %d of job %s ended too late: it had been settled already.", attempt, job.pk)
        return False
    _tell(job, outcome)
    return True


def is_settled(job: BatchJob, attempt: int) -> bool:
    """Whether this attempt is in the books, as after a COMMIT whose answer was lost."""
    rows = jobs_of(home_of(job)).filter(pk=job.pk, attempts=attempt)
    return rows.exclude(status=JobStatus.RUNNING).exists()


def progressed(job: BatchJob) -> None:
    """Tell who listens that an item has ended."""
    if batch_progressed.has_listeners(Batch) and job.role == Role.ITEM:
        for batch in transitions.batches_of(home_of(job)).filter(pk=job.batch_id):  # unless it was deleted meanwhile
            batch_progressed.send_robust(Batch, batch=at_home(batch, home_of(job)))


def _outcome(job: BatchJob, report: dict[str, Any]) -> Outcome:
    if "lost" in report:
        return outcomes.lost(job)
    if "stopped" in report:
        return outcomes.stopped(job)
    if "details" in report:
        return outcomes.failed(job, report["details"], final=report["final"])
    return outcomes.succeeded(report["result"], report["has_result"])


def _tell(job: BatchJob, outcome: Outcome) -> None:
    if outcome.status == JobStatus.FAILED and job_failed.has_listeners(BatchJob):
        job.refresh_from_db(using=home_of(job))
        job_failed.send_robust(BatchJob, job=job)
    if outcome.status not in DUE:
        progressed(job)
