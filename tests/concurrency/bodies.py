"""What the hammered batches run, in threads of this process; each execution is noted."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress

from django_job_batches import BatchFinished, current_batch, current_job, job_of
from django_job_batches.models import BatchJob, JobStatus, Role
from tests.models import Effect
from tests.processes import PATIENCE

executions: Counter[tuple[int, int, int]] = Counter()
"""By (row, run of the row, attempt)."""
barriers: dict[str, threading.Barrier] = {}
_lock = threading.Lock()


class BoomError(Exception):
    """What these bodies raise on purpose."""


def _note() -> BatchJob:
    job = current_job()
    assert job is not None
    with _lock:
        executions[job.pk, job.run, job.attempts] += 1
    return job


def fine() -> None:
    _note()


def query() -> None:
    """One query of its own."""
    _note()
    Effect.objects.filter(pk=0).exists()


def write() -> None:
    Effect.objects.create(name=f"job {_note().pk}")


def boom() -> None:
    """Always fails."""
    raise BoomError(_note().pk)


def boom_at_first() -> None:
    """Fails in the first run of its batch."""
    if _note().run == 1:
        raise BoomError


def flaky() -> None:
    """Fails in two of three attempts."""
    if _note().attempts % 3:
        raise BoomError


def add_more() -> None:
    """Adds to its own batch, unless that is decided."""
    _note()
    batch = current_batch()
    assert batch is not None
    with suppress(BatchFinished):
        batch.add([job_of(fine), job_of(boom_at_first), job_of(write)])


def cancel_another() -> None:
    """Cancels an item of its batch that waits, by itself."""
    _note()
    batch = current_batch()
    assert batch is not None
    waiting = list(batch.jobs.filter(role=Role.ITEM, status=JobStatus.QUEUED).exclude(func="")[:20])
    if waiting:
        random.choice(waiting).cancel()


def cross(first: str, second: str, barrier: str) -> None:
    """Locks one row, waits until another job has locked the other, and wants that one too. Run again after the
    deadlock that this is, it does not wait."""
    job = _note()
    _touch(first)
    if executions[job.pk, job.run, job.attempts] == 1:
        barriers[barrier].wait(PATIENCE)
    _touch(second)


def _touch(name: str) -> None:
    row = Effect.objects.select_for_update().get(name=name)
    row.save(update_fields=["name"])
