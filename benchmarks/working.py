"""A batched job against the same job enqueued plainly, run by a real worker."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import django_rq
from django.conf import settings
from rq import Queue

from benchmarks import jobs
from benchmarks.figures import Figure, interleaved
from django_job_batches import batch_of, job_of
from tests.processes import WorkerProcess

FINISHED = "rq:finished:default"
CASES = (
    ("no-op, forking worker", jobs.nothing, False, 1.5),
    ("no-op, SimpleWorker", jobs.nothing, True, 2.0),
    ("one query, forking worker", jobs.one_query, False, 1.15),
    ("one query, SimpleWorker", jobs.one_query, True, None),
)


def measure(quick: bool) -> Iterator[Figure]:
    repeats = 3 if quick else 7
    for what, func, simple, budget in CASES:
        number = (300 if simple else 60) // (2 if quick else 1)
        plain, batched = interleaved(
            repeats,
            partial(_seconds_per_job, partial(_enqueue_plainly, func, number), number, simple),
            partial(_seconds_per_job, partial(_dispatch, func, number), number, simple),
        )
        name = f"batched job / plain job: {what}"
        yield Figure(settings.TEST_DATABASE, name, "ms per job", batched * 1000, plain * 1000, budget)


def _enqueue_plainly(func: Callable[..., Any], number: int) -> None:
    queue = django_rq.get_queue("default")
    queue.enqueue_many([Queue.prepare_data(func, args=(n,), result_ttl=3600) for n in range(number)])


def _dispatch(func: Callable[..., Any], number: int) -> None:
    batch_of(job_of(func, n) for n in range(number)).dispatch()


def _seconds_per_job(enqueue: Callable[[], None], number: int, simple: bool) -> float:
    """From the end of the first job to that of the last, by a worker that has nothing else to do."""
    redis = django_rq.get_connection("default")
    redis.flushall()
    enqueue()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = {"DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
        worker = WorkerProcess(log, simple=simple, burst=True, env=environment)
        try:
            began = _when(lambda: redis.zcard(FINISHED) >= 1, worker)
            already = redis.zcard(FINISHED)
            return (_when(lambda: redis.zcard(FINISHED) >= number, worker) - began) / (number - already)
        finally:
            worker.end()


def _when(is_so: Callable[[], bool], worker: WorkerProcess) -> float:
    """The moment at which it is so."""
    while not is_so():
        if not worker.is_alive and not is_so():
            raise RuntimeError(f"The worker ended too early:\n{worker.output()}")
        time.sleep(0.002)
    return time.perf_counter()
