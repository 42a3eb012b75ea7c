"""What RQ calls: claim the row, call the user's function, settle.

The paths of ``run_job`` and ``stopped`` stand in every RQ job and are a promise; they never change.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import Q
from django.utils import timezone

from django_job_batches import outcomes, queues, transitions
from django_job_batches.bodies import Body
from django_job_batches.conf import settings
from django_job_batches.database import at_home, home_of, repeated
from django_job_batches.exceptions import BatchError, WorkerLost
from django_job_batches.models import DUE, Batch, BatchJob, JobStatus, Role
from django_job_batches.outbox import cancel_jobs, carry_out, catch_up, flush
from django_job_batches.signals import batch_progressed, batch_started, job_failed
from django_job_batches.transitions import Effects, Outcome, jobs_of

logger = logging.getLogger(__name__)


def run_job(using: str, pk: int, attempt: int) -> None:
    """Run attempt number ``attempt`` of the job ``pk`` on the database alias ``using``.

    Double deliveries, late ones and those of cancelled jobs change nothing. What the user's function raises is
    raised again once it is in the books, so that RQ shows it.
    """
    job = _load(using, pk)
    if job is None:
        logger.warning("Job %s is not in the database %r any more.", pk, using)
        return
    claim = partial(transitions.claim, job, attempt, queues.current_worker_name())
    confirm = partial(transitions.has_claimed, job, attempt)
    if repeated(claim, using, patience=settings.SETTLE_FOR, confirm=confirm, what="claim") is not False:
        _note_start(job)
        error = _run(job, attempt)
    else:
        error = _refused(using, pk, attempt)
    queues.no_more_redeliveries()
    _look_around(using)
    if error is not None:
        raise outcomes.presentable(error)


def _load(using: str, pk: int) -> BatchJob | None:
    row = jobs_of(using).select_related("batch").filter(pk=pk).order_by()
    job = repeated(row.first, using, patience=settings.SETTLE_FOR, what="load")
    if job is not None:
        at_home(at_home(job, using).batch, using)
    return job


def _note_start(job: BatchJob) -> None:
    if job.batch.started_at is None and job.role == Role.ITEM:
        start = partial(transitions.start, job.batch, job.started_at or timezone.now())
        for batch in repeated(start, home_of(job), patience=settings.SETTLE_FOR, what="start") or ():
            batch_started.send_robust(Batch, batch=batch)


def _look_around(using: str) -> None:
    """Once in a while, enqueue what was left behind: a push that failed, a process that died before its push."""
    if queues.is_time_for(f"outbox:{using}", settings.RECONCILE_EVERY):
        flush(using, limit=settings.CHUNK_SIZE)


# The attempt


def _run(job: BatchJob, attempt: int) -> BaseException | None:
    """Call the function and write down how it ended; returns what it raised."""
    body = Body(job)
    if job.options.get("atomic"):
        error = _run_atomic(body, attempt)
    else:
        error = body.call()
        if error is None:
            _settle(job, attempt, {"result": body.result, "has_result": body.has_result})
    if error is not None and not isinstance(error, _RefusedError):
        _settle(job, attempt, {"details": outcomes.described(error), "final": outcomes.is_final(error)})
    return error


class _RefusedError(BatchError):
    """The attempt had been settled by somebody else, as lost or stopped, when it came to its end."""


def _run_atomic(body: Body, attempt: int) -> BaseException | None:
    """Body and bookkeeping in one transaction, run again in place after a deadlock; returns what it raised."""
    job, using = body.job, home_of(body.job)

    def work(effects: Effects) -> None:
        body.call_inside_transaction(using)
        outcome = outcomes.succeeded(body.result, body.has_result)
        if not transitions.settle(job, attempt, outcome, effects):
            raise _RefusedError(f"Attempt {attempt} of job {job.pk} was settled by somebody else; it was rolled back.")

    try:
        carry_out(work, using, own=False, confirm=partial(_is_settled, job, attempt))
    except BaseException as error:
        body.clean_up_after(error)
        return error
    body.clean_up_after(None)
    _progressed(job)
    return None


def _is_settled(job: BatchJob, attempt: int) -> bool:
    """Whether this attempt is in the books, as after a COMMIT whose answer was lost."""
    rows = jobs_of(home_of(job)).filter(pk=job.pk, attempts=attempt)
    return rows.exclude(status=JobStatus.RUNNING).exists()


def _settle(job: BatchJob, attempt: int, report: dict[str, Any]) -> None:
    """Write down how the attempt ended. While the database is away it is tried for ``SETTLE_FOR`` seconds; then the
    report is kept in Redis, for RQ to bring the attempt back."""
    outcome = _outcome(job, report)
    try:
        settled = carry_out(
            partial(transitions.settle, job, attempt, outcome),
            home_of(job),
            patience=settings.SETTLE_FOR,
            confirm=partial(_is_settled, job, attempt),
        )
    except (DatabaseError, InterfaceError):
        queues.stash_outcome(report)
        raise
    if settled is False:
        logger.warning("Attempt %d of job %s ended too late: it had been settled already.", attempt, job.pk)
    else:
        _settled(job, outcome)


def _outcome(job: BatchJob, report: dict[str, Any]) -> Outcome:
    if "lost" in report:
        return outcomes.lost(job)
    if "details" in report:
        return outcomes.failed(job, report["details"], final=report["final"])
    return outcomes.succeeded(report["result"], report["has_result"])


def _settled(job: BatchJob, outcome: Outcome) -> None:
    if outcome.status == JobStatus.FAILED and job_failed.has_listeners(BatchJob):
        job.refresh_from_db(using=home_of(job))
        job_failed.send_robust(BatchJob, job=job)
    if outcome.status not in DUE:
        _progressed(job)


def _progressed(job: BatchJob) -> None:
    if batch_progressed.has_listeners(Batch) and job.role == Role.ITEM:
        batch_progressed.send_robust(Batch, batch=job.batch)


# The claim was refused


def _refused(using: str, pk: int, attempt: int) -> BaseException | None:
    """Look why, and end what is left of a lost attempt; returns what RQ shall show."""
    job = _load(using, pk)
    if job is None or job.attempts > attempt:
        return None
    if job.attempts == attempt and job.status == JobStatus.RUNNING:
        return _redelivered(job, attempt)
    if job.attempts == attempt:
        catch_up(using, job.batch_id)
    elif job.status in DUE and job.batch.is_decided:
        cancel_jobs(using, job.batch, [pk])
    elif job.status in DUE:
        jobs_of(using).filter(pk=pk, status__in=DUE, attempts=job.attempts).update(enqueued_at=None)
        flush(using, Q(pk=pk))  # unless it still waits for its turn
    return None


def _redelivered(job: BatchJob, attempt: int) -> BaseException | None:
    """The row says that this attempt runs: it does, elsewhere; or its outcome could not be written; or it is lost."""
    if queues.runs_elsewhere():
        logger.info("Attempt %d of job %s is running elsewhere; this is a double delivery.", attempt, job.pk)
        return None
    report = queues.stashed_outcome() or {"lost": True}
    _settle(job, attempt, report)
    queues.discard_outcome()
    return WorkerLost(f"Attempt {attempt} of job {job.pk} was lost.") if "lost" in report else None


# A stop command


def stopped(rq_job: Any, connection: Any, *args: Any) -> None:
    """RQ's ``on_stopped``, which runs in the worker's parent process: settle, and leave no connection open there."""
    try:
        using, pk, attempt = rq_job.args
        job = _load(using, pk)
        if job is not None:
            carry_out(partial(transitions.settle, job, attempt, outcomes.stopped(job)), using)
    except Exception:
        logger.exception("The stop of %s could not be written down; the reconciler will do it.", rq_job.id)
    finally:
        _close_connections()


def _close_connections() -> None:
    """Also those in a pool, which every later horse would inherit."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
