"""`Batch.add()`: more items, from anywhere, as long as nothing is decided about the batch."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_job_batches import BatchFinished, batch_of, chain, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_semantics
from tests.failures.books import numbers, rows_of
from tests.in_process import enqueued, work
from tests.processes import Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def test_any_iterable(run_queued: Runner, record: Record) -> None:
    """...of jobs, chains and batches, whose rows it counts."""
    batch = batch_of([note(0)], on_finish=note(9)).dispatch()
    assert batch.add([note(1), jobs.succeed]) == 2
    assert batch.add(note(n) for n in (2, 3)) == 2
    assert batch.add((chain(note(4), batch_of([note(5)]), note(6)), batch_of([], on_finish=note(7)))) == 4
    assert batch.add([]) == batch.add(iter(())) == batch.add([chain()]) == 0
    assert (batch.total_jobs, batch.pending_jobs) == (9, 9)
    batch = run_queued.on(batch)
    assert (numbers(batch), record.lines()[-1]) == ((9, 0, 0), "succeed 9")
    positions = batch.jobs.filter(role="item").order_by("pk").values_list("position", flat=True)
    assert list(positions) == list(range(9))


@pytest.mark.parametrize("item", [job_of(jobs.succeed), jobs.succeed, chain(jobs.succeed), batch_of([]), "text", None])
def test_a_single_one_is_a_type_error_that_says_so(run_queued: Runner, item: Any) -> None:
    batch = batch_of([note(0)]).dispatch()
    with pytest.raises(TypeError, match="iterable"):
        batch.add(item)
    assert run_queued.on(batch).total_jobs == 1


def test_a_list_with_something_else_in_it_adds_nothing(run_queued: Runner) -> None:
    """P9: bad input is refused at once, and nothing half-made remains."""
    batch = batch_of([note(0)]).dispatch()
    with pytest.raises(TypeError, match="item 2"):
        batch.add([note(1), 7])
    assert run_queued.on(batch).total_jobs == 1


def test_the_last_job_adds_the_next_one(run: Runner, record: Record) -> None:
    """...over and over: the batch does not finish in between."""
    batch = run(batch_of([job_of(jobs_semantics.adds_itself, 12)], on_success=note(1), on_finish=note(2)))
    assert record.lines() == [*[f"adds_itself {n}" for n in range(12, -1, -1)], "succeed 1", "succeed 2"]
    assert (batch.total_jobs, batch.run) == (13, 1)


def test_with_a_forking_worker(run_forking: Runner, record: Record) -> None:
    batch = run_forking(batch_of([job_of(jobs_semantics.adds_itself, 3)], on_finish=note(1)))
    assert (batch.total_jobs, record.lines()[-1]) == (4, "succeed 1")


def test_from_a_nested_batch_to_its_parent(run: Runner, record: Record) -> None:
    batch = run(batch_of([batch_of([jobs_semantics.adds_to_the_parent])], on_finish=note(9)))
    assert (numbers(batch), record.lines()) == ((2, 0, 0), ["succeed 7", "succeed 9"])


def test_to_a_nested_batch_before_its_turn(run_queued: Runner, record: Record) -> None:
    """Its jobs wait with it."""
    batch = batch_of([chain(note(1), batch_of([note(2)], name="inner"), note(4))]).dispatch()
    assert Batch.objects.get(name="inner").add([note(3), batch_of([note(5)])]) == 2
    assert len(enqueued()) == 1
    batch = run_queued.on(batch)
    assert record.lines()[0] == "succeed 1" and record.lines()[-1] == "succeed 4"
    assert numbers(Batch.objects.get(name="inner")) == (3, 0, 0)


def test_a_generator_that_raises_fails_a_nested_batch_before_its_turn(run_queued: Runner, record: Record) -> None:
    """...which then does not wait any longer."""
    batch = batch_of([chain(note(1), batch_of([note(2)], name="inner", on_failure=note(3)))]).dispatch()
    inner = Batch.objects.get(name="inner")

    def items() -> Any:
        yield from [note(n) for n in range(1000)]
        raise LookupError("no more")

    with pytest.raises(LookupError):
        inner.add(items())
    batch = run_queued.on(batch)
    inner.refresh_from_db()
    assert (batch.status, inner.status) == ("failed", "failed")
    assert sorted(record.lines()) == ["succeed 1", "succeed 3"]


def test_inside_a_transaction(run_queued: Runner, record: Record) -> None:
    """Nothing reaches Redis before the commit, a rollback leaves neither rows nor Redis jobs."""
    batch = batch_of([note(1)]).dispatch()
    with pytest.raises(LookupError), transaction.atomic():
        batch.add([note(2), batch_of([note(3)])])
        raise LookupError
    assert (BatchJob.objects.count(), Batch.objects.count(), len(enqueued())) == (1, 1, 1)
    with transaction.atomic():
        batch.add([note(2), batch_of([note(3)])])
        assert len(enqueued()) == 1
    assert len(enqueued()) == 3
    assert numbers(run_queued.on(batch)) == (3, 0, 0)
    assert sorted(record.lines()) == ["succeed 1", "succeed 2", "succeed 3"]


def test_in_the_transaction_of_the_dispatch(run_queued: Runner) -> None:
    with transaction.atomic():
        batch = batch_of([note(1)]).dispatch()
        batch.add([note(2)])
    assert numbers(run_queued.on(batch)) == (2, 0, 0)


def test_an_atomic_job_that_adds_and_fails_has_added_nothing(run: Runner, record: Record) -> None:
    """Body and bookkeeping commit in one transaction."""
    job = job_of(jobs_semantics.adds_then_fails).options(atomic=True)
    batch = run(batch_of([job], allow_failures=True))
    assert (batch.total_jobs, record.count("succeed")) == (1, 0)
    batch = run(batch_of([job_of(jobs_semantics.add_two).options(atomic=True)]))
    assert (batch.total_jobs, record.count("succeed")) == (3, 2)


@pytest.mark.parametrize("how", ["failed", "cancelled", "succeeded"])
def test_refused_once_something_is_decided(run_queued: Runner, how: str) -> None:
    """`BatchFinished`, nothing written, also while the last items still run."""
    body = {"failed": jobs.fail, "cancelled": jobs_semantics.cancels_its_batch, "succeeded": jobs.succeed}[how]
    tries = job_of(jobs_semantics.tries_to_add)
    batch = batch_of([body], on_failure=tries).dispatch()
    work(at_most=1)
    with pytest.raises(BatchFinished, match=str(batch.pk)):
        batch.add([note(1)])
    with transaction.atomic():
        with pytest.raises(BatchFinished):
            batch.add([note(1), batch_of([note(2)])])
        assert rows_of(batch) == [{"cancelled": "succeeded"}.get(how, how)]
    assert run_queued.on(batch).status == how
    assert Batch.objects.count() == 1
