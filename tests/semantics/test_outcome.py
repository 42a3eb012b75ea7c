"""The outcome of a batch, and who decides it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_job_batches import batch_of, chain, job_of
from django_job_batches.models import Batch
from tests import jobs, jobs_semantics
from tests.failures.books import numbers, rows_of
from tests.in_process import work
from tests.invariants import assert_all_ended
from tests.processes import PATIENCE, Record
from tests.semantics.conftest import Runner


def fails(number: int) -> list[Any]:
    return [job_of(jobs.fail)] * number


def succeeds(number: int) -> list[Any]:
    return [job_of(jobs.succeed, n) for n in range(number)]


def test_on_failure_comes_at_the_moment_the_batch_fails(workers: Any, record: Record, wait_until: Any) -> None:
    """`failed` stands as soon as it is decided; `finished_at` is set when the last item has ended, and `on_finish`
    comes then."""
    running = job_of(jobs_semantics.until, "failure seen")
    failing = job_of(jobs_semantics.until, "until failure seen begins")
    batch = batch_of(
        [running, chain(failing, jobs.fail), *[chain(failing, jobs.succeed)] * 2],
        on_failure=job_of(jobs.succeed, 1),
        on_finish=job_of(jobs.succeed, 2),
    ).dispatch()
    crew = workers(2)
    wait_until(lambda: record.count("succeed 1"))
    batch.refresh_from_db()
    assert (batch.status, batch.finished_at) == ("failed", None)
    assert batch.failed_at and batch.progress < 100
    assert record.count("succeed 2") == 0
    record.write("failure seen")
    batch.wait(timeout=PATIENCE)
    assert [worker.stop() for worker in crew] == [0, 0]
    assert_all_ended()
    assert batch.status == "failed"
    assert rows_of(batch)[0] == "succeeded"  # what runs ends by itself
    assert record.lines()[-1] == "succeed 2"


def test_the_share_is_judged_against_the_total_of_the_seal(run_queued: Runner, settings: Any) -> None:
    """A share as `allow_failures` is judged from the seal on, against the total of that moment."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}

    def items(good: int) -> Iterator[Any]:
        yield from fails(2)
        work()
        assert Batch.objects.get(name=str(good)).status != "failed"
        yield from succeeds(good)

    assert run_queued(batch_of(items(2), name="2", allow_failures=0.5)).status == "succeeded"
    failed = run_queued(batch_of(items(1), name="1", allow_failures=0.5, on_failure=jobs.succeed))
    assert (failed.status, rows_of(failed, "on_failure")) == ("failed", ["succeeded"])


def test_the_share_counts_what_was_added(run_queued: Runner) -> None:
    batch = batch_of(fails(1) + succeeds(3), allow_failures=0.25).dispatch()
    work()
    batch.refresh_from_db()
    assert batch.status == "succeeded"
    batch = batch_of(fails(1) + succeeds(3), allow_failures=0.25).dispatch()
    batch.add(fails(1) + succeeds(3))
    assert numbers(run_queued.on(batch)) == (6, 2, 0)
    batch = batch_of(fails(1) + succeeds(3), allow_failures=0.25).dispatch()
    batch.add(fails(1) + succeeds(2))
    assert run_queued.on(batch).status == "failed"


@pytest.mark.parametrize(
    ("allowed", "status"), [(0, "failed"), (0.0, "failed"), (1, "failed"), (1.0, "succeeded"), (0.999, "failed")]
)
def test_an_int_is_a_number_and_a_float_a_share(run: Runner, allowed: Any, status: str) -> None:
    assert run(batch_of(fails(2), allow_failures=allowed)).status == status


@pytest.mark.parametrize(("number", "failed"), [(3, 1), (7, 1), (6, 5), (7, 3)])
def test_a_share_that_no_decimal_holds(run: Runner, number: int, failed: int) -> None:
    """The same on each database, whatever its division does."""
    items = fails(failed) + succeeds(number - failed)
    assert run(batch_of(items, allow_failures=failed / number)).status == "succeeded"
    assert run(batch_of(items, allow_failures=failed / number - 0.00001)).status == "failed"


def test_a_nested_batch_is_one_failed_item(run: Runner) -> None:
    """A nested batch counts as one item of its parent, however many of its own have failed."""
    inner = batch_of(fails(5), allow_failures=3)
    assert numbers(run(batch_of([inner, *succeeds(2)], allow_failures=1))) == (2, 1, 0)
    assert run(batch_of([inner, inner], allow_failures=1)).status == "failed"


def test_a_nested_batch_that_tolerates_its_failures_is_none(run: Runner) -> None:
    batch = run(batch_of([batch_of(fails(3), allow_failures=True)]))
    assert (batch.status, batch.failed_jobs, batch.has_failures) == ("succeeded", 0, False)


def test_a_link_cancelled_by_itself_counts_once_and_what_its_chain_cancels_does_not(run_queued: Runner) -> None:
    batch = batch_of([chain(*succeeds(4)), *succeeds(1)], allow_failures=1).dispatch()
    assert batch.jobs.get(position=1).cancel()
    batch = run_queued.on(batch)
    assert batch.status == "succeeded"
    assert rows_of(batch) == ["succeeded", "cancelled", "cancelled", "cancelled", "succeeded"]
    strict = batch_of([chain(*succeeds(4))]).dispatch()
    assert strict.jobs.get(position=3).cancel()
    assert run_queued.on(strict).status == "failed"


def test_a_nested_link_that_its_chain_cancels_does_not_count(run: Runner) -> None:
    batch = run(batch_of([chain(jobs.fail, batch_of(succeeds(2)), batch_of(succeeds(2)))], allow_failures=1))
    assert (batch.status, rows_of(batch)) == ("succeeded", ["failed", "cancelled", "cancelled"])


def test_what_a_sweep_cancels_does_not_count(run: Runner) -> None:
    """...nor in the parent: the nested batch that a sweep cancels is not the one that failed."""
    batch = run(batch_of([batch_of([*fails(1), *succeeds(3)]), batch_of(succeeds(3))], allow_failures=0))
    assert batch.status == "failed"
    batch.refresh_from_db()
    assert batch.failures == 1


def test_true_allows_any_number(run: Runner) -> None:
    batch = run(batch_of([*fails(3), chain(jobs.fail, jobs.succeed), batch_of(fails(2))], allow_failures=True))
    assert (batch.status, numbers(batch)) == ("succeeded", (0, 5, 1))


def test_items_that_end_well_after_the_decision_are_successes(run_queued: Runner) -> None:
    """P7: what has run is not cancelled, and failed counts as processed."""
    batch = batch_of([jobs_semantics.cancels_its_batch, *succeeds(3)]).dispatch()
    work(at_most=1)
    batch.refresh_from_db()
    assert (batch.status, batch.progress, numbers(batch)) == ("cancelled", 100, (1, 0, 3))
