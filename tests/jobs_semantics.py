"""Bodies for tests/semantics."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

from django.db import connection, transaction
from rq import Retry

from django_job_batches import (
    BatchFinished,
    GiveUp,
    batch_of,
    current_batch,
    current_job,
    job_of,
    outbox,
    outcomes,
    transitions,
)
from django_job_batches.models import Batch, BatchJob
from tests.jobs import _record, aio, succeed
from tests.models import Effect
from tests.processes import wait_until


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


def until(line: str, seconds: float = 20) -> None:
    """Runs until the record holds that line."""
    _record().write(f"until {line} begins")
    wait_until(lambda: line in _record().lines(), seconds)
    _record().write(f"until {line} ends")


def tries_to_add() -> None:
    batch = current_batch()
    assert batch is not None
    try:
        batch.add([succeed])
    except BatchFinished:
        _record().write("refused")


def adds_to_the_parent() -> None:
    batch = current_batch()
    assert batch is not None and batch.parent_job is not None
    batch.parent_job.batch.add([job_of(succeed, 7)])


def adds_itself(times: int) -> None:
    """The last job of its batch adds the next one, over and over."""
    batch = current_batch()
    assert batch is not None
    _record().write(f"adds_itself {times}")
    if times:
        batch.add([job_of(adds_itself, times - 1)])


def dispatches(name: str, queue_name: str) -> None:
    """Another batch, which has nothing to do with its own."""
    batch_of([job_of(succeed, 8)], name=name, queue_name=queue_name).dispatch()
    _record().write("dispatches ends")


def waits() -> None:
    batch = current_batch()
    assert batch is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with suppress(TimeoutError):
            batch.wait(timeout=0.01)
    _record().write(f"waits {[warning.category.__name__ for warning in caught]}")


def is_inside_a_transaction() -> bool:
    return connection.in_atomic_block


def cancels_then_fails() -> None:
    cancels_its_batch()
    raise ValueError("after the cancel")


def cancels_then_writes() -> None:
    cancels_its_batch()
    Effect.objects.create(name="after the cancel")


def leaves() -> None:
    sys.exit(3)


def says(text: str) -> None:
    raise ValueError(text)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def unprintable() -> None:
    raise UnprintableError


def returns_a_retry() -> Retry:
    return Retry(max=3)


async def oversleeps_async() -> None:
    await asyncio.sleep(30)


def logged(func: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(func)
    def wrapper(*args: Any) -> Any:
        return func(*args)

    return wrapper


aio_behind_a_decorator = logged(aio)


class AsyncObject:
    async def __call__(self, n: int) -> int:
        return await aio(n)


aio_object = AsyncObject()


async def fails_async() -> None:
    await asyncio.sleep(0)
    raise ValueError("async")


class CallableObject:
    """Not a function, but its path can be called."""

    def __call__(self, word: str) -> None:
        _record().write(word)


called = CallableObject()


def cancels_the_parent() -> None:
    batch = current_batch()
    assert batch is not None and batch.parent_job is not None
    batch.parent_job.batch.cancel("from below")


def cancels_in_a_transaction(name: str) -> None:
    """Calls another batch off, and then thinks better of it."""
    with suppress(LookupError), transaction.atomic():
        assert Batch.objects.get(name=name).cancel()
        raise LookupError


def retries_its_batch() -> None:
    batch = current_batch()
    assert batch is not None
    batch.retry()


def cancels_its_own_row() -> None:
    job = current_job()
    assert job is not None
    _record().write(f"cancels_its_own_row {job.cancel()}")


def adds_then_fails() -> None:
    add_two()
    raise ValueError("after it has added two")


def reports_itself() -> None:
    batch, job = current_batch(), current_job()
    assert batch is not None and job is not None and job.batch == batch
    _record().write(f"{batch.pk} {job.pk} {job.status} {job.attempts} {job.rq_job_id}")


async def whoami_async(word: str) -> None:
    await asyncio.sleep(0)
    whoami(word)


def notes_in_metadata() -> None:
    batch = current_batch()
    assert batch is not None
    batch.refresh_from_db()
    batch.metadata["seen by"] = batch.name
    batch.save(update_fields=["metadata"])


def effect_until(times: int) -> str:
    """Writes an effect in each execution, and fails in the first so many of them."""
    job = current_job()
    assert job is not None
    Effect.objects.create(name=("first time", "second time", "third time")[job.attempts - 1])
    if job.attempts <= times:
        raise ValueError("not yet")
    return "third time"


def effect_then_give_up() -> None:
    Effect.objects.create(name="given up")
    raise GiveUp("no use")


def settled_while_it_writes() -> None:
    """Its row is settled by somebody else, on another connection, before it ends."""
    job = current_job()
    assert job is not None
    Effect.objects.create(name="too late")
    other = threading.Thread(target=_settle_as_lost, args=(job,))
    other.start()
    other.join()


def _settle_as_lost(job: BatchJob) -> None:
    try:
        outbox.carry_out(partial(transitions.settle, job, job.attempts, outcomes.lost(job)), "default")
    finally:
        connection.close()


def effect_then_die(times: int) -> None:
    """Writes an effect, and is killed in its first `times` executions."""
    _record().write("effect_then_die")
    Effect.objects.create(name="effect")
    if _record().count("effect_then_die") <= times:
        os.kill(os.getpid(), signal.SIGKILL)


def reads_progress() -> None:
    batch = current_batch()
    assert batch is not None
    _record().write(f"progress {batch.progress}")
