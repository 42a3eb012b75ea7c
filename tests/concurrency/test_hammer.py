"""Everything at once: many threads settle, fail, add, cancel and retry in two batches, and nothing is miscounted.

The suite has a short form. `HAMMER=full` is the long one: 64 threads, ten rounds, thousands of jobs in each. The
parts can be named too: HAMMER_THREADS, HAMMER_ROUNDS, HAMMER_JOBS (per batch).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import pytest
from django.conf import settings

from django_job_batches import BatchError
from django_job_batches.models import Batch, BatchJob, BatchStatus, JobStatus, Role
from tests.concurrency.audit import audit
from tests.concurrency.crew import Crew
from tests.concurrency.plan import SHAPES, hammered
from tests.processes import wait_until

IS_SQLITE = settings.TEST_DATABASE == "sqlite"
DEFAULTS = {"full": (8, 3, 300) if IS_SQLITE else (64, 10, 600)}.get(
    os.environ.get("HAMMER", ""), (8, 1, 60) if IS_SQLITE else (16, 2, 70)
)
THREADS, ROUNDS, JOBS = (
    int(os.environ.get(f"HAMMER_{name}") or usual)
    for name, usual in zip(("THREADS", "ROUNDS", "JOBS"), DEFAULTS, strict=True)
)
ISOLATION_LEVELS = ("serializable",) if IS_SQLITE else ("read committed", "repeatable read")
SWARM = 6
"""How many do the same thing at once."""

Hire = Callable[..., AbstractContextManager[Crew]]
NoDeadlock = Callable[[], AbstractContextManager[None]]


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("isolation", ISOLATION_LEVELS, indirect=True)
def test_two_batches_at_once(
    number: int, isolation: str, hire: Hire, no_deadlock: NoDeadlock, record_property: Callable[[str, Any], None]
) -> None:
    shapes = SHAPES[number % len(SHAPES)], SHAPES[(2 * number + 4) % len(SHAPES)]
    with no_deadlock():
        with hire(THREADS, jitter=(number % 2) * 0.2) as crew:
            batches = _dispatch(crew, shapes)
            _disturb(crew, batches, shapes)
            crew.rest(timeout=300)
            audit(crew.finished)
            _retry(crew, batches)
            crew.rest(timeout=300)
            audit(crew.finished)
        if isolation != "repeatable read":
            assert crew.conflicts == {}
    record_property("jobs", BatchJob.objects.count())
    record_property("conflicts", sum(crew.conflicts.values()))


def _dispatch(crew: Crew, shapes: tuple[Any, ...]) -> list[Batch]:
    """Two threads dispatch, while others run what is there already."""
    for name, shape in zip("AB", shapes, strict=True):
        crew.do(hammered(shape, JOBS, name).dispatch, at_once=True)
    wait_until(lambda: Batch.objects.filter(name__in="AB").count() == 2, message="both batches are there")
    return list(Batch.objects.filter(name__in="AB").order_by("name"))


def _disturb(crew: Crew, batches: list[Batch], shapes: tuple[Any, ...]) -> None:
    """From outside: several cancel the same jobs and nested batches, and the same batch, while it runs."""
    for batch, shape in zip(batches, shapes, strict=True):
        wait_until(partial(_is_under_way, batch), timeout=120, message="a third of the jobs have ended")
        if shape.failing:
            waiting = list(batch.jobs.filter(role=Role.ITEM, status=JobStatus.QUEUED)[:100])
            for job in random.sample(waiting, min(3, len(waiting))):
                crew.do(*[job.cancel] * 2, at_once=True)
            nested = list(Batch.objects.filter(parent_job__batch=batch, status=BatchStatus.WAITING)[:20])
            for waiting_batch in random.sample(nested, min(2, len(nested))):
                crew.do(*[waiting_batch.cancel] * 2, at_once=True)
        if shape.cancelled:
            copies = [Batch.objects.get(pk=batch.pk) for _ in range(SWARM)]
            crew.do(*[copy.cancel for copy in copies], at_once=True)


def _is_under_way(batch: Batch) -> bool:
    batch.refresh_from_db()
    return batch.is_decided or 3 * (batch.total_jobs - batch.pending_jobs) > JOBS


def _retry(crew: Crew, batches: list[Batch]) -> None:
    """Several retry what each of them has seen to be finished; one of them does it."""
    for batch in batches:
        batch.refresh_from_db()
        numbers: list[int] = []
        copies = [Batch.objects.get(pk=batch.pk) for _ in range(SWARM)]
        crew.do(*[partial(_try_retry, copy, numbers) for copy in copies], at_once=True)
        wait_until(partial(_have_all_tried, numbers), timeout=120, message="all have tried")
        # what was cancelled in the middle of its dispatch is not whole, and cannot be retried
        unsuccessful = 0 if batch.error else batch.failed_jobs + batch.cancelled_jobs
        assert sorted(numbers) == [0] * (SWARM - 1) + [unsuccessful]


def _have_all_tried(numbers: list[int]) -> bool:
    return len(numbers) == SWARM


def _try_retry(batch: Batch, numbers: list[int]) -> None:
    with suppress(BatchError):
        numbers.append(batch.retry())
        return
    numbers.append(0)
