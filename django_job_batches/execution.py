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

from django_job_batches import memory, outcomes, queues, reconciling, settling, transitions
from django_job_batches.bodies import Body
from django_job_batches.conf import settings
from django_job_batches.database import at_home, home_of, repeated
from django_job_batches.exceptions import BatchError, WorkerLost
from django_job_batches.models import DUE, Batch, BatchJob, JobStatus, Role
from django_job_batches.outbox import cancel_jobs, carry_out, catch_up, flush
from django_job_batches.signals import batch_started
from django_job_batches.transitions import Effects, jobs_of

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
    claim = partial(transitions.claim, job, attempt, _stored_name(queues.current_worker_name()))
    confirm = partial(transitions.has_claimed, job, attempt)
    if repeated(claim, using, patience=settings.SETTLE_FOR, confirm=confirm, what="claim") is not False:
        _note_start(job)
        error = _run(job, attempt)
    else:
        error = _refused(using, pk, attempt)
    queues.no_more_redeliveries()
    if queues.is_in_worker():
        reconciling.look_around(using)
    if error is not None:
        raise outcomes.presentable(error)


def _stored_name(worker: str) -> str:
    """A worker's name as far as its column holds it."""
    return worker[: BatchJob._meta.get_field("worker_name").max_length]


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


# The attempt


def _run(job: BatchJob, attempt: int) -> BaseException | None:
    """Call the function and write down how it ended; returns what it raised."""
    body = Body(job)
    if job.option("atomic", False):
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
        carry_out(work, using, own=False, confirm=partial(settling.is_settled, job, attempt))
    except BaseException as error:
        body.clean_up_after(error)
        return error
    body.clean_up_after(None)
    settling.progressed(job)
    return None


def _settle(job: BatchJob, attempt: int, report: dict[str, Any]) -> None:
    """Settle; what cannot be written for too long is kept in Redis, for RQ to bring the attempt back."""
    rq_job_id = job.rq_job_id
    try:
        settling.settle(job, attempt, report)
    except (DatabaseError, InterfaceError):
        memory.stash_outcome(job.queue_name, rq_job_id, report)
        raise


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
    elif job.role == Role.ITEM and job.status in DUE and job.batch.is_decided:
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
    rq_job_id = job.rq_job_id
    report = memory.stashed_outcome(job.queue_name, rq_job_id) or settling.LOST
    _settle(job, attempt, report)
    memory.discard_outcome(job.queue_name, rq_job_id)
    return WorkerLost(f"Attempt {attempt} of job {job.pk} was lost.") if "lost" in report else None


# In the worker's own process, outside its horses


def stopped(rq_job: Any, connection: Any, *args: Any) -> None:
    """RQ's ``on_stopped``: a stop command has killed the horse. Settle, and leave no connection open here."""
    try:
        using, pk, attempt = rq_job.args
        job = _load(using, pk)
        if job is not None and not settling.settle(job, attempt, settling.STOPPED):
            catch_up(using, job.batch_id)  # it was settled, and perhaps what follows from that was cut off
    except Exception:
        logger.exception("The stop of %s could not be written down; the reconciler will do it.", rq_job.id)
    finally:
        close_connections()


def killed(rq_job: Any, worker_name: str) -> None:
    """A horse of this worker has died: settle what it ran now, so that RQ need not bring the attempt back for that."""
    if rq_job.func_name != queues.FUNCTION:
        return
    using, pk, attempt = rq_job.args
    job = _load(using, pk)
    if job is not None and job.attempts >= attempt and job.worker_name == _stored_name(worker_name):
        _refused(using, pk, attempt)
        rq_job.retries_left = 0


def warm_up(using: str) -> None:
    """Do once, without any effect, what each job does in the database: what that loads, horses inherit."""
    _load(using, 0)
    nobody = at_home(BatchJob(pk=0, batch=Batch()), using)
    transitions.claim(nobody, 1, "")
    carry_out(partial(transitions.settle, nobody, 1, outcomes.succeeded(None, False)), using)


def close_connections() -> None:
    """Also those in a pool, which every later horse would inherit."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
