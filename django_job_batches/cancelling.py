"""Calling off batches and jobs, and stopping what runs."""

from __future__ import annotations

import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING

from django.db import connections
from django.utils import timezone

from django_job_batches import history, queues, transitions
from django_job_batches.conf import settings
from django_job_batches.database import after_commit, home_of
from django_job_batches.models import NOT_STARTED, Batch, BatchJob, JobStatus, Role
from django_job_batches.options import checked_label, checked_user
from django_job_batches.outbox import cancel_batch, carry_out, remove
from django_job_batches.transitions import batches_of, jobs_of

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

logger = logging.getLogger(__name__)


def cancel(batch: Batch, *, reason: str, by: AbstractBaseUser | None, stop_running: bool, sweeps: bool = True) -> bool:
    """See ``Batch.cancel()``; ``sweeps`` is False where somebody else calls off the rest."""
    using = home_of(batch)
    reason, by = checked_label(reason, "reason"), checked_user(by, "by")
    done = cancel_batch(using, batch.pk, reason, sweeps=sweeps)
    batch.refresh_from_db(using=using)
    if stop_running and not batch.is_finished:  # also what runs on after an earlier decision
        after_commit(partial(_stop_all, using, batch.pk), using)
    if done:
        after_commit(partial(history.record, batch, by, f"Cancelled. {reason}".strip()), using)
    return done


def stop_job(job: BatchJob) -> bool:
    """See ``BatchJob.stop()``."""
    using = home_of(job)
    if job.is_nested_batch:
        return _cancel_nested(job, using, stop_running=True)
    if not _ask_to_stop(job, using):
        return False
    if connections[using].in_atomic_block:
        after_commit(partial(_stop, job), using)
        return True
    return _stop(job)


def _cancel_nested(row: BatchJob, using: str, *, stop_running: bool) -> bool:
    child = batches_of(using).filter(parent_job=row.pk).first()
    return child is not None and cancel(child, reason="", by=None, stop_running=stop_running)


def _stop_all(using: str, batch_id: uuid.UUID) -> None:
    try:
        _stop_tree(using, batch_id)
    except queues.QueueError as error:
        logger.warning("Batch %s runs on: Redis does not answer (%s).", batch_id, error)


def _stop_tree(using: str, batch_id: uuid.UUID) -> None:
    """Stop the running items of a batch and of the batches nested in it; their callbacks go on."""
    rows = jobs_of(using).filter(batch=batch_id, role=Role.ITEM, status=JobStatus.RUNNING).exclude(func="")
    last = 0
    while jobs := list(rows.filter(pk__gt=last).order_by("pk")[: settings.CHUNK_SIZE]):
        last = jobs[-1].pk
        for job in jobs:
            if _ask_to_stop(job, using):
                queues.stop(job.queue_name, job.rq_job_id)
    nested = batches_of(using).filter(parent_job__batch=batch_id, parent_job__role=Role.ITEM, finished_at=None)
    for child_id in list(nested.values_list("pk", flat=True)):
        _stop_tree(using, child_id)


def _ask_to_stop(job: BatchJob, using: str) -> bool:
    """Note in the row that we stop it, so that it ends as cancelled, not as failed; False if it does not run."""
    mine = jobs_of(using).filter(pk=job.pk, status=JobStatus.RUNNING, attempts=job.attempts)
    return bool(mine.update(stop_requested_at=timezone.now()))


def _stop(job: BatchJob) -> bool:
    try:
        return queues.stop(job.queue_name, job.rq_job_id)
    except queues.QueueError as error:
        logger.warning("Job %d could not be stopped, and runs on: Redis does not answer (%s).", job.pk, error)
        return False


def cancel_job(job: BatchJob) -> bool:
    """See ``BatchJob.cancel()``."""
    using = home_of(job)
    if job.is_nested_batch:
        return _cancel_nested(job, using, stop_running=False)
    job.refresh_from_db(using=using)
    end = partial(transitions.end, job, JobStatus.CANCELLED, only_from=NOT_STARTED)
    done = bool(carry_out(end, using))
    if done and job.enqueued_at:
        after_commit(partial(remove, [job]), using)
    job.refresh_from_db(using=using)
    return done
