"""Dispatch against RQ's `enqueue_many` alone, and the memory that a long generator takes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import django_rq
from django.conf import settings
from rq import Queue

from benchmarks import jobs
from benchmarks.figures import Figure, interleaved
from django_job_batches import batch_of, job_of
from django_job_batches.conf import settings as app_settings


def measure(quick: bool) -> Iterator[Figure]:
    number = 2_000 if quick else 10_000
    alone, ours = interleaved(3 if quick else 5, partial(_enqueue_many, number), partial(_dispatch, number))
    what = f"dispatch of {number:,} jobs / enqueue_many alone"
    yield Figure(settings.TEST_DATABASE, what, "s", ours, alone, 2.0)
    number = 20_000 if quick else 100_000
    command = [sys.executable, "-m", "benchmarks.dispatching", str(number)]
    growth = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    what = f"memory of dispatching {number:,} jobs from a generator"
    yield Figure(settings.TEST_DATABASE, what, "MB above the start", float(growth.split()[-1]), budget=60)


def _enqueue_many(number: int) -> float:
    """In chunks of the size that `dispatch()` uses; one call for all of them is no faster."""
    queue = django_rq.get_queue("default")
    queue.connection.flushall()
    began = time.perf_counter()
    for start in range(0, number, app_settings.CHUNK_SIZE):
        chunk = range(start, min(start + app_settings.CHUNK_SIZE, number))
        queue.enqueue_many([Queue.prepare_data(jobs.nothing, args=(n,)) for n in chunk])
    return time.perf_counter() - began


def _dispatch(number: int) -> float:
    django_rq.get_connection("default").flushall()
    began = time.perf_counter()
    batch_of(job_of(jobs.nothing, n) for n in range(number)).dispatch()
    return time.perf_counter() - began


def _peak() -> float:
    """The most memory that this process has had, in MB."""
    kilobytes = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert kilobytes is not None, "Linux tells the peak in /proc/self/status"
    return int(kilobytes[1]) / 1024


if __name__ == "__main__":
    import django

    django.setup()
    _dispatch(2 * app_settings.CHUNK_SIZE)
    before = _peak()
    _dispatch(int(sys.argv[1]))
    sys.stdout.write(f"{_peak() - before:.1f}\n")
