"""Retries of a job, with RQ's own semantics, and jobs for later."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from rq import Retry

from django_job_batches import batch_of, job_of
from django_job_batches.models import BatchJob
from tests import jobs
from tests.failures.books import numbers, rows_of
from tests.in_process import enqueued, work
from tests.invariants import assert_all_ended
from tests.processes import PATIENCE, Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def test_a_job_is_pending_between_its_attempts(live_db: None, record: Record) -> None:
    """It stays pending until its last attempt has ended; it goes back to `queued`, and its error is shown meanwhile."""
    batch = batch_of([job_of(jobs.flaky, "job", 1).options(retry=1)], on_failure=note(1), on_success=note(2)).dispatch()
    first_id = batch.jobs.get(role="item").rq_job_id
    work(at_most=1)
    job = batch.jobs.get(role="item")
    batch.refresh_from_db()
    assert (job.status, job.attempts, job.error_class, job.finished_at) == ("queued", 1, "ConnectionError", None)
    assert (batch.status, batch.pending_jobs, batch.progress, batch.has_failures) == ("running", 1, 0, False)
    assert enqueued() == [job.rq_job_id] != [first_id]
    work()
    job.refresh_from_db()
    assert (job.status, job.error_class, job.error_message, job.traceback) == ("succeeded", "", "", "")
    assert record.lines() == ["flaky job", "flaky job", "succeed 2"]
    assert_all_ended()


@pytest.mark.parametrize(
    ("retry", "waits"),
    [
        (Retry(max=2), [0, 0]),
        (Retry(max=3, interval=60), [60, 60, 60]),
        (Retry(max=2, interval=[60, 120]), [60, 120]),
        (Retry(max=4, interval=[60, 120]), [60, 60, 60, 120]),  # as RQ itself does it
        (Retry(max=1, interval=[60, 120, 180]), [180]),
        (1, [0]),
    ],
)
def test_intervals(live_db: None, record: Record, retry: Any, waits: list[int]) -> None:
    """`retry` is an `rq.Retry` (max, interval, enqueue_at_front) or an int."""
    batch = batch_of([job_of(jobs.fail).options(retry=retry)]).dispatch()
    for seconds in waits:
        work(at_most=1)
        job = batch.jobs.get()
        assert job.status == ("scheduled" if seconds else "queued")
        if seconds:
            assert abs((job.scheduled_at - timezone.now()).total_seconds() - seconds) < 5
            _let_its_time_come(job)
    work()
    assert (batch.jobs.get().status, record.count("fail")) == ("failed", len(waits) + 1)
    assert_all_ended()


def _let_its_time_come(job: BatchJob) -> None:
    """As RQ's scheduler would."""
    from django_rq import get_queue

    queue = get_queue(job.queue_name)
    queue.scheduled_job_registry.remove(job.rq_job_id)
    queue.push_job_id(job.rq_job_id)


@pytest.mark.parametrize("at_front", [True, False])
def test_where_a_retry_comes_back(run_forking: Runner, record: Record, at_front: bool) -> None:
    """`enqueue_at_front=True` brings it back before everything else that waits, of other batches too."""
    retry = Retry(max=1, enqueue_at_front=at_front)
    batch_of([job_of(jobs.flaky, "job", 1).options(retry=retry), note(1)]).dispatch()
    run_forking(batch_of([note(2)]))
    others = ["succeed 1", "succeed 2"]
    assert record.lines() == ["flaky job", *(["flaky job", *others] if at_front else [*others, "flaky job"])]


def test_at_front(run_queued: Runner, record: Record) -> None:
    """...at the dispatch, in the order in which they were given."""
    batch_of([note(1), note(2)]).dispatch()
    urgent = [note(n).options(at_front=True) for n in (3, 4)]
    run_queued(batch_of([urgent[0], note(5), urgent[1]]))
    assert record.lines() == [f"succeed {n}" for n in (3, 4, 1, 2, 5)]


def test_no_retries(run: Runner, record: Record) -> None:
    items = [job_of(jobs.fail).options(retry=retry) for retry in (None, 0, Retry(max=1))]
    batch = run(batch_of(items, allow_failures=True))
    assert list(batch.jobs.order_by("position").values_list("attempts", flat=True)) == [1, 1, 2]


def test_each_job_has_its_own_retries(run: Runner, record: Record) -> None:
    items = [job_of(jobs.flaky, str(n), n).options(retry=3) for n in range(6)]
    batch = run(batch_of(items, allow_failures=True))
    assert rows_of(batch) == ["succeeded"] * 4 + ["failed"] * 2
    assert [record.count(f"flaky {n}") for n in range(6)] == [1, 2, 3, 4, 4, 4]


def test_a_retry_that_comes_after_the_decision_is_none(run_queued: Runner, record: Record) -> None:
    """A retry that goes back to `queued` can slip past a cancel's sweep: its claim cancels it."""
    flaky = job_of(jobs.flaky, "job", 1).options(retry=1)
    batch = run_queued(batch_of([flaky, jobs.fail]))
    assert (batch.status, numbers(batch)) == ("failed", (0, 1, 1))
    assert record.lines() == ["flaky job", "fail boom"]


# run_after


@pytest.mark.parametrize("kind", [timedelta, datetime])
def test_run_after(drain: Any, record: Record, kind: type) -> None:
    """Delayed work goes to RQ's scheduled registry (`--with-scheduler`)."""
    after: Any = timedelta(seconds=1.5) if kind is timedelta else timezone.now() + timedelta(seconds=1.5)
    batch = batch_of([note(1).options(run_after=after), note(2)], on_finish=note(3)).dispatch()
    assert rows_of(batch) == ["scheduled", "queued"]
    drain()
    assert record.lines() == ["succeed 2"]
    give_up_at = time.monotonic() + PATIENCE
    while record.count() < 3 and time.monotonic() < give_up_at:
        drain(scheduler=True)
    assert record.lines() == ["succeed 2", "succeed 1", "succeed 3"]
    job = batch.jobs.get(position=0, role="item")
    assert job.scheduled_at <= job.started_at
    assert_all_ended()


def test_run_after_a_time_that_has_passed(run: Runner, record: Record) -> None:
    job = note(1).options(run_after=timezone.now() - timedelta(days=1))
    batch = run(batch_of([job, note(2).options(run_after=timedelta(0))]))
    assert record.lines() == ["succeed 1", "succeed 2"]
    assert batch.status == "succeeded"


def test_what_is_scheduled_is_called_off_in_redis_too(live_db: None) -> None:
    later = note(1).options(run_after=timedelta(hours=1))
    batch_of([later, note(2)]).dispatch().cancel()
    single = batch_of([later], allow_failures=1).dispatch()
    assert single.jobs.get().cancel()
    assert_all_ended()  # the registry of scheduled jobs is empty
