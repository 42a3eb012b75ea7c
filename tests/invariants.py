"""What must be true of every batch, its rows and Redis once everything has ended, whatever happened before."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import django_rq
from django.conf import settings
from rq.registry import (
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)

from django_job_batches import transitions
from django_job_batches.models import ENDED, Batch, BatchCounter, BatchJob, JobStatus, Role

LEFTOVERS = (StartedJobRegistry, ScheduledJobRegistry, DeferredJobRegistry, CanceledJobRegistry)


def assert_all_ended(using: str = "default", *, in_order: bool = True) -> None:
    """Every batch on this database has ended as its rows say, and Redis holds nothing but what has run.

    `in_order`: callbacks came in their order, and before the end of the row of a nested batch; not so, of course,
    where one of them was retried by itself.
    """
    batches = list(Batch.objects.using(using).order_by("created_at"))
    for batch in batches:
        rows = list(batch.jobs.using(using).order_by("position"))
        _assert_finished(batch, rows)
        _assert_counters(batch, rows)
        _assert_outcome(batch, _items(rows))
        _assert_callbacks(batch, rows)
        _assert_chains(_items(rows))
        _assert_nested(rows)
        if in_order:
            _assert_order(rows)
    assert not Batch.objects.using(using).active().exists()
    assert not Batch.objects.using(using).stuck().exists()
    assert Batch.objects.using(using).finished().count() == len(batches)
    _assert_redis()


def _items(rows: list[BatchJob]) -> list[BatchJob]:
    return [row for row in rows if row.role == Role.ITEM]


def _assert_finished(batch: Batch, rows: list[BatchJob]) -> None:
    assert batch.finished_at, f"{batch} is {batch.status}: {[(row.role, row.status) for row in rows]}"
    assert [row for row in rows if row.status not in ENDED or not row.finished_at] == []
    assert (batch.sealed, batch.open_lanes, batch.open_callbacks, batch.active_key) == (True, 0, 0, None)
    assert (batch.progress, batch.is_running, batch.eta) == (100, False, None)
    assert {row.run for row in rows if row.role != Role.ITEM} <= {batch.run}
    assert all(row.run <= batch.run and row.attempts <= row.max_attempts for row in rows)


def _assert_counters(batch: Batch, rows: list[BatchJob]) -> None:
    """Lane by lane, and in the totals that the batch keeps. A chunk that could not be written leaves empty lanes."""
    names = ("total", "pending", *(str(status) for status in ENDED))
    by_lane = {lane: Counter(row.status for row in _items(rows) if row.lane == lane) for lane in range(batch.lanes)}
    lanes = BatchCounter.objects.using(batch._state.db).filter(batch=batch).values("lane", *names)
    assert {lane["lane"] for lane in lanes} >= set(by_lane)
    for lane in lanes:
        ended = by_lane.get(lane["lane"], Counter())
        assert [lane[name] for name in names] == [ended.total(), 0, *(ended[status] for status in ENDED)]
    everything = Counter(row.status for row in _items(rows))
    expected = [everything.total(), 0, *(everything[status] for status in ENDED)]
    assert list(batch.counts)[:5] == expected
    assert batch.final_counts[:5] == expected


def _assert_outcome(batch: Batch, items: list[BatchJob]) -> None:
    failed = sum(item.status == JobStatus.FAILED for item in items)
    unsuccessful = sum(item.status != JobStatus.SUCCEEDED for item in items)
    allowed = _allowed(batch, len(items))
    assert batch.status in ENDED
    assert (batch.failed_at is not None, batch.cancelled_at is not None) == (
        batch.status == "failed",
        batch.status == "cancelled",
    )
    if batch.status == "succeeded":
        assert failed <= allowed
    if batch.status == "failed" and not batch.error:
        assert unsuccessful > allowed


def _allowed(batch: Batch, total: int) -> float:
    if batch.allowed_failures is not None:
        return batch.allowed_failures
    return float("inf") if batch.allowed_millionths is None else batch.allowed_millionths * total / 1_000_000


def _assert_callbacks(batch: Batch, rows: list[BatchJob]) -> None:
    """Those whose event came have run, the others are cancelled; so is all of a batch that is such a callback."""
    needed = {Role.ON_SUCCESS: "succeeded", Role.ON_FAILURE: "failed"}
    is_dropped = _was_never_called(batch)
    for row in rows:
        if row.role != Role.ITEM and not row.is_nested_batch:
            has_come = not is_dropped and batch.status == needed.get(Role(row.role), batch.status)
            assert (row.status != JobStatus.CANCELLED) == has_come, (batch, row.role, row.status)
            assert row.attempts > 0 or not has_come


def _was_never_called(batch: Batch) -> bool:
    """Whether it is, or was part of, a callback whose event has not come."""
    if batch.parent_job is None or batch.cancel_reason == transitions.NOT_CALLED:
        return batch.parent_job is not None
    return "part of was called off" in batch.cancel_reason and _was_never_called(batch.parent_job.batch)


def _assert_chains(items: list[BatchJob]) -> None:
    """What follows a link that did not succeed is cancelled, unless it had failed before its turn."""
    for before, link in pairwise(items):
        if link.chain is not None and link.chain == before.chain and before.status != JobStatus.SUCCEEDED:
            assert link.status == JobStatus.CANCELLED or _failed_before_its_turn(link), (before.status, link.status)


def _failed_before_its_turn(link: BatchJob) -> bool:
    """A nested batch has if too many of its items were cancelled by hand meanwhile."""
    return link.status == JobStatus.FAILED and link.is_nested_batch and link.nested_batch.started_at is None


def _assert_nested(rows: list[BatchJob]) -> None:
    """The row of a nested batch ends as that does."""
    for row in rows:
        if row.is_nested_batch:
            assert row.status == row.nested_batch.status, (row.nested_batch, row.status)


def _assert_order(rows: list[BatchJob]) -> None:
    finishers = [row.started_at for row in rows if row.role == Role.ON_FINISH and row.started_at]
    others = [row.finished_at for row in rows if row.role != Role.ON_FINISH and row.started_at]
    assert not finishers or max(others, default=min(finishers)) <= min(finishers)
    for row in rows:
        if row.is_nested_batch:
            below = row.nested_batch.jobs.values_list("finished_at", flat=True)
            assert row.finished_at >= max([row.nested_batch.finished_at, *below])


def _assert_redis() -> None:
    """Nothing waits or runs, and what RQ keeps of jobs that have run will expire."""
    for name in settings.RQ_QUEUES:
        queue = django_rq.get_queue(name)
        assert queue.job_ids == [], name
        for registry in LEFTOVERS:
            assert registry(queue=queue).get_job_ids(cleanup=False) == [], (name, registry.__name__)
    _assert_kept_jobs_expire()


def _assert_kept_jobs_expire() -> None:
    queues = [django_rq.get_queue(name) for name in settings.RQ_QUEUES]
    registries = [kind(queue=queue) for queue in queues for kind in (FinishedJobRegistry, FailedJobRegistry)]
    kept = {job_id for registry in registries for job_id in registry.get_job_ids(cleanup=False)}
    redis = queues[0].connection
    hashes = {key.decode().removeprefix("rq:job:") for key in redis.scan_iter("rq:job:*")}
    hashes = {job_id for job_id in hashes if ":" not in job_id}
    assert hashes == kept, (hashes - kept, kept - hashes)
    assert [job_id for job_id in hashes if redis.ttl(f"rq:job:{job_id}") < 0] == []
