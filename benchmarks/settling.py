"""Many connections settle jobs of one batch at once: the statements alone, and the real thing through Django."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection, connections
from django.utils import timezone

from benchmarks.figures import Figure, interleaved
from django_job_batches import transitions
from django_job_batches.models import Batch, BatchCounter, BatchJob, JobStatus
from django_job_batches.outbox import carry_out
from django_job_batches.transitions import Outcome

Settle = Callable[[list[BatchJob], float], int]
MANY = 16
JOB, LANE = BatchJob._meta.db_table, BatchCounter._meta.db_table
END = f"UPDATE {JOB} SET status = 'succeeded', finished_at = %s WHERE id = %s AND status = 'running' AND attempts = 1"
COUNT = (
    f"UPDATE {LANE} SET pending = pending - 1, succeeded = succeeded + 1 "
    "WHERE batch_id = %s AND lane = %s AND pending > 1"
)
LOCK = f"SELECT pending FROM {LANE} WHERE batch_id = %s AND lane = %s FOR UPDATE"


def measure(quick: bool) -> Iterator[Figure]:
    if connection.vendor == "sqlite":
        return  # one writer at a time
    seconds, repeats = (1.0, 1) if quick else (3.0, 3)
    budget = {"postgresql": 3.0, "mysql": 2.0}[connection.vendor]
    for number in (16, 64):
        cells = [(1, _lock_and_count), (1, _count), (MANY, _count), (1, _through_django), (MANY, _through_django)]
        measures = [partial(_rate, number, lanes, settle, seconds) for lanes, settle in cells]
        locking, *rates = interleaved(repeats, *measures)
        yield from _figures(number, locking, rates, budget)


def _figures(number: int, locking: float, rates: list[float], budget: float) -> Iterator[Figure]:
    figure = partial(Figure, settings.TEST_DATABASE, unit="settles/s", at_least=True)
    against = f"{number} connections, statements alone, / FOR UPDATE + UPDATE"
    yield figure(what=f"{against}: 1 lane", ours=rates[0], reference=locking)
    wanted = budget if number == 64 else None
    yield figure(what=f"{against}: {MANY} lanes", ours=rates[1], reference=locking, budget=wanted)
    yield figure(what=f"{number} connections through Django: {MANY} lanes / 1 lane", ours=rates[3], reference=rates[2])


def _rate(number: int, lanes: int, settle: Settle, seconds: float) -> float:
    """Settles per second of so many processes, each with a connection of its own; no count may be lost."""
    batch = _running_batch(lanes, int(number * 60 + 8_000 * seconds))
    rows = list(batch.jobs.only("pk", "batch_id", "lane", "role", "chain", "func", "status", "attempts"))
    connections.close_all()
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(number), context.SimpleQueue()
    processes = [
        context.Process(target=_work, args=(settle, rows[start::number], seconds, barrier, results))
        for start in range(number)
    ]
    for process in processes:
        process.start()
    settled: int = sum(results.get() for _ in processes)
    for process in processes:
        process.join()
    _check(batch, settled)
    return settled / seconds


def _work(settle: Settle, rows: list[BatchJob], seconds: float, barrier: Any, results: Any) -> None:
    connections.close_all()
    connection.ensure_connection()
    barrier.wait()
    results.put(settle(rows, seconds))
    connections.close_all()


def _check(batch: Batch, settled: int) -> None:
    batch.refresh_from_db()
    assert batch.succeeded_jobs == settled, f"{batch.succeeded_jobs} are counted, {settled} were settled"
    assert batch.deadlocks == 0
    for row in (batch.jobs, batch.counters):
        row.all()._raw_delete("default")


def _running_batch(lanes: int, size: int) -> Batch:
    """All of its jobs run; one more in each lane keeps that open."""
    now = timezone.now()
    batch = Batch.objects.create(status="running", started_at=now, lanes=lanes, open_lanes=lanes, sealed=True)
    row = partial(BatchJob, batch=batch, func="benchmarks.jobs.nothing", attempts=1, started_at=now, enqueued_at=now)
    BatchJob.objects.bulk_create(
        [row(position=n, lane=n % lanes, status=JobStatus.RUNNING, queue_name="default") for n in range(size)], 2_000
    )
    totals = [len(range(lane, size, lanes)) + 1 for lane in range(lanes)]
    BatchCounter.objects.bulk_create(
        [BatchCounter(batch=batch, lane=lane, total=total, pending=total) for lane, total in enumerate(totals)]
    )
    return batch


# Ways to settle


def _through_django(rows: list[BatchJob], seconds: float) -> int:
    outcome, until = Outcome(JobStatus.SUCCEEDED), time.monotonic() + seconds
    for number, row in enumerate(rows):
        if time.monotonic() >= until:
            return number
        assert carry_out(partial(transitions.settle, row, 1, outcome), "default")
    raise RuntimeError("There were too few jobs.")


def _statements(rows: list[BatchJob], seconds: float, finish: Callable[[Any, tuple[Any, int]], None]) -> int:
    """A transaction for each row, by the driver's own cursor: end the job, then `finish`."""
    connection.set_autocommit(False)
    cursor, driver = connection.connection.cursor(), connection.connection
    until = time.monotonic() + seconds
    for number, row in enumerate(rows):
        if time.monotonic() >= until:
            return number
        cursor.execute(END, (timezone.now(), row.pk))
        finish(cursor, (connection.ops.adapt_unknown_value(row.batch_id), row.lane))
        driver.commit()
    raise RuntimeError("There were too few jobs.")


def _count(rows: list[BatchJob], seconds: float) -> int:
    return _statements(rows, seconds, lambda cursor, lane: cursor.execute(COUNT, lane))


def _lock_and_count(rows: list[BatchJob], seconds: float) -> int:
    def finish(cursor: Any, lane: tuple[Any, int]) -> None:
        cursor.execute(LOCK, lane)
        cursor.fetchall()
        cursor.execute(COUNT, lane)

    return _statements(rows, seconds, finish)
