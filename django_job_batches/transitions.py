"""Every change of state of jobs and batches, and the one place where counters move.

Locks are taken upwards only: job rows by ascending id, then lanes by ascending number, then the batch row, then the
parent's job row, its lane, its batch, and so on. Every UPDATE is guarded by the state that it expects, and filters by
columns of its own table. Functions that take ``effects`` run inside a transaction; what they release or decide is
noted there, and followed up by outbox.py after the commit.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.db import connections
from django.db.models import Case, Exists, F, IntegerField, OuterRef, Q, QuerySet, Value, When
from django.db.models.lookups import GreaterThan
from django.utils import timezone

from django_job_batches.database import at_home, home_of, repeated, survived
from django_job_batches.models import (
    DUE,
    NOT_STARTED,
    Batch,
    BatchCounter,
    BatchJob,
    BatchStatus,
    JobStatus,
    Role,
)
from django_job_batches.options import MILLION

UNDECIDED = Q(failed_at=None, cancelled_at=None)
ALWAYS = Q()
EXCEEDED = Q(failures__gt=F("allowed_failures")) | Q(
    GreaterThan(F("failures") * Value(MILLION), F("allowed_millionths") * F("next_position")), sealed=True
)

NOT_CALLED = "It is a callback whose event has not come."
"""Why a nested batch was cancelled that is such a callback."""


@dataclass
class Outcome:
    """How one attempt, or a job, ended; ``changes`` are further columns of the row."""

    status: JobStatus
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Effects:
    """What a transaction has set in motion, to be followed up after its commit."""

    using: str
    released: list[int] = field(default_factory=list)
    decided: list[uuid.UUID] = field(default_factory=list)
    finished: list[uuid.UUID] = field(default_factory=list)

    def clear(self) -> None:
        """Forget what an attempt that was rolled back has noted."""
        for notes in (self.released, self.decided, self.finished):
            notes.clear()


def jobs_of(using: str) -> QuerySet[BatchJob]:
    return BatchJob.objects.using(using)


def batches_of(using: str) -> QuerySet[Batch]:
    return Batch.objects.using(using)


def tree_of(using: str, batch_id: uuid.UUID) -> list[list[uuid.UUID]]:
    """A batch and all that is nested in it, level by level, from the outermost on."""
    levels = [[batch_id]]
    while level := list(batches_of(using).filter(parent_job__batch__in=levels[-1]).values_list("pk", flat=True)):
        levels.append(level)
    return levels


def reread(batch: Batch, using: str) -> Batch:
    """The batch as it is now, on ``using``; a connection that was lost meanwhile is opened again."""
    row = repeated(partial(batches_of(using).get, pk=batch.pk), using, what="reread")
    assert row is not None  # noqa: S101  only what is confirmed otherwise returns nothing
    return at_home(row, using)


# Claims


def claim(job: BatchJob, attempt: int, worker_name: str) -> bool:
    """Take the row for this attempt; False if it is not there to be taken. A single statement, committed at once."""
    using = home_of(job)
    rows = jobs_of(using).filter(pk=job.pk, status__in=DUE, attempts=attempt - 1)
    if job.role == Role.ITEM:
        open_batch = batches_of(using).filter(UNDECIDED, pk=OuterRef("batch_id"))
        rows = rows.filter(Exists(open_batch.exclude(status=BatchStatus.WAITING)))
    job.started_at, job.worker_name = timezone.now(), worker_name  # has_claimed() knows the row again by these
    changes: dict[str, Any] = {"attempts": attempt, "started_at": job.started_at, "worker_name": worker_name}
    if survived():
        changes["deadlocks"] = F("deadlocks") + survived()
    if not rows.update(status=JobStatus.RUNNING, stop_requested_at=None, **changes):
        return False
    job.status, job.attempts = JobStatus.RUNNING, attempt
    return True


def has_claimed(job: BatchJob, attempt: int) -> bool:
    """Whether the last ``claim()`` with this very object has taken the row, its answer being lost."""
    mine = {"attempts": attempt, "started_at": job.started_at, "worker_name": job.worker_name}
    if not jobs_of(home_of(job)).filter(pk=job.pk, status=JobStatus.RUNNING, **mine).exists():
        return False
    job.status, job.attempts = JobStatus.RUNNING, attempt
    return True


def start(batch: Batch, now: datetime) -> list[Batch]:
    """Note the first start of this batch, and of those that it is nested in; returns those that started just now."""
    using, started = home_of(batch), []
    row: Batch | None = batch
    while row is not None and row.started_at is None:
        status = Case(When(status=BatchStatus.QUEUED, then=Value(BatchStatus.RUNNING)), default=F("status"))
        if batches_of(using).filter(pk=row.pk, started_at=None, finished_at=None).update(status=status, started_at=now):
            row.refresh_from_db(using=using, fields=("status", "started_at"))
            started.append(row)
        row = batches_of(using).filter(jobs__nested_batch=row).first()
    return started


# Jobs end


def settle(job: BatchJob, attempt: int, outcome: Outcome, effects: Effects) -> bool:
    """End the attempt, and the job with it unless ``outcome`` queues it again; False: this attempt does not run."""
    rows = jobs_of(effects.using).filter(pk=job.pk, status=JobStatus.RUNNING, attempts=attempt)
    changes = dict(outcome.changes)
    if survived():
        changes["deadlocks"] = F("deadlocks") + survived()
    if outcome.status in DUE:
        changes |= {"enqueued_at": None, "finished_at": None}
        if rows.update(status=outcome.status, **changes):
            effects.released.append(job.pk)
            return True
        return False
    if not rows.update(status=outcome.status, finished_at=timezone.now(), **changes):
        return False
    after_end(job, outcome.status, effects)
    return True


def end(job: BatchJob, status: JobStatus, effects: Effects, *, only_from: Iterable[str], **changes: Any) -> bool:
    """End a job that no attempt ends: cancelled before its start, or a nested batch. False if it is not ``only_from``
    one of these states any more."""
    rows = jobs_of(effects.using).filter(pk=job.pk, status__in=list(only_from))
    if not rows.update(status=status, finished_at=timezone.now(), **changes):
        return False
    after_end(job, status, effects)
    return True


def after_end(job: BatchJob, status: JobStatus, effects: Effects) -> None:
    """What follows from the end of a job, in the same transaction: its chain, its lane, its batch."""
    if job.role != Role.ITEM:
        callback_ended(job.batch_id, effects)
        return
    ended = Counter({status: 1})
    if job.chain is not None:
        if status == JobStatus.SUCCEEDED:
            release_next_link(job, effects)
        else:
            ended[JobStatus.CANCELLED] += cancel_links_after(job, effects)
    closed = count(job.batch_id, job.lane, ended, effects)
    ended_by_chain = job.is_nested_batch and job.stop_requested_at
    if status != JobStatus.SUCCEEDED and not ended_by_chain:
        note_failure(job.batch, effects)
    if closed:
        close_lane(job.batch_id, effects)


def release_next_link(job: BatchJob, effects: Effects) -> None:
    link = jobs_of(effects.using).filter(batch=job.batch_id, role=Role.ITEM, position=job.position + 1)
    row = link.filter(chain=job.chain, status=JobStatus.BLOCKED).only("pk", "scheduled_at").first()
    if row is None:
        return
    status = due_status(row.scheduled_at)
    if jobs_of(effects.using).filter(pk=row.pk, status=JobStatus.BLOCKED).update(status=status, enqueued_at=None):
        effects.released.append(row.pk)


def cancel_links_after(job: BatchJob, effects: Effects) -> int:
    """Cancel what waits behind a link that did not succeed; returns how many links were counted out here.

    A nested batch has locks below its row, which must not be taken now: it is put into the outbox, marked, and
    cancelled there.
    """
    links = jobs_of(effects.using).filter(batch=job.batch_id, chain=job.chain, position__gt=job.position)
    waiting = links.filter(role=Role.ITEM, status=JobStatus.BLOCKED).order_by("pk").only("pk", "func")
    counted, now = 0, timezone.now()
    for link in waiting:
        row = jobs_of(effects.using).filter(pk=link.pk, status=JobStatus.BLOCKED)
        if link.is_nested_batch:
            if row.update(status=JobStatus.QUEUED, enqueued_at=None, stop_requested_at=now):
                effects.released.append(link.pk)
        else:
            counted += row.update(status=JobStatus.CANCELLED, finished_at=now)
    return counted


def due_status(scheduled_at: datetime | None) -> JobStatus:
    """Of a row whose turn has come."""
    return JobStatus.SCHEDULED if scheduled_at and scheduled_at > timezone.now() else JobStatus.QUEUED


# Lanes and batches


def open_lane(batch_id: uuid.UUID, lane: int, added: int, effects: Effects) -> int:
    """Count ``added`` pending jobs into a lane; 1 if this opened it."""
    rows = BatchCounter.objects.using(effects.using).filter(batch=batch_id, lane=lane)
    changes = {"total": F("total") + added, **_deadlocks()}
    while True:
        if rows.filter(pending=0).update(pending=added, **changes):
            return 1
        if rows.filter(pending__gt=0).update(pending=F("pending") + added, **changes):
            return 0
        _refuse_missing_lane(rows, batch_id, lane)


def count(batch_id: uuid.UUID, lane: int, ended: dict[JobStatus, int], effects: Effects) -> bool:
    """Count jobs of a lane as ended; True if these were its last pending ones, and the lane is to be closed."""
    number = sum(ended.values())
    rows = BatchCounter.objects.using(effects.using).filter(batch=batch_id, lane=lane)
    changes = {str(status): F(str(status)) + ended[status] for status in ended if ended[status]} | _deadlocks()
    while True:
        if rows.filter(pending__gt=number).update(pending=F("pending") - number, **changes):
            return False
        if rows.filter(pending=number).update(pending=0, **changes):
            return True
        if not rows.filter(pending__gte=number).exists():
            raise RuntimeError(f"Lane {lane} of batch {batch_id} counts fewer than {number} pending jobs.")


def reopen(batch_id: uuid.UUID, lane: int, ended: dict[JobStatus, int], effects: Effects) -> int:
    """Count jobs of a lane that had ended as pending again; 1 if this opened it."""
    number = sum(ended.values())
    rows = BatchCounter.objects.using(effects.using).filter(batch=batch_id, lane=lane)
    changes = {str(status): F(str(status)) - ended[status] for status in ended} | _deadlocks()
    while True:
        if rows.filter(pending__gt=0).update(pending=F("pending") + number, **changes):
            return 0
        if rows.filter(pending=0).update(pending=number, **changes):
            return 1
        _refuse_missing_lane(rows, batch_id, lane)


def _refuse_missing_lane(rows: QuerySet[BatchCounter], batch_id: uuid.UUID, lane: int) -> None:
    if not rows.exists():
        raise RuntimeError(f"Batch {batch_id} has no lane {lane}: it is being deleted.")


def note_failure(batch: Batch, effects: Effects) -> None:
    """Count an item that failed, or was cancelled by itself, and decide the batch if these are too many now."""
    if batch.allowed_failures is None and batch.allowed_millionths is None:
        return  # without a statement: on MariaDB, one that changes nothing waits for the batch's row all the same
    if batches_of(effects.using).filter(UNDECIDED, pk=batch.pk, finished_at=None).update(failures=F("failures") + 1):
        fail(batch, effects, EXCEEDED)


def fail(batch: Batch, effects: Effects, condition: Q = ALWAYS) -> bool:
    """Decide that the batch has failed, if it is undecided and the condition holds."""
    rows = batches_of(effects.using).filter(condition, pk=batch.pk)
    if batch.parent_job_id is not None and _fail(rows.filter(status=BatchStatus.WAITING), batch.pk, effects):
        close_lane(batch.pk, effects)  # the one that its waiting has held open
        return True
    return _fail(rows, batch.pk, effects)


def _fail(rows: QuerySet[Batch], batch_id: uuid.UUID, effects: Effects) -> bool:
    if not rows.filter(UNDECIDED, finished_at=None).update(status=BatchStatus.FAILED, failed_at=timezone.now()):
        return False
    effects.decided.append(batch_id)
    release_callbacks(batch_id, (Role.ON_FAILURE,), effects)
    return True


def close_lane(batch_id: uuid.UUID, effects: Effects) -> None:
    """One lane fewer is open; the last one finishes the batch."""
    rows = batches_of(effects.using).filter(pk=batch_id)
    while True:
        if rows.filter(open_lanes__gt=1).update(open_lanes=F("open_lanes") - 1):
            return
        # What had failed in an earlier run, and was not retried, is judged at the end of this one. Only now: the
        # statement above has waited for who closes another lane at this moment
        _fail(rows.filter(EXCEEDED, run__gt=1, open_lanes=1), batch_id, effects)
        status = Case(
            When(cancelled_at__isnull=False, then=Value(BatchStatus.CANCELLED)),
            When(failed_at__isnull=False, then=Value(BatchStatus.FAILED)),
            default=Value(BatchStatus.SUCCEEDED),
        )
        if rows.filter(open_lanes=1, finished_at=None).update(
            open_lanes=0, status=status, finished_at=timezone.now(), active_key=None
        ):
            break
        if not rows.filter(open_lanes__gte=1, finished_at=None).exists():
            raise RuntimeError(f"Batch {batch_id} has no lane left to close.")
    effects.finished.append(batch_id)
    after_finish(batch_id, effects)


def after_finish(batch_id: uuid.UUID, effects: Effects) -> None:
    """Release what the end of the items sets free: callbacks, or else the item of the parent."""
    columns = ("status", "callbacks", "parent_job", "cancelled_at", "started_at")
    batch = batches_of(effects.using).only(*columns).get(pk=batch_id)
    if batch.callbacks:
        if is_dropped(batch, effects):
            drop_callbacks(batch_id, (Role.ON_FINISH,), effects)
        if batch.status == BatchStatus.SUCCEEDED:
            release_callbacks(batch_id, (Role.ON_SUCCESS,), effects)
        drop_callbacks(batch_id, (Role.ON_SUCCESS, Role.ON_FAILURE), effects)
        if batches_of(effects.using).filter(pk=batch_id, open_callbacks__gt=0).exists():
            return
        if release_callbacks(batch_id, (Role.ON_FINISH,), effects):
            return
    end_in_parent(batch, effects)


def is_dropped(batch: Batch, effects: Effects) -> bool:
    """Whether this batch is, or is part of, a callback whose event has not come, so that nothing of it runs."""
    while batch.parent_job_id is not None and batch.is_cancelled and batch.started_at is None:
        row = jobs_of(effects.using).select_related("batch").get(pk=batch.parent_job_id)
        if row.role != Role.ITEM and row.stop_requested_at:
            return True
        batch = row.batch
    return False


# Callbacks: rows that are held belong to whoever holds the lock of their batch's row


def release_callbacks(batch_id: uuid.UUID, roles: Iterable[Role], effects: Effects) -> int:
    held = jobs_of(effects.using).filter(batch=batch_id, role__in=list(roles), status=JobStatus.HELD)
    released = 0
    for pk, scheduled_at in held.order_by("pk").values_list("pk", "scheduled_at"):
        rows = jobs_of(effects.using).filter(pk=pk, status=JobStatus.HELD)
        if rows.update(status=due_status(scheduled_at), enqueued_at=None):
            effects.released.append(pk)
            released += 1
    if released:
        batches_of(effects.using).filter(pk=batch_id).update(open_callbacks=F("open_callbacks") + released)
    return released


def drop_callbacks(batch_id: uuid.UUID, roles: Iterable[Role], effects: Effects) -> None:
    """Cancel callbacks whose event will not come; nested batches by the outbox, as in ``cancel_links_after()``."""
    held = jobs_of(effects.using).filter(batch=batch_id, role__in=list(roles), status=JobStatus.HELD)
    opened, now = 0, timezone.now()
    for row in held.order_by("pk").only("pk", "func"):
        rows = jobs_of(effects.using).filter(pk=row.pk, status=JobStatus.HELD)
        if not row.is_nested_batch:
            rows.update(status=JobStatus.CANCELLED, finished_at=now)
        elif rows.update(status=JobStatus.QUEUED, enqueued_at=None, stop_requested_at=now):
            effects.released.append(row.pk)
            opened += 1
    if opened:
        batches_of(effects.using).filter(pk=batch_id).update(open_callbacks=F("open_callbacks") + opened)


def callback_ended(batch_id: uuid.UUID, effects: Effects) -> None:
    """One callback fewer is open; after the last one, ``on_finish`` is released, or the parent's item ends."""
    rows = batches_of(effects.using).filter(pk=batch_id)
    while not rows.filter(open_callbacks=1).update(open_callbacks=0):
        if rows.filter(open_callbacks__gt=1).update(open_callbacks=F("open_callbacks") - 1):
            return
        if not rows.filter(open_callbacks__gt=0).exists():
            raise RuntimeError(f"Batch {batch_id} has no callback left to end.")
    batch = rows.only("status", "finished_at", "parent_job").get()
    if batch.is_finished and not release_callbacks(batch_id, (Role.ON_FINISH,), effects):
        end_in_parent(batch, effects)


# Nested batches


def end_in_parent(batch: Batch, effects: Effects) -> None:
    """End the row that stands for a nested batch which has finished, callbacks included.

    That of a callback which was cancelled while it was held is marked, and ends when its event has come, or not.
    """
    if batch.parent_job_id is None:
        return
    row = jobs_of(effects.using).get(pk=batch.parent_job_id)
    status = JobStatus(batch.status)
    message = "" if status == JobStatus.SUCCEEDED else f"The nested batch {batch.pk} has {batch.status}."
    if status == JobStatus.CANCELLED:
        message = f"The nested batch {batch.pk} was cancelled."
    held = jobs_of(effects.using).filter(pk=row.pk, status=JobStatus.HELD)
    finish = partial(end, row, status, effects, only_from=(*NOT_STARTED, JobStatus.RUNNING), error_message=message)
    if not finish() and not held.update(stop_requested_at=timezone.now()):
        finish()  # it was released between the two


def open_nested(batch: Batch, effects: Effects) -> bool:
    """The turn of a nested batch has come: its jobs may start. False if it was not waiting any more."""
    status = Case(When(sealed=True, then=Value(BatchStatus.QUEUED)), default=Value(BatchStatus.DISPATCHING))
    if not batches_of(effects.using).filter(pk=batch.pk, status=BatchStatus.WAITING).update(status=status):
        return False
    now = timezone.now()
    jobs_of(effects.using).filter(pk=batch.parent_job_id or 0, status__in=NOT_STARTED).update(
        status=JobStatus.RUNNING, started_at=now, enqueued_at=now
    )
    close_lane(batch.pk, effects)
    return True


# Dispatch


def reserve(batch: Batch, rows: int, opened: int, lanes: int, effects: Effects, *, added: bool) -> int | None:
    """Reserve positions for ``rows`` more items and return the first; None if it is too late for them.

    What is ``added`` comes too late once the batch is decided. Its dispatcher writes on until it has sealed the
    batch, so that a retry finds all items.
    """
    mine = batches_of(effects.using).filter(pk=batch.pk)
    in_time = UNDECIDED if added else Q(sealed=False)
    changed = mine.filter(in_time, finished_at=None, run=batch.run).update(
        open_lanes=F("open_lanes") + opened,
        next_position=F("next_position") + rows,
        heartbeat_at=timezone.now(),
        lanes=Case(When(lanes__lt=lanes, then=Value(lanes)), default=F("lanes"), output_field=IntegerField()),
    )
    if not changed:
        return None
    return int(mine.values_list("next_position", flat=True).get()) - rows


def seal(batch: Batch, effects: Effects, failures_left: int | None = None) -> bool:
    """No more items come from the dispatcher: the lane that it held open is closed. False if that was done before.

    ``failures_left``: of a retry, what failed before and does not run again; it is judged when this run ends.
    """
    dispatching, not_started = Q(status=BatchStatus.DISPATCHING), Q(started_at=None)
    status = Case(
        When(dispatching & not_started, then=Value(BatchStatus.QUEUED)),
        When(dispatching, then=Value(BatchStatus.RUNNING)),
        default=F("status"),
    )
    rows = batches_of(effects.using).filter(pk=batch.pk, run=batch.run, sealed=False)
    failures = F("failures") + (failures_left or 0)
    if not rows.update(sealed=True, status=status, failures=failures, heartbeat_at=timezone.now()):
        return False
    if failures_left is None:
        fail(batch, effects, EXCEEDED)
    close_lane(batch.pk, effects)
    return True


# Cancelling


def decide_cancelled(batch_id: uuid.UUID, run: int | None, reason: str, effects: Effects) -> bool:
    """Decide that this run of the batch (None: any) is cancelled; False if something was decided before, or the batch
    has finished."""
    changes = {"status": BatchStatus.CANCELLED, "cancelled_at": timezone.now(), "cancel_reason": reason}
    rows = batches_of(effects.using).filter(UNDECIDED, pk=batch_id, finished_at=None)
    if run is not None:
        rows = rows.filter(run=run)
    if rows.filter(status=BatchStatus.WAITING).update(**changes):
        effects.decided.append(batch_id)
        close_lane(batch_id, effects)  # the one that its waiting has held open
        return True
    if rows.exclude(status=BatchStatus.WAITING).update(**changes):
        effects.decided.append(batch_id)
        return True
    return False


def cancel_rows(batch: Batch, pks: list[int], effects: Effects) -> list[BatchJob]:
    """Cancel those of these jobs that have not started, because this run of their batch is decided; returns them as
    they were."""
    batch_id = batch.pk
    waiting = [row for row in locked(effects.using, pks) if row.status in NOT_STARTED and row.run <= batch.run]
    rows = [row for row in waiting if not row.is_nested_batch]
    jobs_of(effects.using).filter(pk__in=[row.pk for row in rows]).update(
        status=JobStatus.CANCELLED, finished_at=timezone.now()
    )
    lanes = Counter(row.lane for row in rows)
    closed = sum(count(batch_id, lane, {JobStatus.CANCELLED: lanes[lane]}, effects) for lane in sorted(lanes))
    for _ in range(closed):
        close_lane(batch_id, effects)
    return rows


def locked(using: str, pks: Iterable[int]) -> list[BatchJob]:
    """These rows, locked by ascending id, as they are now."""
    rows = jobs_of(using).filter(pk__in=list(pks)).order_by("pk").defer("args", "kwargs", "traceback", "result")
    if connections[using].features.has_select_for_update:
        rows = rows.select_for_update()
    return list(rows)


def _deadlocks() -> dict[str, Any]:
    return {"deadlocks": F("deadlocks") + survived()} if survived() else {}
