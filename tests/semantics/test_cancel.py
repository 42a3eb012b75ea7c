"""`cancel()` and `stop()`, of batches and of single jobs."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import transaction
from redis import Redis

from django_job_batches import batch_of, chain, job_of
from django_job_batches.models import Batch
from tests import jobs, jobs_semantics
from tests.failures.books import numbers, rows_of
from tests.in_process import enqueued, work
from tests.invariants import assert_all_ended
from tests.models import Effect
from tests.processes import PATIENCE, Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def test_true_if_this_call_did_it(run_queued: Runner) -> None:
    """...and the reason, and who it was."""
    user = User.objects.create(username="operator")
    batch = batch_of([note(1), note(2)]).dispatch()
    same = Batch.objects.get(pk=batch.pk)
    assert batch.cancel("wrong file", by=user)
    assert not same.cancel("another reason", by=user)
    assert (same.status, same.cancel_reason, batch.is_cancelled) == ("cancelled", "wrong file", True)
    assert LogEntry.objects.get(user=user).change_message == "Cancelled. wrong file"
    assert not run_queued.on(batch).cancel()


def test_a_batch_that_has_succeeded_stays_so(run: Runner) -> None:
    """The first decision wins."""
    batch = run(batch_of([jobs.succeed], on_finish=jobs.succeed))
    assert not batch.cancel() and not batch.cancel(stop_running=True)
    assert (batch.status, batch.cancelled_at, batch.cancel_reason) == ("succeeded", None, "")


def test_pending_items_never_run(run_forking: Runner, record: Record, redis: Redis) -> None:
    """...though their RQ jobs are still there, as after an outage of Redis."""
    batch = batch_of([note(1), chain(note(2), note(3))], on_finish=note(4)).dispatch()
    dump = {key: redis.dump(key) for key in redis.scan_iter("rq:job:*")}
    waiting = enqueued()
    assert batch.cancel()
    assert enqueued() == [batch.jobs.get(role="on_finish").rq_job_id]
    for key, value in dump.items():
        redis.restore(key, 0, value)
    redis.rpush("rq:queue:default", *waiting)
    run_forking.on(batch)
    assert record.lines() == ["succeed 4"]
    assert rows_of(batch) == ["cancelled"] * 3


def test_a_body_that_was_running_keeps_its_effects(run: Runner, record: Record) -> None:
    """Running ones end by themselves; so does an `atomic=True` one."""
    job = job_of(jobs_semantics.cancels_then_writes)
    for atomic in (False, True):
        batch = run(batch_of([job.options(atomic=atomic), note(1)], on_finish=note(2)))
        assert (batch.status, numbers(batch)) == ("cancelled", (1, 0, 1))
    assert Effect.objects.count() == 2
    assert record.lines() == ["succeed 2", "succeed 2"]


def test_a_running_item_that_fails_after_the_cancel_does_not_run_again(run: Runner, record: Record) -> None:
    """A retry that goes back to `queued` can slip past a cancel's sweep: it is cancelled all the same."""
    batch = run(batch_of([job_of(jobs_semantics.cancels_then_fails).options(retry=3)]))
    assert (batch.status, numbers(batch)) == ("cancelled", (0, 0, 1))
    assert batch.jobs.get().attempts == 1


def test_cancel_goes_down_the_whole_tree(run_queued: Runner, record: Record) -> None:
    """Nested batches too."""
    deep = batch_of([chain(note(1), batch_of([note(2), batch_of([note(3)])])), batch_of([])])
    batch = batch_of([deep, note(4)], on_finish=note(5)).dispatch()
    assert batch.cancel()
    batch = run_queued.on(batch)
    assert record.lines() == ["succeed 5"]
    statuses = set(Batch.objects.exclude(jobs=None).values_list("status", flat=True))
    assert statuses == {"cancelled"}


def test_a_parent_that_fails_cancels_what_is_nested(run: Runner, record: Record) -> None:
    inner = batch_of([note(n) for n in range(3)], name="inner", on_finish=note(9))
    batch = run(batch_of([jobs.fail, chain(inner, note(4))]))
    assert (batch.status, Batch.objects.get(name="inner").status) == ("failed", "cancelled")
    assert "called off" in Batch.objects.get(name="inner").cancel_reason
    assert record.lines() == ["fail boom", "succeed 9"]


def test_inside_a_transaction_that_is_rolled_back(run_queued: Runner) -> None:
    """The decision belongs to the caller's transaction, the sweep follows the commit."""
    batch = batch_of([jobs.succeed, batch_of([jobs.succeed])], name="victim").dispatch()
    other = batch_of([job_of(jobs_semantics.cancels_in_a_transaction, "victim").options(at_front=True)])
    run_queued(other)
    assert run_queued.on(batch).status == "succeeded"


def test_a_batch_dispatched_and_cancelled_in_one_transaction(run_queued: Runner, record: Record) -> None:
    with transaction.atomic():
        batch = batch_of([note(1), batch_of([note(2)], on_finish=note(3))], on_finish=note(4)).dispatch()
        assert batch.cancel("changed my mind")
        assert enqueued() == []
    batch = run_queued.on(batch)
    assert (batch.status, sorted(record.lines())) == ("cancelled", ["succeed 3", "succeed 4"])


# Single jobs


def test_one_job(run_queued: Runner, record: Record) -> None:
    """`cancel()`: the same for one row. Its RQ job goes, and it counts like a failed one."""
    batch = batch_of([note(1), note(2)], allow_failures=1).dispatch()
    job = batch.jobs.get(position=0)
    assert job.cancel()
    assert (job.status, job.is_ended) == ("cancelled", True)
    assert len(enqueued()) == 1
    assert not job.cancel()
    batch = run_queued.on(batch)
    assert (record.lines(), numbers(batch), batch.status) == (["succeed 2"], (1, 0, 1), "succeeded")
    assert not batch.jobs.get(position=1).cancel()


def test_the_last_job(live_db: None) -> None:
    """...whose cancellation finishes the batch."""
    batch = batch_of([note(1)], allow_failures=True).dispatch()
    assert batch.jobs.get().cancel()
    batch.refresh_from_db()
    assert (batch.status, numbers(batch)) == ("succeeded", (0, 0, 1))
    assert_all_ended()


def test_one_job_inside_a_transaction(run_queued: Runner, record: Record) -> None:
    batch = batch_of([note(1), note(2)], allow_failures=True).dispatch()
    with pytest.raises(LookupError), transaction.atomic():
        assert batch.jobs.get(position=0).cancel()
        raise LookupError
    assert len(enqueued()) == 2
    with transaction.atomic():
        assert batch.jobs.get(position=1).cancel()
        assert len(enqueued()) == 2
    assert len(enqueued()) == 1
    assert numbers(run_queued.on(batch)) == (1, 0, 1)


def test_nothing_to_stop(run: Runner) -> None:
    """`stop()` of what does not run: False, and nothing changes."""
    batch = run(batch_of([jobs.succeed, batch_of([jobs.succeed])]))
    assert [job.stop() for job in batch.jobs.order_by("position")] == [False, False]
    assert run.on(batch).status == "succeeded"


def test_a_job_that_runs_cannot_be_cancelled(live_db: None, record: Record) -> None:
    work_on = batch_of([jobs_semantics.cancels_its_own_row]).dispatch()
    work()
    work_on.refresh_from_db()
    assert (work_on.status, record.lines()) == ("succeeded", ["cancels_its_own_row False"])


def test_stop_running_reaches_nested_batches(workers: Any, record: Record, wait_until: Any) -> None:
    """Running ones are stopped; callbacks go on."""
    inner = batch_of([job_of(jobs.sleep, 60), note(1)], name="inner", on_finish=note(2))
    batch = batch_of([inner, note(3)], on_finish=note(4)).dispatch()
    (worker,) = workers()
    wait_until(lambda: record.count("sleep begins"))
    assert batch.cancel("enough", stop_running=True)
    batch.wait(timeout=PATIENCE)
    worker.stop()
    assert_all_ended()
    inner_batch = Batch.objects.get(name="inner")
    assert (batch.status, inner_batch.status) == ("cancelled", "cancelled")
    assert numbers(inner_batch) == (0, 0, 2)
    assert record.count("sleep ends") == 0
    assert record.lines()[-2:] == ["succeed 2", "succeed 4"]


def test_stopping_one_job(workers: Any, record: Record, wait_until: Any) -> None:
    """`BatchJob.stop()`: it ends as cancelled, and counts like one that failed; the others go on."""
    batch = batch_of([job_of(jobs.sleep, 60).options(retry=3), note(1)], allow_failures=1).dispatch()
    (worker,) = workers()
    wait_until(lambda: record.count("sleep begins"))
    assert batch.jobs.get(position=0).stop()
    batch.wait(timeout=PATIENCE)
    worker.stop()
    assert_all_ended()
    assert (batch.status, rows_of(batch)) == ("succeeded", ["cancelled", "succeeded"])
