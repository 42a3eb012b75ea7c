"""What can be read of a batch, while it runs and afterwards."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_job_batches import BatchError, batch_of, chain, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_semantics
from tests.in_process import work
from tests.invariants import assert_all_ended
from tests.processes import PATIENCE, Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def test_the_numbers_always_add_up(live_db: None, record: Record) -> None:
    """P2: `pending + succeeded + failed + cancelled == total`, always. P7: progress never goes back, is never
    negative, and 100 exactly when the batch has finished; failed counts as processed."""
    items = [note(0), jobs.fail, chain(note(1), jobs.fail, note(2)), job_of(jobs.flaky, "job", 1).options(retry=1)]
    batch = batch_of(items, allow_failures=True, on_finish=note(3)).dispatch()
    seen = []
    for _ in range(8):
        batch.refresh_from_db()
        ended = batch.succeeded_jobs + batch.failed_jobs + batch.cancelled_jobs
        assert batch.pending_jobs + ended == batch.total_jobs == 6
        seen.append((batch.progress, batch.is_finished))
        work(at_most=1)
    assert seen == [
        *[(0, False), (16, False), (33, False), (50, False), (50, False), (83, False)],
        *[(100, True), (100, True)],
    ]
    assert_all_ended()


def test_progress_is_rounded_down(live_db: None) -> None:
    """...a whole number 0-100, 100 only with `finished_at`."""
    batch = batch_of([jobs_semantics.nothing] * 101).dispatch()
    work(at_most=100)
    batch.refresh_from_db()
    assert (batch.progress, type(batch.progress), batch.is_finished) == (99, int, False)
    work()
    batch.refresh_from_db()
    assert (batch.progress, batch.is_finished) == (100, True)


def test_each_status(run_queued: Runner, record: Record) -> None:
    """`dispatching` is in test_dispatch.py."""
    batch = batch_of([note(1), note(2)]).dispatch()
    assert (batch.status, batch.is_running, batch.is_finished, batch.started_at) == ("queued", False, False, None)
    work(at_most=1)
    batch.refresh_from_db()
    assert (batch.status, batch.is_running, batch.is_finished) == ("running", True, False)
    batch = run_queued.on(batch)
    assert (batch.status, batch.is_running, batch.is_finished, batch.has_failures) == ("succeeded", False, True, False)
    failed = run_queued(batch_of([jobs.fail]))
    assert (failed.status, failed.is_cancelled, failed.has_failures) == ("failed", False, True)
    cancelled = batch_of([note(1)]).dispatch()
    cancelled.cancel()
    assert (cancelled.status, cancelled.is_cancelled, cancelled.has_failures) == ("cancelled", True, False)


def test_timestamps(run: Runner) -> None:
    batch = run(batch_of([jobs.fail, jobs.succeed]))
    assert batch.created_at <= batch.started_at <= batch.failed_at <= batch.finished_at  # type: ignore[operator]
    assert batch.duration == batch.finished_at - batch.started_at  # type: ignore[operator]
    assert (batch.eta, batch.cancelled_at) == (None, None)
    empty = run(batch_of([]))
    assert (empty.started_at, empty.duration, empty.eta, empty.progress) == (None, None, None, 100)


def test_a_list_of_batches_reads_all_counters_in_one_query(run_queued: Runner, django_assert_num_queries: Any) -> None:
    """...those of finished ones in none, through every way to such a list."""
    for n in range(3):
        batch_of([note(1)] * n, name="done").dispatch()
    work()
    for n in range(3):
        batch_of([note(1)] * n, name="open").dispatch()
    with django_assert_num_queries(1):
        done = list(Batch.objects.filter(name="done").order_by("created_at"))
        assert [batch.succeeded_jobs for batch in done] == [0, 1, 2]
    ways = [Batch.objects.filter(name="open"), Batch.objects.all(), Batch.objects.select_related("created_by")[:6]]
    for rows in ways:
        with django_assert_num_queries(2):
            for batch in rows:
                assert batch.total_jobs == batch.pending_jobs + batch.succeeded_jobs
                assert (batch.failed_jobs, batch.cancelled_jobs, batch.progress < 101) == (0, 0, True)
    with django_assert_num_queries(2):
        one = Batch.objects.filter(name="open")[0]
        assert one.total_jobs + one.pending_jobs + one.succeeded_jobs + one.failed_jobs >= 0


def test_an_instance_is_a_snapshot_until_it_is_refreshed(live_db: None, record: Record) -> None:
    batch = batch_of([note(1), note(2)]).dispatch()
    assert batch.pending_jobs == 2
    work()
    assert batch.pending_jobs == 2
    batch.refresh_from_db()
    assert (batch.pending_jobs, batch.succeeded_jobs) == (0, 2)


def test_errors_are_grouped_by_exception(run: Runner, django_assert_num_queries: Any) -> None:
    """`errors()` (failures grouped by exception), most frequent first; not those of callbacks or of other batches."""
    items = [job_of(jobs.fail, "often")] * 3 + [job_of(jobs.fail, "once"), job_of(jobs.flaky, "name", 9)]
    batch = run(batch_of([*items, jobs.succeed], allow_failures=True, on_finish=job_of(jobs.fail, "callback")))
    run(batch_of([job_of(jobs.fail, "other")]))
    with django_assert_num_queries(1):
        groups = batch.errors()
    assert [(group.error_class, group.error_message, group.count) for group in groups] == [
        ("ValueError", "often", 3),
        ("ConnectionError", "name is not there yet", 1),
        ("ValueError", "once", 1),
    ]
    assert BatchJob.objects.get(pk=groups[0].example).args == ["often"]
    assert batch.errors(limit=1) == groups[:1]


def test_scopes_while_callbacks_run(live_db: None, record: Record) -> None:
    """`active()`: not ended; `finished()`: the last item has ended, callbacks may still run."""
    batch = batch_of([note(1)], on_finish=note(2)).dispatch()
    assert (list(Batch.objects.active()), list(Batch.objects.finished())) == ([batch], [])
    work(at_most=1)
    assert (list(Batch.objects.active()), list(Batch.objects.finished())) == ([], [batch])
    work()
    assert_all_ended()


@pytest.mark.parametrize("what", ["dispatcher", "outbox", "nothing left"])
def test_stuck(live_db: None, record: Record, what: str) -> None:
    """Active batches that no longer move by themselves, after `LOST_AFTER` seconds."""
    batch = batch_of([note(1)], name="slow").dispatch()
    other = batch_of([note(2)]).dispatch()
    row = Batch.objects.filter(pk=batch.pk)
    if what == "dispatcher":
        row.update(sealed=False)
    elif what == "outbox":
        batch.jobs.update(enqueued_at=None)
    else:
        batch.jobs.update(status="blocked")
    assert not Batch.objects.stuck()
    row.update(heartbeat_at=timezone.now() - timedelta(seconds=61))
    assert list(Batch.objects.stuck()) == [batch]
    Batch.objects.filter(pk=other.pk).update(heartbeat_at=timezone.now() - timedelta(days=1))
    assert list(Batch.objects.stuck()) == [batch]  # what waits in its queue is not stuck


def test_wait_for_items_or_for_callbacks_too(live_db: None, record: Record) -> None:
    """`wait(timeout=None, callbacks=True)`: until the items, and the callbacks too, have ended."""
    batch = batch_of([note(1)], on_finish=note(2)).dispatch()
    with pytest.raises(TimeoutError, match=r"queued at 0 %"):
        batch.wait(timeout=0.05)
    work(at_most=1)
    batch.wait(timeout=0.05, callbacks=False)
    with pytest.raises(TimeoutError, match=r"succeeded at 100 %"):
        batch.wait(timeout=0.05)
    work()
    batch.wait()
    assert batch.is_finished
    with transaction.atomic(), pytest.raises(BatchError, match="atomic"):
        batch.wait()
    with transaction.atomic(using="other"):
        batch.wait()


def test_wait_inside_a_job_is_warned_about(run: Runner, record: Record) -> None:
    run(batch_of([jobs_semantics.waits]))
    assert record.lines() == ["waits ['RuntimeWarning']"]


def test_wait_for_a_worker(workers: Any, record: Record) -> None:
    batch = batch_of([note(1)], on_success=note(2), on_finish=note(3)).dispatch()
    (worker,) = workers()
    batch.wait(timeout=PATIENCE)
    assert record.lines() == ["succeed 1", "succeed 2", "succeed 3"]
    worker.stop()
    assert_all_ended()


def test_waiting_for_a_tree(workers: Any, record: Record) -> None:
    """A nested batch as a callback belongs to what is waited for."""
    inner = batch_of([chain(note(1), note(2))], on_finish=note(3))
    batch = batch_of([inner], on_finish=batch_of([note(4)], on_finish=note(5))).dispatch()
    (worker,) = workers()
    batch.wait(timeout=PATIENCE)
    assert record.lines()[-1] == "succeed 5"
    worker.stop()
    assert_all_ended()
