from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_job_batches.models import Batch
from tests.in_process import work
from tests.invariants import assert_all_ended
from tests.processes import Record


class Runner:
    """`run(description)` dispatches, works until nothing is left, and returns the batch, whose books are right."""

    def __init__(self, work_through: Callable[[], None]) -> None:
        self._work_through = work_through

    def __call__(self, description: Any) -> Batch:
        return self.on(description.dispatch())

    def on(self, batch: Batch, *, in_order: bool = True) -> Batch:
        """Go on with a batch that is there."""
        self._work_through()
        assert_all_ended(in_order=in_order)
        batch.refresh_from_db()
        return batch


@pytest.fixture(params=["worker", "sync"])
def run(request: pytest.FixtureRequest, settings: Any, live_db: None, record: Record) -> Runner:
    """In a worker's process, and on a synchronous queue."""
    if request.param == "sync":
        settings.JOB_BATCHES = {"QUEUE": "sync"}
        return Runner(lambda: None)
    return Runner(work)


@pytest.fixture
def run_queued(live_db: None, record: Record) -> Runner:
    """What a synchronous queue cannot do, or has no influence on."""
    return Runner(work)


@pytest.fixture
def run_forking(drain: Callable[..., str]) -> Runner:
    """With a real worker, which forks for each job."""
    return Runner(lambda: drain() and None)
