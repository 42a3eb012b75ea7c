"""Dispatch, add, cancel and read: what the table of the public interface promises, without any worker."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone
from redis import Redis

import django_job_batches
from django_job_batches import (
    BatchError,
    BatchFinished,
    DuplicateBatch,
    LockNotAcquired,
    batch_of,
    chain,
    dispatch_lock,
    job_of,
    outbox,
    signals,
)
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_semantics
from tests.failures.books import ended, numbers, rows_of
from tests.in_process import enqueued, work
from tests.invariants import assert_all_ended
from tests.processes import Record

pytestmark = pytest.mark.usefixtures("live_db", "record")


def test_the_public_names() -> None:
    for name in django_job_batches.__all__:
        assert getattr(django_job_batches, name)
    assert not hasattr(django_job_batches, "chunked")  # comes later; until then it does not exist
    assert list(inspect.signature(batch_of).parameters) == [
        *("items", "name", "on_success", "on_failure", "on_finish", "allow_failures", "queue_name", "key"),
        *("metadata", "created_by"),
    ]


# Transactions


def test_inside_atomic_nothing_reaches_redis_before_the_commit() -> None:
    with transaction.atomic():
        batch = batch_of([job_of(jobs.succeed, n) for n in range(3)]).dispatch()
        assert enqueued() == []
    assert len(enqueued()) == 3
    work()
    assert ended(batch).status == "succeeded"


def test_a_rollback_leaves_neither_rows_nor_redis_jobs() -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        batch_of([jobs.succeed], on_finish=batch_of([jobs.succeed])).dispatch()
        raise RuntimeError
    assert (Batch.objects.count(), BatchJob.objects.count(), enqueued()) == (0, 0, [])


def half_way(error: type[BaseException] = KeyError) -> Iterator[Any]:
    yield from (job_of(jobs.succeed, n) for n in range(25))
    yield batch_of([jobs.succeed], name="inner")
    raise error("row 26")


def test_a_generator_that_raises_half_way(settings: Any) -> None:
    """Outside `atomic()` the batch fails with that error, and the exception is raised again with the batch."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 10}
    with pytest.raises(KeyError) as raised:
        batch_of(half_way(), on_failure=job_of(jobs.succeed, 99)).dispatch()
    work()
    batch = ended(raised.value.batch)  # type: ignore[attr-defined]
    assert (batch.status, batch.error) == ("failed", "KeyError: 'row 26'")
    assert (batch.total_jobs, batch.pending_jobs) == (20, 0)
    assert rows_of(batch, "on_failure") == ["succeeded"]
    with pytest.raises(BatchError, match="dispatch it anew"):
        batch.retry()


def test_a_generator_that_raises_inside_atomic_rolls_everything_back() -> None:
    """...whoever catches the exception."""
    with transaction.atomic():
        with pytest.raises(KeyError):
            batch_of(half_way()).dispatch()
        assert Batch.objects.count() == 0
    assert (BatchJob.objects.count(), enqueued()) == (0, [])


def test_cancel_inside_atomic_belongs_to_that_transaction() -> None:
    batch = batch_of([jobs.succeed, jobs.succeed]).dispatch()
    with pytest.raises(RuntimeError), transaction.atomic():
        assert batch.cancel()
        raise RuntimeError
    batch.refresh_from_db()
    assert batch.status == "queued"
    with transaction.atomic():
        batch.cancel("for good")
        assert rows_of(batch) == ["queued", "queued"]
    assert (ended(batch).status, rows_of(batch), enqueued()) == ("cancelled", ["cancelled"] * 2, [])


# Streaming


def test_a_generator_is_streamed_and_its_jobs_start_meanwhile(settings: Any) -> None:
    settings.JOB_BATCHES = {"CHUNK_SIZE": 50}
    seen = []

    def items() -> Iterator[Any]:
        for n in range(175):
            seen.append(len(enqueued()))
            yield job_of(jobs.succeed, n)

    batch = batch_of(items()).dispatch()
    assert sorted(set(seen)) == [0, 50, 100, 150]
    assert (batch.total_jobs, batch.status, len(enqueued())) == (175, "queued", 175)
    assert list(batch.jobs.order_by("position").values_list("position", flat=True)) == list(range(175))


def test_a_batch_that_fails_under_its_dispatcher_is_written_whole_so_that_a_retry_finds_all(settings: Any) -> None:
    settings.JOB_BATCHES = {"CHUNK_SIZE": 10}

    def items() -> Iterator[Any]:
        yield job_of(jobs.flaky, "first", 1)
        for n in range(35):
            if n == 15:
                work(at_most=1)
            yield job_of(jobs.succeed, n)

    batch = ended(batch_of(items()).dispatch())
    assert (batch.status, numbers(batch)) == ("failed", (0, 1, 35))
    assert batch.retry() == 36
    work()
    assert (ended(batch).status, numbers(batch)) == ("succeeded", (36, 0, 0))


def test_a_dispatch_stops_when_its_batch_is_cancelled(settings: Any) -> None:
    settings.JOB_BATCHES = {"CHUNK_SIZE": 10}

    def items() -> Iterator[Any]:
        for n in range(1000):
            if n == 15:
                Batch.objects.get().cancel("enough")
            yield job_of(jobs.succeed, n)

    batch = ended(batch_of(items()).dispatch())
    assert (batch.status, batch.cancel_reason, numbers(batch)) == ("cancelled", "enough", (0, 0, 20))
    assert enqueued() == []
    with pytest.raises(BatchError, match="dispatch it anew"):
        batch.retry()


def test_lanes_grow_with_the_batch_and_a_chain_shares_one() -> None:
    small, large = batch_of([jobs.succeed] * 5).dispatch(), batch_of([jobs.succeed] * 1500).dispatch()
    linked = batch_of([chain(*[jobs.succeed] * 3)] * 300).dispatch()
    assert small.counters.count() == 1
    assert large.counters.count() == 12
    assert all(len({job.lane for job in linked.jobs.filter(chain=n)}) == 1 for n in range(0, 900, 3))


def test_another_database(redis: Redis) -> None:
    batch = batch_of([chain(jobs.succeed, jobs.succeed)], on_finish=jobs.succeed).dispatch(using="other")
    work()
    batch.wait(timeout=5)
    assert (batch._state.db, batch.status, numbers(batch)) == ("other", "succeeded", (2, 0, 0))
    assert Batch.objects.count() == 0
    assert rows_of(batch, "on_finish") == ["succeeded"]
    failed = batch_of([jobs.fail]).dispatch(using="other")
    work()
    failed.refresh_from_db()
    assert failed.retry() == 1 and failed.cancel()


def test_a_batch_can_be_dispatched_asynchronously() -> None:
    batch = async_to_sync(batch_of([jobs.succeed]).adispatch)()
    assert batch.total_jobs == 1


# add()


def test_add_before_anything_is_decided() -> None:
    batch = batch_of([jobs.succeed]).dispatch()
    assert batch.add([jobs.succeed, chain(jobs.succeed, jobs.succeed), batch_of([jobs.succeed])]) == 4
    work()
    assert numbers(ended(batch)) == (5, 0, 0)
    with pytest.raises(BatchFinished):
        batch.add([jobs.succeed])


def test_add_from_a_generator_that_raises_at_once_changes_nothing() -> None:
    batch = batch_of([jobs.succeed]).dispatch()
    with pytest.raises(KeyError):
        batch.add(half_way())
    assert batch.jobs.count() == 1
    work()
    assert ended(batch).status == "succeeded"


# Keys and locks


def test_one_unfinished_batch_per_key() -> None:
    first = batch_of([jobs.succeed], key="Import 7").dispatch()
    with pytest.raises(DuplicateBatch) as refused:
        batch_of([jobs.succeed], key="Import 7").dispatch()
    assert refused.value.batch == first
    batch_of([jobs.succeed], key="import 7").dispatch()  # keys are exact, on each database
    with transaction.atomic():
        with pytest.raises(DuplicateBatch):
            batch_of([jobs.succeed], key="Import 7").dispatch()
        assert Batch.objects.count() == 2  # the transaction goes on
    work()
    again = batch_of([jobs.fail], key="Import 7").dispatch()
    work()
    other = batch_of([jobs.succeed], key="Import 7").dispatch()
    again.refresh_from_db()
    with pytest.raises(DuplicateBatch) as refused:
        again.retry()
    assert refused.value.batch == other
    assert ended(again).run == 1


def test_dispatch_lock_is_held_renewed_and_freed() -> None:
    with dispatch_lock("import", timeout=0.4):
        time.sleep(1)
        with pytest.raises(LockNotAcquired), dispatch_lock("import"):
            pass
        with dispatch_lock("another"):
            pass
    with dispatch_lock("import"):
        pass


def test_dispatch_lock_waits() -> None:
    held = threading.Event()

    def hold() -> None:
        with dispatch_lock("import"):
            held.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(5)
    with dispatch_lock("import", wait=5):
        pass
    thread.join()


# Reading


def test_a_list_of_batches_reads_all_counters_in_one_query(django_assert_num_queries: Any) -> None:
    for number in range(5):
        batch_of([job_of(jobs.succeed, n) for n in range(number)]).dispatch()
    with django_assert_num_queries(2):
        batches = list(Batch.objects.order_by("created_at"))
        assert [batch.total_jobs for batch in batches] == [0, 1, 2, 3, 4]
        assert [batch.progress for batch in batches] == [100, 0, 0, 0, 0]


def test_progress_is_rounded_down_and_100_only_at_the_end() -> None:
    batch = batch_of([jobs.succeed] * 3).dispatch()
    seen = [batch.progress]
    for _ in range(3):
        work(at_most=1)
        batch.refresh_from_db()
        seen.append(batch.progress)
    assert seen == [0, 33, 66, 100]
    assert batch.duration and batch.eta is None


def test_eta_and_duration_while_it_runs() -> None:
    batch = batch_of([jobs.succeed] * 4).dispatch()
    assert (batch.duration, batch.eta) == (None, None)
    work(at_most=1)
    Batch.objects.update(started_at=timezone.now() - timedelta(seconds=10))
    batch.refresh_from_db()
    assert batch.is_running and batch.status == "running"
    assert timedelta(seconds=25) < batch.eta - timezone.now() < timedelta(seconds=40)  # type: ignore[operator]


def test_scopes() -> None:
    done, open_one = batch_of([]).dispatch(), batch_of([jobs.succeed]).dispatch()
    assert list(Batch.objects.finished()) == [done]
    assert list(Batch.objects.active()) == [open_one]
    assert not Batch.objects.stuck()
    BatchJob.objects.update(enqueued_at=None)
    Batch.objects.update(heartbeat_at=timezone.now() - timedelta(hours=1))
    assert list(Batch.objects.stuck()) == [open_one]


def test_wait() -> None:
    batch = batch_of([jobs.succeed]).dispatch()
    with pytest.raises(TimeoutError):
        batch.wait(timeout=0.1)
    with transaction.atomic(), pytest.raises(BatchError, match="atomic"):
        batch.wait()
    work()
    batch.wait(timeout=5)
    assert batch.is_finished


def test_delete_refuses_what_can_still_run_and_takes_all_that_belongs_to_it() -> None:
    batch = batch_of([batch_of([jobs.succeed]), jobs.succeed], on_finish=batch_of([jobs.succeed])).dispatch()
    with pytest.raises(BatchError):
        batch.delete()
    work()
    ended(batch).delete()
    assert (Batch.objects.count(), BatchJob.objects.count()) == (0, 0)


def test_signals_are_sent_after_the_commit_and_robustly(record: Record) -> None:
    names = ("batch_dispatched", "batch_started", "batch_progressed", "batch_finished", "batch_cancelled", "job_failed")
    sent: list[str] = []
    receivers = {}
    for name in names:

        def note(sender: Any, name: str = name, **kwargs: Any) -> None:
            sent.append(name)
            raise RuntimeError("a receiver that fails stops nobody")

        receivers[name] = note
        getattr(signals, name).connect(note)
    try:
        batch_of([jobs.succeed, jobs.fail], allow_failures=1).dispatch()
        work()
        batch_of([jobs.succeed]).dispatch().cancel()
    finally:
        for name, note in receivers.items():
            getattr(signals, name).disconnect(note)
    first = [
        "batch_dispatched",
        "batch_started",
        "batch_progressed",
        "batch_finished",
        "job_failed",
        "batch_progressed",
    ]
    assert sorted(sent) == sorted([*first, "batch_dispatched", "batch_cancelled", "batch_finished"])


def test_a_nested_batch_has_the_queue_around_it() -> None:
    inner = batch_of([jobs.succeed], name="inner")
    own = batch_of([jobs.succeed], name="own", queue_name="high")
    batch_of([inner, own, jobs.succeed], queue_name="low").dispatch()
    assert set(BatchJob.objects.filter(batch__name="inner").values_list("queue_name", flat=True)) == {"low"}
    assert set(BatchJob.objects.filter(batch__name="own").values_list("queue_name", flat=True)) == {"high"}


@pytest.mark.parametrize("atomic", [True, False])
def test_the_batch_of_a_signal_is_as_it_is_now(atomic: bool) -> None:
    seen = []

    def note(batch: Batch, **kwargs: Any) -> None:
        seen.append((batch.status, batch.pending_jobs, batch.progress))

    signals.batch_progressed.connect(note)
    try:
        batch_of([job_of(jobs_semantics.reads_progress).options(atomic=atomic)] * 2).dispatch()
        work()
    finally:
        signals.batch_progressed.disconnect(note)
    assert seen == [("running", 1, 50), ("succeeded", 0, 100)]


def test_a_cancelled_batch_leaves_nothing_in_redis(redis: Redis) -> None:
    batch = batch_of([job_of(jobs.succeed, n) for n in range(30)]).dispatch()
    batch.cancel()
    assert enqueued() == []
    assert list(redis.scan_iter("*:job:*")) == []


def test_nor_what_a_worker_has_refused_meanwhile(redis: Redis, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the commit that cancels a job and its removal from RQ, a worker has taken it, and passed over it."""
    batch = batch_of([jobs.succeed]).dispatch()

    def remove(rows: list[BatchJob]) -> None:
        work()
        really(rows)

    really = outbox.remove
    monkeypatch.setattr(outbox, "remove", remove)
    batch.cancel()
    assert record.lines() == []
    assert_all_ended()
