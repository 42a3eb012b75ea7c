"""Deadlocks that are nobody's fault but the user's, on servers that have such things."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from django_job_batches import batch_of, job_of
from tests.concurrency import bodies, servers
from tests.concurrency.audit import audit
from tests.concurrency.crew import Crew
from tests.models import Effect

pytestmark = pytest.mark.vendors("postgresql", "mariadb")


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"], indirect=True)
def test_a_deadlock_between_two_atomic_jobs_is_survived_in_place(
    isolation: str, hire: Callable[..., AbstractContextManager[Crew]]
) -> None:
    Effect.objects.bulk_create([Effect(name="first"), Effect(name="second")])
    bodies.barriers["cross"] = threading.Barrier(2)
    before = servers.deadlocks()
    with hire(2) as crew:
        batch = batch_of(
            [
                job_of(bodies.cross, "first", "second", "cross").options(atomic=True),
                job_of(bodies.cross, "second", "first", "cross").options(atomic=True),
            ],
            on_finish=bodies.fine,
        ).dispatch()
        crew.rest(timeout=60)
        audit(crew.finished)
    batch.refresh_from_db()
    assert batch.status == "succeeded"
    assert servers.deadlocks() > before  # so these statistics do see one; other tests rely on that
    assert batch.deadlocks >= 1
    items = batch.jobs.filter(role="item")
    assert list(items.values_list("attempts", flat=True)) == [1, 1]
    assert sum(bodies.executions[pk, 1, 1] for pk in items.values_list("pk", flat=True)) == 2 + batch.deadlocks
