"""Bodies for tests/test_semantics*.py."""

from __future__ import annotations

import time
from typing import Any

from django.db import transaction

from django_job_batches import GiveUp, current_batch, current_job, job_of
from django_job_batches.models import BatchJob
from tests.jobs import _record, succeed
from tests.models import Effect


def give_up() -> None:
    _record().write("give_up")
    raise GiveUp("no use")


def add_two() -> None:
    batch = current_batch()
    assert batch is not None
    _record().write("add_two")
    batch.add([job_of(succeed, 1), job_of(succeed, 2)])


def whoami(word: str) -> None:
    batch, job = current_batch(), current_job()
    _record().write(f"{word} {batch.name if batch else None} {job.role if job else None} {job.attempts if job else 0}")


def overslept() -> None:
    _record().write("overslept")
    time.sleep(30)


def sleeps_in_transaction() -> None:
    with transaction.atomic():
        Effect.objects.create(name="half done")
        overslept()


def effect_then_fail() -> None:
    Effect.objects.create(name="rolled back")
    raise ValueError("after the effect")


def cancels_its_batch() -> None:
    batch = current_batch()
    assert batch is not None
    batch.cancel("from inside")


def unserializable() -> Any:
    return object()


def nothing() -> None:
    return None


def settled_by_somebody() -> None:
    """Its own row is settled elsewhere while it runs: what it does afterwards comes too late."""
    job = current_job()
    assert job is not None
    _record().write("late")
    BatchJob.objects.filter(pk=job.pk).update(attempts=job.attempts + 1, max_attempts=job.max_attempts + 1)


def step(name: str, failing: int) -> None:
    """Fails in its first `failing` executions; writes down which attempt of which run it was."""
    batch, job = current_batch(), current_job()
    assert batch is not None and job is not None
    _record().write(f"{name} run {batch.run} attempt {job.attempts} {job.role} {batch.name}")
    if _record().count(f"{name} ") <= failing:
        raise ValueError(f"{name} is not there yet")
