"""DESIGN's "Semantics, in one place", sentence by sentence: with a real forking worker, and on a synchronous queue.

What a synchronous queue (`ASYNC: False`) cannot show: killed processes and stop commands (the dispatching process is
the horse), delays and the front of the queue (there is no queue), and a job that is cancelled while it waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings
from rq import Retry

from django_job_batches import BatchError, BatchFinished, batch_of, chain, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_semantics
from tests.failures.books import ended, numbers, rows_of
from tests.models import Effect
from tests.processes import Record

Go = Callable[..., Batch]


@pytest.fixture(params=["worker", "sync"])
def go(request: pytest.FixtureRequest, settings: Settings, live_db: None, record: Record) -> Go:
    """Dispatch a description, run everything, and return the batch as it has ended."""
    if request.param == "sync":
        settings.JOB_BATCHES = {"QUEUE": "sync"}
        return lambda description: ended(description.dispatch())
    drain = request.getfixturevalue("drain")

    def with_a_worker(description: Any) -> Batch:
        batch = description.dispatch()
        drain()
        return ended(batch)

    return with_a_worker


@pytest.fixture
def again(request: pytest.FixtureRequest, go: Go) -> Callable[[], None]:
    """Run what a retry has queued; on a synchronous queue it has run already."""
    is_sync = request.node.callspec.params["go"] == "sync"
    return (lambda: None) if is_sync else request.getfixturevalue("drain")


def callbacks(**roles: Any) -> dict[str, Any]:
    every = {"on_success": "success", "on_failure": "failure", "on_finish": "finish"}
    return {role: job_of(jobs_semantics.whoami, word) for role, word in every.items()} | roles


def fired(record: Record) -> list[str]:
    return [line.split()[0] for line in record.lines() if line.split()[0] in ("success", "failure", "finish")]


# Outcome


def test_succeeded(go: Go, record: Record) -> None:
    batch = go(batch_of([job_of(jobs.succeed, n) for n in range(5)], **callbacks()))
    assert batch.status == "succeeded"
    assert numbers(batch) == (5, 0, 0)
    assert fired(record) == ["success", "finish"]
    assert batch.started_at and batch.finished_at and not batch.failed_at and not batch.cancelled_at


def test_failed_when_more_items_failed_than_allow_failures_allows(go: Go, record: Record) -> None:
    """...Then what has not started is cancelled."""
    batch = go(batch_of([job_of(jobs.fail), *[job_of(jobs.succeed, n) for n in range(4)]], **callbacks()))
    assert batch.status == "failed"
    assert numbers(batch) == (0, 1, 4)
    assert record.count("succeed") == 0
    assert fired(record) == ["failure", "finish"]


@pytest.mark.parametrize(
    ("allowed", "failing", "status"),
    [(1, 1, "succeeded"), (1, 2, "failed"), (0.5, 5, "succeeded"), (0.5, 6, "failed"), (True, 10, "succeeded")],
)
def test_tolerated_failures_are_shown_by_the_counters(go: Go, allowed: Any, failing: int, status: str) -> None:
    """An int, a share between 0 and 1, or True for any number. Else succeeded, tolerated failures included."""
    items = [job_of(jobs.fail) if n < failing else job_of(jobs.succeed, n) for n in range(10)]
    batch = go(batch_of(items, allow_failures=allowed))
    assert batch.status == status
    assert batch.failed_jobs == failing
    assert batch.has_failures


def test_an_item_cancelled_by_itself_counts_like_a_failed_one(drain: Any) -> None:
    batch = batch_of([job_of(jobs.succeed, n) for n in range(3)], allow_failures=1).dispatch()
    first, second = batch.jobs.order_by("pk")[:2]
    assert first.cancel() and not first.cancel()
    batch.refresh_from_db()
    assert batch.status == "queued"
    assert second.cancel()
    batch.refresh_from_db()
    assert batch.status == "failed"
    assert numbers(ended(batch)) == (0, 0, 3)


def test_what_its_chain_cancels_does_not_count_as_failed(go: Go) -> None:
    batch = go(batch_of([chain(job_of(jobs.fail), *[jobs.succeed] * 5)], allow_failures=1))
    assert batch.status == "succeeded"
    assert numbers(batch) == (0, 1, 5)


def test_a_nested_batch_cancelled_by_itself_counts_like_a_failed_one(drain: Any) -> None:
    batch = batch_of([batch_of([jobs.succeed], name="inner"), jobs.succeed]).dispatch()
    assert Batch.objects.get(name="inner").cancel("alone")
    batch = ended(batch)
    assert batch.status == "failed"
    assert rows_of(batch) == ["cancelled", "cancelled"]


def test_cancelled_when_someone_cancelled_it(drain: Any, record: Record) -> None:
    batch = batch_of([job_of(jobs.succeed, n) for n in range(5)], **callbacks()).dispatch()
    assert batch.cancel("wrong file")
    assert not batch.cancel("again")
    drain()
    batch = ended(batch)
    assert (batch.status, batch.cancel_reason, batch.is_cancelled) == ("cancelled", "wrong file", True)
    assert numbers(batch) == (0, 0, 5)
    assert fired(record) == ["finish"]
    assert record.count("succeed") == 0


def test_the_first_decision_wins(go: Go) -> None:
    batch = go(batch_of([jobs.fail]))
    assert not batch.cancel()
    assert batch.status == "failed"


def test_running_items_end_by_themselves_after_a_cancel(go: Go) -> None:
    batch = go(batch_of([jobs_semantics.cancels_its_batch, jobs.succeed], on_success=jobs.succeed))
    assert batch.status == "cancelled"
    assert numbers(batch) == (1, 0, 1)
    assert rows_of(batch, "on_success") == ["cancelled"]


# Callbacks


def test_on_finish_comes_only_after_the_others_have_ended_whatever_their_outcome(go: Go, record: Record) -> None:
    """A callback that fails never changes the batch's outcome."""
    batch = go(batch_of([jobs.succeed], **callbacks(on_success=[jobs.fail, job_of(jobs_semantics.whoami, "success")])))
    assert batch.status == "succeeded"
    assert [line.split()[0] for line in record.lines()] == ["succeed", "fail", "success", "finish"]
    assert rows_of(batch, "on_success") == ["failed", "succeeded"]


def test_callbacks_are_called_as_written(go: Go, record: Record) -> None:
    """...`func(*args, **kwargs)`; `current_batch()` is the batch they belong to."""
    go(
        batch_of(
            [jobs.succeed], name="mine", on_finish=[job_of(jobs.echo, 1, b=[2]), *callbacks(on_finish=[]).values()][:1]
        )
    )
    assert record.lines()[-1] == "echo (1,) {'b': [2]}"
    go(batch_of([jobs.succeed], name="mine", on_success=job_of(jobs_semantics.whoami, "success")))
    assert record.lines()[-1] == "success mine on_success 1"


def test_a_failed_callback_can_be_retried_alone(go: Go, again: Any, record: Record) -> None:
    batch = go(batch_of([jobs.succeed], on_success=job_of(jobs.flaky, "callback", 1), on_finish=jobs.succeed))
    callback = batch.jobs.get(role="on_success")
    assert callback.status == "failed"
    assert callback.retry()
    again()
    batch = ended(batch)
    assert batch.status == "succeeded"
    assert (record.count("flaky"), record.count("succeed")) == (2, 2)
    assert not callback.retry()


def test_after_retry_callbacks_fire_for_the_new_run(go: Go, again: Any, record: Record) -> None:
    batch = go(batch_of([job_of(jobs.flaky, "item", 1), jobs.succeed], **callbacks()))
    assert fired(record) == ["failure", "finish"]
    assert batch.retry() == 2
    again()
    batch = ended(batch)
    assert batch.status == "succeeded"
    assert numbers(batch) == (2, 0, 0)
    assert fired(record) == ["failure", "finish", "success", "finish"]


def test_the_next_link_comes_after_the_callbacks_of_a_nested_batch(go: Go, record: Record) -> None:
    """A nested batch's item in its parent ends when the nested batch's callbacks have ended too."""
    inner = batch_of([job_of(jobs.succeed, 1)], on_success=job_of(jobs.succeed, 2), on_finish=job_of(jobs.succeed, 3))
    go(batch_of([chain(inner, job_of(jobs.succeed, 4))]))
    assert record.lines() == ["succeed 1", "succeed 2", "succeed 3", "succeed 4"]


def test_a_batch_as_a_callback(go: Go, again: Any, record: Record) -> None:
    clean_up = batch_of([job_of(jobs.flaky, "clean", 1)], name="clean up", on_finish=job_of(jobs.succeed, 9))
    batch = go(batch_of([jobs.succeed], on_finish=clean_up))
    assert batch.status == "succeeded"
    assert rows_of(batch, "on_finish") == ["failed"]
    assert batch.jobs.get(role="on_finish").retry()
    again()
    assert rows_of(ended(batch), "on_finish") == ["succeeded"]
    assert ended(Batch.objects.get(name="clean up")).status == "succeeded"
    assert record.count("succeed 9") == 2


# Empty


@pytest.mark.parametrize("items", [[], [chain()], (job_of(jobs.succeed) for _ in range(0))])
def test_an_empty_batch_succeeds_at_once_callbacks_included(go: Go, record: Record, items: Any) -> None:
    """An empty chain is nothing."""
    batch = go(batch_of(list(items), **callbacks()))
    assert (batch.status, batch.progress, batch.total_jobs) == ("succeeded", 100, 0)
    assert fired(record) == ["success", "finish"]


def test_an_empty_nested_batch_waits_for_its_turn(go: Go, record: Record) -> None:
    batch = go(
        batch_of([chain(job_of(jobs.succeed, 1), batch_of([], on_finish=job_of(jobs.succeed, 2)), batch_of([]))])
    )
    assert batch.status == "succeeded"
    assert record.lines() == ["succeed 1", "succeed 2"]


# Chains and nested batches


def test_when_a_link_fails_the_rest_is_cancelled_and_counted(go: Go, record: Record) -> None:
    inner = batch_of([jobs.succeed], name="inner", on_finish=job_of(jobs.succeed, 7))
    batch = go(batch_of([chain(jobs.fail, inner, jobs.succeed), job_of(jobs.succeed, 1)], allow_failures=True))
    assert rows_of(batch) == ["failed", "cancelled", "cancelled", "succeeded"]
    assert numbers(batch) == (1, 1, 2)
    assert ended(Batch.objects.get(name="inner")).status == "cancelled"
    assert sorted(record.lines()) == ["fail boom", "succeed 1", "succeed 7"]


def scenario(first: Any, *, as_chain: bool) -> Any:
    parts = [
        batch_of([first, *[job_of(jobs.succeed, n) for n in range(3)]], name="Validate"),
        batch_of([job_of(jobs.succeed, 10 + n) for n in range(3)], name="Import"),
    ]
    return batch_of([chain(*parts)] if as_chain else parts, on_finish=job_of(jobs.succeed, 99))


def test_the_import_is_called_off_when_the_validation_fails(go: Go, record: Record) -> None:
    batch = go(scenario(job_of(jobs.fail), as_chain=True))
    assert batch.status == "failed"
    assert record.lines() == ["fail boom", "succeed 99"]
    assert ended(Batch.objects.get(name="Import")).status == "cancelled"


def test_the_whole_tree_is_retried_from_its_root(go: Go, again: Any, record: Record) -> None:
    batch = go(scenario(job_of(jobs.flaky, "validation", 1), as_chain=True))
    assert batch.status == "failed"
    with pytest.raises(BatchError, match=str(batch.pk)):
        Batch.objects.get(name="Validate").retry()
    assert batch.retry() == 2
    again()
    batch = ended(batch)
    assert batch.status == "succeeded"
    assert ended(Batch.objects.get(name="Validate")).status == "succeeded"
    assert numbers(ended(Batch.objects.get(name="Import"))) == (3, 0, 0)
    lines = record.lines()
    assert max(lines.index(f"succeed {n}") for n in range(3)) < min(lines.index(f"succeed {n}") for n in (10, 11, 12))
    assert record.count("succeed 99") == 2


def test_side_by_side_the_first_that_fails_cancels_the_other(go: Go, record: Record) -> None:
    batch = go(scenario(job_of(jobs.fail), as_chain=False))
    assert batch.status == "failed"
    assert "failed" in rows_of(batch) and "cancelled" in rows_of(batch)
    assert record.lines() == ["fail boom", "succeed 99"]


def test_a_cancelled_parent_cancels_what_is_nested_and_on_finish_runs_in_both_cases(drain: Any, record: Record) -> None:
    """A nested batch that has been released ends by itself; one that has not is ended by the sweep."""
    first = batch_of([jobs.succeed], name="first", on_finish=job_of(jobs.succeed, 1))
    second = batch_of([jobs.succeed], name="second", on_finish=job_of(jobs.succeed, 2))
    batch = batch_of([chain(first, second)], on_finish=job_of(jobs.succeed, 3)).dispatch()
    assert batch.cancel()
    drain()
    assert ended(batch).status == "cancelled"
    assert {ended(nested).status for nested in Batch.objects.exclude(pk=batch.pk)} == {"cancelled"}
    assert sorted(record.lines()) == ["succeed 1", "succeed 2", "succeed 3"]


# Retries


def test_a_job_stays_pending_until_its_last_attempt_has_ended(go: Go, record: Record) -> None:
    batch = go(batch_of([job_of(jobs.flaky, "job", 2).options(retry=2)], **callbacks()))
    assert batch.status == "succeeded"
    assert record.count("flaky") == 3
    assert fired(record) == ["success", "finish"]
    assert batch.jobs.get(role="item").attempts == 3


def test_a_job_that_has_no_retries_left_fails(go: Go, record: Record) -> None:
    batch = go(batch_of([job_of(jobs.flaky, "job", 9).options(retry=Retry(max=2))]))
    assert batch.status == "failed"
    assert record.count("flaky") == 3
    [group] = batch.errors()
    assert (group.error_class, group.error_message, group.count) == ("ConnectionError", "job is not there yet", 1)


def test_give_up_fails_now(go: Go, record: Record) -> None:
    batch = go(batch_of([job_of(jobs_semantics.give_up).options(retry=5)]))
    assert batch.status == "failed"
    assert record.count("give_up") == 1


def test_enqueue_at_front_brings_it_back_before_everything_else(drain: Any, record: Record) -> None:
    flaky = job_of(jobs.flaky, "first", 1).options(retry=Retry(max=1, enqueue_at_front=True))
    batch = batch_of([flaky, *[job_of(jobs.succeed, n) for n in range(3)]]).dispatch()
    drain()
    assert record.lines() == ["flaky first", "flaky first", "succeed 0", "succeed 1", "succeed 2"]
    assert ended(batch).status == "succeeded"


def test_a_retry_with_an_interval_is_scheduled(drain: Any, record: Record) -> None:
    batch = batch_of([job_of(jobs.flaky, "later", 1).options(retry=Retry(max=2, interval=[1, 60]))]).dispatch()
    drain()
    job = batch.jobs.get()
    assert (job.status, batch.status) == ("scheduled", "queued")
    while job.status == "scheduled":
        drain(scheduler=True)
        job.refresh_from_db()
    assert ended(batch).status == "succeeded"


# Workers lost, stopped


@pytest.mark.parametrize(
    ("options", "times"), [({}, 1), ({"retry": 1}, 2), ({"on_lost": "retry"}, 4), ({"atomic": True}, 4)]
)
def test_a_killed_horse_is_a_failed_attempt(drain: Any, record: Record, options: Any, times: int) -> None:
    """...with the error `WorkerLost`; it runs again if it has retries left, or with `on_lost="retry"` (at most three
    times); a lost atomic job runs again in the same way."""
    batch = batch_of([job_of(jobs.kill_self).options(**options)], **callbacks()).dispatch()
    drain()
    batch = ended(batch)
    assert batch.status == "failed"
    job = batch.jobs.get(role="item")
    assert job.error_class == "django_job_batches.exceptions.WorkerLost"
    assert (record.count("kill_self"), job.attempts) == (times, times)
    assert fired(record) == ["failure", "finish"]


def test_stop_running(workers: Any, record: Record, wait_until: Any) -> None:
    """Stopped by `cancel(stop_running=True)`: cancelled."""
    batch = batch_of([job_of(jobs.sleep, 60), jobs.succeed], on_finish=jobs.succeed).dispatch()
    workers()
    wait_until(lambda: record.count("sleep begins"))
    assert batch.cancel(stop_running=True)
    batch.wait(timeout=20)
    assert rows_of(ended(batch)) == ["cancelled", "cancelled"]
    assert record.count("sleep ends") == 0


def test_stopped_by_somebody_else(workers: Any, record: Record, redis: Any, wait_until: Any) -> None:
    """By the stop button of django-rq: failed, "stopped"."""
    from rq.command import send_stop_job_command

    batch = batch_of([job_of(jobs.sleep, 60)]).dispatch()
    workers()
    wait_until(lambda: record.count("sleep begins"))
    send_stop_job_command(redis, batch.jobs.get().rq_job_id)
    batch.wait(timeout=20)
    assert ended(batch).status == "failed"
    assert BatchJob.objects.get().error_message == "stopped"


# add()


def test_add_from_inside_a_job(go: Go, record: Record) -> None:
    batch = go(batch_of([jobs_semantics.add_two], **callbacks()))
    assert (batch.status, batch.total_jobs) == ("succeeded", 3)
    assert fired(record) == ["success", "finish"]


@pytest.mark.parametrize("body", [jobs.fail, jobs.succeed])
def test_add_to_a_decided_batch_is_refused(go: Go, body: Any) -> None:
    batch = go(batch_of([body]))
    with pytest.raises(BatchFinished):
        batch.add([jobs.succeed])
    assert batch.jobs.count() == 1


# Retry of a batch


def test_a_subset_is_retried_and_the_rest_is_judged_at_the_end(go: Go, again: Any, record: Record) -> None:
    items = [job_of(jobs.flaky, str(n), 1) for n in range(3)]
    batch = go(batch_of(items, allow_failures=2, **callbacks()))
    assert batch.status == "failed"
    assert batch.retry(jobs=BatchJob.objects.filter(args=["0", 1])) == 1
    again()
    batch = ended(batch)
    assert (batch.status, numbers(batch)) == ("succeeded", (1, 2, 0))
    strict = go(batch_of([job_of(jobs.flaky, f"strict {n}", 1) for n in range(2)], allow_failures=True))
    Batch.objects.filter(pk=strict.pk).update(allowed_failures=0)
    assert strict.jobs.order_by("pk")[0].retry()
    again()
    assert (ended(strict).status, numbers(strict)) == ("failed", (1, 1, 0))


def test_retry_of_nothing_changes_nothing(go: Go) -> None:
    batch = go(batch_of([jobs.succeed]))
    assert batch.retry() == 0
    assert (ended(batch).run, batch.status) == (1, "succeeded")


def test_retry_while_it_runs_is_refused(drain: Any) -> None:
    batch = batch_of([jobs.fail]).dispatch()
    with pytest.raises(BatchError, match="has not finished"):
        batch.retry()


def test_retry_while_callbacks_are_open_is_refused_naming_them(drain: Any, record: Record) -> None:
    batch = batch_of(
        [jobs.fail], on_failure=job_of(jobs.flaky, "cb", 1).options(retry=Retry(max=1, interval=60))
    ).dispatch()
    drain()
    batch.refresh_from_db()
    assert batch.is_finished and batch.open_callbacks
    with pytest.raises(BatchError, match=r"flaky"):
        batch.retry()


def test_a_link_is_retried_with_all_that_is_left_of_its_chain(go: Go, again: Any) -> None:
    batch = go(batch_of([chain(jobs.succeed, job_of(jobs.flaky, "link", 1), jobs.succeed, jobs.succeed)]))
    assert rows_of(batch) == ["succeeded", "failed", "cancelled", "cancelled"]
    assert batch.jobs.get(position=3).retry()
    again()
    assert rows_of(ended(batch)) == ["succeeded"] * 4


# Execution


def test_arguments_arrive_as_json(go: Go, record: Record) -> None:
    batch = go(batch_of([job_of(jobs.echo, (1, 2), None, x={"ä": [1.5, "🙂"]}).options(keep_result=True)]))
    assert list(batch.results()) == [{"args": [[1, 2], None], "kwargs": {"x": {"ä": [1.5, "🙂"]}}}]


def test_results_are_kept_where_asked_for_in_the_order_of_the_items(go: Go) -> None:
    keep = {"keep_result": True}
    items = [job_of(jobs.succeed, n).options(**keep) for n in range(3)]
    batch = go(batch_of([*items, job_of(jobs.succeed, 9), job_of(jobs_semantics.nothing).options(**keep)]))
    assert list(batch.results()) == [0, 1, 2, None]


def test_a_result_that_json_cannot_hold_fails_the_job(go: Go) -> None:
    batch = go(batch_of([job_of(jobs_semantics.unserializable).options(keep_result=True)]))
    assert batch.errors()[0].error_class == "TypeError"


def test_a_coroutine_function(go: Go, record: Record) -> None:
    batch = go(batch_of([job_of(jobs.aio, 3).options(keep_result=True)]))
    assert list(batch.results()) == [3]


@pytest.mark.parametrize("body", [jobs_semantics.overslept, jobs_semantics.sleeps_in_transaction])
@pytest.mark.parametrize("atomic", [False, True])
def test_the_time_out_is_around_the_function_only(go: Go, record: Record, body: Any, atomic: bool) -> None:
    """A time-out inside the user's transaction does not take the failure record down with it."""
    batch = go(batch_of([job_of(body).options(timeout=1, atomic=atomic)], **callbacks()))
    assert batch.status == "failed"
    assert "JobTimeout" in batch.errors()[0].error_class
    assert Effect.objects.count() == 0
    assert fired(record) == ["failure", "finish"]


def test_an_atomic_body_and_its_bookkeeping_commit_together(go: Go, record: Record) -> None:
    effects = [job_of(jobs.write_effect, str(n)).options(atomic=True) for n in range(3)]
    batch = go(batch_of([*effects, job_of(jobs_semantics.effect_then_fail).options(atomic=True)], allow_failures=1))
    assert numbers(batch) == (3, 1, 0)
    assert sorted(Effect.objects.values_list("name", flat=True)) == ["0", "1", "2"]


def test_a_late_outcome_is_refused(go: Go, caplog: pytest.LogCaptureFixture) -> None:
    """Of an older attempt (fencing by `attempts`): nothing is counted, nothing is written."""
    batch = batch_of([jobs_semantics.settled_by_somebody], queue_name="sync").dispatch()
    batch.refresh_from_db()
    assert (batch.pending_jobs, batch.status) == (1, "running")
    assert "too late" in caplog.text


def test_a_function_called_without_a_batch_just_works(live_db: None, record: Record) -> None:
    jobs_semantics.whoami("alone")
    assert record.lines() == ["alone None None 0"]
