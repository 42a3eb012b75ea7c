"""How often a job, a chunk of a dispatch and the end of a batch speak with the database, by Django's query log.

BEGIN and COMMIT are counted. (That they are one round trip each depends on the driver: for a transaction MySQL's are
told twice to switch autocommit, which the log shows as one BEGIN.)
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_job_batches import batch_of, chain, dispatching, execution, memory, queues
from django_job_batches.models import BatchJob

PER_JOB = 6
AFTER_THE_LAST = 3


def nothing() -> None:
    pass


def boom() -> None:
    raise ValueError("boom")


@pytest.fixture
def queue(live_db: None, monkeypatch: pytest.MonkeyPatch) -> list[queues.Work]:
    """What was enqueued, instead of RQ."""
    waiting: list[queues.Work] = []
    monkeypatch.setattr(queues, "enqueue", lambda name, works: waiting.extend(works))
    monkeypatch.setattr(memory, "is_time_for", lambda what, seconds: False)
    return waiting


def run(queue: list[queues.Work]) -> list[str]:
    """Run the first job that waits, and return its statements."""
    with CaptureQueriesContext(connection) as captured:
        try:
            execution.run_job(*queue.pop(0).args)
        except ValueError as error:
            assert str(error) == "boom"
    return [query["sql"] for query in captured]


@pytest.mark.parametrize("size", [10, 2_500])
@pytest.mark.parametrize("func", [nothing, boom])
def test_a_job_neither_first_nor_last(queue: list[queues.Work], func: Any, size: int) -> None:
    batch_of([func] * size, allow_failures=True, on_finish=nothing).dispatch()
    run(queue)
    statements = run(queue)
    assert len(statements) <= PER_JOB, statements
    assert len(run(queue)) == len(statements)


def test_a_job_whose_failures_are_counted(queue: list[queues.Work]) -> None:
    """Two more, on the batch's row: the failure is counted, and it is looked whether these are too many."""
    batch_of([nothing, *[boom] * 10], allow_failures=0.95).dispatch()
    run(queue)
    statements = run(queue)
    assert len(statements) <= PER_JOB + 2, statements


def test_a_link_of_a_chain(queue: list[queues.Work]) -> None:
    """Two more to release the next link, and two to enqueue it."""
    batch_of([nothing, chain(nothing, nothing), nothing]).dispatch()
    run(queue)
    statements = run(queue)
    assert len(queue) == 2
    assert len(statements) <= PER_JOB + 4, statements


@pytest.mark.parametrize("size", [100, 1_000])
def test_a_chunk_of_a_dispatch(queue: list[queues.Work], settings: Any, size: int) -> None:
    settings.JOB_BATCHES = {"CHUNK_SIZE": size}
    costs = [_cost_of_dispatch(size * chunks) for chunks in (2, 3, 4)]
    per_chunk = max(later - earlier for earlier, later in itertools.pairwise(costs))
    lanes = min(dispatching.LANES_PER_CHUNK, 1 + size // dispatching.JOBS_PER_LANE)
    inserts = 1 if connection.vendor != "sqlite" else math.ceil(size * len(BatchJob._meta.fields) / _parameters())
    # Read; new lanes, with BEGIN and COMMIT; BEGIN, (once or twice per lane), reserve, read the position, insert,
    # COMMIT; then it is looked twice whether the batch was decided or cancelled meanwhile
    assert per_chunk <= 10 + 2 * lanes + inserts, costs


def _parameters() -> int:
    """How many parameters a statement may have."""
    return connection.features.max_query_params or 1_000_000


def _cost_of_dispatch(size: int) -> int:
    with CaptureQueriesContext(connection) as captured:
        batch_of([nothing] * size).dispatch()
    return len(captured)


def test_on_finish_is_enqueued_right_after_the_last_item(queue: list[queues.Work], monkeypatch: Any) -> None:
    batch_of([nothing] * 3, on_success=[], on_finish=nothing).dispatch()
    run(queue)
    run(queue)
    released: list[list[str]] = []

    def enqueue(name: str, works: list[queues.Work]) -> None:
        released.append([query["sql"] for query in connection.queries_log])

    monkeypatch.setattr(queues, "enqueue", enqueue)
    with CaptureQueriesContext(connection):
        connection.queries_log.clear()
        execution.run_job(*queue.pop(0).args)
    (before,) = released
    after_commit = before[len(before) - before[::-1].index("COMMIT") :]
    assert 1 <= len(after_commit) <= AFTER_THE_LAST, after_commit
