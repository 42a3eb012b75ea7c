"""A finished batch runs again: a new run of its failed and cancelled items."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from django_job_batches import history, memory, outbox, transitions
from django_job_batches.conf import settings
from django_job_batches.database import after_commit, at_home, home_of, repeated
from django_job_batches.exceptions import BatchError, DuplicateBatch
from django_job_batches.models import (
    DUE,
    NOT_STARTED,
    UNSUCCESSFUL,
    Batch,
    BatchJob,
    BatchStatus,
    JobStatus,
    Role,
)
from django_job_batches.options import checked_user
from django_job_batches.rows import active_key
from django_job_batches.transitions import Effects, batches_of, jobs_of

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

NEW_ATTEMPTS: dict[str, Any] = {
    "losses": 0,
    "enqueued_at": None,
    "scheduled_at": None,
    "started_at": None,
    "finished_at": None,
    "stop_requested_at": None,
    "has_result": False,
    "result": None,
}


def retry(batch: Batch, *, jobs: QuerySet[BatchJob] | None, by: AbstractBaseUser | None) -> int:
    """See ``Batch.retry()``."""
    using, by = home_of(batch), checked_user(by, "by")
    current = transitions.reread(batch, using)
    if batch.is_finished and current.run > batch.run:
        return 0  # somebody else has retried what the caller was looking at
    _refuse_if_open(current)
    _refuse_open_callbacks(using, current)
    wanted = _selected(current, jobs)
    if not wanted.exists():
        return 0
    _refuse_taken_keys(using, current, wanted)
    if not _begin(current):
        return 0
    number = _Rerun(using).run(current, wanted)
    after_commit(partial(outbox.flush, using, Q(batch=current.pk)), using)
    after_commit(partial(history.record, batch, by, f"Retried {number} jobs."), using)
    batch.refresh_from_db(using=using)
    return number


def retry_job(job: BatchJob, *, by: AbstractBaseUser | None) -> bool:
    """See ``BatchJob.retry()``."""
    using, by = home_of(job), checked_user(by, "by")
    batch = at_home(batches_of(using).get(pk=job.batch_id), using)
    if job.role == Role.ITEM:
        done = bool(retry(batch, jobs=jobs_of(using).filter(pk=job.pk), by=by))
    else:
        done = _retry_callback(job, using)
        if done:
            after_commit(partial(history.record, batch, by, f"Retried the callback {job}."), using)
    job.refresh_from_db(using=using)
    return done


def _retry_callback(job: BatchJob, using: str) -> bool:
    nested = _nested_in(job, using) if job.is_nested_batch else None
    if nested is not None:
        _refuse_taken_key(using, nested)
        _refuse_taken_keys(using, nested, _items(using, nested, everything=False))
    is_reopened = jobs_of(using).filter(pk=job.pk).exclude(status__in=UNSUCCESSFUL).exists
    done = outbox.carry_out(partial(_reopen_callback, job), using, confirm=is_reopened) is not False
    if done and nested is not None:
        nested.refresh_from_db(using=using)
        _Rerun(using).run(nested, _items(using, nested, everything=False))
        after_commit(partial(outbox.flush, using, Q(pk=job.pk)), using)
    return done


def _refuse_if_open(batch: Batch) -> None:
    if batch.parent_job_id is not None:
        root = _root_of(batch)
        raise BatchError(f"Batch {batch.pk} is part of batch {root.pk}; retry that one.")
    if not batch.is_finished:
        raise BatchError(f"Batch {batch.pk} has not finished; wait for its end, or cancel it, before a retry.")
    if batch.error:
        raise BatchError(f"Not all items of batch {batch.pk} were written ({batch.error}); dispatch it anew.")


def _refuse_open_callbacks(using: str, batch: Batch) -> None:
    """Its own, and those of nested batches that run again by themselves."""
    for level in transitions.tree_of(using, batch.pk):
        for open_batch in batches_of(using).filter(pk__in=level, open_callbacks__gt=0)[:1]:
            rows = open_batch.jobs.exclude(role=Role.ITEM).filter(status__in=(*DUE, JobStatus.RUNNING))
            names = ", ".join(f"{row.get_role_display()}: {row}" for row in rows)
            raise BatchError(f"Callbacks of batch {open_batch.pk} have not ended ({names}); wait before a retry.")


def _refuse_taken_keys(using: str, batch: Batch, wanted: QuerySet[BatchJob], *, everything: bool = False) -> None:
    """Before anything is changed: each nested batch that runs again with these items must have its key to itself."""
    callbacks = jobs_of(using).filter(batch=batch.pk).exclude(role=Role.ITEM)
    for rows, whole in ((wanted, everything), (callbacks, True)):
        for child in list(batches_of(using).filter(parent_job__in=rows.filter(func="").values("pk"))):
            _refuse_taken_key(using, child)
            _refuse_taken_keys(using, child, _items(using, child, everything=whole), everything=whole)


def _refuse_taken_key(using: str, batch: Batch) -> None:
    other = batches_of(using).filter(active_key=active_key(batch.key)).first() if batch.key else None
    if other is not None:
        raise _duplicate(batch, other)


def _duplicate(batch: Batch, other: Batch | None) -> DuplicateBatch:
    holder = f"Batch {other.pk}" if other else "Another batch"
    return DuplicateBatch(f"{holder} has the key {batch.key!r} now; wait for its end before a retry.", other)


def _root_of(batch: Batch) -> Batch:
    while batch.parent_job_id is not None:
        batch = batches_of(home_of(batch)).get(jobs=batch.parent_job_id)
    return batch


def _selected(batch: Batch, jobs: QuerySet[BatchJob] | None) -> QuerySet[BatchJob]:
    """The items to run again; a link of a chain stands for all that is left of the chain."""
    rows = _items(home_of(batch), batch, everything=False)
    if jobs is None:
        return rows
    if not isinstance(jobs, QuerySet) or jobs.model is not BatchJob:
        raise TypeError(f"jobs is {jobs!r:.200}; pass a queryset of BatchJob, such as batch.jobs.filter(…).")
    chosen = jobs.filter(batch=batch.pk, role=Role.ITEM, status__in=UNSUCCESSFUL).order_by()
    pks = list(chosen.values_list("pk", flat=True))
    chains = list(chosen.exclude(chain=None).values_list("chain", flat=True).distinct())
    return rows.filter(Q(pk__in=pks) | Q(chain__in=chains))


def _items(using: str, batch: Batch, *, everything: bool) -> QuerySet[BatchJob]:
    """Those of a batch that run again: all, or what has not succeeded."""
    rows = jobs_of(using).filter(batch=batch.pk, role=Role.ITEM)
    return rows if everything else rows.filter(status__in=UNSUCCESSFUL)


def _begin(batch: Batch, *, as_nested: bool = False) -> bool:
    """Start a new run; False if somebody else was faster. The dispatcher's lane is open again until all rows are
    queued, and a nested batch waits for its turn again."""
    using = home_of(batch)
    rows = batches_of(using).filter(pk=batch.pk, run=batch.run, finished_at__isnull=False, open_callbacks=0)
    changes: dict[str, Any] = dict.fromkeys(("failed_at", "cancelled_at", "finished_at", "started_at", "final_counts"))
    changes |= {
        "run": F("run") + 1,
        "status": BatchStatus.WAITING if as_nested else BatchStatus.DISPATCHING,
        "open_lanes": 2 if as_nested else 1,
        "sealed": False,
        "failures": 0,
        "cancel_reason": "",
        "active_key": active_key(batch.key),
        "heartbeat_at": timezone.now(),
    }
    confirm = batches_of(using).filter(pk=batch.pk, run=batch.run + 1, sealed=False).exists
    try:
        begun = repeated(partial(_update_in_savepoint, rows, changes), using, confirm=confirm)
    except IntegrityError:
        if not as_nested:
            raise _duplicate(batch, batches_of(using).filter(active_key=active_key(batch.key)).first()) from None
        # It was taken a moment ago; the retry around this batch has begun, and goes on without the key
        begun = repeated(partial(_update_in_savepoint, rows, changes | {"active_key": None}), using, confirm=confirm)
    batch.run += 1
    return begun != 0


def _update_in_savepoint(rows: QuerySet[Batch], changes: dict[str, Any]) -> int:
    with transaction.atomic(using=rows.db):
        return rows.update(**changes)


class _Rerun:
    """Queues the rows of a new run in chunks, those of nested batches too."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.unsealed: set[uuid.UUID] = set()

    def run(self, batch: Batch, wanted: QuerySet[BatchJob]) -> int:
        """``fill()`` for as long as it takes; see reconciling.py."""
        with memory.kept_alive(self.unsealed):
            return self.fill(batch, wanted)

    def fill(self, batch: Batch, wanted: QuerySet[BatchJob], *, everything: bool = False) -> int:
        """Queue ``wanted``, hold the callbacks again, seal; returns how many items run again."""
        self.unsealed.add(batch.pk)
        self._hold_callbacks(batch)
        items = _items(self.using, batch, everything=True)
        number = 0
        for pks in _chunks_of(wanted.filter(run__lt=batch.run)):
            outbox.carry_out(partial(self._queue, batch, pks), self.using)
            queued = list(items.filter(pk__in=pks, run=batch.run).only("pk", "func"))
            number += len(queued)
            for row in queued:
                if row.is_nested_batch:
                    self.fill_nested(row, everything)
            ready = Q(pk__in=[row.pk for row in queued if not row.is_nested_batch])
            after_commit(partial(outbox.flush, self.using, ready), self.using)
        for row in self._not_begun(batch, NOT_STARTED).filter(role=Role.ITEM):
            self.fill_nested(row, everything)
        left = items.filter(run__lt=batch.run, status=JobStatus.FAILED).count()
        outbox.carry_out(partial(transitions.seal, batch, failures_left=left), self.using)
        # it may have been decided, and swept, before the last rows of it were queued
        after_commit(partial(outbox.sweep, self.using, batch.pk), self.using)
        self.unsealed.discard(batch.pk)
        return number

    def _queue(self, batch: Batch, pks: list[int], effects: Effects) -> None:
        """One chunk: rows, lanes, batch."""
        rows = [row for row in transitions.locked(self.using, pks) if row.run < batch.run and row.is_ended]
        alike: dict[tuple[JobStatus, int], list[int]] = defaultdict(list)
        begun: set[int] = set()
        for row in rows:
            status = JobStatus.QUEUED if self._is_first(row, begun) else JobStatus.BLOCKED
            alike[status, row.option("retries", 0)].append(row.pk)
        for (status, retries), same in alike.items():
            changes = {**NEW_ATTEMPTS, "run": batch.run, "max_attempts": F("attempts") + 1 + retries}
            jobs_of(self.using).filter(pk__in=same).update(status=status, **changes)
        opened = 0
        for lane in sorted({row.lane for row in rows}):
            ended = Counter(JobStatus(row.status) for row in rows if row.lane == lane)
            opened += transitions.reopen(batch.pk, lane, ended, effects)
        here = batches_of(self.using).filter(pk=batch.pk, run=batch.run, sealed=False)
        if not here.update(open_lanes=F("open_lanes") + opened, heartbeat_at=timezone.now()):
            raise BatchError(f"The retry of batch {batch.pk} was ended by somebody else meanwhile; look at it again.")

    def _is_first(self, row: BatchJob, begun: set[int]) -> bool:
        """Whether nothing of its chain has to end before it; ``begun``: chains of which an earlier link runs again."""
        if row.chain is None:
            return True
        if row.chain in begun:
            return False
        begun.add(row.chain)
        before = jobs_of(self.using).filter(batch=row.batch_id, role=Role.ITEM, chain=row.chain)
        return not before.filter(position__lt=row.position).exclude(status=JobStatus.SUCCEEDED).exists()

    def _hold_callbacks(self, batch: Batch) -> None:
        callbacks = jobs_of(self.using).filter(batch=batch.pk, run__lt=batch.run).exclude(role=Role.ITEM)
        for row in callbacks.order_by("pk"):
            retries = row.option("retries", 0)
            changes = {**NEW_ATTEMPTS, "run": batch.run, "max_attempts": row.attempts + 1 + retries}
            same = jobs_of(self.using).filter(pk=row.pk, status=row.status, run=row.run)
            if same.update(status=JobStatus.HELD, **changes) and row.is_nested_batch:
                self.fill_nested(row, everything=True)
        for row in self._not_begun(batch, [JobStatus.HELD]).filter(stop_requested_at=None):
            self.fill_nested(row, everything=True)

    def _not_begun(self, batch: Batch, statuses: Iterable[JobStatus]) -> QuerySet[BatchJob]:
        """Rows of this run whose nested batch still is at the end of the run before: a retry was broken off there."""
        rows = jobs_of(self.using).filter(batch=batch.pk, run=batch.run, func="", status__in=list(statuses))
        return rows.filter(nested_batch__finished_at__isnull=False, nested_batch__open_callbacks=0)

    def fill_nested(self, row: BatchJob, everything: bool) -> None:
        """Run a nested batch again; ``everything`` of it where it is a callback, which fires anew."""
        child = batches_of(self.using).filter(parent_job=row.pk).first()
        if child is None or not _begin(at_home(child, self.using), as_nested=True):
            return
        self.fill(child, _items(self.using, child, everything=everything), everything=everything)


def end_broken_off(batch: Batch) -> None:
    """Bring a retry to its end whose process has died. What it was to queue is known of nested callbacks only, which
    go on; another batch is cancelled, so that it ends, and can be retried again."""
    using = home_of(batch)
    callback = _callback_around(batch, using)
    if callback is not None:
        everything = callback.status == JobStatus.HELD
        _Rerun(using).fill(batch, _items(using, batch, everything=everything), everything=everything)
        return
    outbox.cancel_batch(using, batch.pk, "Its retry was broken off: the process that queued its jobs has died.")
    _Rerun(using).fill(batch, jobs_of(using).none())


def _callback_around(batch: Batch, using: str) -> BatchJob | None:
    """The callback that this batch is, or is a part of."""
    while batch.parent_job_id is not None:
        row = jobs_of(using).select_related("batch").get(pk=batch.parent_job_id)
        if row.role != Role.ITEM:
            return row
        batch = row.batch
    return None


def _chunks_of(rows: QuerySet[BatchJob]) -> Iterator[list[int]]:
    """The keys of these items in chunks. A chain stays in one: otherwise its first link could end before the rest of
    it waits to be released."""
    last = -1
    rows = rows.order_by("position")
    while chunk := list(rows.filter(position__gt=last).values_list("pk", "position", "chain")[: settings.CHUNK_SIZE]):
        _, last, chain = chunk[-1]
        if chain is not None:
            chunk += rows.filter(position__gt=last, chain=chain).values_list("pk", "position", "chain")
            last = chunk[-1][1]
        yield [pk for pk, _, _ in chunk]


def _reopen_callback(job: BatchJob, effects: Effects) -> bool:
    """Run one callback again whose event has come; its batch counts it as open meanwhile."""
    row = jobs_of(effects.using).select_related("batch").get(pk=job.pk)
    if row.status not in UNSUCCESSFUL or not event_has_come(row):
        return False
    if row.is_nested_batch and not _begin(_nested_in(row, effects.using), as_nested=True):
        return False
    retries = row.option("retries", 0)
    changes = {**NEW_ATTEMPTS, "max_attempts": row.attempts + 1 + retries, "status": JobStatus.QUEUED}
    if not jobs_of(effects.using).filter(pk=row.pk, status=row.status, run=row.run).update(**changes):
        return False
    batch = batches_of(effects.using).filter(pk=row.batch_id, run=row.run)
    if not batch.update(open_callbacks=F("open_callbacks") + 1):
        raise BatchError(f"Batch {row.batch_id} is being retried already, and its callbacks with it.")
    if not row.is_nested_batch:  # the rows of a nested batch have to be queued first
        effects.released.append(row.pk)
    return True


def _nested_in(row: BatchJob, using: str) -> Batch:
    return at_home(batches_of(using).get(parent_job=row.pk), using)


def event_has_come(row: BatchJob) -> bool:
    """Whether a callback was released in this run of its batch, rather than called off."""
    batch = row.batch
    return {
        Role.ON_SUCCESS: batch.status == BatchStatus.SUCCEEDED,
        Role.ON_FAILURE: batch.failed_at is not None,
        Role.ON_FINISH: batch.is_finished,
    }[Role(row.role)]
