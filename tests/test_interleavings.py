"""Two at once, and what is cut off between two steps: the narrow places where a first version went wrong.

Deaths are exceptions that nothing catches; a COMMIT whose answer is lost is a connection that breaks right after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_job_batches import (
    BatchError,
    BatchFinished,
    DuplicateBatch,
    batch_of,
    chain,
    deleting,
    dispatching,
    execution,
    job_of,
    memory,
    outbox,
    queues,
    reconciling,
    retrying,
    transitions,
)
from django_job_batches.models import Batch, BatchCounter, BatchJob
from django_job_batches.signals import batch_finished
from django_job_batches.transitions import Effects, Outcome
from tests import jobs
from tests.failures.books import ended, rows_of
from tests.in_process import close, work
from tests.invariants import assert_all_ended
from tests.processes import Record
from tests.test_database_lost import lose_commit

LOST_AFTER = 0.4
later = job_of(jobs.succeed).options(run_after=timedelta(hours=1))

servers_alone = pytest.mark.vendors("postgresql", "mariadb")


@pytest.fixture(autouse=True)
def soon(live_db: None, record: Record, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.JOB_BATCHES = {"LOST_AFTER": LOST_AFTER, "RECONCILE_EVERY": 3600, "CHUNK_SIZE": 3}
    monkeypatch.setattr(reconciling, "SECOND_LOOK", 0.05)
    memory.is_time_for("reconciled:default", 3600)


def recover(rounds: int = 4) -> None:
    for _ in range(rounds):
        time.sleep(LOST_AFTER + 0.1)
        reconciling.reconcile("default")
        work()


def die(*args: Any) -> None:
    raise KeyboardInterrupt


def fails_once(name: str) -> Any:
    return job_of(jobs.flaky, name, 1)


def in_thread(func: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        try:
            func()
        finally:
            close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


# The end


@servers_alone
def test_two_last_lanes_close_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that a retry has left out is judged, although neither of the two sees that it closes the last lane."""
    monkeypatch.setattr(dispatching, "JOBS_PER_LANE", 1)
    batch = batch_of([jobs.fail, jobs.succeed, jobs.succeed]).dispatch()
    work()
    batch.refresh_from_db()
    assert batch.retry(jobs=batch.jobs.filter(status="cancelled")) == 2
    first, second = batch.jobs.filter(status="queued")
    assert first.lane != second.lane
    for job in (first, second):
        transitions.claim(job, 1, "")
    done = Outcome("succeeded")  # type: ignore[arg-type]

    def settle_second() -> None:
        with transaction.atomic():
            transitions.settle(second, 1, done, Effects("default"))

    with transaction.atomic():
        transitions.settle(first, 1, done, Effects("default"))
        thread = in_thread(settle_second)
        time.sleep(0.5)
    thread.join(10)
    batch.refresh_from_db()
    assert (batch.is_finished, batch.status) == (True, "failed")


def test_the_end_is_told_once() -> None:
    seen = []

    def note(batch: Batch, **options: Any) -> None:
        seen.append(batch.pk)

    batch_finished.connect(note)
    try:
        batch = batch_of([jobs.succeed]).dispatch()
        work()
        outbox.close_books("default", batch.pk)  # by a redelivery, or the reconciler
    finally:
        batch_finished.disconnect(note)
    assert seen == [batch.pk]


# Retries


def test_a_chain_in_a_callback_keeps_its_order_when_that_runs_again() -> None:
    again = batch_of([chain(*(job_of(jobs.succeed, number) for number in range(3)))])
    batch = batch_of([fails_once("x")], on_finish=again).dispatch()
    work()
    batch.refresh_from_db()
    batch.retry()
    work(at_most=1)
    inner = Batch.objects.get(parent_job__batch=batch)
    assert rows_of(inner) == ["queued", "blocked", "blocked"]
    work()
    ended(batch)


def test_the_retry_of_a_nested_callback_dies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([jobs.succeed], on_finish=batch_of([fails_once("x")])).dispatch()
    work()
    callback = batch.jobs.get(role="on_finish")
    with monkeypatch.context() as patches:
        patches.setattr(retrying._Rerun, "run", die)
        with pytest.raises(KeyboardInterrupt):
            callback.retry()
    recover()
    assert ended(batch).jobs.get(role="on_finish").status == "succeeded"


@servers_alone
def test_the_commit_of_that_retry_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([jobs.succeed], on_finish=batch_of([fails_once("x")])).dispatch()
    work()
    callback = batch.jobs.get(role="on_finish")
    with monkeypatch.context() as patches:
        called = _noted(patches, retrying, "_reopen_callback")
        lose_commit(patches, lambda: len(called) == 1)
        assert callback.retry()
    work()
    assert ended(batch).jobs.get(role="on_finish").status == "succeeded"


@servers_alone
def test_the_commit_of_a_chunk_of_a_retry_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([fails_once("x")]).dispatch()
    work()
    batch.refresh_from_db()
    with monkeypatch.context() as patches:
        called = _noted(patches, retrying._Rerun, "_queue")
        lose_commit(patches, lambda: len(called) == 1)
        assert batch.retry() == 1
    work()
    assert ended(batch).status == "succeeded"


def test_failures_of_a_retry_that_was_broken_off_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [fails_once("a"), fails_once("b"), jobs.succeed, jobs.succeed]
    batch = batch_of([jobs.succeed], on_finish=batch_of(items, allow_failures=1)).dispatch()
    work()
    inner = Batch.objects.get(parent_job__batch=batch)
    inner.jobs.filter(position=0).update(func="tests.jobs.fail", args=[], kwargs={})  # in the new run too
    chunks = retrying._chunks_of

    def broken(rows: Any) -> Any:
        yield next(iter(chunks(rows)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(retrying, "_chunks_of", broken)
        with pytest.raises(KeyboardInterrupt):
            batch.jobs.get(role="on_finish").retry()
    recover(5)
    inner.refresh_from_db()
    assert (inner.status, inner.failed_jobs) == ("succeeded", 1)


@pytest.mark.parametrize("where", ["item", "callback", "callback alone"])
def test_the_key_of_a_nested_batch_is_taken(where: str) -> None:
    """A retry is refused before anything has changed."""
    keyed = batch_of([fails_once("k")], key="k")
    if where == "item":
        batch = batch_of([fails_once("x"), keyed], allow_failures=True).dispatch()
    else:
        batch = batch_of([fails_once("x")], allow_failures=True, on_finish=keyed).dispatch()
    work()
    ended(batch)
    other = batch_of([later], key="k").dispatch()
    before = list(Batch.objects.values())
    with pytest.raises(DuplicateBatch) as raised:
        batch.jobs.get(role="on_finish").retry() if where == "callback alone" else batch.retry()
    assert raised.value.batch == other
    assert list(Batch.objects.values()) == before
    other.cancel()
    work()
    assert batch.retry() > 0
    work()
    assert ended(batch).jobs.filter(status="succeeded").count() == 2


def test_the_key_of_a_nested_batch_is_taken_in_the_middle_of_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([batch_of([fails_once("k")], key="k")]).dispatch()
    work()
    batch.refresh_from_db()
    batch_of([later], key="k").dispatch()
    monkeypatch.setattr(retrying, "_refuse_taken_keys", lambda *args: None)
    assert batch.retry() == 1
    work()
    assert ended(batch).status == "succeeded"


def test_a_key_that_is_taken_leaves_the_callers_transaction_usable() -> None:
    batch = batch_of([jobs.fail], key="k").dispatch()
    work()
    batch.refresh_from_db()
    batch_of([later], key="k").dispatch()
    with transaction.atomic():
        with pytest.raises(DuplicateBatch):
            batch.retry()
        assert Batch.objects.count() == 2


def test_a_callback_of_a_nested_batch_is_being_retried() -> None:
    batch = batch_of([batch_of([fails_once("x")], on_finish=fails_once("callback"))]).dispatch()
    work()
    ended(batch)
    assert BatchJob.objects.get(role="on_finish").retry()
    with pytest.raises(BatchError, match="Callbacks of batch"):
        batch.retry()
    with pytest.raises(BatchError, match="runs again"):
        batch.delete()
    assert BatchJob.objects.filter(role="on_finish").exists()
    work()
    batch.refresh_from_db()
    assert batch.retry() == 1
    work()
    assert ended(batch).status == "succeeded"


# Who was taken for dead wakes up


def test_a_dispatcher_wakes_up_before_the_callbacks_of_a_nested_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    write = dispatching._Dispatch._write_callbacks

    def late(self: Any, batch: Batch, *args: Any) -> Any:
        reconciling._end_broken_off(batch, "default")
        return write(self, batch, *args)

    monkeypatch.setattr(dispatching._Dispatch, "_write_callbacks", late)
    with pytest.raises(BatchError, match="sealed by somebody else"):
        batch_of([batch_of([jobs.succeed], on_finish=jobs.succeed)], on_finish=jobs.succeed).dispatch()
    work()
    assert_all_ended()
    assert sorted(Batch.objects.values_list("status", flat=True)) == ["cancelled", "failed"]


def test_a_retry_wakes_up_before_it_holds_a_callback_again(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([fails_once("x")], on_finish=jobs.succeed).dispatch()
    work()
    batch.refresh_from_db()
    option, asleep = BatchJob.option, [True]

    def late(job: BatchJob, *args: Any) -> Any:
        if asleep and job.role != "item":
            asleep.pop()
            retrying.end_broken_off(Batch.objects.get(pk=batch.pk))
            work()
        return option(job, *args)

    monkeypatch.setattr(BatchJob, "option", late)
    with pytest.raises(BatchError, match="ended by somebody else"):
        batch.retry()
    assert ended(batch).status == "cancelled"
    assert batch.retry() == 1
    work()
    assert ended(batch).status == "succeeded"


# Cancelling


@servers_alone
def test_the_commit_of_a_cancel_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([jobs.succeed] * 2, on_finish=jobs.succeed).dispatch()
    with monkeypatch.context() as patches:
        called = _noted(patches, transitions, "decide_cancelled")
        lose_commit(patches, lambda: len(called) == 1)
        assert batch.cancel()
    assert rows_of(batch) == ["cancelled"] * 2


def test_a_sweep_comes_too_late_for_the_run_that_it_was_for(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([batch_of([fails_once("x")])], allow_failures=True).dispatch()
    child = Batch.objects.get(parent_job__batch=batch)
    cancel, once = outbox.cancel_batch, [True]

    def late(using: str, batch_id: Any, reason: str, **options: Any) -> bool:
        if batch_id == child.pk and once:
            once.pop()
            outbox.sweep("default", batch.pk)  # somebody else is faster, and the batch is retried
            work()
            batch.refresh_from_db()
            assert batch.retry() == 1
        return cancel(using, batch_id, reason, **options)

    monkeypatch.setattr(outbox, "cancel_batch", late)
    assert cancel("default", batch.pk, "")
    assert not once
    work()
    child.refresh_from_db()
    assert (child.run, child.cancelled_at) == (2, None)


def test_a_callback_that_is_refused_just_before_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([jobs.fail, jobs.succeed], on_failure=jobs.succeed).dispatch()
    callback = batch.jobs.get(role="on_failure")
    claim = transitions.claim

    def refused(*args: Any) -> bool:
        result = claim(*args)
        with monkeypatch.context() as patches:
            patches.setattr(transitions, "claim", claim)
            patches.setattr(outbox, "sweep", lambda *args: None)
            work(at_most=1)
        return result

    with monkeypatch.context() as patches:
        patches.setattr(transitions, "claim", refused)
        execution.run_job("default", callback.pk, 1)
    work()
    assert ended(batch).jobs.get(role="on_failure").status == "succeeded"


# Deleting


def test_a_retry_comes_between_the_look_and_the_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([jobs.fail]).dispatch()
    work()
    batch.refresh_from_db()
    atomically = deleting.atomically

    def late(*args: Any) -> None:
        assert Batch.objects.get(pk=batch.pk).retry() == 1
        atomically(*args)

    monkeypatch.setattr(deleting, "atomically", late)
    with pytest.raises(BatchError, match="runs again"):
        batch.delete()
    assert rows_of(batch) == ["queued"]


def test_a_retry_comes_too_late_for_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([jobs.fail], on_finish=jobs.fail).dispatch()
    work()
    batch.refresh_from_db()
    with monkeypatch.context() as patches:
        patches.setattr(deleting, "_delete_tree", die)
        with pytest.raises(KeyboardInterrupt):
            batch.delete()
    assert not retrying._begin(batch)  # it had been looked at before
    with pytest.raises(BatchError, match="deletion was broken off"):
        batch.retry()
    assert Batch.objects.get().delete()[0] == 4


def test_adding_to_a_batch_whose_deletion_was_broken_off() -> None:
    batch = batch_of([jobs.succeed]).dispatch()
    running = Batch.objects.get()
    work()
    BatchCounter.objects.filter(batch=batch)._raw_delete("default")
    with pytest.raises(BatchFinished):
        running.add([jobs.succeed])
    with pytest.raises(RuntimeError, match="no lane 0"), transaction.atomic():
        transitions.open_lane(batch.pk, 0, 1, Effects("default"))


# The outbox


@pytest.mark.parametrize("seconds", [None, 1.0])
def test_jobs_for_a_queue_that_is_gone_do_not_stop_others(seconds: float | None) -> None:
    batch_of([job_of(jobs.succeed).options(queue_name="low")] * 4).dispatch()
    batch = batch_of([job_of(jobs.succeed).options(queue_name="high")] * 2).dispatch()
    queues.queue("low").empty()
    queues.queue("high").empty()
    BatchJob.objects.update(enqueued_at=None)
    BatchJob.objects.filter(queue_name="low").update(queue_name="vanished")
    assert reconciling.reconcile("default", seconds=seconds) == {reconciling.NOT_ENQUEUED: 2}
    work("high")
    assert ended(batch).status == "succeeded"


def test_redis_is_away_for_several_queues(redis_down: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client may try for seconds: that is waited for once per look, not once per queue."""
    tried = _noted(monkeypatch, queues, "enqueue")
    with redis_down():
        batch_of(job_of(jobs.succeed).options(queue_name=name) for name in ("default", "high", "low")).dispatch()
    assert len(tried) == 2
    assert set(BatchJob.objects.values_list("enqueued_at", flat=True)) == {None}
    batch_of([jobs.succeed]).dispatch()
    work("default", "high", "low")
    assert set(BatchJob.objects.values_list("status", flat=True)) == {"succeeded"}


def test_a_batch_whose_counters_are_wrong_stops_no_other() -> None:
    wrong = batch_of([jobs.succeed] * 2).dispatch()
    Batch.objects.filter(pk=wrong.pk).update(status="cancelled", cancelled_at=wrong.created_at)
    BatchJob.objects.update(enqueued_at=None)
    BatchCounter.objects.update(pending=0, total=0)
    batch = batch_of([jobs.succeed]).dispatch()
    reconciling.reconcile("default")
    work()
    batch.refresh_from_db()
    assert batch.status == "succeeded"


def test_what_fails_after_the_callers_commit_leaves_their_own_hooks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(outbox, "flush", die_of_a_bug)
    with transaction.atomic():
        batch_of([jobs.succeed]).dispatch()
        transaction.on_commit(lambda: called.append("mine"))
    assert called == ["mine"]


def die_of_a_bug(*args: Any, **options: Any) -> None:
    raise ValueError("a bug")


def _noted(patches: pytest.MonkeyPatch, home: Any, name: str) -> list[bool]:
    """How often this function has been called."""
    called: list[bool] = []
    really = getattr(home, name)

    def noted(*args: Any) -> Any:
        called.append(True)
        return really(*args)

    patches.setattr(home, name, noted)
    return called
