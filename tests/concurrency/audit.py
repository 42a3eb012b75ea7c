"""What must be true of all batches once everything has ended."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from typing import Any

from django.db.models import Count

from django_job_batches.models import ENDED, Batch, BatchCounter, BatchJob, BatchStatus, JobStatus, Role
from tests.concurrency import bodies


def audit(finished: Counter[uuid.UUID]) -> None:
    """Check every batch in the database; `finished`: how often a commit has finished each of them."""
    assert_counters_equal_rows()
    assert not BatchJob.objects.exclude(status__in=ENDED).exists(), _open_rows()
    batches = list(Batch.objects.all())
    assert [batch for batch in batches if not batch.is_finished or batch.open_callbacks or batch.open_lanes] == []
    assert [(batch, finished[batch.pk]) for batch in batches if finished[batch.pk] != batch.run] == []
    for batch in batches:
        _check_outcome(batch)
    _check_executions()


def _open_rows() -> str:
    """Those that should have ended, first what the others may be waiting for."""
    rows = list(BatchJob.objects.exclude(status__in=ENDED).select_related("batch").order_by("pk"))
    rows.sort(key=lambda row: (row.batch.status == BatchStatus.WAITING, row.status == JobStatus.HELD))
    return "\n".join([f"{len(rows)} rows have not ended:", *map(_described, rows[:20])])


def _described(row: BatchJob) -> str:
    batch = row.batch
    return (
        f"{row.role} {row.pk} ({row.func or 'nested'}) is {row.status}; attempts {row.attempts}/{row.max_attempts}, "
        f"run {row.run}, chain {row.chain}, position {row.position}, enqueued {row.enqueued_at}; "
        f"batch {str(batch.pk)[:8]} of row {batch.parent_job_id} is {batch.status}, run {batch.run}, "
        f"sealed {batch.sealed}, lanes {batch.open_lanes}, callbacks {batch.open_callbacks}, "
        f"decided {batch.failed_at or batch.cancelled_at}"
    )


def assert_counters_equal_rows() -> None:
    """Lane by lane, and in the totals that finished batches keep."""
    rows: dict[Any, Counter[str]] = defaultdict(Counter)
    grouped = BatchJob.objects.filter(role=Role.ITEM).values_list("batch", "lane", "status").order_by()
    for batch_id, lane, status, number in grouped.annotate(number=Count("pk")):
        rows[batch_id, lane][status if status in ENDED else "pending"] += number
    names = ("pending", *ENDED)
    lanes = BatchCounter.objects.values_list("batch", "lane", "total", *names)
    counters = {(batch_id, lane): (total, numbers) for batch_id, lane, total, *numbers in lanes}
    assert set(rows) <= set(counters)
    for key, (total, numbers) in counters.items():
        assert (total, numbers) == (rows[key].total(), [rows[key][name] for name in names]), key
    for batch in Batch.objects.filter(final_counts__isnull=False):
        lanes_of_it = [rows[key] for key in counters if key[0] == batch.pk]
        totals = [sum(lane[name] for lane in lanes_of_it) for name in names]
        assert list(batch.final_counts or ())[:5] == [sum(totals), *totals], batch


def _check_outcome(batch: Batch) -> None:
    expected = BatchStatus.SUCCEEDED
    if batch.failed_at or batch.cancelled_at:
        expected = BatchStatus.FAILED if batch.failed_at else BatchStatus.CANCELLED
    assert batch.status == expected
    assert batch.pending_jobs == 0
    if batch.status == BatchStatus.FAILED:
        assert batch.failures > 0
    fired = {
        Role.ON_SUCCESS: batch.status == BatchStatus.SUCCEEDED,
        Role.ON_FAILURE: batch.failed_at is not None,
        Role.ON_FINISH: True,
    }
    for callback in batch.jobs.exclude(role=Role.ITEM).exclude(func=""):
        this_run = (callback.pk, batch.run)
        times = sum(number for (*key, _), number in bodies.executions.items() if tuple(key) == this_run)
        assert times == fired[Role(callback.role)], (batch.status, times, _described(callback))


def _check_executions() -> None:
    """Each claim called its function once; an atomic job may have been run again in place."""
    calls: Counter[int] = Counter()
    for (pk, _, _), number in bodies.executions.items():
        calls[pk] += number
    for job in BatchJob.objects.exclude(func="").only("pk", "attempts", "options", "status"):
        if not job.options.get("atomic"):
            assert calls[job.pk] == job.attempts, job.pk
        if job.status == JobStatus.SUCCEEDED:
            assert calls[job.pk], job.pk
    doubles = {key for key, number in bodies.executions.items() if number > 1}
    atomic = set(BatchJob.objects.filter(options__atomic=True).values_list("pk", flat=True))
    assert [key for key in doubles if key[0] not in atomic] == []
