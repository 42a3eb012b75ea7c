"""Transactions that survive deadlocks, lock time-outs and the like: real ones, of each database."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction

from django_job_batches import batch_of, job_of
from django_job_batches.database import atomically, backoff, is_conflict, repeated, storable, survived
from tests import jobs, jobs_database
from tests.failures.books import ended, first_item, numbers
from tests.in_process import close, work
from tests.models import Effect

servers = pytest.mark.vendors("postgresql", "mariadb")
sqlite = pytest.mark.vendors("sqlite")


@pytest.fixture(autouse=True)
def impatient(settings: Any) -> None:
    settings.JOB_BATCHES = {"DEADLOCK_BACKOFF": 0.02, "DEADLOCK_RETRIES": 5}


@pytest.fixture
def rows(live_db: None) -> None:
    for name in "ab":
        Effect.objects.create(name=name)


def lock(name: str, **options: Any) -> Effect:
    return Effect.objects.select_for_update(**options).get(name=name)


class ConflictError(OperationalError):
    """What the database raises when it has chosen a victim: made here, where a real one would prove nothing more."""

    def __init__(self) -> None:
        code: Any = {"postgresql": "made up", "sqlite": "database is locked"}.get(connection.vendor, 1213)
        super().__init__(code, "made up")
        self.sqlstate = "40P01" if connection.vendor == "postgresql" else None

    def __str__(self) -> str:
        return "database is locked"


@contextmanager
def in_thread(func: Callable[[], Any]) -> Iterator[None]:
    """Runs `func` in a thread, with a connection of its own, during the block; its exception is raised here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            func()
        except BaseException as error:
            errors.append(error)
        finally:
            close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)
    assert not errors, errors


# Real conflicts


@servers
def test_both_sides_of_a_deadlock_come_through(rows, caplog):
    barrier = threading.Barrier(2)
    calls: list[str] = []
    seen: list[int] = []

    def cross(first: str, second: str) -> None:
        calls.append(first)
        lock(first)
        if len(calls) <= 2:
            barrier.wait(10)
        lock(second)
        Effect.objects.create(name=f"from {first}")
        seen.append(survived())

    with in_thread(lambda: atomically(lambda: cross("b", "a"), "default")):
        atomically(lambda: cross("a", "b"), "default")
    assert len(calls) == 3
    assert sorted(seen) == [0, 1]
    assert sorted(Effect.objects.filter(name__startswith="from").values_list("name", flat=True)) == ["from a", "from b"]
    assert "deadlock" in caplog.text.lower()
    assert "trying again" in caplog.text
    assert survived() == 0


@servers
@pytest.mark.parametrize("how", ["nowait", "timeout"])
def test_a_lock_that_others_hold(rows, how):
    """PostgreSQL's lock_timeout and NOWAIT (55P03), MariaDB's innodb_lock_wait_timeout and NOWAIT (1205)."""
    locked, calls = threading.Event(), []

    def hold() -> None:
        with transaction.atomic():
            lock("a")
            locked.set()
            time.sleep(0.15 if how == "nowait" or connection.vendor == "postgresql" else 1.15)

    def work() -> int:
        calls.append(1)
        Effect.objects.create(name="once")
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL lock_timeout = '30ms'")
            else:
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        lock("a", nowait=how == "nowait")
        return survived()

    try:
        with in_thread(hold):
            assert locked.wait(10)
            assert atomically(work, "default", patience=10) == len(calls) - 1 >= 1
    finally:
        connection.close()  # with what it has been set to
    assert Effect.objects.filter(name="once").count() == 1


@pytest.mark.vendors("postgresql")
def test_serialization_failure(rows):
    """40001: what this transaction has read is not what it would change."""
    calls = []

    def change() -> None:
        effect = Effect.objects.get(name="b")
        effect.name = "changed by another"
        effect.save()

    def work() -> None:
        calls.append(1)
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        Effect.objects.count()
        if len(calls) == 1:
            with in_thread(change):
                pass
        Effect.objects.exclude(name="a").update(name="mine")

    atomically(work, "default")
    assert len(calls) == 2
    assert Effect.objects.filter(name="mine").count() == 1


HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
connection.execute("COMMIT")
"""


@contextmanager
def locked_by_another_process(seconds: float) -> Iterator[None]:
    """A process of its own holds SQLite's one lock for so long; ours wait no longer than a moment for it."""
    path = str(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 10")
    command = [sys.executable, "-c", HOLD, path, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            connection.close()


@sqlite
def test_sqlite_locked_by_another_process(live_db, caplog):
    with locked_by_another_process(0.3):
        calls = atomically(lambda: (Effect.objects.create(name="x"), survived())[1], "default", patience=10)
    assert calls is not None
    assert calls >= 1
    assert Effect.objects.count() == 1
    assert "database is locked" in caplog.text


@sqlite
def test_sqlite_locked_by_another_process_for_too_long(live_db, settings):
    settings.JOB_BATCHES = {"DEADLOCK_BACKOFF": 0.01, "DEADLOCK_RETRIES": 2}
    with locked_by_another_process(1.5), pytest.raises(OperationalError, match="locked"):
        atomically(lambda: Effect.objects.create(name="x"), "default")
    assert not Effect.objects.exists()


# When to try again, and when not


def failing(times: int, error: Callable[[], Exception] = ConflictError) -> tuple[list[int], Callable[[], str]]:
    """A function that raises so often, then returns "done"; and how often it was called."""
    calls: list[int] = []

    def func() -> str:
        calls.append(1)
        if len(calls) <= times:
            Effect.objects.create(name="half done")
            raise error()
        return "done"

    return calls, func


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_so_many_repetitions_and_no_more(live_db, settings, retries):
    settings.JOB_BATCHES = {"DEADLOCK_BACKOFF": 0.001, "DEADLOCK_RETRIES": retries}
    calls, func = failing(retries)
    assert atomically(func, "default") == "done"
    calls, func = failing(retries + 1)
    with pytest.raises(ConflictError):
        atomically(func, "default")
    assert len(calls) == retries + 1
    assert not Effect.objects.exists()


def test_with_patience_it_goes_on_until_the_time_is_over(live_db, settings):
    settings.JOB_BATCHES = {"DEADLOCK_BACKOFF": 0.001, "DEADLOCK_RETRIES": 1}
    calls, func = failing(4)
    assert atomically(func, "default", patience=10) == "done"
    assert len(calls) == 5
    began = time.monotonic()
    with pytest.raises(ConflictError):
        repeated(failing(10**6)[1], "default", patience=0.2)
    assert 0.2 <= time.monotonic() - began < 5


def test_inside_a_transaction_nothing_is_tried_again(live_db):
    """That transaction is gone, and only whoever began it can begin it again."""
    for how in (atomically, repeated):
        calls, func = failing(1)
        with pytest.raises(ConflictError), transaction.atomic():
            how(func, "default")
        assert len(calls) == 1
    calls, func = failing(1)
    assert atomically(lambda: atomically(func, "default"), "default") == "done"
    assert len(calls) == 2
    assert not Effect.objects.exists()


@pytest.mark.parametrize("error", [IntegrityError, ValueError, lambda: OperationalError("out of memory")])
def test_other_errors_are_not_tried_again(live_db, error):
    calls, func = failing(1, error)
    with pytest.raises((IntegrityError, ValueError, OperationalError)):
        atomically(func, "default")
    assert len(calls) == 1


def test_a_conflict_is_seen_behind_what_was_raised_from_it():
    error = RuntimeError("the import failed")
    error.__cause__ = ValueError()
    error.__cause__.__context__ = ConflictError()
    assert is_conflict(error, connection.vendor)
    error.__context__ = error  # a circle ends
    assert not is_conflict(ValueError("deadlock detected"), connection.vendor)


@pytest.mark.parametrize(
    ("vendor", "code", "expected"),
    [
        *[("postgresql", code, True) for code in ("40P01", "40001", "55P03")],
        *[("postgresql", code, False) for code in ("23505", "57014", "57P01", "08006", None)],
        *[("mysql", code, True) for code in (1213, 1205, 1020, 3572)],
        *[("mysql", code, False) for code in (1062, 2006, 2013, 3024)],
    ],
)
def test_codes(vendor, code, expected):
    error: Any = OperationalError(code, "words")
    if vendor == "postgresql":
        error.sqlstate = code
    assert is_conflict(error, vendor) is expected


def test_pauses_double_up_to_a_limit_and_differ(settings):
    settings.JOB_BATCHES = {"DEADLOCK_BACKOFF": 0.1}
    for number, middle in ((1, 0.1), (2, 0.2), (4, 0.8), (7, 5.0), (1000, 5.0)):
        pauses = [backoff(number) for _ in range(50)]
        assert all(0.5 * middle <= pause <= 1.5 * middle for pause in pauses)
        assert len(set(pauses)) > 40


@pytest.mark.parametrize("text", ["a\0b", "half \ud800 of a pair", "🐘" * 50, "é", ""])
def test_storable_text_is_stored(live_db, text):
    stored = Effect.objects.create(name=storable(text, 40))
    stored.refresh_from_db()
    assert stored.name == storable(text, 40)
    assert len(storable(text, 40)) <= 50
    assert storable("0123456789", 4) == "012…"
    assert storable("0123456789", 4, keep_end=True) == "…789"


# Where a user can see it


def test_survived_conflicts_are_counted_on_the_job_and_its_batch(live_db, record, monkeypatch):
    from django_job_batches import transitions

    batch = batch_of([jobs.succeed, jobs.succeed], on_finish=jobs.succeed).dispatch()
    settle, claim, calls = transitions.settle, transitions.claim, []

    def unlucky(*args: Any) -> bool:
        done = settle(*args)
        calls.append(1)
        if len(calls) in (1, 2):
            raise ConflictError
        return done

    def unlucky_claim(*args: Any) -> bool:
        if not calls:
            calls.append(0)
            raise ConflictError
        return claim(*args)

    monkeypatch.setattr(transitions, "settle", unlucky)
    work(at_most=1)
    assert len(calls) == 3
    first = first_item(batch)
    assert (first.status, first.deadlocks, first.attempts) == ("succeeded", 2, 1)
    calls.clear()
    monkeypatch.setattr(transitions, "settle", settle)
    monkeypatch.setattr(transitions, "claim", unlucky_claim)
    work()
    assert numbers(ended(batch)) == (2, 0, 0)
    assert batch.jobs.get(role="item", position=1).deadlocks == 1
    assert batch.deadlocks == 2  # bookkeeping of the batch; a claim concerns its row alone
    assert record.count("succeed") == 3


@servers
@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
def test_a_deadlock_between_two_atomic_jobs_is_survived_in_place(drain, record, rows, swallow):
    """Also where the body of the victim swallows it: half of what it did is gone, so it must not be committed."""
    batch = batch_of(
        [job_of(jobs_database.cross, *pair, swallow).options(atomic=True) for pair in ("ab", "ba")],
        on_finish=jobs.succeed,
    ).dispatch()
    log = drain(count=2, simple=True)
    assert (ended(batch).status, numbers(batch)) == ("succeeded", (2, 0, 0))
    assert record.count("cross") == 3
    assert sorted(batch.jobs.filter(role="item").values_list("attempts", "deadlocks")) == [(1, 0), (1, 1)]
    assert batch.deadlocks == 1
    here = Effect.objects.filter(name__endswith="was here").values_list("name", flat=True)
    assert sorted(here) == ["a was here", "b was here"]
    assert "trying again" in log


@servers
def test_a_deadlock_between_jobs_that_are_not_atomic_is_their_own(drain, record, rows):
    """Nobody asked for their bodies to run again: the victim has failed, once, and the books are right."""
    crossing = [job_of(jobs_database.cross_in_transaction, *pair) for pair in ("ab", "ba")]
    batch = batch_of(crossing, allow_failures=1).dispatch()
    drain(count=2, simple=True)
    assert numbers(ended(batch)) == (1, 1, 0)
    assert record.count("cross") == 2
    assert Effect.objects.filter(name__endswith="was here").count() == 1


@sqlite
def test_an_atomic_job_waits_for_sqlite_in_place(live_db, record):
    batch = batch_of([job_of(jobs.write_effect).options(atomic=True)]).dispatch()
    connection.ensure_connection()
    with locked_by_another_process(0.3):
        work()
    assert numbers(ended(batch)) == (1, 0, 0)
    job = batch.jobs.get()
    assert (job.attempts, job.deadlocks >= 1) == (1, True)
    assert Effect.objects.count() == record.count("write_effect") == 1


@pytest.mark.parametrize("error", [ConflictError, lambda: DatabaseError("no such luck")])
def test_an_atomic_job_that_conflicts_for_ever_fails(live_db, record, settings, monkeypatch, error):
    settings.JOB_BATCHES = {"DEADLOCK_BACKOFF": 0.001, "DEADLOCK_RETRIES": 2}
    calls, func = failing(10**6, error)
    monkeypatch.setattr(jobs, "unlucky", func, raising=False)
    batch = batch_of([job_of("tests.jobs.unlucky").options(atomic=True), jobs.succeed], allow_failures=1).dispatch()
    work()
    assert numbers(ended(batch)) == (1, 1, 0)
    assert len(calls) == (3 if error is ConflictError else 1)
    assert not Effect.objects.exists()
