"""From rows to Redis: what is due is leased and enqueued, and what a transaction has set in motion is followed up.

The outbox is no table of its own: a row that is queued or scheduled and has no ``enqueued_at`` is in it.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError
from django.db.models import Q, QuerySet
from django.utils import timezone

from django_job_batches import queues, transitions
from django_job_batches.conf import queue_names, settings
from django_job_batches.database import after_commit, atomically, repeated
from django_job_batches.models import DUE, NOT_STARTED, Batch, BatchJob, BatchStatus, Counts, Role, summed_counts
from django_job_batches.signals import batch_cancelled, batch_finished
from django_job_batches.transitions import Effects, batches_of, jobs_of

logger = logging.getLogger(__name__)
T = TypeVar("T")

AWAY = (DatabaseError, InterfaceError, queues.QueueError)
"""What is raised when a server is away, so that nothing goes on now."""

FEW = 3
"""Up to so many rows are leased one by one; more of them in a transaction."""


def carry_out(change: Callable[[Effects], T], using: str, **options: Any) -> T | None:
    """Run ``change`` as ``atomically()`` does, and follow up after the commit: enqueue what was released, call off
    the rest of decided batches, close the books of finished ones. ``options`` are those of ``atomically()``."""
    effects = Effects(using)

    def work() -> T:
        effects.clear()
        return change(effects)

    result = atomically(work, using, what=getattr(change, "func", None) or change, **options)
    after_commit(partial(_follow_up, effects), using)
    return result


def _follow_up(effects: Effects) -> None:
    if effects.released:
        flush(effects.using, Q(pk__in=effects.released))
    for batch_id in effects.decided:
        sweep(effects.using, batch_id)
    for batch_id in effects.finished:
        close_books(effects.using, batch_id)


def close_books(using: str, batch_id: uuid.UUID) -> None:
    """Write the totals of a finished batch to its row, so that nobody has to sum its lanes again."""
    batch = batches_of(using).filter(pk=batch_id, finished_at__isnull=False).first()
    if batch is None:
        return
    counts = summed_counts(using, [batch_id]).get(batch_id, Counts())
    rows = batches_of(using).filter(pk=batch_id, run=batch.run, finished_at__isnull=False, final_counts__isnull=True)
    if rows.update(final_counts=counts):
        batch_finished.send_robust(Batch, batch=batch)


# Enqueue what is due


def due(using: str) -> QuerySet[BatchJob]:
    """What is in the outbox, for a queue that there is, and not held back by a nested batch that waits for its turn."""
    rows = jobs_of(using).filter(status__in=DUE, enqueued_at=None).exclude(batch__status=BatchStatus.WAITING)
    return rows.filter(Q(func="") | Q(queue_name__in=queue_names()))


def flush(
    using: str, rows: Q | None = None, *, limit: int | None = None, after_each: Callable[[int], None] | None = None
) -> bool:
    """Enqueue what is due among ``rows`` (default: everything), oldest first; look at ``limit`` rows at most.

    ``after_each`` is called after each chunk, with how many of it were enqueued. Stops with a warning when Redis is
    away, and returns False: the rows stay in the outbox, and the next dispatch, or the next job that ends, looks at
    it again.
    """
    looked, last, chunk = 0, 0, settings.CHUNK_SIZE
    wanted = due(using).filter(rows or Q()).order_by("pk")
    while limit is None or looked < limit:
        rows_left = wanted.filter(pk__gt=last).select_related("batch").defer("args", "kwargs", "result")[:chunk]
        found: list[BatchJob] = repeated(partial(list, rows_left), using, what="flush") or []
        if not found:
            break
        last = found[-1].pk
        looked += len(found)
        jobs = [job for job in found if not job.is_nested_batch]
        called_off = [job for job in jobs if job.role == Role.ITEM and job.batch.is_decided]
        ready = [job for job in jobs if job.role != Role.ITEM or not job.batch.is_decided]
        _cancel(using, called_off)
        if not push(using, _lease(using, ready), check=len(found) > FEW):
            return False
        for job in found:
            if job.is_nested_batch:
                with _alone(job):
                    open_nested(using, job)
        if after_each is not None:
            after_each(len(ready))
        if len(found) < chunk:
            break
    return True


@contextmanager
def _alone(about: Batch | BatchJob) -> Iterator[None]:
    """Rows that make no sense stop nobody else's; a server that is away does."""
    try:
        yield
    except AWAY:
        raise
    except Exception:
        logger.exception("%s %s cannot go on; the rest does.", type(about).__name__, about.pk)


def _cancel(using: str, jobs: list[BatchJob]) -> None:
    for batch in {job.batch for job in jobs}:
        with _alone(batch):
            cancel_jobs(using, batch, [job.pk for job in jobs if job.batch_id == batch.pk])


def _lease(using: str, jobs: list[BatchJob]) -> list[BatchJob]:
    """Those of these rows that were still free, and are ours to push now."""
    now = timezone.now()
    if len(jobs) <= FEW:
        free = {job.pk for job in jobs if _lease_one(using, job, now)}
    else:
        free = set(atomically(partial(_lease_many, using, jobs, now), using) or ())
    leased = [job for job in jobs if job.pk in free]
    for job in leased:
        job.enqueued_at = now
    return leased


def _lease_one(using: str, job: BatchJob, now: datetime) -> bool:
    # by attempt and run: others may have leased, run and queued the row again since it was read
    free = jobs_of(using).filter(pk=job.pk, status__in=DUE, attempts=job.attempts, run=job.run, enqueued_at=None)
    is_ours = jobs_of(using).filter(pk=job.pk, enqueued_at=now).exists
    return repeated(partial(free.update, enqueued_at=now), using, confirm=is_ours) != 0


def _lease_many(using: str, jobs: list[BatchJob], now: datetime) -> list[int]:
    as_read = {job.pk: (job.attempts, job.run) for job in jobs}
    rows = [row for row in transitions.locked(using, as_read) if row.status in DUE and row.enqueued_at in (None, now)]
    free = [row.pk for row in rows if (row.attempts, row.run) == as_read[row.pk]]
    jobs_of(using).filter(pk__in=free).update(enqueued_at=now)
    return free


def push(using: str, jobs: list[BatchJob], *, check: bool = False) -> bool:
    """Enqueue rows whose lease is ours; False if a Redis is away, after giving those leases back.

    ``check``: pass over what RQ has already, as after a push whose answer was lost.
    """
    by_queue: dict[str, list[BatchJob]] = defaultdict(list)
    for job in jobs:
        by_queue[job.queue_name].append(job)
    is_complete = True
    away: dict[queues.Server, queues.QueueError] = {}
    for name, group in by_queue.items():
        if name not in queue_names():
            logger.error("The queue %r is not configured any more: %d jobs wait for it.", name, len(group))
            _give_back(using, group)
            continue
        server = queues.server(name)
        try:
            if server in away:  # the client may try for seconds
                raise away[server]
            _push(using, name, group, check)
        except queues.QueueError as error:
            is_complete = False
            if isinstance(error, queues.NO_ANSWER):
                away[server] = error
            logger.warning(
                "Redis is away (%s): %d jobs stay in the database, and are enqueued later.", error, len(group)
            )
            _give_back(using, group)
    return is_complete


def _push(using: str, name: str, jobs: list[BatchJob], check: bool) -> None:
    known = queues.alive(name, [job.rq_job_id for job in jobs]) if check else set()
    works = [_work(using, job) for job in jobs if job.rq_job_id not in known]
    if works:
        queues.enqueue(name, works)


def _work(using: str, job: BatchJob) -> queues.Work:
    attempt = job.attempts + 1
    is_repetition = job.max_attempts - attempt < job.option("retries", 0)
    return queues.Work(
        id=job.rq_job_id,
        args=(using, job.pk, attempt),
        description=str(job)[:200],
        timeout=timeout_of(job),
        at_front=job.option("at_front", False) or (is_repetition and job.option("retry_at_front", False)),
        at=job.scheduled_at if job.scheduled_at and job.scheduled_at > timezone.now() else None,
    )


def timeout_of(job: BatchJob) -> int:
    """Seconds that the function of this job may run; -1: no limit."""
    return int(job.option("timeout", 0) or settings.TIMEOUT or queues.default_timeout(job.queue_name))


def enqueue_again(using: str, jobs: list[BatchJob]) -> None:
    """Enqueue leased rows that RQ has lost. Their leases are renewed first, so that of many who do this, one does."""
    now = timezone.now()
    ours = set(atomically(partial(_change_leases, using, jobs, now), using) or ())
    taken = [job for job in jobs if job.pk in ours]
    for job in taken:
        job.enqueued_at = now
    remove(taken)
    push(using, taken)


def _give_back(using: str, jobs: list[BatchJob]) -> None:
    atomically(partial(_change_leases, using, jobs, None), using)


def _change_leases(using: str, jobs: list[BatchJob], enqueued_at: datetime | None) -> list[int]:
    """Of those to which nothing has happened since they were read; returns their keys."""
    as_read = {job.pk: (job.attempts, job.run, job.enqueued_at) for job in jobs}
    rows = [row for row in transitions.locked(using, as_read) if row.status in DUE]
    same = [row.pk for row in rows if (row.attempts, row.run, row.enqueued_at) == as_read[row.pk]]
    jobs_of(using).filter(pk__in=same).update(enqueued_at=enqueued_at)
    return same


def open_nested(using: str, row: BatchJob) -> None:
    """The turn of a nested batch: start it, or cancel it if its chain or its parent was called off."""
    batch = batches_of(using).select_related("parent_job__batch").filter(parent_job=row.pk).first()
    if batch is None or batch.parent_job is None:
        return
    row = batch.parent_job
    if batch.is_finished:  # without a mark, a retry has queued the row, and opens the batch once that has begun again
        if row.stop_requested_at and not batch.open_callbacks:
            carry_out(partial(transitions.end_in_parent, batch), using)
        return
    if row.role != Role.ITEM and row.stop_requested_at:
        cancel_batch(using, batch.pk, transitions.NOT_CALLED, run=batch.run)
    elif row.role == Role.ITEM and (row.stop_requested_at or row.batch.is_decided):
        cancel_batch(using, batch.pk, _part_of_called_off(row.batch_id), run=batch.run)
    else:
        carry_out(partial(transitions.open_nested, batch), using)
        flush(using, Q(batch=batch.pk))
    jobs_of(using).filter(pk=row.pk, status__in=DUE, enqueued_at=None).update(enqueued_at=timezone.now())


def catch_up(using: str, batch_id: uuid.UUID) -> None:
    """Do again, harmlessly, what may have been cut off after a commit in this batch: there, and in those above it."""
    batch = batches_of(using).filter(pk=batch_id).first()
    while batch is not None:
        flush(using, Q(batch=batch.pk))
        sweep(using, batch.pk)
        if batch.is_finished and batch.final_counts is None:
            close_books(using, batch.pk)
        batch = batches_of(using).filter(jobs=batch.parent_job_id).first() if batch.parent_job_id else None


# Call off


def cancel_batch(using: str, batch_id: uuid.UUID, reason: str, *, run: int | None = None, sweeps: bool = True) -> bool:
    """Decide that a batch is cancelled, and call off what has not started; False if it was decided already.

    ``run``: only if that run of it goes on. ``sweeps`` is False where somebody else calls off the rest.
    """
    is_cancelled = batches_of(using).filter(pk=batch_id, cancelled_at__isnull=False).exists

    def decide(effects: Effects) -> bool:
        done = transitions.decide_cancelled(batch_id, run, reason, effects)
        if not sweeps:
            effects.decided.clear()
        return done

    done = carry_out(decide, using, confirm=is_cancelled) is not False
    if done:
        after_commit(partial(_send_cancelled, using, batch_id), using)
    return done


def _send_cancelled(using: str, batch_id: uuid.UUID) -> None:
    if batch_cancelled.has_listeners(Batch):
        batch_cancelled.send_robust(Batch, batch=batches_of(using).filter(pk=batch_id).first())


def sweep(using: str, batch_id: uuid.UUID) -> None:
    """Cancel what has not started of a decided batch, its nested batches included."""
    batch = repeated(batches_of(using).filter(pk=batch_id, finished_at=None).first, using, what="sweep")
    if batch is None or not batch.is_decided:
        return
    rows, last = _waiting_jobs(using, batch_id).order_by("pk"), 0
    while pks := list(rows.filter(pk__gt=last).values_list("pk", flat=True)[: settings.CHUNK_SIZE]):
        last = pks[-1]
        cancel_jobs(using, batch, pks)
    for child_id, run in list(_undecided_children(using, batch_id).values_list("pk", "run")):
        cancel_batch(using, child_id, _part_of_called_off(batch_id), run=run)


def _part_of_called_off(batch_id: uuid.UUID) -> str:
    return f"The batch {batch_id} that it is part of was called off."


def is_swept(using: str, batch_id: uuid.UUID) -> bool:
    """Whether nothing of a decided batch waits any more that a sweep would cancel."""
    return not _waiting_jobs(using, batch_id).exists() and not _undecided_children(using, batch_id).exists()


def _waiting_jobs(using: str, batch_id: uuid.UUID) -> QuerySet[BatchJob]:
    return jobs_of(using).filter(batch=batch_id, role=Role.ITEM, status__in=NOT_STARTED).exclude(func="")


def _undecided_children(using: str, batch_id: uuid.UUID) -> QuerySet[Batch]:
    undecided = batches_of(using).filter(transitions.UNDECIDED, finished_at=None)
    return undecided.filter(parent_job__batch=batch_id, parent_job__role=Role.ITEM)


def cancel_jobs(using: str, batch: Batch, pks: list[int]) -> None:
    """Cancel those of these jobs that have not started; their batch, as it was read, is decided."""
    cancelled = carry_out(partial(transitions.cancel_rows, batch, pks), using) or []
    after_commit(partial(remove, [row for row in cancelled if row.enqueued_at]), using)


def remove(jobs: list[BatchJob]) -> None:
    """Take the RQ jobs of these cancelled jobs out of their queues, as far as Redis answers."""
    by_queue: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        by_queue[job.queue_name].append(job.rq_job_id)
    for name, ids in by_queue.items():
        try:
            if name in queue_names():
                queues.remove(name, ids)
        except queues.QueueError:
            logger.warning("%d cancelled jobs stay in the queue %r; workers will pass over them.", len(ids), name)
