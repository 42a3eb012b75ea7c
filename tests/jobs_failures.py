"""Bodies for the tests in tests/failures/. The record tells how often each of them was executed."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from django.db import connection, transaction
from rq import get_current_job
from rq.command import send_stop_job_command

from django_job_batches import current_batch, execution, job_of, outbox
from django_job_batches.signals import batch_progressed
from tests import jobs
from tests.jobs import _record
from tests.models import Effect


def sleep_in_transaction(seconds: float) -> None:
    """Writes a row, then sleeps, in one transaction."""
    _record().write("sleep_in_transaction")
    with transaction.atomic():
        Effect.objects.create(name="slept")
        time.sleep(seconds)


def query_in_transaction(seconds: float) -> None:
    """Writes a row, then has the server sleep, in one transaction."""
    _record().write("query_in_transaction")
    function = "pg_sleep" if connection.vendor == "postgresql" else "SLEEP"
    with transaction.atomic(), connection.cursor() as cursor:
        Effect.objects.create(name="slept")
        cursor.execute(f"SELECT {function}(%s)", [seconds])


def _die(*args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_settling() -> None:
    """The horse is killed once the body has returned, and before its end is written down."""
    _record().write("die_before_settling")
    execution._settle = _die


def die_after_commit() -> None:
    """The horse is killed after the commit that settles this job, and before what follows from it."""
    _record().write("die_after_commit")
    outbox._follow_up = _die


def die_after_settling() -> None:
    """The horse is killed when all is done, and before RQ knows."""
    _record().write("die_after_settling")
    batch_progressed.connect(_die)


def add_to_own_batch(n: int = 1) -> None:
    """Adds jobs to the batch that this job, or callback, belongs to."""
    _record().write("add_to_own_batch")
    batch = current_batch()
    assert batch is not None
    batch.add(job_of(jobs.succeed, 100 + number) for number in range(n))


def cancel_own_batch() -> None:
    _record().write("cancel_own_batch")
    batch = current_batch()
    assert batch is not None
    batch.cancel("had enough")


def doomed() -> None:
    """Will not be there any more when a worker looks for it: the tests delete it."""
    _record().write("doomed")


def name_connection() -> None:
    """Records which connection of the server this process uses, and what the server thinks of it."""
    function = "pg_backend_pid" if connection.vendor == "postgresql" else "CONNECTION_ID"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}()")
        _record().write(f"connection {cursor.fetchone()[0]} {connection.connection is not None}")


def slow(name: str, seconds: float = 0.3) -> None:
    """`name begins`, then `name ends`."""
    _record().write(f"{name} begins")
    time.sleep(seconds)
    _record().write(f"{name} ends")


def stop_me_after_my_commit() -> None:
    """Asks RQ to stop this very job once its end is in the books, and waits for that."""
    _record().write("stop_me_after_my_commit")

    def stop(*args: Any, **kwargs: Any) -> None:
        job = get_current_job()
        assert job is not None
        send_stop_job_command(job.connection, job.id)
        time.sleep(20)

    outbox._follow_up = stop


def end_silently() -> None:
    """The horse ends as if all were well, before anything is written down."""
    _record().write("end_silently")
    os._exit(0)


def sleep_without_alarm(seconds: float) -> None:
    """As library code in C does that never lets a signal through: no time limit inside the process reaches it."""
    _record().write("sleep_without_alarm")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(seconds)
