"""What the tests' batches run. Each execution writes a line into the record, named after the function."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from tests.models import Effect
from tests.processes import Record


def _record() -> Record:
    return Record(Path(os.environ["TEST_RECORD"]))


def succeed(n: int = 0) -> int:
    _record().write(f"succeed {n}")
    return n


def fail(message: str = "boom") -> None:
    _record().write(f"fail {message}")
    raise ValueError(message)


def fail_at_length(length: int) -> None:
    _record().write(f"fail_at_length {length}")
    raise ValueError("z" * length)


def sleep(seconds: float) -> None:
    """`sleep begins`, then `sleep ends`, unless it is killed."""
    _record().write(f"sleep begins {seconds}")
    time.sleep(seconds)
    _record().write(f"sleep ends {seconds}")


def flaky(name: str, times: int) -> str:
    """Fails in its first `times` executions, which the record counts under that name."""
    _record().write(f"flaky {name}")
    if _record().count(f"flaky {name}") <= times:
        raise ConnectionError(f"{name} is not there yet")
    return name


def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Returns its arguments."""
    _record().write(f"echo {args} {kwargs}")
    return {"args": list(args), "kwargs": kwargs}


def record_args(*args: Any, **kwargs: Any) -> None:
    """Writes its arguments as `record_args` and their repr."""
    _record().write(f"record_args {args!r} {kwargs!r}")


def kill_self() -> None:
    """Dies as if out of memory: by SIGKILL, in the middle of the job."""
    _record().write("kill_self")
    os.kill(os.getpid(), signal.SIGKILL)


def write_effect(name: str = "effect") -> None:
    """Writes a row, to be counted by `Effect.objects.filter(name=name)`: what a body's transaction left."""
    _record().write(f"write_effect {name}")
    Effect.objects.create(name=name)


def leave_transaction_open(how: str = "atomic", message: str = "left open") -> None:
    """Opens a transaction, writes a row in it, raises, and neither commits nor rolls back.

    `how`: `atomic` (Django's block is entered and never left), `autocommit` (switched off), `sql` (BEGIN by
    hand), `aborted` (as `atomic`, with an error as its last statement: PostgreSQL refuses what follows).
    """
    _record().write(f"leave_transaction_open {how}")
    _open_transaction(how)
    Effect.objects.create(name=f"left open: {how}")
    if how == "aborted":
        connection.cursor().execute("SELECT no_such_column FROM no_such_table")
    raise RuntimeError(message)


def _open_transaction(how: str) -> None:
    if how == "sql":
        connection.cursor().execute("BEGIN")
    elif how == "autocommit":
        transaction.set_autocommit(False)
    else:
        transaction.atomic().__enter__()


async def aio(n: int = 0) -> int:
    """A coroutine function."""
    await asyncio.sleep(0)
    _record().write(f"aio {n}")
    return n


def query_once() -> None:
    """One query of its own."""
    Effect.objects.filter(pk=0).exists()
