"""Transactions that survive deadlocks and lost connections, and the few things that differ between databases."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Lookup, Model
from django.db.models.expressions import Col
from django.db.models.functions import Coalesce
from django.db.models.sql import Query
from django.db.models.sql.where import WhereNode

from django_job_batches.conf import settings

logger = logging.getLogger(__name__)
T = TypeVar("T")
M = TypeVar("M", bound=Model)

CONFLICTS: dict[str, set[str | int]] = {
    "postgresql": {"40P01", "40001", "55P03"},
    "mysql": {1213, 1205, 1020, 3572},
}
"""Deadlocks, serialization failures, lock time-outs: the transaction was rolled back and can be run again."""

LOST: dict[str, set[str | int]] = {
    "postgresql": {"57P01", "57P02", "57P03", "57P05", "08000", "08001", "08003", "08004", "08006"},
    "mysql": {1053, 1077, 1079, 1927, 2002, 2003, 2006, 2013, 2055, 4031},
}
"""The connection or the server has gone away."""

_survived: ContextVar[int] = ContextVar("survived", default=0)


def atomically(
    func: Callable[[], T],
    using: str,
    *,
    patience: float | None = None,
    confirm: Callable[[], bool] | None = None,
    own: bool = True,
    what: Any = "",
) -> T | None:
    """Run ``func`` in a transaction on ``using`` and return what it returned.

    After a deadlock or the like it runs again, ``DEADLOCK_RETRIES`` times, with growing pauses; after a lost
    connection once; and after both for ``patience`` seconds if that is given. Where the COMMIT may have been lost with
    the connection, ``confirm`` tells whether it had gone through, and None is returned then. Inside somebody else's
    transaction there is nothing to retry: the exception is theirs. ``own`` is False where a user's code runs in the
    transaction, which then has the project's isolation level; our own statements are made for READ COMMITTED.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        with transaction.atomic(using=using, savepoint=False):
            return func()
    once = partial(_once, func, connection, own)
    return repeated(once, using, patience=patience, confirm=confirm, what=what or func)


def repeated(
    func: Callable[[], T],
    using: str,
    *,
    patience: float | None = None,
    confirm: Callable[[], bool] | None = None,
    what: Any = "",
) -> T | None:
    """``atomically()`` without the transaction: for single statements, and for what opens its own."""
    connection = connections[using]
    if connection.in_atomic_block:
        return func()
    attempts = _Attempts(connection, patience, what)
    token = _survived.set(0)
    try:
        while True:
            try:
                if confirm is not None and attempts.in_doubt and confirm():
                    return None
                return func()
            except Exception as error:
                attempts.wait_or_raise(error)
    finally:
        _survived.reset(token)


def survived() -> int:
    """How many deadlocks and the like the unit of work that is running has survived so far."""
    return _survived.get()


class _Attempts:
    """What has been tried so far, and whether and when to try again."""

    def __init__(self, connection: BaseDatabaseWrapper, patience: float | None, what: Any) -> None:
        self.connection = connection
        self.what = getattr(what, "__qualname__", what) or "a transaction"
        self.conflicts = 0
        self.losses = 0
        self.in_doubt = False
        self.give_up_at = None if patience is None else time.monotonic() + patience

    def wait_or_raise(self, error: Exception) -> None:
        """Sleep until the next attempt, or raise ``error`` when there is none."""
        if is_conflict(error, self.connection.vendor):
            self.conflicts += 1
            _survived.set(self.conflicts)
            number, allowed = self.conflicts, self.conflicts <= settings.DEADLOCK_RETRIES or self._has_time()
        elif is_lost(error, self.connection):
            self.in_doubt = True
            self.losses += 1
            number, allowed = self.losses, self._may_reconnect()
        else:
            raise error
        if not allowed:
            raise error
        pause = backoff(number)
        logger.warning(
            "%s on %r: %s; trying again in %.2f s.", self.what, self.connection.alias, _first_line(error), pause
        )
        time.sleep(pause)

    def _may_reconnect(self) -> bool:
        forget(self.connection)
        return self.losses == 1 or self._has_time()

    def _has_time(self) -> bool:
        return self.give_up_at is not None and time.monotonic() < self.give_up_at


def backoff(number: int) -> float:
    """Seconds to wait before repetition ``number``: exponential, at most 5, with jitter."""
    return float(min(5.0, settings.DEADLOCK_BACKOFF * 2 ** (number - 1)) * random.uniform(0.5, 1.5))  # noqa: S311


def is_conflict(error: BaseException, vendor: str) -> bool:
    """Whether ``error``, or an exception that it was raised from, is a deadlock or the like."""
    if vendor == "sqlite":
        return any("is locked" in str(link) for link in _links(error))
    return any(_code(link) in CONFLICTS.get(vendor, ()) for link in _links(error))


def is_lost(error: BaseException, connection: BaseDatabaseWrapper) -> bool:
    """Whether ``error`` says that the connection is gone, so that a new one may work."""
    vendor = connection.vendor
    if vendor == "sqlite":
        return False
    if any(_code(link) in LOST.get(vendor, ()) for link in _links(error)):
        return True
    if vendor == "postgresql":
        return any(_closed_without_code(link) for link in _links(error))
    return isinstance(error, InterfaceError)


def forget(connection: BaseDatabaseWrapper) -> None:
    """Drop the connection, with whatever transaction is open on it; the next query opens a new one."""
    connection.in_atomic_block = False
    connection.closed_in_transaction = False
    try:
        connection.close()
    except DatabaseError:
        logger.debug("closing a broken connection failed", exc_info=True)
    connection.connection = None
    connection.savepoint_ids = []
    connection.atomic_blocks = []
    connection.needs_rollback = False


def home_of(row: Model) -> str:
    """The alias to which this row is written, by ``at_home()`` or else by the router: it may have been read from a
    replica."""
    return str(row.__dict__.get("_home") or router.db_for_write(type(row), instance=row))


def at_home(row: M, using: str) -> M:
    """Note that this row lives on ``using``, where it was dispatched to, whatever a router thinks; returns it."""
    row.__dict__["_home"] = using
    return row


def find_by_key_alone(query: Query) -> None:
    """Have MySQL and MariaDB find the rows of this UPDATE by their key, and by no secondary index.

    Where few rows have the expected status, they choose an index on that, and lock it before the row; who changes
    the row meanwhile locks in the other order: a deadlock. A condition on an expression uses no index.
    """
    if any(_is_on_key(child) for child in query.where.children):
        query.where = _hidden_from_indexes(query.where)


def after_commit(func: Callable[[], Any], using: str) -> None:
    """Run ``func`` once the caller's transaction has committed, or now if there is none."""
    if connections[using].in_atomic_block:
        # by a function with a name: Django 5.2 asks for it when it logs what a robust one has raised
        transaction.on_commit(lambda: func(), using=using, robust=True)
    else:
        func()


def storable(text: str, limit: int, *, keep_end: bool = False) -> str:
    """``text`` in a form that every database stores, cut to ``limit`` characters, from the start if ``keep_end``."""
    if len(text) > limit:
        text = "…" + text[-limit + 1 :] if keep_end else text[: limit - 1] + "…"
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _once(func: Callable[[], T], connection: BaseDatabaseWrapper, own: bool) -> T:
    with _writing(connection), transaction.atomic(using=connection.alias):
        if own and _isolation(connection) not in ("", "read committed"):
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return func()


def _isolation(connection: BaseDatabaseWrapper) -> str:
    """The isolation level that the project has set for this database, in words."""
    level = getattr(connection, "isolation_level", None)
    if connection.vendor not in CONFLICTS or level is None:
        return ""
    return str(getattr(level, "name", level)).replace("_", " ").lower()


def _is_on_key(condition: Any) -> bool:
    return isinstance(condition, Lookup) and isinstance(condition.lhs, Col) and condition.lhs.target.primary_key


def _hidden_from_indexes(condition: Any) -> Any:
    condition = copy(condition)
    if isinstance(condition, WhereNode):
        condition.children = [_hidden_from_indexes(child) for child in condition.children]
    elif isinstance(condition, Lookup) and isinstance(condition.lhs, Col) and not _is_on_key(condition):
        condition.lhs = Coalesce(condition.lhs, condition.lhs)
    return condition


@contextmanager
def _writing(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """On SQLite, take the write lock at BEGIN: a transaction that asks for it later fails without waiting."""
    if connection.vendor != "sqlite":
        yield
        return
    connection.ensure_connection()
    mode = connection.transaction_mode  # type: ignore[attr-defined]
    connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        connection.transaction_mode = mode  # type: ignore[attr-defined]


def _links(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _code(error: BaseException) -> Any:
    """PostgreSQL's SQLSTATE or MySQL's error number."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return state
    return error.args[0] if error.args and isinstance(error.args[0], int) else None


def _closed_without_code(error: BaseException) -> bool:
    """psycopg's own words for a broken or refused connection, which carry no SQLSTATE."""
    is_driver_error = type(error).__module__.startswith("psycopg") and getattr(error, "sqlstate", None) is None
    words = ("connection", "server closed", "SSL", "consuming input failed", "could not")
    return is_driver_error and any(word in str(error) for word in words)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
