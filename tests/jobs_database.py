"""Bodies that lose their database connection, or meet a deadlock."""

from __future__ import annotations

from contextlib import suppress

from django.db import DatabaseError, connection, transaction

from tests.jobs import _record
from tests.models import Effect
from tests.processes import wait_until


def kill_connection() -> None:
    """Have the server end this thread's connection, as a restart or an administrator does; returns when it has."""
    if connection.connection is None:
        return
    function, kill, alive = {
        "postgresql": ("pg_backend_pid()", "SELECT pg_terminate_backend({})", "pg_stat_activity WHERE pid"),
        "mysql": ("CONNECTION_ID()", "KILL CONNECTION {}", "information_schema.processlist WHERE id"),
    }[connection.vendor]
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {function}")
            (number,) = cursor.fetchone()
    except DatabaseError:
        return  # it is dead already
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute(kill.format(number))

            def is_gone() -> bool:
                cursor.execute(f"SELECT COUNT(*) FROM {alive} = {number}")
                return bool(cursor.fetchone() == (0,))

            wait_until(is_gone, 10, "the connection is gone")
    finally:
        other.close()


def lose_connection() -> None:
    """Returns, and leaves a dead connection behind."""
    _record().write("lose_connection")
    Effect.objects.create(name="before")
    kill_connection()


def query_lost_connection() -> None:
    """Meets the dead connection itself."""
    _record().write("query_lost_connection")
    kill_connection()
    Effect.objects.create(name="never")


def swallow_lost_connection() -> None:
    """Meets the dead connection, and goes on as if nothing had been."""
    _record().write("swallow_lost_connection")
    kill_connection()
    with suppress(DatabaseError):
        Effect.objects.create(name="never")


def lose_connection_in_transaction() -> None:
    _record().write("lose_connection_in_transaction")
    with transaction.atomic():
        Effect.objects.create(name="never")
        kill_connection()


def lose_connection_once(name: str) -> None:
    """Loses it at its first execution."""
    _record().write("lose_connection_once")
    Effect.objects.create(name=name)
    if _record().count("lose_connection_once") == 1:
        kill_connection()


def cross(first: str, second: str, swallow: bool = False) -> None:
    """Locks one row, waits until another job has locked the other one, and wants that too: a deadlock, once."""
    _record().write(f"cross {first}")
    Effect.objects.create(name=f"{first} was here")
    Effect.objects.select_for_update().get(name=first)
    _record().write(f"locked {first}")
    wait_until(lambda: _record().count("locked") >= 2)
    if not swallow:
        Effect.objects.select_for_update().get(name=second)
        return
    with suppress(DatabaseError):
        Effect.objects.select_for_update().get(name=second)


def cross_in_transaction(first: str, second: str) -> None:
    """As `cross`, in a transaction of its own."""
    with transaction.atomic():
        cross(first, second)
