"""Size (kinds of failure 28 and 29)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from django_job_batches import BatchFinished, batch_of, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_failures
from tests.failures.books import ended, numbers
from tests.in_process import close, work
from tests.processes import PATIENCE, wait_until


class Alive:
    """How many of the objects that passed through here are still alive."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def watch(self, value: Any) -> Any:
        self.now += 1
        weakref.finalize(value, self._gone)
        self.most = max(self.most, self.now)
        return value

    def _gone(self) -> None:
        self.now -= 1


# 28: the producer holds everything in memory


@pytest.mark.parametrize("inside", [False, True], ids=["plain", "in a transaction"])
def test_f28_dispatch_holds_one_chunk_at_a_time(live_db, record, settings, monkeypatch, inside):
    """Neither descriptions nor rows nor what goes to Redis pile up: no more than a few chunks are alive at once."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 20}
    descriptions, rows = Alive(), Alive()
    init = BatchJob.__init__

    def watched(self: BatchJob, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        rows.watch(self)

    monkeypatch.setattr(BatchJob, "__init__", watched)

    def produce() -> Iterator[Any]:
        for n in range(600):
            yield descriptions.watch(job_of(jobs.succeed, n))

    if inside:
        with transaction.atomic():
            batch = batch_of(produce()).dispatch()
    else:
        batch = batch_of(produce()).dispatch()
    batch.add(descriptions.watch(job_of(jobs.succeed, n)) for n in range(600))
    assert batch.total_jobs == 1200
    assert descriptions.most <= 45
    assert rows.most <= 65


def test_f28_dispatch_reads_no_further_than_a_chunk(live_db, record, settings):
    """Also where one item stands for many rows."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 10}
    ahead = []

    def produce() -> Iterator[Any]:
        for n in range(1, 101):
            written = BatchJob.objects.count()
            ahead.append(n - written)
            yield jobs.succeed

    batch = batch_of(produce()).dispatch()
    assert batch.total_jobs == 100
    assert max(ahead) == 10


# 29: building a batch in pieces races with its completion


def test_f29_jobs_end_before_the_next_ones_are_written(live_db, record, settings):
    """On a synchronous queue everything that is there has ended when the generator goes on; the batch has not."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}
    seen = []

    def produce() -> Iterator[Any]:
        for n in range(6):
            batch = Batch.objects.filter(parent_job=None).first()
            assert batch is not None
            seen.append((batch.is_finished, batch.progress < 100, batch.pending_jobs, record.count("echo")))
            yield job_of(jobs.succeed, n)

    batch = batch_of(produce(), queue_name="sync", on_success=jobs.echo, on_finish=jobs.echo).dispatch()
    assert seen == [(False, True, 0, 0)] * 6
    assert numbers(ended(batch)) == (6, 0, 0)
    assert record.count("echo") == 2


def test_f29_workers_are_faster_than_the_dispatcher(workers, record, settings):
    settings.JOB_BATCHES = {"CHUNK_SIZE": 1}
    workers(simple=True)

    def has_run(number: int) -> bool:
        return bool(record.count("succeed") == number)

    def produce() -> Iterator[Any]:
        for n in range(4):
            wait_until(partial(has_run, n))
            yield job_of(jobs.succeed, n)
        wait_until(partial(has_run, 4))

    batch = batch_of(produce(), on_finish=jobs.echo).dispatch()
    batch.wait(PATIENCE)
    assert numbers(ended(batch)) == (4, 0, 0)
    assert record.count("echo") == 1


def test_f29_the_last_job_adds_more(live_db, record):
    """Each of them is, for a moment, the last one of its batch."""
    batch = batch_of([job_of(jobs_failures.add_to_own_batch, 3)], on_finish=jobs.echo).dispatch()
    work()
    assert numbers(ended(batch)) == (4, 0, 0)
    assert record.lines()[-1] == "echo () {}"


def test_f29_a_batch_that_is_decided_during_its_dispatch(live_db, record, settings):
    """It is written whole, for a retry, and sealed all the same; what has not started is cancelled, and it ends."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 1}

    def produce() -> Iterator[Any]:
        yield jobs.succeed
        yield jobs.fail
        for _ in range(50):
            yield jobs.succeed

    batch = batch_of(produce(), queue_name="sync", on_failure=jobs.echo, on_finish=jobs.echo).dispatch()
    assert (ended(batch).status, numbers(batch)) == ("failed", (1, 1, 50))
    assert record.count("echo") == 2


def test_f29_pieces_added_by_several_at_once(live_db, record):
    """While others end: whoever comes after the end is told so, and nothing is lost or left over."""
    batch = batch_of([job_of(jobs.succeed, n) for n in range(3)], on_finish=jobs.echo).dispatch()
    added: list[int] = []

    def add() -> None:
        mine = Batch.objects.get(pk=batch.pk)
        try:
            for n in range(20):
                added.append(mine.add([job_of(jobs.succeed, n)]))
        except BatchFinished:
            pass
        finally:
            close()

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    work()
    assert numbers(ended(batch)) == (3 + len(added), 0, 0)
    assert record.count("succeed") == 3 + len(added)
    assert record.count("echo") == 1
