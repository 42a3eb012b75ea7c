"""What the pages show of batches in numbers. Each reading is bounded, whatever the size of the batch."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, Count, F, Q, QuerySet, TextField, Value, When, Window
from django.db.models.functions import Left, Length, RowNumber
from django.utils import timezone

from django_job_batches.admin.tables import keys_in_state
from django_job_batches.models import Batch, BatchJob, JobStatus, Role

RUNNING_COUNTED = 2_000
"""Running jobs that are counted at most: as many as there are workers, and chunks."""
FAILURES_READ = 1_000
"""Failed jobs of a batch that are read for its groups of errors: the first ones."""
JOBS_SAMPLED = 500
"""Jobs of a batch, evenly spread over it, whose ends make its throughput."""
BARS = 40
HEAD = 300
"""Characters of a message by which errors are grouped."""


def count_running(using: str | None, batch_ids: Iterable[uuid.UUID]) -> Counter[uuid.UUID]:
    """How many jobs of each of these batches run now."""
    rows = BatchJob.objects.using(using).filter(status=JobStatus.RUNNING, batch__in=list(batch_ids), role=Role.ITEM)
    return Counter(rows.exclude(func="").order_by().values_list("batch", flat=True)[:RUNNING_COUNTED])


def summary(batches: QuerySet[Batch]) -> dict[str, int]:
    """How many of these batches run, wait for their first job, and have failed today."""
    today = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0)
    recent = batches.filter(Q(finished_at=None) | Q(failed_at__gte=today)).order_by()
    return recent.aggregate(
        running=Count("pk", filter=Q(finished_at=None, started_at__isnull=False)),
        waiting=Count("pk", filter=Q(finished_at=None, started_at=None)),
        failed=Count("pk", filter=Q(failed_at__gte=today)),
    )


# Errors


@dataclass
class ErrorGroup:
    """Failed jobs with the same exception and beginning of its message; ``example`` is the key of the first one, and
    ``traceback`` what it has kept."""

    error_class: str
    error_message: str
    count: int
    example: int
    traceback: str = ""


@dataclass(frozen=True)
class Errors:
    """The largest groups of errors among the first failed jobs of a batch."""

    groups: list[ErrorGroup]
    is_cut: bool
    """Whether there are more groups than these."""
    jobs_read: int
    jobs_failed: int


def errors(batch: Batch, limit: int) -> Errors:
    keys = keys_in_state(batch.jobs.all(), JobStatus.FAILED, FAILURES_READ)
    number = Window(RowNumber(), partition_by=["error_class", "head"], order_by="pk")
    # of the first one alone: they are long
    example = Case(When(number=1, then=F("traceback")), default=Value(""), output_field=TextField())
    rows = _failed(batch).filter(pk__in=keys).annotate(number=number, example=example).order_by("pk")
    groups: dict[tuple[str, str], ErrorGroup] = {}
    for pk, error_class, head, traceback in rows.values_list("pk", "error_class", "head", "example"):
        group = groups.setdefault((error_class, head), ErrorGroup(error_class, head, 0, pk, traceback))
        group.count += 1
    largest = sorted(groups.values(), key=lambda group: (-group.count, group.example))[:limit]
    read = sum(group.count for group in groups.values())
    return Errors(largest, len(groups) > limit, read, max(batch.failed_jobs, read))


def same_error(batch: Batch, example: int) -> QuerySet[Any] | None:
    """The failed jobs of the batch that have the error of the job ``example``; None if that has not failed."""
    job = _failed(batch).filter(pk=example).values("error_class", "head", "size").first()
    if job is None:
        return None
    # to the letter in all databases: SQLite compares beginnings without case, MySQL whole texts, and without their
    # trailing spaces
    return _failed(batch).filter(**job, error_message__startswith=job["head"])


def count_same(batch: Batch, example: int) -> tuple[int, bool]:
    """How many of the first failed jobs have the error of the job ``example``, and whether that is all of them."""
    same, keys = same_error(batch, example), keys_in_state(batch.jobs.all(), JobStatus.FAILED, FAILURES_READ)
    known = 0 if same is None else len(same.filter(pk__in=keys).values_list("pk"))
    return known, len(keys) < FAILURES_READ


def _failed(batch: Batch) -> QuerySet[Any]:
    head = Left("error_message", HEAD)
    return batch.jobs.filter(status=JobStatus.FAILED, role=Role.ITEM).annotate(head=head, size=Length(head))


# Throughput


@dataclass(frozen=True)
class Throughput:
    """Jobs that ended per ``unit``, in equal spans from ``start`` to ``end``: of each how many succeeded, how many not.

    ``is_estimated``: made from a sample of the batch's jobs.
    """

    start: datetime
    end: datetime
    unit: str
    bars: list[tuple[float, float]]
    is_estimated: bool

    @property
    def peak(self) -> float:
        return max(sum(bar) for bar in self.bars)

    @property
    def average(self) -> float:
        return sum(sum(bar) for bar in self.bars) / len(self.bars)


UNITS = (("second", 1), ("minute", 60), ("hour", 3_600))


def throughput(batch: Batch) -> Throughput | None:
    """None as long as nothing has ended, or everything at once."""
    start, end = batch.started_at, batch.finished_at or timezone.now()
    if start is None or (end - start).total_seconds() < 1 or not batch.next_position:
        return None
    size = min(batch.next_position, JOBS_SAMPLED)
    positions = [index * batch.next_position // size for index in range(size)]
    rows = batch.jobs.filter(role=Role.ITEM, position__in=positions, finished_at__gte=start, finished_at__lte=end)
    # the limit takes nothing away; without it PostgreSQL expects far more rows, and prepares for them at length
    ends: list[Any] = list(rows.order_by().values_list("finished_at", "status")[:size])
    if not ends:
        return None
    span = (end - start).total_seconds() / BARS
    counts: Counter[tuple[int, bool]] = Counter()
    for moment, status in ends:
        index = min(int((moment - start).total_seconds() / span), BARS - 1)
        counts[index, status == JobStatus.SUCCEEDED] += 1
    weight = batch.next_position / size / span  # jobs per second that one job of the sample stands for
    peak = max(counts[index, True] + counts[index, False] for index in range(BARS)) * weight
    unit, seconds = next((unit for unit in UNITS if peak * unit[1] >= 1), UNITS[-1])
    bars = [(counts[index, True] * weight * seconds, counts[index, False] * weight * seconds) for index in range(BARS)]
    return Throughput(start, end, unit, bars, size < batch.next_position)
