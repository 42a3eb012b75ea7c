"""Batches in batches: each counts as one item of its parent, which waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_job_batches import DuplicateBatch, batch_of, chain, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_semantics
from tests.failures.books import numbers, rows_of
from tests.in_process import enqueued, work
from tests.invariants import assert_all_ended
from tests.processes import Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def named(name: str) -> Batch:
    return Batch.objects.get(name=name)


def test_a_nested_batch_counts_as_one_item(run: Runner) -> None:
    batch = run(batch_of([batch_of([note(n) for n in range(5)], name="inner"), note(9)]))
    assert (batch.total_jobs, numbers(batch), numbers(named("inner"))) == (2, (2, 0, 0), (5, 0, 0))
    row = named("inner").parent_job
    assert row is not None and (row.batch, row.func, str(row)) == (batch, "", "inner")
    assert row.started_at is not None and row.attempts == 0


def test_side_by_side_with_forking_workers(drain: Any, record: Record) -> None:
    """The parent ends with the last of them, and each callback comes after its own batch."""
    parts = [batch_of([note(n), note(n + 10)], on_finish=note(n + 20)) for n in range(3)]
    batch = batch_of([*parts, note(100)], on_success=note(200)).dispatch()
    drain(count=2)
    assert_all_ended()
    batch.refresh_from_db()
    assert numbers(batch) == (4, 0, 0)
    lines = record.lines()
    assert lines[-1] == "succeed 200"
    for n in range(3):
        assert max(lines.index(f"succeed {n}"), lines.index(f"succeed {n + 10}")) < lines.index(f"succeed {n + 20}")


def test_waiting_until_its_turn(run_queued: Runner) -> None:
    """`waiting` (a nested batch before its turn)."""
    batch = batch_of([chain(note(1), batch_of([note(2)], name="second")), batch_of([note(3)], name="first")]).dispatch()
    assert (batch.status, named("first").status, named("second").status) == ("queued", "queued", "waiting")
    assert (named("second").pending_jobs, named("second").progress) == (1, 0)
    assert len(enqueued()) == 2
    assert named("second") in Batch.objects.active()
    assert named("second") not in Batch.objects.stuck()
    run_queued.on(batch)
    assert named("second").status == "succeeded"


def test_five_levels(run: Runner, record: Record) -> None:
    description = batch_of([note(0)], on_finish=note(1))
    for level in range(1, 5):
        description = batch_of([chain(description, note(2 * level))], on_finish=note(2 * level + 1), name=str(level))
    batch = run(description)
    assert record.lines() == [f"succeed {n}" for n in range(10)]
    assert (batch.name, batch.total_jobs) == ("4", 2)


def test_a_failure_at_the_bottom_reaches_the_top(run: Runner, record: Record) -> None:
    """...through each level's callbacks."""
    description = batch_of([jobs.fail, note(0)], on_failure=note(1), on_finish=note(2))
    for level in range(1, 4):
        callbacks = {"on_failure": note(2 * level + 1), "on_finish": note(2 * level + 2)}
        description = batch_of([description, note(0)], **callbacks)
    batch = run(description)
    assert batch.status == "failed"
    assert Batch.objects.filter(status="failed").count() == 4
    assert [line for line in record.lines() if line != "succeed 0"] == ["fail boom"] + [
        f"succeed {n}" for n in range(1, 9)
    ]


def test_the_start_of_a_nested_job_is_the_start_of_all_around_it(run: Runner) -> None:
    run(batch_of([batch_of([batch_of([jobs.succeed])])]))
    assert len(set(Batch.objects.values_list("started_at", flat=True))) == 1
    assert Batch.objects.filter(started_at=None).count() == 0


def test_a_nested_batch_is_running_with_its_parent(live_db: None, record: Record) -> None:
    outer = batch_of([batch_of([note(1), note(2)], name="inner")]).dispatch()
    work(at_most=1)
    outer.refresh_from_db()
    assert (outer.status, outer.is_running, named("inner").status) == ("running", True, "running")
    assert BatchJob.objects.get(batch=outer).status == "running"
    assert (outer.progress, named("inner").progress) == (0, 50)


def test_nested_generators_are_read_one_after_the_other(run: Runner, record: Record, settings: Any) -> None:
    settings.JOB_BATCHES = {**settings.JOB_BATCHES, "CHUNK_SIZE": 2}

    def inner(level: int) -> Iterator[Any]:
        yield note(level)
        if level < 3:
            yield batch_of(inner(level + 1), on_finish=note(10 + level))
        yield note(level)

    batch = run(batch_of(inner(0)))
    assert numbers(batch) == (3, 0, 0)
    assert sorted(record.lines()) == sorted([f"succeed {n}" for n in (0, 0, 1, 1, 2, 2, 3, 3, 10, 11, 12)])


def test_cancelling_a_nested_batch_alone(run_queued: Runner, record: Record) -> None:
    """An item that was cancelled by itself (a nested batch) counts like a failed one."""
    parts = [batch_of([note(n), note(n)], name=f"part {n}", on_finish=note(n + 10)) for n in range(3)]
    batch = batch_of(parts, allow_failures=1, on_success=note(99)).dispatch()
    assert named("part 1").cancel("not this one")
    batch = run_queued.on(batch)
    assert (batch.status, rows_of(batch)) == ("succeeded", ["succeeded", "cancelled", "succeeded"])
    assert [record.lines().count(f"succeed {n}") for n in (0, 1, 2, 10, 11, 12, 99)] == [2, 0, 2, 1, 1, 1, 1]
    assert "was cancelled" in batch.jobs.get(position=1).error_message
    batch = batch_of(parts).dispatch()
    Batch.objects.filter(name="part 1").latest("created_at").cancel("not this one")
    assert run_queued.on(batch).status == "failed"


def test_cancelling_by_the_row_of_a_nested_batch(run_queued: Runner) -> None:
    """A nested batch is cancelled whole."""
    batch = batch_of([batch_of([note(1), batch_of([note(2)])], name="inner"), note(3)], allow_failures=1).dispatch()
    row = batch.jobs.get(position=0)
    assert row.cancel()
    assert not row.cancel()
    assert numbers(run_queued.on(batch)) == (1, 0, 1)
    assert numbers(named("inner")) == (0, 0, 2)


def test_a_running_nested_batch_ends_by_itself_when_its_parent_is_cancelled(run_queued: Runner, record: Record) -> None:
    """A nested batch that has been released ends by itself and then settles its row."""
    cancels = batch_of([jobs_semantics.cancels_the_parent, note(1)], name="inner", on_finish=note(2))
    batch = run_queued(batch_of([cancels, note(3)], on_finish=note(4)))
    assert (batch.status, named("inner").status) == ("cancelled", "cancelled")
    assert (numbers(batch), numbers(named("inner"))) == ((1, 0, 1), (1, 0, 1))
    assert "called off" in named("inner").cancel_reason
    assert record.lines() == ["succeed 3", "succeed 2", "succeed 4"]


def test_a_key_of_a_nested_batch(run_queued: Runner) -> None:
    """One unfinished batch per key, nested or not; a refusal leaves nothing half-made."""
    batch = batch_of([chain(note(1), batch_of([note(2)], key="part"))]).dispatch()
    with pytest.raises(DuplicateBatch):
        batch_of([note(3)], key="part").dispatch()
    with pytest.raises(DuplicateBatch) as refused:
        batch_of([note(4), batch_of([note(5)], key="part")], on_failure=note(6)).dispatch()
    run_queued.on(batch)
    broken = refused.value.batch
    assert broken is not None and broken.key == "part"
    assert set(Batch.objects.values_list("status", flat=True)) == {"succeeded", "failed"}
    assert run_queued(batch_of([note(7)], key="part")).status == "succeeded"


def test_work_is_handed_down_to_the_queue_of_the_batch_around_it(run_queued: Runner) -> None:
    inner = batch_of([batch_of([note(1)], on_finish=note(2))])
    batch = batch_of([inner], queue_name="low").dispatch()
    work("low")
    assert_all_ended()
    batch.refresh_from_db()
    assert batch.status == "succeeded"
    assert set(BatchJob.objects.exclude(func="").values_list("queue_name", flat=True)) == {"low"}
