"""Calling the user's function, and putting right what it leaves behind."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from django_job_batches import queues
from django_job_batches.arguments import check_size, plain
from django_job_batches.context import running
from django_job_batches.database import forget, is_conflict
from django_job_batches.exceptions import BatchError
from django_job_batches.models import BatchJob
from django_job_batches.outbox import timeout_of
from django_job_batches.tasks import callable_of

logger = logging.getLogger(__name__)

OPENING = ("BEGIN", "START TRANSACTION", "SET AUTOCOMMIT=0", "SET AUTOCOMMIT = 0")
CLOSING = ("COMMIT", "ROLLBACK", "END", "SET AUTOCOMMIT=1", "SET AUTOCOMMIT = 1")


class Body:
    """One call of a job's function: its result, or what it raised."""

    def __init__(self, job: BatchJob) -> None:
        self.job = job
        self.result: Any = None
        self.has_result = False
        self._depths = {c.alias: len(c.savepoint_ids) for c in _opened() if c.in_atomic_block}
        self._watches: dict[str, _Watch] = {}

    def call(self) -> BaseException | None:
        """Call the function outside any transaction of ours; returns what it raised."""
        try:
            self._call()
        except BaseException as error:
            self._clean_up(error)
            return error
        self._clean_up(None)
        return None

    def call_inside_transaction(self, using: str) -> None:
        """Call the function inside the transaction that is open on ``using``; raises what it raises, and whatever
        would make a commit wrong."""
        connection = connections[using]
        depth = len(connection.savepoint_ids)
        self._call()
        swallowed = self._watches[using].conflict
        if swallowed is not None:  # the server has rolled back what the function did before it
            raise swallowed
        if len(connection.savepoint_ids) != depth or not connection.in_atomic_block:
            raise BatchError(f"{self.job.func} left a transaction open on {using!r}; leave each atomic() block.")

    def clean_up_after(self, error: BaseException | None) -> None:
        """Put right what the function left behind, once the transaction around it has ended."""
        self._clean_up(error)

    def _call(self) -> None:
        job = self.job
        self._watches = {alias: _Watch(connections[alias]) for alias in connections}
        with ExitStack() as stack:
            for watch in self._watches.values():
                stack.enter_context(watch.connection.execute_wrapper(watch))
            stack.enter_context(running(job))
            stack.enter_context(queues.time_limit(timeout_of(job)))
            self._keep(_invoke(callable_of(import_string(job.func), job), job, timeout_of(job)))

    def _keep(self, result: Any) -> None:
        if queues.is_retry(result):
            raise TypeError(f"{self.job.func} returned an rq.Retry; give retries by .options(retry=…), and raise.")
        if self.job.option("keep_result", False):
            what = f"the result of {self.job.func}"
            result = plain(result, what)
            check_size(result, what)
            self.result, self.has_result = result, True

    def _clean_up(self, error: BaseException | None) -> None:
        timed_out = isinstance(error, queues.TimedOut)
        for connection in _opened():
            if connection.alias in self._depths:
                continue  # the caller's own transaction around a synchronous queue
            watch = self._watches.get(connection.alias)
            if _is_in_transaction(connection) or (watch is not None and watch.is_open):
                logger.error(
                    "%s left a transaction open on %r; it was rolled back. Leave each atomic() block, and each "
                    "transaction that you begin.", self.job.func, connection.alias,
                )  # fmt: skip
                forget(connection)
            elif timed_out or _is_broken(connection):
                forget(connection)


class _Watch:
    """Sees the statements that the function runs on one connection."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        self.is_open = False
        self.conflict: Exception | None = None

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        try:
            result = execute(sql, params, many, context)
        except Exception as error:
            if is_conflict(error, self.connection.vendor):
                self.conflict = error
            raise
        if self.connection.vendor != "mysql":
            return result  # the driver knows, see _is_in_transaction(); on SQLite, Django itself says BEGIN this way
        word = sql[:20].lstrip().upper() if isinstance(sql, str) else ""
        if word.startswith(OPENING):
            self.is_open = True
        elif word.startswith(CLOSING) and not word.startswith("ROLLBACK TO"):
            self.is_open = False
        return result


def _invoke(func: Callable[..., Any], job: BatchJob, seconds: int) -> Any:
    result = func(*job.args, **job.kwargs)
    if not inspect.isawaitable(result):
        return result

    async def limited() -> Any:
        return await asyncio.wait_for(result, None if seconds == -1 else seconds)

    return async_to_sync(limited)()


def _opened() -> list[BaseDatabaseWrapper]:
    return [c for c in connections.all(initialized_only=True) if c.connection is not None]


def _is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether Django or the driver holds a transaction open, committed or broken, that nobody will end."""
    if connection.in_atomic_block or not connection.autocommit:
        return True
    driver = connection.connection
    if connection.vendor == "postgresql":
        return bool(not driver.closed and driver.info.transaction_status != 0)
    if connection.vendor == "sqlite":
        return bool(driver.in_transaction)
    return bool(connection.vendor == "mysql" and not driver.get_autocommit())


def _is_broken(connection: BaseDatabaseWrapper) -> bool:
    if not connection.errors_occurred:
        return False
    try:
        is_usable = connection.is_usable()
    except DatabaseError:
        is_usable = False
    connection.errors_occurred = not is_usable
    return not is_usable
