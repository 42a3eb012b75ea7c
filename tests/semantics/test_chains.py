"""Chains: items run one after the other; when one fails or is cancelled, the rest is cancelled, and counted."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_job_batches import batch_of, chain, job_of
from django_job_batches.models import Batch
from tests import jobs, jobs_semantics
from tests.failures.books import numbers, rows_of
from tests.in_process import work
from tests.processes import Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def test_one_after_the_other_whoever_works(drain: Any, record: Record) -> None:
    """...with two forking workers: no link begins before the one before it has ended."""
    naps = [chain(*[job_of(jobs.sleep, float(f"0.0{chain_number}{n}")) for n in range(3)]) for chain_number in (1, 2)]
    batch = batch_of(naps).dispatch()
    drain(count=2)
    batch.refresh_from_db()
    assert batch.status == "succeeded"
    for chain_number in (1, 2):
        lines = [line.split() for line in record.lines() if line.split()[2].startswith(f"0.0{chain_number}")]
        assert [(begins_or_ends, seconds[-1:]) for _, begins_or_ends, seconds in lines] == [
            (word, number) for number in (str(chain_number), "1", "2") for word in ("begins", "ends")
        ]


def test_only_the_first_link_is_enqueued(live_db: None, record: Record) -> None:
    """`blocked` (its chain is not there yet)."""
    batch = batch_of([chain(note(1), note(2), note(3))]).dispatch()
    assert rows_of(batch) == ["queued", "blocked", "blocked"]
    work(at_most=1)
    assert rows_of(batch) == ["succeeded", "queued", "blocked"]


def test_the_next_link_comes_after_the_last_attempt(run: Runner, record: Record) -> None:
    run(batch_of([chain(job_of(jobs.flaky, "link", 2).options(retry=2), note(1))]))
    assert record.lines() == ["flaky link"] * 3 + ["succeed 1"]


def test_chains_in_chains_are_one_chain(run: Runner, record: Record) -> None:
    """...and an empty chain is nothing."""
    batch = run(batch_of([chain(chain(note(1), chain(note(2))), chain(), note(3)), chain(chain())]))
    assert record.lines() == ["succeed 1", "succeed 2", "succeed 3"]
    assert batch.total_jobs == 3


def test_batches_and_jobs_take_turns(run: Runner, record: Record) -> None:
    """...callbacks of the batches included."""
    links = [
        note(0),
        batch_of([note(1), note(2)], on_success=note(3), on_finish=note(4)),
        note(5),
        batch_of([], on_finish=batch_of([note(6)], on_finish=note(7))),
        batch_of([chain(note(8), batch_of([note(9)]))]),
        note(10),
    ]
    batch = run(batch_of([chain(*links)]))
    lines = record.lines()
    assert sorted(lines[1:3]) == ["succeed 1", "succeed 2"]
    assert lines[:1] + lines[3:] == [f"succeed {n}" for n in (0, 3, 4, 5, 6, 7, 8, 9, 10)]
    assert (batch.total_jobs, batch.status) == (6, "succeeded")


def test_a_link_that_fails_in_the_middle(run: Runner, record: Record) -> None:
    """...is cancelled, and counted: nothing of what follows begins, and what follows in other chains goes on."""
    links = [note(1), jobs.fail, note(2), batch_of([note(3)], on_finish=note(4), on_success=note(5)), note(6)]
    batch = run(batch_of([chain(*links), chain(note(7), note(8))], allow_failures=1))
    assert (batch.status, numbers(batch)) == ("succeeded", (3, 1, 3))
    assert sorted(record.lines()) == sorted(["fail boom", *[f"succeed {n}" for n in (1, 4, 7, 8)]])


def test_a_nested_batch_that_fails_ends_its_chain(run: Runner, record: Record) -> None:
    failing = batch_of([jobs.fail, note(1)], on_failure=note(2), on_finish=note(3))
    batch = run(batch_of([chain(failing, note(4), note(5)), note(6)], allow_failures=1))
    assert rows_of(batch) == ["failed", "cancelled", "cancelled", "succeeded"]
    assert not record.count("succeed 4")


def test_a_link_that_is_cancelled_ends_its_chain(run_queued: Runner, record: Record) -> None:
    """...while the links before it go on."""
    batch = batch_of([chain(note(1), note(2), note(3), note(4))], allow_failures=True).dispatch()
    work(at_most=1)
    assert batch.jobs.get(position=2).cancel()
    batch = run_queued.on(batch)
    assert rows_of(batch) == ["succeeded", "succeeded", "cancelled", "cancelled"]
    assert record.lines() == ["succeed 1", "succeed 2"]


def test_a_nested_link_that_is_cancelled_before_its_turn(run_queued: Runner, record: Record) -> None:
    batch = batch_of([chain(note(1), batch_of([note(2)], name="inner"), note(3))], allow_failures=True).dispatch()
    assert Batch.objects.get(name="inner").cancel()
    batch = run_queued.on(batch)
    assert rows_of(batch) == ["succeeded", "cancelled", "cancelled"]


def test_a_nested_link_whose_items_are_cancelled_one_by_one_before_its_turn(run_queued: Runner, record: Record) -> None:
    """It has failed before it began, and ends then, its callbacks included."""
    inner = batch_of([note(1), note(2)], name="inner", on_failure=note(3), on_finish=note(4))
    batch = batch_of([chain(note(5), inner, note(6))]).dispatch()
    for item in Batch.objects.get(name="inner").jobs.filter(role="item"):
        item.cancel()
    batch = run_queued.on(batch)
    assert (batch.status, rows_of(batch)) == ("failed", ["succeeded", "failed", "cancelled"])
    assert record.lines() == ["succeed 5", "succeed 3", "succeed 4"]


def test_a_link_for_later_waits_from_its_turn_on(live_db: None, record: Record) -> None:
    """...if its time has not come by then."""
    soon, later = timezone.now() + timedelta(seconds=0.2), timezone.now() + timedelta(hours=1)
    batch = batch_of([chain(note(1), note(2).options(run_after=soon), note(3).options(run_after=later))]).dispatch()
    time.sleep(0.3)
    work()
    assert record.lines() == ["succeed 1", "succeed 2"]
    assert rows_of(batch) == ["succeeded", "succeeded", "scheduled"]


def test_a_chain_stays_together(run_queued: Runner, record: Record, settings: Any) -> None:
    """All links of a chain share one lane, however small the chunks are; also when they run again."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 3}
    links = [note(n) for n in range(5)] + [job_of(jobs.flaky, "link", 1)] + [note(n) for n in range(6, 10)]
    batch = run_queued(batch_of([chain(*links), note(10), chain(*links[:5])], allow_failures=True))
    assert len(set(batch.jobs.filter(chain=0).values_list("lane", flat=True))) == 1
    assert batch.retry() == 5
    assert rows_of(run_queued.on(batch)) == ["succeeded"] * 16


def test_many_links_on_a_synchronous_queue(live_db: None, record: Record, settings: Any) -> None:
    """Drained in a loop, never by recursion."""
    settings.JOB_BATCHES = {"QUEUE": "sync"}
    batch = batch_of([chain(*[jobs_semantics.nothing] * 120)], on_finish=note(1)).dispatch()
    assert (batch.status, numbers(batch), record.lines()) == ("succeeded", (120, 0, 0), ["succeed 1"])
