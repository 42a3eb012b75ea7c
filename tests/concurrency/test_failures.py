"""What has broken other batch systems under load: the hot row, its queue of waiters, keys and indexes that lock.

The tests are numbered like these kinds of failures: 2 the hot row, 3 the waiters, 5 the keys and indexes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_job_batches import batch_of, chain, dispatching, execution, job_of, outbox, queues
from django_job_batches.models import Batch, BatchCounter, BatchJob, JobStatus
from tests.concurrency import bodies
from tests.concurrency.audit import audit
from tests.concurrency.crew import Crew

Hire = Callable[..., AbstractContextManager[Crew]]
Queue = list[queues.Work]
TABLES = [model._meta.db_table for model in (Batch, BatchJob, BatchCounter)]
servers_only = pytest.mark.vendors("postgresql", "mariadb")


@pytest.fixture
def queue(live_db: None, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Queue:
    """What stands in for Redis: what was enqueued, to be run here by `run()`."""
    settings.JOB_BATCHES = {"TIMEOUT": -1, "DEADLOCK_BACKOFF": 0.001}
    monkeypatch.setattr(dispatching, "JOBS_PER_LANE", 4)
    waiting: Queue = []
    monkeypatch.setattr(queues, "enqueue", lambda name, works: waiting.extend(works))
    bodies.executions.clear()
    return waiting


def run(queue: Queue, number: int | None = None) -> None:
    """Run what waits, and what that releases; or so many."""
    for _ in itertools.count() if number is None else range(number):
        if not queue:
            return
        _try_job(queue.pop(0))


def _try_job(work: queues.Work) -> None:
    with suppress(bodies.BoomError):
        execution.run_job(*work.args)


def a_started_batch(queue: Queue, size: int = 40) -> Batch:
    batch = batch_of([bodies.fine] * size).dispatch()
    run(queue, 1)
    return batch


# 2: one row that every finishing job locks


@pytest.mark.parametrize("body", [bodies.fine, bodies.boom])
def test_f02_a_settle_writes_its_own_row_and_lane_alone(queue: Queue, body: Any) -> None:
    batch = batch_of([bodies.fine, *[body] * 40], allow_failures=True).dispatch()
    run(queue, 1)
    job = BatchJob.objects.get(pk=queue[0].args[1])
    with CaptureQueriesContext(connection) as captured:
        run(queue, 1)
    statements = [query["sql"].replace('"', "").replace("`", "") for query in captured]
    writes = [sql for sql in statements if sql.startswith(("UPDATE", "INSERT", "DELETE")) or "FOR UPDATE" in sql]
    assert [sql.split()[1] for sql in writes] == [TABLES[1], TABLES[1], TABLES[2]]  # claim, settle, count
    assert all(f"{TABLES[1]}.id = {job.pk}" in sql for sql in writes[:2])
    assert f"{TABLES[2]}.lane = {job.lane}" in writes[2]
    assert batch.lanes > 1


@servers_only
def test_f02_jobs_end_while_others_hold_the_batch_and_the_other_lanes(queue: Queue, hire: Hire) -> None:
    batch = a_started_batch(queue)
    job = BatchJob.objects.get(pk=queue[0].args[1])
    mine = [work for work in queue if BatchJob.objects.get(pk=work.args[1]).lane == job.lane][:-1]
    with hire(4) as crew, transaction.atomic():
        Batch.objects.select_for_update().get(pk=batch.pk)
        list(batch.counters.select_for_update().exclude(lane=job.lane))
        crew.deliver("default", mine)
        crew.rest(timeout=20)
    assert len(mine) >= 2
    ended = BatchJob.objects.filter(pk__in=[work.args[1] for work in mine])
    assert set(ended.values_list("status", flat=True)) == {JobStatus.SUCCEEDED}


# 3: more than 200 waiters on one row are reported as a deadlock


def test_f03_no_row_is_waited_for_by_more_than_a_few_of_all_workers(
    live_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "enqueue", lambda name, works: None)
    batch = batch_of([bodies.fine] * 5000).dispatch()
    lanes = Counter(batch.jobs.values_list("lane", flat=True))
    assert len(lanes) == 32
    assert 200 / (max(lanes.values()) / 5000) >= 4000  # so many workers would make 200 of them wait for one row


def conflicts() -> list[Any]:
    """What each server says to a statement that it made the victim, as the driver raises it."""
    return {
        "postgresql": [_with_state("40P01"), _with_state("40001"), _with_state("55P03")],
        "mysql": [OperationalError(number, "…") for number in (1213, 1205, 1020)],
        "sqlite": [OperationalError("database is locked")],
    }[connection.vendor]


def _with_state(code: str) -> OperationalError:
    error = OperationalError("…")
    error.sqlstate = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("body", [bodies.fine, bodies.boom])
def test_f03_what_the_server_calls_a_deadlock_is_repeated_without_the_body(queue: Queue, body: Any) -> None:
    batch = batch_of([body] * 40, allow_failures=True).dispatch()
    run(queue, 1)
    job = BatchJob.objects.get(pk=queue[0].args[1])
    left = conflicts()
    number = len(left)

    def strike(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if TABLES[2] in sql and sql.startswith("UPDATE") and left:
            raise left.pop()
        return execute(sql, *rest)

    with connection.execute_wrapper(strike):
        run(queue, 1)
    job.refresh_from_db()
    assert not left
    assert job.is_ended
    assert bodies.executions[job.pk, 1, 1] == 1
    batch.refresh_from_db()
    assert (batch.total_jobs - batch.pending_jobs, batch.deadlocks, job.deadlocks) == (2, number, number)


# 5: deadlocks through secondary indexes and foreign keys


def test_f05_no_foreign_key_ties_our_tables_to_each_other(live_db: None) -> None:
    with connection.cursor() as cursor:
        for table in TABLES:
            constraints = connection.introspection.get_constraints(cursor, table)
            assert [name for name, found in constraints.items() if found["foreign_key"]] == [], table


@servers_only
def test_f05_a_new_job_does_not_wait_for_the_row_of_its_batch(queue: Queue, hire: Hire) -> None:
    batch = a_started_batch(queue)
    row = BatchJob(batch=batch, position=1000, func="x", status=JobStatus.BLOCKED)
    with hire(1) as crew, transaction.atomic():
        Batch.objects.select_for_update().get(pk=batch.pk)
        crew.do(row.save)
        crew.rest(timeout=20)
    assert row.pk


@contextmanager
def explained() -> Iterator[list[tuple[str, str]]]:
    """What EXPLAIN says to each UPDATE before it is run: by which key its rows are found."""
    plans: list[tuple[str, str]] = []

    def explain(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE"):
            with connection.connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {sql}", params)
                key = [column[0] for column in cursor.description].index("key")
                plans.append((cursor.fetchall()[0][key], sql))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield plans


@pytest.mark.vendors("mariadb")
@pytest.mark.parametrize("size", [4, 15])
def test_f05_each_row_is_found_by_its_key_and_by_no_secondary_index(queue: Queue, size: int) -> None:
    with explained() as plans:
        nested = batch_of([bodies.boom_at_first, bodies.flaky], on_finish=bodies.fine)
        items = [chain(bodies.fine, nested, bodies.fine), job_of(bodies.flaky).options(retry=2), bodies.boom_at_first]
        batch = batch_of(items * size, allow_failures=True, on_success=bodies.fine, on_finish=bodies.boom).dispatch()
        run(queue)
        batch.refresh_from_db()
        assert batch.retry()
        run(queue, 3)
        batch.jobs.filter(status=JobStatus.QUEUED).exclude(func="")[0].cancel()
        batch.cancel()
        run(queue)
    batch.refresh_from_db()
    assert batch.is_finished
    assert {key for key, _ in plans} <= {"PRIMARY", "job_batch_counter_lane"}, [
        plan for plan in plans if plan[0] not in ("PRIMARY", "job_batch_counter_lane")
    ]


@servers_only
def test_f05_sweeps_and_claims_of_the_same_rows_do_not_deadlock(
    hire: Hire, no_deadlock: Callable[[], AbstractContextManager[None]]
) -> None:
    with no_deadlock(), hire(16, jitter=0.1) as crew:
        batch = batch_of([bodies.fine] * 300, on_finish=bodies.fine).dispatch()
        batch.cancel()
        crew.do(*[partial(outbox.sweep, "default", batch.pk)] * 8, at_once=True)
        crew.rest(timeout=60)
        audit(crew.finished)
        assert crew.conflicts == {}


@servers_only
def test_f05_who_adds_at_once_does_not_deadlock_over_new_lanes(
    hire: Hire, no_deadlock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them makes the lanes that are missing, and then counts into them."""
    monkeypatch.setattr(dispatching, "JOBS_PER_LANE", 4)
    batches = [batch_of([bodies.fine]).dispatch() for _ in range(25)]
    with no_deadlock(), hire(12) as crew, monkeypatch.context() as patches:
        patches.setattr(queues, "enqueue", lambda name, works: None)  # nobody works
        for batch in batches:
            copies = [Batch.objects.get(pk=batch.pk) for _ in range(12)]
            crew.do(*[partial(copy.add, [job_of(bodies.fine)] * 4) for copy in copies], at_once=True)
        crew.rest(timeout=120)
    assert [batch.total_jobs for batch in Batch.objects.all()] == [49] * 25
    assert crew.conflicts == {}
