"""What has to be true of a batch that has ended, whatever happened to it."""

from __future__ import annotations

from typing import Any

from django_job_batches.models import ENDED, Batch, BatchJob
from tests.concurrency.audit import assert_counters_equal_rows


def ended(batch: Batch) -> Batch:
    """The batch as it is now: finished, callbacks and nested batches too, and its counters are those of its rows."""
    batch.refresh_from_db()
    assert batch.is_finished, rows_of(batch)
    assert batch.progress == 100
    assert (batch.open_lanes, batch.open_callbacks, batch.pending_jobs) == (0, 0, 0), rows_of(batch)
    assert not batch.jobs.exclude(status__in=ENDED).exists(), rows_of(batch)
    assert_counters_equal_rows()
    return batch


def has_ended(batch: Batch) -> bool:
    """Whether the batch and its callbacks have ended, by now."""
    batch.refresh_from_db()
    return batch.is_finished and not batch.open_callbacks


def first_item(batch: Batch) -> BatchJob:
    return batch.jobs.filter(role="item").select_related("batch").order_by("position")[0]


def rows_of(batch: Batch, role: str = "item") -> list[Any]:
    """The states of its items, or callbacks, in their order."""
    return list(batch.jobs.filter(role=role).order_by("position").values_list("status", flat=True))


def numbers(batch: Batch) -> tuple[int, int, int]:
    """How many have succeeded, failed and been cancelled."""
    return batch.succeeded_jobs, batch.failed_jobs, batch.cancelled_jobs
