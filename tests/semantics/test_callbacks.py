"""Callbacks: which events release them, in which order, and what their failures change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from rq import Retry

from django_job_batches import batch_of, chain, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_semantics
from tests.failures.books import numbers, rows_of
from tests.in_process import enqueued, work
from tests.invariants import assert_all_ended
from tests.processes import Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def test_lists_of_callbacks(run: Runner, record: Record) -> None:
    """A job, a batch, or a list of them."""
    inner = batch_of([note(3)], on_finish=note(4))
    batch = run(batch_of([note(0)], on_success=[note(1), note(2), inner], on_finish=(note(5), note(6))))
    assert record.lines()[0] == "succeed 0"
    assert sorted(record.lines()[1:5]) == ["succeed 1", "succeed 2", "succeed 3", "succeed 4"]
    assert record.lines()[5:] == ["succeed 5", "succeed 6"]
    assert rows_of(batch, "on_success") == ["succeeded"] * 3


def test_callbacks_are_not_counted(run: Runner) -> None:
    batch = run(batch_of([jobs.succeed], on_success=[jobs.fail, jobs.succeed], on_finish=jobs.succeed))
    assert (batch.total_jobs, numbers(batch)) == (1, (1, 0, 0))


def test_on_finish_waits_for_the_callbacks_of_a_callback(run: Runner, record: Record) -> None:
    """...only after the `on_success`/`on_failure` callbacks have ended, whatever their outcome."""
    deepest = batch_of([jobs.fail], on_failure=note(1), on_finish=note(2))
    middle = batch_of([deepest], on_finish=note(3))
    batch = run(batch_of([jobs.fail], on_failure=middle, on_finish=note(4)))
    assert record.lines()[-4:] == ["succeed 1", "succeed 2", "succeed 3", "succeed 4"]
    assert rows_of(batch, "on_failure") == ["failed"]
    assert batch.status == "failed"


def test_with_a_forking_worker_callbacks_of_callbacks_come_in_their_order(run_forking: Runner, record: Record) -> None:
    inner = batch_of([note(1)], on_success=note(2), on_finish=note(3))
    run_forking(batch_of([], on_success=inner, on_finish=note(4)))
    assert record.lines() == ["succeed 1", "succeed 2", "succeed 3", "succeed 4"]


def test_a_callback_that_fails_is_shown_and_changes_nothing(run: Runner) -> None:
    """...of a nested batch neither, nor of what is around that."""
    inner = batch_of([jobs.succeed], name="inner", on_success=jobs.fail, on_finish=jobs.fail)
    batch = run(batch_of([chain(inner, jobs.succeed)]))
    assert (batch.status, numbers(batch)) == ("succeeded", (2, 0, 0))
    callback = BatchJob.objects.get(batch__name="inner", role="on_success")
    assert (callback.status, callback.error_class, callback.error_message) == ("failed", "ValueError", "boom")
    assert "Traceback" in callback.traceback
    assert Batch.objects.get(name="inner").errors() == []  # those of the items


def test_a_callback_has_retries_of_its_own(run: Runner, record: Record) -> None:
    """Each callback is itself a tracked, retryable job."""
    batch = run(batch_of([], on_success=job_of(jobs.flaky, "callback", 2).options(retry=2), on_finish=note(1)))
    assert record.lines() == ["flaky callback"] * 3 + ["succeed 1"]
    assert batch.jobs.get(role="on_success").attempts == 3


def test_give_up_holds_for_callbacks(run: Runner, record: Record) -> None:
    run(batch_of([], on_success=job_of(jobs_semantics.give_up).options(retry=5), on_finish=note(1)))
    assert record.lines() == ["give_up", "succeed 1"]


def test_current_batch_is_the_one_that_the_callback_belongs_to(run: Runner, record: Record) -> None:
    """...of a callback that is a batch, its items belong to that."""
    who = job_of(jobs_semantics.whoami, "who")
    run(batch_of([], name="outer", on_success=batch_of([who], name="inner", on_finish=who), on_finish=who))
    assert record.lines() == ["who inner item 1", "who inner on_finish 1", "who outer on_finish 1"]


def test_nothing_of_a_batch_runs_whose_event_does_not_come(run: Runner, record: Record) -> None:
    """A callback whose event will not come ends as `cancelled`; as a batch, with all that is in it, and its key."""
    deepest = batch_of([note(1)], on_finish=note(2))
    rescue = batch_of(
        [note(3), chain(deepest, note(4))],
        name="rescue",
        key="rescue",
        on_finish=[note(5), deepest],
        on_success=note(6),
    )
    batch = run(batch_of([note(0)], on_failure=[rescue, note(7)], on_finish=note(8)))
    assert (batch.status, rows_of(batch, "on_failure")) == ("succeeded", ["cancelled", "cancelled"])
    assert record.lines() == ["succeed 0", "succeed 8"]
    rescue_batch = Batch.objects.get(name="rescue")
    assert (rescue_batch.status, rescue_batch.started_at) == ("cancelled", None)
    assert set(BatchJob.objects.filter(batch=rescue_batch).values_list("status", flat=True)) == {"cancelled"}
    assert run(batch_of([jobs.succeed], key="rescue")).status == "succeeded"


def test_a_batch_whose_event_did_not_come_is_called_in_a_later_run(run: Runner, record: Record) -> None:
    rescue = batch_of([note(1)], on_finish=note(2))
    batch = run(batch_of([job_of(jobs.flaky, "item", 1)], on_failure=note(3), on_success=rescue))
    assert record.lines() == ["flaky item", "succeed 3"]
    record.clear()
    record.write("flaky item")
    batch.retry()
    batch = run.on(batch)
    assert record.lines()[1:] == ["flaky item", "succeed 1", "succeed 2"]
    assert (rows_of(batch, "on_success"), rows_of(batch, "on_failure")) == (["succeeded"], ["cancelled"])


def test_a_callback_that_is_called_off_while_it_is_held(run_queued: Runner, record: Record) -> None:
    """Its event comes, and finds it cancelled: the others go on."""
    rescue = batch_of([note(1)], name="rescue", on_finish=note(2))
    batch = batch_of([jobs.fail], on_failure=rescue, on_finish=note(3)).dispatch()
    assert Batch.objects.get(name="rescue").cancel("not this time")
    batch = run_queued.on(batch)
    assert (batch.status, rows_of(batch, "on_failure")) == ("failed", ["cancelled"])
    assert sorted(record.lines()) == ["fail boom", "succeed 2", "succeed 3"]
    other = batch_of([jobs.succeed], on_failure=batch_of([note(1)], name="other")).dispatch()
    assert Batch.objects.get(name="other").cancel("nor this time")
    assert run_queued.on(other).status == "succeeded"


def test_a_callback_that_is_called_off_while_it_is_queued(run_queued: Runner, record: Record) -> None:
    batch = batch_of([], on_success=note(1), on_finish=note(2)).dispatch()
    assert batch.jobs.get(role="on_success").cancel()
    work()
    assert record.lines() == ["succeed 2"]
    batch.refresh_from_db()
    assert (batch.status, batch.open_callbacks, rows_of(batch, "on_success")) == ("succeeded", 0, ["cancelled"])


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_add_from_a_callback_is_refused(run_queued: Runner, record: Record, outcome: str) -> None:
    """`add()` on a decided batch, finished or not: `BatchFinished`, nothing written."""
    tries = job_of(jobs_semantics.tries_to_add)
    body = jobs.fail if outcome == "failed" else jobs_semantics.cancels_its_batch
    batch = run_queued(batch_of([body, jobs.succeed], on_failure=tries, on_finish=tries))
    assert (batch.status, batch.total_jobs) == (outcome, 2)
    assert record.count("refused") == (2 if outcome == "failed" else 1)


def test_a_callback_for_later_holds_on_finish_back(run_queued: Runner, record: Record) -> None:
    later = note(1).options(run_after=timedelta(hours=1))
    batch = batch_of([], on_success=later, on_finish=note(2)).dispatch()
    work()
    batch.refresh_from_db()
    assert (batch.is_finished, batch.open_callbacks, rows_of(batch, "on_success")) == (True, 1, ["scheduled"])
    assert record.lines() == []
    batch.wait(timeout=1, callbacks=False)
    with pytest.raises(TimeoutError):
        batch.wait(timeout=0.1)
    assert batch.jobs.get(role="on_success").cancel()
    work()
    assert record.lines() == ["succeed 2"]


# Retried by themselves


def test_a_callback_is_retried_by_itself_as_often_as_it_fails(run: Runner, record: Record) -> None:
    """`retry()` of a callback re-runs just that."""
    batch = run(batch_of([note(0)], on_success=job_of(jobs.flaky, "callback", 3), on_finish=note(1)))
    callback = batch.jobs.get(role="on_success")
    for attempt in (2, 3, 4):
        assert callback.retry()
        run.on(batch, in_order=False)
        callback.refresh_from_db()
        assert callback.attempts == attempt
    assert callback.status == "succeeded" and not callback.error_class
    assert not callback.retry()
    assert record.lines() == ["succeed 0", "flaky callback", "succeed 1", *["flaky callback"] * 3]


def test_a_callback_whose_event_has_not_come_cannot_be_retried(run: Runner) -> None:
    batch = run(batch_of([jobs.succeed], on_failure=[jobs.succeed, batch_of([jobs.succeed])]))
    for callback in batch.jobs.filter(role="on_failure"):
        assert not callback.retry()
    assert run.on(batch).status == "succeeded"


def test_of_a_batch_that_is_a_callback_only_what_failed_runs_again(run: Runner, record: Record) -> None:
    inner = batch_of([note(1), job_of(jobs.flaky, "part", 1), chain(note(2), note(3))], allow_failures=0)
    batch = run(batch_of([], on_success=inner, on_finish=note(9)))
    before = record.count("succeed 1")
    assert batch.jobs.get(role="on_success").retry()
    batch = run.on(batch, in_order=False)
    assert rows_of(batch, "on_success") == ["succeeded"]
    assert (before, record.count("succeed 1"), record.count("flaky"), record.count("succeed 9")) == (1, 1, 2, 1)
    assert record.lines()[-2:] == ["succeed 2", "succeed 3"]


def test_callbacks_of_a_nested_batch_are_retried_without_its_parent(run: Runner, record: Record) -> None:
    inner = batch_of([note(1)], name="inner", on_success=job_of(jobs.flaky, "callback", 1))
    batch = run(batch_of([chain(inner, note(2))], on_finish=note(3)))
    assert BatchJob.objects.get(batch__name="inner", role="on_success").retry()
    batch = run.on(batch, in_order=False)
    assert (batch.run, batch.status) == (1, "succeeded")
    assert record.lines() == ["succeed 1", "flaky callback", "succeed 2", "succeed 3", "flaky callback"]


def test_callbacks_fire_once_in_each_run(run: Runner, record: Record) -> None:
    """P3. After `retry()` they fire for the new run, a batch as a callback as a whole."""
    inner = batch_of([note(1), note(2)], on_finish=note(3))
    batch = run(batch_of([job_of(jobs.flaky, "item", 2)], on_failure=[inner, note(4)], on_finish=[inner, note(5)]))
    for times in (1, 2):
        assert [record.count(f"succeed {n}") for n in range(1, 6)] == [2 * times] * 3 + [times] * 2
        assert batch.retry() == 1
        batch = run.on(batch)
    assert (batch.status, batch.run) == ("succeeded", 3)
    assert [record.count(f"succeed {n}") for n in range(1, 6)] == [5, 5, 5, 2, 3]


def test_a_callback_is_retried_at_the_front(run_queued: Runner, record: Record) -> None:
    """RQ's own semantics hold for callbacks too."""
    flaky = job_of(jobs.flaky, "callback", 1).options(retry=Retry(max=1, enqueue_at_front=True))
    batch_of([], on_finish=flaky).dispatch()
    batch_of([note(1), note(2)]).dispatch()
    work()
    assert record.lines() == ["flaky callback", "flaky callback", "succeed 1", "succeed 2"]
    assert enqueued() == []
    assert_all_ended()
