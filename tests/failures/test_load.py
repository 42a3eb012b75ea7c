"""Locks and load (kinds of failure 1 to 6). What needs many connections at once is in tests/concurrency/."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from redis.connection import AbstractConnection

from django_job_batches import batch_of, chain, execution, job_of
from django_job_batches.models import Role
from tests import jobs
from tests.failures.books import ended, numbers, rows_of
from tests.in_process import work
from tests.models import Effect

WAYS = ("atomic", "autocommit", "sql", "aborted")


@pytest.mark.parametrize("simple", [False, True], ids=["forking", "simple"])
def test_f01_jobs_that_leave_a_transaction_open_in_two_batches_side_by_side(drain, record, simple):
    """The deadlock that this project began with: bookkeeping that joins the transaction of a failed job keeps the
    counters locked, and two batches wait for each other."""
    batches = [
        batch_of(
            [item for way in WAYS for item in (job_of(jobs.leave_transaction_open, way), job_of(jobs.write_effect))],
            name=name,
            allow_failures=True,
            on_finish=job_of(jobs.succeed, number),
        ).dispatch()
        for number, name in enumerate("AB")
    ]
    log = drain(count=2, simple=simple)
    for batch in batches:
        ended(batch)
        assert (batch.status, numbers(batch)) == ("succeeded", (4, 4, 0))
        errors = {job.error_class for job in batch.jobs.filter(status="failed")}
        assert errors == {"RuntimeError", failed_by_database()}
    assert record.count("leave_transaction_open") == 8
    assert sorted(line for line in record.lines() if line.startswith("succeed")) == ["succeed 0", "succeed 1"]
    assert list(Effect.objects.values_list("name", flat=True)) == ["effect"] * 8
    assert log.count("tests.jobs.leave_transaction_open left a transaction open on 'default'") == 8


def failed_by_database() -> str:
    """What a query of a table that does not exist raises."""
    is_operational = connections["default"].vendor == "sqlite"
    return f"django.db.utils.{'OperationalError' if is_operational else 'ProgrammingError'}"


@pytest.mark.parametrize("way", WAYS)
def test_f01_the_next_job_of_the_process_starts_clean(live_db, record, way, caplog):
    batch = batch_of([job_of(jobs.leave_transaction_open, way), jobs.write_effect], allow_failures=1).dispatch()
    work()
    connection = connections["default"]
    assert not connection.in_atomic_block
    assert connection.get_autocommit()
    assert numbers(ended(batch)) == (1, 1, 0)
    assert Effect.objects.get().name == "effect"
    messages = [entry.getMessage() for entry in caplog.records if "left a transaction open" in entry.getMessage()]
    assert [message.split()[0] for message in messages] == ["tests.jobs.leave_transaction_open"]


@pytest.mark.parametrize("way", ["atomic", "autocommit", "aborted"])
def test_f01_an_atomic_job_that_leaves_a_transaction_open(live_db, record, way):
    """Its body runs inside our transaction, which must not be kept open, nor committed, by what it leaves."""
    broken = job_of(jobs.leave_transaction_open, way).options(atomic=True)
    batch = batch_of([broken, jobs.write_effect], allow_failures=1).dispatch()
    work()
    assert not connections["default"].in_atomic_block
    assert numbers(ended(batch)) == (1, 1, 0)
    assert Effect.objects.get().name == "effect"


def test_f04_no_row_is_locked_during_a_call_of_redis(live_db, record, monkeypatch):
    """Nothing is sent to Redis within a transaction, from the dispatch to the end and through a retry."""
    send, calls, guilty = AbstractConnection.send_packed_command, [], []

    def watched(self: Any, command: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(command)
        if any(connection.in_atomic_block for connection in connections.all()):
            guilty.append(command)
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", watched)
    batch = batch_of(
        [
            chain(jobs.succeed, batch_of([jobs.succeed, jobs.succeed], on_finish=jobs.succeed), jobs.succeed),
            job_of(jobs.write_effect).options(atomic=True),
            job_of(jobs.fail).options(retry=1),
            batch_of([chain(jobs.fail, jobs.succeed)]),
        ],
        allow_failures=True,
        on_success=jobs.succeed,
        on_finish=jobs.succeed,
    ).dispatch()
    batch.add([jobs.succeed])
    work(at_most=2)
    batch.jobs.filter(role=Role.ITEM, status="queued")[0].cancel()
    work()
    assert ended(batch).retry() >= 2
    batch.cancel()
    work()
    ended(batch)
    assert len(calls) > 100
    assert guilty == []


def test_f04_a_dispatch_inside_a_transaction_calls_redis_after_the_commit(live_db, redis, record):
    with transaction.atomic():
        batch = batch_of([jobs.succeed], on_finish=jobs.succeed).dispatch()
        batch.add([jobs.succeed])
        assert redis.keys("*") == []
    work()
    assert numbers(ended(batch)) == (2, 0, 0)


def test_f06_the_hundredth_failure_costs_what_the_first_one_did(live_db, record):
    """No list of failed ids is kept: a failure reads and writes the same rows, however many there were before."""
    batch = batch_of((job_of(jobs.fail) for _ in range(102)), allow_failures=True).dispatch()
    pks = list(batch.jobs.values_list("pk", flat=True))
    _fail(pks[0])
    first = _fail(pks[1])
    for pk in pks[2:100]:
        _fail(pk)
    last = _fail(pks[100])
    assert len(last) == len(first)
    assert sum(map(len, last)) <= sum(map(len, first)) + 40  # the digits of the ids
    assert rows_of(batch).count("failed") == 101
    assert [group.count for group in batch.errors()] == [101]


def _fail(pk: int) -> list[str]:
    """The statements, with their parameters, of one job that fails; its batch is not finished by it."""
    with CaptureQueriesContext(connections["default"]) as queries, pytest.raises(ValueError, match="boom"):
        execution.run_job("default", pk, 1)
    return [query["sql"] for query in queries]
