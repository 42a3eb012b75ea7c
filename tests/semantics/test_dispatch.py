"""`dispatch()`: transactions, streaming, other databases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import transaction
from redis import Redis

from django_job_batches import BatchError, batch_of, chain, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_semantics
from tests.failures.books import numbers, rows_of
from tests.in_process import enqueued, work
from tests.invariants import assert_all_ended
from tests.processes import Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def test_it_returns_the_saved_batch(run_queued: Runner) -> None:
    user = User.objects.create(username="somebody")
    described = batch_of(
        [note(1)], name="Import", key="k", metadata={"site": [1, {"ä": None}]}, created_by=user, queue_name="default"
    )
    batch = described.dispatch()
    assert batch.pk and batch._state.adding is False and batch.created_at
    saved = Batch.objects.get(pk=batch.pk)
    assert (saved.name, saved.key, saved.metadata, saved.created_by) == (
        "Import",
        "k",
        {"site": [1, {"ä": None}]},
        user,
    )
    assert (saved.status, saved.run, str(saved)) == ("queued", 1, "Import")
    run_queued.on(batch)


def test_a_job_row_as_it_was_described(run_queued: Runner) -> None:
    job = job_of(jobs.echo, 1, [2], a="ü").options(description="Say it", retry=2, queue_name="default", timeout=99)
    batch = batch_of([job]).dispatch()
    row = batch.jobs.get()
    assert (row.func, row.args, row.kwargs, row.queue_name) == ("tests.jobs.echo", [1, [2]], {"a": "ü"}, "default")
    assert (row.role, row.position, row.status, row.attempts, row.max_attempts) == ("item", 0, "queued", 0, 3)
    assert (str(row), row.enqueued_at is not None, row.started_at) == ("Say it", True, None)
    run_queued.on(batch)
    row.refresh_from_db()
    assert row.enqueued_at <= row.started_at <= row.finished_at
    assert row.worker_name and row.duration


def test_what_rq_gets(live_db: None, redis: Redis) -> None:
    """Its id is `<batch uuid in hex>-<row>-<attempt>`; RQ's pages show the description."""
    from rq.job import Job

    batch = batch_of([note(1).options(description="Say it", timeout=99)]).dispatch()
    row = batch.jobs.get()
    assert enqueued() == [row.rq_job_id] == [f"{batch.pk.hex}-{row.pk}-1"]
    rq_job = Job.fetch(row.rq_job_id, connection=redis)
    assert (rq_job.description, rq_job.args) == ("Say it", ("default", row.pk, 1))
    assert rq_job.timeout > 99  # longer by the time that bookkeeping may take
    assert (rq_job.result_ttl, rq_job.failure_ttl) == (3_600, 86_400)


# Transactions


def test_nothing_is_enqueued_before_the_outermost_commit(run_queued: Runner) -> None:
    """P6, with savepoints: what is rolled back to one leaves nothing, the rest is enqueued at the end."""
    with transaction.atomic():
        with transaction.atomic():
            kept = batch_of([note(1)], on_finish=note(2)).dispatch()
        with pytest.raises(LookupError), transaction.atomic():
            batch_of([note(3), batch_of([note(4)])], key="gone").dispatch()
            raise LookupError
        assert (enqueued(), Batch.objects.count()) == ([], 1)
    assert len(enqueued()) == 1
    assert run_queued.on(kept).status == "succeeded"
    assert run_queued(batch_of([], key="gone")).status == "succeeded"


def test_a_transaction_of_another_database_is_none(run_queued: Runner) -> None:
    with pytest.raises(LookupError), transaction.atomic(using="other"):
        batch = batch_of([note(1)]).dispatch()
        assert len(enqueued()) == 1
        raise LookupError
    assert run_queued.on(batch).status == "succeeded"


def test_another_database_with_all_that_belongs_to_a_batch(live_db: None, record: Record) -> None:
    """`dispatch(using=…)`: on that database alias, its transactions, nested batches, callbacks, additions, retries."""
    with transaction.atomic(using="other"):
        inner = batch_of([job_of(jobs.flaky, "job", 1)], on_finish=note(1), name="inner")
        batch = batch_of([chain(inner, note(2))], on_failure=note(3), on_finish=batch_of([note(4)])).dispatch(
            using="other"
        )
        assert enqueued() == []
    assert batch.add([jobs_semantics.add_two]) == 1
    work()
    assert_all_ended("other")
    assert batch.retry() > 0
    work()
    assert_all_ended("other")
    batch.refresh_from_db()
    assert (batch._state.db, batch.status, batch.run) == ("other", "succeeded", 2)
    assert batch.jobs.count() == 2 + 1 + 2 + 2
    assert (Batch.objects.count(), BatchJob.objects.count()) == (0, 0)
    batch.delete()
    assert BatchJob.objects.using("other").count() == 0


class Elsewhere:
    """All batches live in the other database."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "django_job_batches" else None

    db_for_write = db_for_read

    def allow_relation(self, *args: Any, **hints: Any) -> bool:
        return True


def test_a_router(live_db: None, record: Record, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Elsewhere()]
    batch = batch_of([note(1), batch_of([note(2)])], on_finish=note(3)).dispatch()
    assert batch._state.db == "other"
    with transaction.atomic():  # of `default`, where no batch is
        batch.add([note(4)])
        assert len(enqueued()) == 3
    work()
    assert_all_ended("other")
    assert numbers(batch_again(batch)) == (3, 0, 0)
    settings.DATABASE_ROUTERS = []
    assert Batch.objects.count() == 0


def batch_again(batch: Batch) -> Batch:
    batch.refresh_from_db()
    return batch


# Streaming


def test_thousands_of_jobs(live_db: None, settings: Any, redis: Redis) -> None:
    """Dispatch streams in chunks; what has not started is cancelled in chunks too."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 100}
    batch = batch_of((note(n) for n in range(3000)), on_finish=jobs_semantics.nothing).dispatch()
    assert (batch.total_jobs, len(enqueued()), batch.status) == (3000, 3000, "queued")
    assert enqueued()[::999] == [batch.jobs.get(role="item", position=n).rq_job_id for n in (0, 999, 1998, 2997)]
    assert max(lane.total for lane in batch.counters.all()) < 1500  # spread over its lanes
    assert batch.cancel()
    assert numbers(batch_again(batch)) == (0, 0, 3000)
    work()
    assert_all_ended()


def test_it_is_dispatching_until_it_is_sealed(run_queued: Runner, settings: Any, record: Record) -> None:
    """...and cannot finish before that. Jobs may start meanwhile."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}
    seen = []

    def items() -> Iterator[Any]:
        for n in range(6):
            work()
            batch = Batch.objects.get()
            seen.append((batch.status, batch.succeeded_jobs, batch.is_running, batch.progress < 100))
            yield note(n)

    batch = run_queued(batch_of(items(), on_finish=note(99)))
    assert [status for status, *_ in seen] == ["dispatching"] * 6
    assert [number for _, number, *_ in seen] == [0, 0, 2, 2, 4, 4]
    assert [running for _, _, running, _ in seen] == [False, False, True, True, True, True]
    assert all(unfinished for *_, unfinished in seen)
    assert (batch.status, record.lines()[-1]) == ("succeeded", "succeed 99")


def test_a_generator_that_raises_half_way(run_forking: Runner, record: Record, settings: Any) -> None:
    """Outside `atomic()` the batch fails with that error, what has not started is cancelled, and the exception is
    raised again with the batch attached (`.batch`)."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}

    def items() -> Iterator[Any]:
        yield note(1)
        yield batch_of([note(2)], name="inner", on_finish=note(3))
        yield note(4)
        raise LookupError("row 4")

    with pytest.raises(LookupError) as raised:
        batch_of(items(), on_success=note(5), on_failure=note(6), on_finish=note(7)).dispatch()
    batch = run_forking.on(raised.value.batch)  # type: ignore[attr-defined]
    assert (batch.status, batch.error, rows_of(batch)) == ("failed", "LookupError: row 4", ["cancelled", "cancelled"])
    assert sorted(record.lines()) == ["succeed 3", "succeed 6", "succeed 7"]


def test_it_is_cancelled_half_way(run_queued: Runner, record: Record, settings: Any) -> None:
    """The rest is not read; what is nested in the chunk that comes too late ends with its parent."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 3}

    def items() -> Iterator[Any]:
        yield note(1)
        yield note(2)
        yield batch_of([note(3)], on_finish=note(4))
        yield batch_of([note(5)], on_finish=batch_of([note(6)]))
        Batch.objects.get(name="whole").cancel()
        yield chain(batch_of([note(7)]), note(8), batch_of([note(9)]))
        raise AssertionError("It is read on.")

    batch = batch_of(items(), name="whole", on_finish=batch_of([note(10)])).dispatch()
    batch = run_queued.on(batch)
    assert (batch.status, batch.error) == ("cancelled", "Cancelled during its dispatch, after 9 items.")
    assert sorted(record.lines()) == ["succeed 10", "succeed 4"]


def test_inside_atomic_everything_rolls_back(run_queued: Runner, redis: Redis) -> None:
    """...also what a nested generator raises, and the caller may go on."""

    def items() -> Iterator[Any]:
        yield note(1)
        raise LookupError("row 1")

    with transaction.atomic():
        with pytest.raises(LookupError):
            batch_of([note(1), batch_of(items())], on_failure=batch_of([note(2)])).dispatch()
        batch = batch_of([note(3)]).dispatch()
    assert list(Batch.objects.all()) == [batch]
    assert numbers(run_queued.on(batch)) == (1, 0, 0)


def test_a_batch_that_is_deleted_takes_all_that_is_nested_with_it(run_queued: Runner) -> None:
    """`BatchError` while anything of it can still run."""
    batch = batch_of([chain(jobs.succeed, batch_of([jobs.succeed], name="inner"))], on_finish=batch_of([])).dispatch()
    kept = batch_of([jobs.succeed]).dispatch()
    with pytest.raises(BatchError, match="has not ended"):
        batch.delete()
    batch = run_queued.on(batch)
    with pytest.raises(BatchError, match="part of another"):
        Batch.objects.get(name="inner").delete()
    number, by_model = batch.delete()
    assert (number, by_model["django_job_batches.Batch"], by_model["django_job_batches.BatchJob"]) == (9, 3, 4)
    assert (list(Batch.objects.all()), BatchJob.objects.count()) == ([kept], 1)


def test_adispatch(run_queued: Runner) -> None:
    """`adispatch()` too, from a running event loop."""

    async def view() -> Batch:
        return await batch_of([note(1), chain(note(2), note(3))]).adispatch()

    assert numbers(run_queued.on(async_to_sync(view)())) == (3, 0, 0)
