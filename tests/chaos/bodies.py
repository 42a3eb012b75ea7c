"""What the jobs do. Each execution writes `begin` and, if it comes to its end, `end` into the record."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from pathlib import Path

from django_job_batches import BatchFinished, GiveUp, current_batch, current_job, job_of
from django_job_batches.models import BatchJob
from tests.models import Effect
from tests.processes import Record


class BoomError(Exception):
    """What is raised on purpose."""


def _write(word: str) -> BatchJob:
    job = current_job()
    assert job is not None
    Record(Path(os.environ["CHAOS_RECORD"])).write(f"{word} {job.pk} {job.run} {job.attempts}")
    return job


def fine() -> None:
    _write("begin")
    _write("end")


def slow() -> None:
    _write("begin")
    time.sleep(random.random() * 0.5)
    _write("end")


def long() -> None:
    """Goes on while its worker is dead, or sleeps until it is taken for dead itself, and comes too late then."""
    _write("begin")
    time.sleep(4 + random.random() * 4)
    _write("end")


def query() -> None:
    _write("begin")
    Effect.objects.filter(pk=0).exists()
    _write("end")


def boom() -> None:
    _write("begin")
    raise BoomError


def flaky() -> None:
    """Succeeds in every second attempt."""
    if _write("begin").attempts % 2:
        raise BoomError
    _write("end")


def give_up() -> None:
    _write("begin")
    raise GiveUp("on purpose")


def effect() -> None:
    """One row, which must be there exactly once if the job has succeeded: it runs with `atomic=True`."""
    job = _write("begin")
    Effect.objects.create(name=f"job {job.pk} {job.run}")
    time.sleep(random.random() * 0.02)
    _write("end")


def leave_open() -> None:
    """Opens a transaction that nobody ends."""
    from django.db import transaction

    job = _write("begin")
    transaction.atomic().__enter__()
    Effect.objects.create(name=f"left open {job.pk}")
    raise BoomError


def add_more() -> None:
    _write("begin")
    batch = current_batch()
    assert batch is not None
    with suppress(BatchFinished):
        batch.add([job_of(fine), job_of(effect).options(atomic=True)])
    _write("end")
