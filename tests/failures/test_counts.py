"""Wrong counts, early or double callbacks (kinds of failure 18 to 27)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import django_rq
import pytest

from django_job_batches import BatchError, batch_of, chain, execution, job_of, outcomes, queues, transitions
from django_job_batches.models import Batch, BatchJob
from django_job_batches.outbox import carry_out, flush
from django_job_batches.signals import job_failed
from tests import jobs, jobs_failures
from tests.failures.books import ended, first_item, numbers, rows_of
from tests.in_process import close, enqueued, work
from tests.processes import wait_until

SUCCESS, FAILURE, FINISH = (job_of(jobs.echo, name) for name in ("success", "failure", "finish"))
CALLBACKS: dict[str, Any] = {"on_success": SUCCESS, "on_failure": FAILURE, "on_finish": FINISH}


def fired(record: Any) -> list[str]:
    """The callbacks of CALLBACKS that have run, in their order."""
    return [line.split("'")[1] for line in record.lines() if line.startswith("echo")]


def on(outcome: str, callback: Any) -> dict[str, Any]:
    """What batch_of() takes, to have this called after a success or a failure."""
    return {f"on_{outcome}": callback}


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """What these return, or raise, when each is called in a thread of its own, all at the same moment."""
    barrier, results = threading.Barrier(len(actions)), []

    def act(action: Callable[[], Any]) -> None:
        barrier.wait(10)
        try:
            results.append(action())
        except Exception as error:
            results.append(error)
        finally:
            close()

    threads = [threading.Thread(target=act, args=[action]) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


# 18: the same outcome reported twice


@pytest.mark.parametrize(
    "body", [jobs_failures.die_after_commit, jobs_failures.die_after_settling], ids=["after commit", "after settling"]
)
def test_f18_horse_killed_after_its_job_was_counted(drain, record, body):
    """RQ brings the attempt back. It is not counted again, its body does not run again, and what followed from it,
    the next link and the last callback, comes exactly once."""
    batch = batch_of(
        [chain(body, job_of(jobs.succeed, 1)), chain(job_of(jobs.succeed, 2), body)], **CALLBACKS
    ).dispatch()
    drain()
    assert numbers(ended(batch)) == (4, 0, 0)
    assert sorted(record.lines())[:2] == [body.__name__] * 2
    assert sorted(record.lines())[-2:] == ["succeed 1", "succeed 2"]
    assert fired(record) == ["success", "finish"]


def test_f18_the_same_end_reported_many_times(live_db, record):
    batch = batch_of([jobs.succeed, jobs.fail], allow_failures=1, **CALLBACKS).dispatch()
    first, second = batch.jobs.filter(role="item").order_by("pk")
    for _ in range(3):
        execution.run_job("default", first.pk, 1)
    assert numbers(Batch.objects.get()) == (1, 0, 0)
    with pytest.raises(ValueError, match="boom"):
        execution.run_job("default", second.pk, 1)
    for pk in (first.pk, second.pk):
        execution.run_job("default", pk, 1)
        for outcome in (outcomes.succeeded(None, False), outcomes.failed(first, {}, final=True)):
            job = BatchJob.objects.get(pk=pk)
            assert carry_out(partial(transitions.settle, job, 1, outcome), "default") is False
    work()
    assert numbers(ended(batch)) == (1, 1, 0)
    assert record.count("succeed") == record.count("fail") == 1
    assert fired(record) == ["success", "finish"]


def test_f18_the_same_attempt_delivered_to_two_workers_at_once(live_db, record, monkeypatch):
    monkeypatch.setattr(queues, "runs_elsewhere", lambda: True)  # outside RQ there are no executions to look at
    batch = batch_of([job_of(jobs_failures.slow, "job", 0.2)], **CALLBACKS).dispatch()
    pk = batch.jobs.get(role="item").pk
    results = at_once(*[partial(execution.run_job, "default", pk, 1)] * 4)
    assert results == [None] * 4
    work()
    assert numbers(ended(batch)) == (1, 0, 0)
    assert record.count("job begins") == 1
    assert fired(record) == ["success", "finish"]


# 19: two operators retry the same batch at once


def test_f19_two_operators_retry_at_once(live_db, record):
    batch = batch_of([jobs.fail] * 4 + [jobs.succeed], allow_failures=True, **CALLBACKS).dispatch()
    work()
    ended(batch)
    results = at_once(*[Batch.objects.get(pk=batch.pk).retry for _ in range(4)])
    assert sorted(result for result in results if result != 0) == [4]
    assert len(enqueued()) == 4
    work()
    assert numbers(ended(batch)) == (1, 4, 0)
    assert sorted(batch.jobs.filter(role="item").values_list("attempts", flat=True)) == [1, 2, 2, 2, 2]
    assert fired(record) == ["success", "finish"] * 2


def test_f19_two_operators_retry_the_same_job_at_once(live_db, record):
    batch = batch_of([jobs.fail, jobs.fail], allow_failures=True).dispatch()
    work()
    pk = first_item(ended(batch)).pk
    results = at_once(*[BatchJob.objects.get(pk=pk).retry for _ in range(4)])
    assert [result for result in results if result is True] == [True]
    work()
    assert sorted(ended(batch).jobs.values_list("attempts", flat=True)) == [1, 2]


# 20: a failed job retried while others still run


def test_f20_no_retry_while_others_still_run(live_db, record):
    batch = batch_of([jobs.fail, jobs.succeed, jobs.succeed], allow_failures=True, **CALLBACKS).dispatch()
    work(at_most=2)
    failed = batch.jobs.get(status="failed")
    for retry in (batch.retry, failed.retry):
        with pytest.raises(BatchError, match="not finished"):
            retry()
    assert (fired(record), len(enqueued())) == ([], 1)
    work()
    assert numbers(ended(batch)) == (2, 1, 0)
    assert fired(record) == ["success", "finish"]


def test_f20_no_retry_while_callbacks_run(live_db, record):
    batch = batch_of(
        [jobs.fail], allow_failures=True, on_finish=job_of(jobs.echo).options(description="Clean up")
    ).dispatch()
    work(at_most=1)
    batch.refresh_from_db()
    assert batch.is_finished
    with pytest.raises(BatchError, match="Clean up"):
        batch.retry()
    work()
    assert numbers(ended(batch)) == (0, 1, 0)


def test_f20_the_last_callback_waits_for_a_job_between_two_attempts(live_db, record):
    batch = batch_of([job_of(jobs.flaky, "x", 2).options(retry=2), jobs.succeed], **CALLBACKS).dispatch()
    for _ in range(3):
        work(at_most=1)
        batch.refresh_from_db()
        assert not batch.is_finished
        assert batch.progress < 100
    work()
    assert numbers(ended(batch)) == (2, 0, 0)
    assert fired(record) == ["success", "finish"]


# 21: a callback that adds jobs, that raises, that times out, that no longer exists


@pytest.mark.parametrize(
    ("callback", "error"),
    [
        (jobs_failures.add_to_own_batch, "BatchFinished"),
        (job_of(jobs.fail, "sorry"), "ValueError"),
        (job_of(jobs_failures.slow, "callback", 5).options(timeout=1), "JobTimeoutException"),
        (jobs_failures.doomed, "ImportError"),
        (job_of(jobs.leave_transaction_open), "RuntimeError"),
        (job_of(jobs.succeed, 1, 2, 3), "TypeError"),
    ],
    ids=["adds", "raises", "times out", "no longer exists", "leaves a transaction open", "wrong arguments"],
)
@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_f21_callback_that_fails(live_db, record, monkeypatch, callback, error, outcome):
    """The outcome of the batch stays, `on_finish` follows, and the callback can be retried by itself."""
    item = jobs.succeed if outcome == "success" else jobs.fail
    batch = batch_of([item], **on(outcome, callback), on_finish=FINISH).dispatch()
    with monkeypatch.context() as without:
        without.delattr(jobs_failures, "doomed")
        work()
    ended(batch)
    assert batch.status == ("succeeded" if outcome == "success" else "failed")
    assert numbers(batch) == ((1, 0, 0) if outcome == "success" else (0, 1, 0))
    assert fired(record) == ["finish"]
    failed = batch.jobs.get(role=f"on_{outcome}")
    assert (failed.status, failed.error_class.rpartition(".")[2]) == ("failed", error)
    batch.jobs.filter(pk=failed.pk).update(func="tests.jobs.echo", args=["mended"], options={})
    assert failed.retry()
    work()
    assert ended(batch).jobs.get(role=f"on_{outcome}").status == "succeeded"
    assert fired(record) == ["finish", "mended"]


def test_f21_last_callback_that_fails_is_killed_or_adds(drain, record):
    callbacks = [jobs.fail, jobs.kill_self, jobs_failures.add_to_own_batch, SUCCESS]
    batch = batch_of([jobs.succeed], on_finish=callbacks).dispatch()
    drain()
    assert (ended(batch).status, numbers(batch)) == ("succeeded", (1, 0, 0))
    assert rows_of(batch, "on_finish") == ["failed", "failed", "failed", "succeeded"]
    assert record.count("kill_self") == 1


def test_f21_callback_that_dispatches_a_batch(live_db, record):
    batch = batch_of([jobs.succeed], on_success=batch_of([jobs_failures.add_to_own_batch])).dispatch()
    work()
    assert (ended(batch).status, numbers(batch)) == ("succeeded", (1, 0, 0))
    child = Batch.objects.exclude(pk=batch.pk).get()
    assert numbers(ended(child)) == (2, 0, 0)


# 22: cancelled and skipped jobs count as success


def test_f22_cancelled_jobs_are_not_successes(live_db, record):
    batch = batch_of([jobs.succeed] * 2 + [jobs_failures.cancel_own_batch] + [jobs.succeed] * 7, **CALLBACKS).dispatch()
    work(at_most=2)
    batch.refresh_from_db()
    assert batch.progress == 20
    work()
    assert (ended(batch).status, batch.cancel_reason) == ("cancelled", "had enough")
    assert numbers(batch) == (3, 0, 7)
    assert fired(record) == ["finish"]
    assert [job.status for job in batch.jobs.exclude(role="item").order_by("position")] == ["cancelled"] * 2 + [
        "succeeded"
    ]


def test_f22_a_cancelled_batch_is_not_complete_while_something_runs(live_db, redis, record):
    batch = batch_of([job_of(jobs.succeed, n) for n in range(4)], **CALLBACKS).dispatch()
    job = first_item(batch)
    assert transitions.claim(job, 1, "some worker")
    redis.flushall()  # so that nobody else gets it
    assert batch.cancel()
    assert (batch.status, batch.is_finished, batch.progress, numbers(batch)) == ("cancelled", False, 75, (0, 0, 3))
    work()
    assert fired(record) == []
    execution._settle(job, 1, {"result": None, "has_result": False})
    work()
    assert (ended(batch).status, numbers(batch)) == ("cancelled", (1, 0, 3))
    assert fired(record) == ["finish"]


def test_f22_what_a_failure_calls_off_is_cancelled(live_db, record):
    batch = batch_of([jobs.succeed, jobs.fail, jobs.succeed, chain(jobs.succeed, jobs.succeed)], **CALLBACKS).dispatch()
    work()
    assert (ended(batch).status, numbers(batch)) == ("failed", (1, 1, 3))
    assert fired(record) == ["failure", "finish"]


# 23: retry of a cancelled batch: its jobs skip themselves and count as done


def test_f23_retry_of_a_cancelled_batch_runs_its_jobs(live_db, record):
    items = [job_of(jobs.succeed, 0), chain(job_of(jobs.succeed, 1), batch_of([job_of(jobs.succeed, 2)]))]
    batch = batch_of(items, **CALLBACKS).dispatch()
    work(at_most=1)
    assert batch.cancel()
    work()
    assert (ended(batch).status, numbers(batch), fired(record)) == ("cancelled", (1, 0, 2), ["finish"])
    assert batch.retry() == 2
    assert not batch.is_cancelled
    work()
    assert (ended(batch).status, numbers(batch)) == ("succeeded", (3, 0, 0))
    assert [line for line in record.lines() if line.startswith("succeed")] == [f"succeed {n}" for n in range(3)]
    assert fired(record) == ["finish", "success", "finish"]


# 24: redelivery after expiry fires the callback again


def test_f24_redelivery_after_everything_in_redis_has_expired(live_db, redis, record):
    batch = batch_of([jobs.succeed], **CALLBACKS).dispatch()
    work()
    for job in ended(batch).jobs.all():
        redis.flushall()
        execution.run_job("default", job.pk, 1)
        execution.run_job("default", job.pk, 2)
        flush("default")
        work()
    assert numbers(ended(batch)) == (1, 0, 0)
    assert record.count("succeed") == 1
    assert fired(record) == ["success", "finish"]


# 25: the "failure" hook runs at every attempt


def test_f25_failure_is_reported_once_after_the_last_attempt(live_db, record):
    heard: list[BatchJob] = []

    def hear(job: BatchJob, **kwargs: Any) -> None:
        heard.append(job)

    job_failed.connect(hear)
    try:
        batch = batch_of([job_of(jobs.fail).options(retry=3)], **CALLBACKS).dispatch()
        for _ in range(3):
            work(at_most=1)
            assert (heard, fired(record)) == ([], [])
            batch.refresh_from_db()
            assert (batch.status, batch.failed_jobs, batch.pending_jobs) == ("running", 0, 1)
        work()
    finally:
        job_failed.disconnect(hear)
    assert record.count("fail") == 4
    assert numbers(ended(batch)) == (0, 1, 0)
    assert [job.status for job in heard] == ["failed"]
    assert fired(record) == ["failure", "finish"]


def test_f25_a_job_that_succeeds_in_the_end_is_no_failure(live_db, record):
    batch = batch_of([job_of(jobs.flaky, "x", 2).options(retry=2)], **CALLBACKS).dispatch()
    work()
    assert numbers(ended(batch)) == (1, 0, 0)
    job = batch.jobs.get(role="item")
    assert (job.attempts, job.error_class, job.traceback) == (3, "", "")
    assert fired(record) == ["success", "finish"]


# 26: the order of success and finish callbacks is by chance


def test_f26_on_finish_comes_after_the_other_callbacks_with_two_workers(drain, record):
    before = [job_of(jobs_failures.slow, "one", 0.6), job_of(jobs_failures.slow, "two", 0.1), batch_of([SUCCESS])]
    batch = batch_of([jobs.succeed], on_success=before, on_finish=[FINISH, FINISH]).dispatch()
    drain(count=2, simple=True)
    ended(batch)
    assert record.lines()[-2:] == ["echo ('finish',) {}"] * 2
    assert record.count("one ends") == record.count("two ends") == 1


@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_f26_on_finish_waits_for_the_last_attempt_of_a_callback(live_db, record, outcome):
    item = jobs.succeed if outcome == "success" else jobs.fail
    flaky = job_of(jobs.flaky, "callback", 2).options(retry=2)
    batch = batch_of([item], **on(outcome, [flaky, SUCCESS]), on_finish=FINISH).dispatch()
    work()
    ended(batch)
    assert record.count("flaky") == 3
    assert record.lines()[-1] == "echo ('finish',) {}"


# 27: an orphaned horse finishes a job that has been given to another worker meanwhile


def test_f27_an_attempt_that_was_given_up_is_refused_when_it_ends(live_db, record, caplog):
    batch = batch_of([job_of(jobs.succeed).options(retry=1), jobs.succeed], **CALLBACKS).dispatch()
    orphan = first_item(batch)
    assert transitions.claim(orphan, 1, "a lost host")
    execution._settle(BatchJob.objects.select_related("batch").get(pk=orphan.pk), 1, {"lost": True})
    execution._settle(orphan, 1, {"details": {"error_class": "Late"}, "final": True})  # between the two attempts
    assert "ended too late" in caplog.text
    second = BatchJob.objects.select_related("batch").get(pk=orphan.pk)
    assert transitions.claim(second, 2, "another host")
    execution._settle(orphan, 1, {"result": "late", "has_result": True})  # while the other one runs
    assert BatchJob.objects.get(pk=orphan.pk).status == "running"
    execution._settle(second, 2, {"result": "right", "has_result": True})
    execution._settle(orphan, 1, {"details": {"error_class": "Late"}, "final": True})  # after it
    assert BatchJob.objects.get(pk=orphan.pk).result == "right"
    work()
    assert numbers(ended(batch)) == (2, 0, 0)
    assert fired(record) == ["success", "finish"]


def test_f27_a_horse_that_outlives_its_worker(workers, record, redis):
    """Its signs of life expire, another worker gets the job, and both come to their end."""
    job = job_of(jobs_failures.slow, "orphan", 4).options(retry=1)
    batch = batch_of([job], **CALLBACKS).dispatch()
    (lost,) = workers()
    wait_until(lambda: record.count("orphan begins"))
    lost.kill()
    (delivery,) = [key.decode().removeprefix("rq:job:") for key in redis.keys("rq:job:*")]
    redis.delete(*redis.keys("rq:execution*"))
    redis.rpush("rq:queue:default", delivery)
    (other,) = workers(burst=True)
    other.wait(40)
    wait_until(lambda: record.count("orphan ends") == 2)
    work()
    assert numbers(ended(batch)) == (1, 0, 0)
    item = batch.jobs.get(role="item")
    assert (item.attempts, item.losses) == (2, 1)
    assert fired(record) == ["success", "finish"]
    assert not django_rq.get_queue().count
