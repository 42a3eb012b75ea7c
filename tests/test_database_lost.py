"""The database goes away in the middle: connections are ended by the server, as its restart would end them.

Bookkeeping is done again on a new connection; the body of a job never is, but for an atomic one, whose transaction
left nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, OperationalError, connection, connections, transaction

from django_job_batches import batch_of, chain, execution, job_of, outbox, outcomes, transitions
from django_job_batches.database import repeated
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_database
from tests.failures.books import ended, numbers
from tests.in_process import enqueued, work
from tests.jobs_database import kill_connection
from tests.models import Effect

pytestmark = pytest.mark.vendors("postgresql", "mariadb")


def kill_after(func: Callable[..., Any], *, times: int = 1, fail: bool = True) -> Callable[..., Any]:
    """`func`, then the end of the connection, which the caller sees if `fail`; the first `times` times."""
    left = [times]

    def killed(*args: Any, **kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if left[0]:
            left[0] -= 1
            kill_connection()
            if fail:
                with connection.wrap_database_errors:
                    connection.connection.cursor().execute("SELECT 1")
                raise AssertionError("the connection is still alive")
        return result

    return killed


def lose_commit(monkeypatch: pytest.MonkeyPatch, is_due: Callable[[], bool]) -> list[int]:
    """The first COMMIT that `is_due` goes through, and its answer is lost; returns a list that grows by each one."""
    kind: Any = type(connections["default"])
    commit, commits = kind._commit, []
    lossy = kill_after(commit)

    def lose(self: Any) -> Any:
        commits.append(1)
        return lossy(self) if is_due() else commit(self)

    monkeypatch.setattr(kind, "_commit", lose)
    return commits


# During the body


@pytest.mark.parametrize("simple", [False, True], ids=["forking", "simple"])
def test_connections_that_end_during_the_body(drain, record, simple):
    """What the body itself sees of it is its own failure; what only we see of it is none."""
    bodies = [
        jobs_database.lose_connection,
        jobs_database.query_lost_connection,
        jobs_database.swallow_lost_connection,
        jobs_database.lose_connection_in_transaction,
        jobs.write_effect,
    ]
    batch = batch_of(bodies, allow_failures=True, on_finish=jobs.succeed).dispatch()
    drain(simple=simple)
    assert numbers(ended(batch)) == (3, 2, 0)
    statuses = list(batch.jobs.filter(role="item").order_by("position").values_list("status", flat=True))
    assert statuses == ["succeeded", "failed", "succeeded", "failed", "succeeded"]
    assert sorted(record.lines()) == sorted(
        [*(body.__name__ for body in bodies[:4]), "write_effect effect", "succeed 0"]
    )
    assert sorted(Effect.objects.values_list("name", flat=True)) == ["before", "effect"]


def test_an_atomic_job_that_loses_its_connection_runs_again_as_a_whole(live_db, record):
    batch = batch_of([job_of(jobs_database.lose_connection_once, "once").options(atomic=True)]).dispatch()
    work()
    assert numbers(ended(batch)) == (1, 0, 0)
    assert record.count("lose_connection_once") == 2
    assert Effect.objects.filter(name="once").count() == 1


# During the bookkeeping


def test_between_body_and_settle(live_db, record, monkeypatch):
    monkeypatch.setattr(outcomes, "succeeded", kill_after(outcomes.succeeded, fail=False))
    _check_one_job(record)


def test_while_the_job_is_loaded(live_db, record, monkeypatch):
    monkeypatch.setattr(execution, "jobs_of", kill_after(transitions.jobs_of, fail=False))
    _check_one_job(record)


def test_when_the_answer_to_the_claim_is_lost(live_db, record, monkeypatch):
    """The row says that this attempt runs: here, not elsewhere, so it goes on."""
    monkeypatch.setattr(transitions, "claim", kill_after(transitions.claim))
    _check_one_job(record)


def test_before_the_claim_reaches_the_server(live_db, record, monkeypatch):
    claim = transitions.claim
    killed: list[int] = []

    def unlucky(*args: Any) -> bool:
        if not killed:
            killed.append(1)
            kill_connection()
        return claim(*args)

    monkeypatch.setattr(transitions, "claim", unlucky)
    _check_one_job(record)


def test_when_the_first_start_of_the_batch_is_noted(live_db, record, monkeypatch):
    monkeypatch.setattr(transitions, "start", kill_after(transitions.start))
    _check_one_job(record)


@pytest.mark.parametrize("name", ["settle", "after_end", "count", "close_lane", "release_callbacks"])
def test_within_the_transaction_that_settles(live_db, record, monkeypatch, name):
    monkeypatch.setattr(transitions, name, kill_after(getattr(transitions, name)))
    _check_one_job(record)


@pytest.mark.parametrize("atomic", [False, True])
def test_when_the_answer_to_the_commit_is_lost(live_db, record, monkeypatch, atomic):
    """It had gone through: nothing is counted twice, and what follows from it is done."""
    settle, settled = transitions.settle, []

    def noted(*args: Any) -> bool:
        settled.append(1)
        return settle(*args)

    monkeypatch.setattr(transitions, "settle", noted)
    lose_commit(monkeypatch, lambda: len(settled) == 1)
    _check_one_job(record, atomic=atomic)


@pytest.mark.parametrize("name", ["flush", "_lease_one", "push", "close_books"])
def test_after_the_commit(live_db, record, monkeypatch, name):
    """The next look at the batch finishes what was cut off, if it was not done at once."""
    monkeypatch.setattr(outbox, name, kill_after(getattr(outbox, name), fail=False))
    _check_one_job(record)


def test_when_the_answer_to_a_lease_is_lost(live_db, record, monkeypatch):
    """It is ours, so the job is pushed: by one statement for one, in a transaction for several."""
    losses: list[int] = []

    def lossy(func: Any, *args: Any, **options: Any) -> Any:
        if getattr(func, "keywords", {}).keys() == {"enqueued_at"} and len(losses) < 2:
            losses.append(1)
            func = kill_after(func)
        return repeated(func, *args, **options)

    monkeypatch.setattr(outbox, "repeated", lossy)
    _check_one_job(record)
    assert losses
    batch = batch_of([chain(jobs.succeed, batch_of([job_of(jobs.succeed, n) for n in range(6)]))]).dispatch()
    lease, leases = outbox._lease_many, []

    def noted(*args: Any) -> Any:
        leases.append(1)
        return lease(*args)

    monkeypatch.setattr(outbox, "_lease_many", noted)
    lose_commit(monkeypatch, lambda: len(leases) == 1)
    work()
    assert leases
    assert numbers(ended(batch)) == (2, 0, 0)
    assert record.count("succeed") == 8


def _check_one_job(record: Any, **options: Any) -> None:
    batch = batch_of([job_of(jobs.write_effect).options(**options)], on_finish=jobs.succeed).dispatch()
    work()
    assert (ended(batch).status, numbers(batch)) == ("succeeded", (1, 0, 0))
    assert batch.final_counts is not None
    assert record.lines() == ["write_effect effect", "succeed 0"]
    assert Effect.objects.count() == 1
    assert set(batch.jobs.values_list("attempts", "losses")) == {(1, 0)}


# For longer than we wait


@pytest.mark.parametrize("body", [jobs.write_effect, jobs.fail], ids=["succeeds", "fails"])
@pytest.mark.parametrize("deliveries", [1, 2])
def test_an_outcome_that_cannot_be_written_is_kept_for_the_next_delivery(
    live_db, redis, record, settings, monkeypatch, body, deliveries
):
    """The body is not run again for it, however often that takes."""
    settings.JOB_BATCHES = {"SETTLE_FOR": 0.05, "DEADLOCK_BACKOFF": 0.01}
    settle = transitions.settle
    calls: list[int] = []

    def away(job: BatchJob, *args: Any) -> bool:
        if len(calls) < deliveries:
            with connection.cursor() as cursor:  # as long as this delivery tries
                calls_of_delivery.append(1)
                cursor.execute("SELECT 1")
            raise lost()
        return settle(job, *args)

    calls_of_delivery: list[int] = []
    write = execution._settle

    def counted(*args: Any) -> None:
        try:
            write(*args)
        except (DatabaseError, InterfaceError):
            calls.append(1)
            raise

    monkeypatch.setattr(transitions, "settle", away)
    monkeypatch.setattr(execution, "_settle", counted)
    batch = batch_of([body], allow_failures=1, on_finish=jobs.succeed).dispatch()
    work()
    assert len(calls) == deliveries
    assert len(calls_of_delivery) >= 2 * deliveries
    assert numbers(ended(batch)) == ((1, 0, 0) if body is jobs.write_effect else (0, 1, 0))
    assert record.lines() == ["write_effect effect" if body is jobs.write_effect else "fail boom", "succeed 0"]
    error = {"write_effect": "", "fail": "ValueError"}[body.__name__]
    assert batch.jobs.get(role="item").error_class == error
    assert redis.keys("job_batches:outcome:*") == []


def lost() -> OperationalError:
    """What the driver says when the server is gone."""
    error = OperationalError(2006, "server has gone away")
    if connection.vendor == "postgresql":
        error = OperationalError("terminating connection due to administrator command")
        error.sqlstate = "57P01"  # type: ignore[attr-defined]
    return error


# The dispatcher's connection


@pytest.mark.parametrize("every", [1, 3])
def test_a_dispatch_goes_on_after_its_connection_was_ended(live_db, record, settings, every):
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}

    def produce() -> Iterator[Any]:
        for n in range(9):
            if n % every == 0:
                kill_connection()
            yield job_of(jobs.succeed, n)

    batch = batch_of(produce(), on_finish=jobs.echo).dispatch()
    kill_connection()
    batch.add(produce())
    work()
    assert numbers(ended(batch)) == (18, 0, 0)
    assert sorted(batch.jobs.filter(role="item").values_list("position", flat=True)) == list(range(18))
    assert sorted(record.lines()) == ["echo () {}", *sorted(f"succeed {n}" for n in range(9) for _ in range(2))]


@pytest.mark.parametrize("name", ["reserve", "open_lane", "seal"])
def test_a_dispatch_that_loses_its_connection_within_a_chunk(live_db, record, monkeypatch, name):
    monkeypatch.setattr(transitions, name, kill_after(getattr(transitions, name)))
    _check_dispatch(record)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_dispatch_that_loses_the_answer_to_a_commit(live_db, record, monkeypatch, number):
    """That of the batch's row, of the callbacks, of a chunk, of the seal: each is written once."""
    commits = lose_commit(monkeypatch, lambda: len(commits) == number)
    _check_dispatch(record)
    assert len(commits) > number


def _check_dispatch(record: Any) -> None:
    batch = batch_of([jobs.succeed, jobs.write_effect], on_finish=jobs.echo).dispatch()
    work()
    assert Batch.objects.count() == 1
    assert (ended(batch).status, numbers(batch)) == ("succeeded", (2, 0, 0))
    assert BatchJob.objects.count() == 3
    assert sorted(record.lines()) == ["echo () {}", "succeed 0", "write_effect effect"]


def test_a_dispatch_inside_a_transaction_that_is_lost_leaves_nothing(live_db, redis):
    with pytest.raises((OperationalError, InterfaceError)), transaction.atomic():
        batch_of([jobs.succeed]).dispatch()
        kill_connection()
        batch_of([jobs.succeed]).dispatch()
    assert (Batch.objects.count(), BatchJob.objects.count(), enqueued()) == (0, 0, [])
    assert redis.keys("*") == []


@pytest.mark.parametrize("action", ["cancel", "retry"])
def test_operators_whose_connection_was_ended(live_db, record, action):
    batch = batch_of([jobs.fail, jobs.succeed], on_finish=jobs.echo).dispatch()
    if action == "retry":
        work()
        batch.refresh_from_db()
    kill_connection()
    assert getattr(batch, action)()
    work()
    assert ended(batch).status == ("cancelled" if action == "cancel" else "failed")
    assert record.count("echo") == (1 if action == "cancel" else 2)


@pytest.mark.parametrize("name", ["decide_cancelled", "cancel_rows"])
def test_a_cancel_that_loses_its_connection(live_db, record, monkeypatch, name):
    batch = batch_of([jobs.succeed, jobs.succeed], on_finish=jobs.echo).dispatch()
    monkeypatch.setattr(transitions, name, kill_after(getattr(transitions, name)))
    assert batch.cancel("enough")
    work()
    assert (ended(batch).status, numbers(batch), batch.cancel_reason) == ("cancelled", (0, 0, 2), "enough")
    assert record.lines() == ["echo () {}"]


@pytest.mark.parametrize("number", range(1, 6))
def test_a_retry_that_loses_the_answer_to_a_commit(live_db, record, monkeypatch, number):
    batch = batch_of([jobs.fail, jobs.succeed], on_finish=jobs.echo).dispatch()
    work()
    batch.refresh_from_db()
    with monkeypatch.context() as unlucky:
        commits = lose_commit(unlucky, lambda: len(commits) == number)
        batch.retry()
    work()
    assert (ended(batch).status, batch.run) == ("failed", 2)
    assert record.count("echo") == 2
    assert sorted(batch.jobs.filter(role="item").values_list("attempts", "status")) == [(0, "cancelled"), (2, "failed")]
