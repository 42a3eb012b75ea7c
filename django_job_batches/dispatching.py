"""Descriptions to rows, in chunks, and on to Redis."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import cycle
from typing import Any

from django.db import IntegrityError, connections, router, transaction
from django.db.models import Q
from django.utils import timezone

from django_job_batches import memory, outbox, outcomes, transitions
from django_job_batches.conf import settings
from django_job_batches.database import after_commit, at_home, atomically, home_of, repeated, storable
from django_job_batches.exceptions import BatchError, BatchFinished, DuplicateBatch
from django_job_batches.items import BatchDescription, ChainDescription, JobDescription, as_item, as_items
from django_job_batches.models import Batch, BatchCounter, BatchJob, BatchStatus, JobStatus, Role
from django_job_batches.rows import batch_row, initial_status, job_row
from django_job_batches.signals import batch_dispatched
from django_job_batches.transitions import Effects, batches_of, jobs_of

logger = logging.getLogger(__name__)

JOBS_PER_LANE = 128
LANES_PER_CHUNK = 8
MAX_DEPTH = 50
"""Levels of nested batches: the end of the innermost one may end all those around it, in one transaction."""

Unit = tuple["JobDescription | BatchDescription", ...]
"""An item, or the links of a chain: what stays together in one chunk and one lane."""

Nested = tuple[Batch, BatchDescription]
"""The row of a batch that stands for an item or callback of another, and what is to be written into it."""

CALLBACKS = (Role.ON_SUCCESS, Role.ON_FAILURE, Role.ON_FINISH)


def dispatch(description: BatchDescription, using: str | None = None) -> Batch:
    """See ``BatchDescription.dispatch()``."""
    using = using or router.db_for_write(Batch)
    if connections[using].in_atomic_block:
        with transaction.atomic(using=using):  # a savepoint: nothing half-made remains, whoever catches the exception
            return _Dispatch(using, streaming=False).run(description)
    return _Dispatch(using, streaming=True).run(description)


def add(batch: Batch, items: Iterable[Any]) -> int:
    """See ``Batch.add()``."""
    items = as_items(items, "add()")
    using = home_of(batch)
    if connections[using].in_atomic_block:
        with transaction.atomic(using=using):
            return _Dispatch(using, streaming=False).add(batch, items)
    return _Dispatch(using, streaming=True).add(batch, items)


class _TooLateError(BatchError):
    """The batch takes no more items."""


class _SealedError(_TooLateError):
    """Somebody else has taken this dispatcher for dead, and ended what it writes."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(f"Batch {batch.pk} was sealed by somebody else while it was being dispatched.")


class _CancelledError(Exception):
    """The batch was cancelled while it was being dispatched."""


class _Dispatch:
    """One call of ``dispatch()`` or ``add()``: what it has written, and whether it still reaches Redis.

    Streaming, each chunk is a transaction of its own, and its jobs are enqueued at once. Inside the caller's
    transaction everything is part of that, and is enqueued after its commit.
    """

    def __init__(self, using: str, *, streaming: bool) -> None:
        self.using = using
        self.streaming = streaming
        self.batches: list[uuid.UUID] = []
        self.unsealed: dict[uuid.UUID, Batch] = {}
        self.rows = 0
        self.depth = 0
        self.redis_answers = True
        self.root: Batch | None = None

    def run(self, description: BatchDescription) -> Batch:
        batch, nested = self._create(description)
        self.root = batch
        try:
            with self._watched():
                self._fill_nested(nested)
                self._write_items(batch, description.items)
                self._seal(batch)
        except _CancelledError as error:
            self._end_early(batch, str(error))
        except BaseException as error:
            self._break_off(batch, error)
            raise
        batch.refresh_from_db(using=self.using)
        after_commit(partial(self._dispatched, batch), self.using)
        return batch

    def add(self, batch: Batch, items: Iterable[Any]) -> int:
        current = transitions.reread(batch, self.using)
        self.batches.append(batch.pk)
        try:
            with self._watched():
                number = self._write_items(current, items, added=True)
        except _TooLateError:
            message = f"Something has been decided about batch {batch.pk}, so nothing can be added; dispatch a new one."
            raise BatchFinished(message) from None
        except BaseException as error:
            if self.rows:
                self._break_off(batch, error)
            raise
        after_commit(self._enqueue_rest, self.using)
        batch.refresh_from_db(using=self.using)
        return number

    def _watched(self) -> AbstractContextManager[None]:
        """Say in the block that somebody writes on, however long the items keep us waiting; see reconciling.py."""
        return memory.kept_alive(self.unsealed) if self.streaming else nullcontext()

    # One batch

    def _create(self, description: BatchDescription) -> tuple[Batch, list[Nested]]:
        """Write the row of the whole batch, and its callbacks with it: once it is there, they will run."""
        batch = at_home(batch_row(description), self.using)
        nested: list[Nested] = []

        def insert() -> None:
            _insert_batch(self.using, batch)
            nested[:] = self._insert_callbacks(batch, description)

        atomically(insert, self.using, confirm=batches_of(self.using).filter(pk=batch.pk).exists)
        self._created([(batch, description), *nested])
        return batch, nested

    def _created(self, batches: list[Nested]) -> None:
        """Note batches whose rows are there now, as soon as they are: none may stay unsealed, whatever comes."""
        self.batches += [batch.pk for batch, _ in batches]
        self.unsealed |= {batch.pk: batch for batch, _ in batches}

    def _fill_nested(self, nested: list[Nested]) -> None:
        """Write all that belongs to these batches, whose rows are there, and seal them."""
        self.depth += 1
        if nested and self.depth > MAX_DEPTH:
            raise ValueError(
                f"Batches are nested more than {MAX_DEPTH} levels deep; have jobs add() to a batch instead."
            )
        for batch, description in nested:
            self._fill_nested(self._write_callbacks(batch, description))
            self._write_items(batch, description.items)
            self._seal(batch)
        self.depth -= 1

    def _seal(self, batch: Batch) -> None:
        outbox.carry_out(partial(transitions.seal, batch), self.using)
        self.unsealed.pop(batch.pk, None)

    def _break_off(self, batch: Batch, error: BaseException) -> None:
        """The items could not be read to their end: outside a transaction, the batch fails with that error."""
        if not self.streaming:  # the caller's transaction, or at least a savepoint of it, is rolled back
            return
        if getattr(error, "batch", None) is None:
            with suppress(Exception):  # of a class that takes no attributes
                error.batch = batch  # type: ignore[attr-defined]
        details = outcomes.described(error)
        what = f"{details['error_class'].rpartition('.')[2]}: {details['error_message']}"
        try:
            outbox.carry_out(partial(transitions.fail, batch), self.using)
            self._end_early(batch, what)
            batch.refresh_from_db(using=self.using)
        except Exception:
            logger.exception("Batch %s could not be marked as failed after %s.", batch.pk, what)

    def _end_early(self, batch: Batch, why: str) -> None:
        """Note that not all items were written, and seal what is open, which would never end otherwise."""
        error = storable(why, settings.MAX_ERROR_LENGTH)
        repeated(partial(batches_of(self.using).filter(pk=batch.pk).update, error=error), self.using)
        for unsealed in reversed(list(self.unsealed.values())):
            self._seal(unsealed)

    # Callbacks

    def _write_callbacks(self, batch: Batch, description: BatchDescription) -> list[Nested]:
        nested: list[Nested] = []

        def insert() -> None:
            nested[:] = self._insert_callbacks(batch, description)

        if any(getattr(description, role) for role in CALLBACKS):
            confirm = jobs_of(self.using).filter(batch=batch.pk).exclude(role=Role.ITEM).exists
            atomically(insert, self.using, confirm=confirm)
            self._created(nested)
        return nested

    def _insert_callbacks(self, batch: Batch, description: BatchDescription) -> list[Nested]:
        callbacks = [(role, callback) for role in CALLBACKS for callback in getattr(description, role)]
        if not callbacks:
            return []
        if not batches_of(self.using).filter(pk=batch.pk, sealed=False).update(callbacks=len(callbacks)):
            raise _SealedError(batch)
        rows = [
            job_row(callback, batch, role=role, position=position, status=JobStatus.HELD)
            for position, (role, callback) in enumerate(callbacks)
        ]
        self._insert(rows)
        return self._insert_nested(rows, [callback for _, callback in callbacks])

    # Items

    def _write_items(self, batch: Batch, items: Iterable[Any], *, added: bool = False) -> int:
        """Write the items, and what is nested in them; returns how many rows of this batch they became."""
        number = 0
        for units in _chunks(items, settings.CHUNK_SIZE):
            if added and batch.is_decided:  # its lanes may be gone
                raise _TooLateError
            chunk = _Chunk(self, batch, units, added=added)
            chunk.make_lanes()
            atomically(chunk.write, self.using, confirm=chunk.is_written)
            self._created(chunk.nested)
            self.rows += chunk.size
            number += chunk.size
            self._enqueue([row for row in chunk.rows if row.enqueued_at])
            self._open(chunk.rows)
            if self.streaming:
                self._call_off(batch)
            self._fill_nested(chunk.nested)
        return number

    def _call_off(self, batch: Batch) -> None:
        """Of a batch that was decided meanwhile, cancel what has just been written; stop if it was all cancelled."""
        outbox.sweep(self.using, batch.pk)
        root = self.root and batches_of(self.using).filter(pk=self.root.pk, cancelled_at__isnull=False).first()
        if root:
            raise _CancelledError(f"Cancelled during its dispatch, after {self.rows} items.")

    def _insert(self, rows: list[BatchJob]) -> None:
        jobs_of(self.using).bulk_create(rows, batch_size=settings.CHUNK_SIZE)
        if any(not row.pk for row in rows):  # MySQL, other than MariaDB, does not return the keys
            first = rows[0]
            keys = jobs_of(self.using).filter(batch=first.batch_id, position__gte=first.position, role=first.role)
            for row, pk in zip(rows, keys.order_by("position").values_list("pk", flat=True), strict=False):
                row.pk = pk

    def _insert_nested(self, rows: list[BatchJob], descriptions: list[Any]) -> list[Nested]:
        """The batches that some of these rows stand for, in the same transaction as their rows."""
        nested = [
            (batch_row(description, row), description)
            for row, description in zip(rows, descriptions, strict=True)
            if isinstance(description, BatchDescription)
        ]
        for batch, _ in nested:
            _insert_batch(self.using, batch)
        return nested

    # Redis

    def _enqueue(self, rows: list[BatchJob]) -> None:
        if rows:
            self.redis_answers = outbox.push(self.using, rows)

    def _open(self, rows: list[BatchJob]) -> None:
        """Start the nested batches of this chunk whose turn it is already."""
        due = [row.pk for row in rows if row.is_nested_batch and row.status == JobStatus.QUEUED]
        if due and self.streaming and self.redis_answers:
            self.redis_answers = outbox.flush(self.using, Q(pk__in=due))

    def _enqueue_rest(self) -> None:
        """What waits for this commit, or for Redis to be back; then a look at what others have left behind."""
        pieces = (self.batches[start : start + 500] for start in range(0, len(self.batches), 500))
        if all(outbox.flush(self.using, Q(batch__in=batches)) for batches in pieces):
            outbox.flush(self.using, limit=settings.CHUNK_SIZE)

    def _dispatched(self, batch: Batch) -> None:
        self._enqueue_rest()
        batch_dispatched.send_robust(Batch, batch=batch)


class _Chunk:
    """Some items of a batch, written in one transaction once their lanes are there: lanes, the batch, then the rows."""

    def __init__(self, dispatch: _Dispatch, batch: Batch, units: list[Unit], *, added: bool) -> None:
        self.dispatch = dispatch
        self.batch = batch
        self.units = units
        self.added = added
        self.size = sum(len(unit) for unit in units)
        self.status = batch.status
        self.lanes: list[int] = []
        self.number_of_lanes = 0
        self.rows: list[BatchJob] = []
        self.nested: list[Nested] = []

    def make_lanes(self) -> None:
        """Choose the lanes that this chunk is spread over, and make those that are not there yet.

        In a transaction of its own: on MySQL and MariaDB, who meets another's new lane has a shared lock on it, which
        two that want to count into that lane next would hold against each other.
        """
        using = self.dispatch.using
        row = batches_of(using).values_list("lanes", "next_position", "status")
        have, total, self.status = repeated(partial(row.get, pk=self.batch.pk), using) or (0, 0, self.status)
        wanted = max(have, min(settings.MAX_LANES, 1 + (total + self.size) // JOBS_PER_LANE))
        if wanted > have:
            missing = [BatchCounter(batch_id=self.batch.pk, lane=lane) for lane in range(have, wanted)]
            counters = BatchCounter.objects.using(using)
            repeated(partial(counters.bulk_create, missing, ignore_conflicts=True), using)
        spread = min(wanted, LANES_PER_CHUNK, 1 + self.size // JOBS_PER_LANE)
        start = total // JOBS_PER_LANE
        self.lanes = sorted((start + step) % wanted for step in range(spread))
        self.number_of_lanes = wanted

    def write(self) -> None:
        effects = Effects(self.dispatch.using)
        lane_of = [lane for lane, _ in zip(cycle(self.lanes), self.units, strict=False)]
        added: Counter[int] = Counter()
        for unit, lane in zip(self.units, lane_of, strict=True):
            added[lane] += len(unit)
        opened = sum(transitions.open_lane(self.batch.pk, lane, added[lane], effects) for lane in sorted(added))
        first = transitions.reserve(self.batch, self.size, opened, self.number_of_lanes, effects, added=self.added)
        if first is None:
            raise _SealedError(self.batch)
        self.rows = list(self._rows(first, lane_of))
        self.dispatch._insert(self.rows)
        self.nested = self.dispatch._insert_nested(self.rows, [item for unit in self.units for item in unit])

    def is_written(self) -> bool:
        """Whether the COMMIT of an attempt whose connection was lost has gone through."""
        first = self.rows[0] if self.rows else None
        return first is not None and jobs_of(self.dispatch.using).filter(pk=first.pk, batch=self.batch.pk).exists()

    def _rows(self, position: int, lane_of: list[int]) -> Iterator[BatchJob]:
        leased_at = timezone.now() if self._goes_out_at_once() else None
        for unit, lane in zip(self.units, lane_of, strict=True):
            chain = position if len(unit) > 1 else None
            for number, item in enumerate(unit):
                row = job_row(item, self.batch, position=position, lane=lane, chain=chain)
                row.status = initial_status(row, number == 0)
                if leased_at and not row.is_nested_batch and row.status != JobStatus.BLOCKED:
                    row.enqueued_at = leased_at
                position += 1
                yield row

    def _goes_out_at_once(self) -> bool:
        """Rows are written with their lease when they are pushed right after the commit."""
        is_open = self.status in (BatchStatus.DISPATCHING, BatchStatus.QUEUED, BatchStatus.RUNNING)
        return self.dispatch.streaming and self.dispatch.redis_answers and is_open


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Unit]]:
    """The items in lists of at least ``size`` rows, without reading further than that."""
    units: list[Unit] = []
    rows = 0
    for number, value in enumerate(items, 1):
        item = as_item(value, f"item {number}")
        unit: Unit = item.links if isinstance(item, ChainDescription) else (item,)
        if not unit:
            continue
        units.append(unit)
        rows += len(unit)
        if rows >= size:
            yield units
            units, rows = [], 0
    if units:
        yield units


def _insert_batch(using: str, batch: Batch) -> None:
    """Write the row; ``DuplicateBatch`` if another unfinished batch has its key."""
    try:
        with transaction.atomic(using=using):
            batch.save(using=using, force_insert=True)
    except IntegrityError:
        other = batches_of(using).filter(active_key=batch.active_key).first() if batch.active_key else None
        if other is None:
            raise
        message = f"The unfinished batch {other.pk} has the key {batch.key!r} already; wait for its end or cancel it."
        raise DuplicateBatch(message, other) from None
