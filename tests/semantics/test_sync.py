"""RQ's synchronous mode (`ASYNC: False`): what holds there, and what cannot.

Most semantic tests run there too, by the fixture `run`. What cannot hold: a delay (`run_after`, intervals) is none,
and the front of the queue has no meaning, since there is no queue: work is done at once, in the order in which it is
released. A killed horse would be the caller, and a stop command reaches nobody.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from rq import Retry

from django_job_batches import batch_of, current_batch, current_job, job_of
from django_job_batches.models import Batch
from tests import jobs, jobs_semantics
from tests.failures.books import numbers
from tests.in_process import work
from tests.invariants import assert_all_ended
from tests.models import Effect
from tests.processes import Record

pytestmark = pytest.mark.usefixtures("live_db", "sync")


@pytest.fixture
def sync(settings: Any) -> None:
    settings.JOB_BATCHES = {"QUEUE": "sync"}


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def test_everything_has_ended_when_dispatch_returns(record: Record) -> None:
    batch = batch_of([note(1), jobs.fail, note(2)], allow_failures=1, on_success=note(3), on_finish=note(4)).dispatch()
    assert (batch.status, numbers(batch)) == ("succeeded", (2, 1, 0))
    assert record.lines() == ["succeed 1", "fail boom", "succeed 2", "succeed 3", "succeed 4"]
    assert_all_ended()


def test_an_exception_of_a_job_does_not_reach_the_caller(record: Record) -> None:
    assert batch_of([jobs.fail, note(1)], on_failure=jobs.fail, on_finish=jobs.fail).dispatch().status == "failed"
    assert (current_batch(), current_job()) == (None, None)
    assert not connection.in_atomic_block


def test_jobs_run_after_the_callers_commit(record: Record) -> None:
    with transaction.atomic():
        batch = batch_of([note(1), jobs.write_effect]).dispatch()
        assert record.lines() == []
    batch.refresh_from_db()
    assert (batch.status, Effect.objects.count()) == ("succeeded", 1)


def test_a_job_dispatches_another_batch(record: Record) -> None:
    """...which runs in its turn, not within the job."""
    batch = batch_of([job_of(jobs_semantics.dispatches, "other", "sync"), note(1)]).dispatch()
    assert record.lines() == ["dispatches ends", "succeed 1", "succeed 8"]
    assert (batch.status, Batch.objects.get(name="other").status) == ("succeeded", "succeeded")
    assert_all_ended()


@pytest.mark.parametrize("here", [True, False])
def test_synchronous_and_other_queues_in_one_batch(record: Record, here: bool) -> None:
    there = note(1).options(queue_name="default")
    batch = batch_of([there, note(2)] if here else [note(2), there], on_finish=note(3)).dispatch()
    assert record.lines() == ["succeed 2"]
    work()
    assert record.lines() == ["succeed 2", "succeed 1", "succeed 3"]
    batch.refresh_from_db()
    assert numbers(batch) == (2, 0, 0)
    assert_all_ended()


def test_a_delay_is_none_and_there_is_no_front(record: Record) -> None:
    later = note(1).options(run_after=timedelta(hours=1))
    retry = Retry(max=1, interval=3600, enqueue_at_front=True)
    batch = batch_of(
        [job_of(jobs.flaky, "job", 1).options(retry=retry), later, note(2).options(at_front=True)]
    ).dispatch()
    assert batch.status == "succeeded"
    assert record.lines() == ["flaky job", "succeed 1", "succeed 2", "flaky job"]
    assert_all_ended()


def test_many_additions_and_nested_batches_do_not_recurse(record: Record) -> None:
    """Drained in a loop, never by recursion through `on_commit`."""
    assert batch_of([job_of(jobs_semantics.adds_itself, 80)]).dispatch().total_jobs == 81
    assert batch_of([batch_of([note(n)]) for n in range(20)]).dispatch().total_jobs == 20
    assert_all_ended()


def test_wait_returns_at_once() -> None:
    batch = batch_of([jobs.succeed]).dispatch()
    batch.wait(timeout=0)
    assert batch.is_finished
