"""`dispatch_lock()` and `key=`: two ways not to dispatch the same thing twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

from django_job_batches import DuplicateBatch, LockNotAcquired, batch_of, chain, dispatch_lock, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs
from tests.in_process import close, enqueued
from tests.processes import Record
from tests.semantics.conftest import Runner


def at_once(number: int, work: Callable[[int], Any]) -> list[Any]:
    """What so many threads return, or raise, that begin at the same moment."""
    barrier, results = threading.Barrier(number), [None] * number

    def one(index: int) -> None:
        barrier.wait()
        try:
            results[index] = work(index)
        except Exception as error:
            results[index] = error  # type: ignore[call-overload]
        finally:
            close()

    threads = [threading.Thread(target=one, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# dispatch_lock


def test_one_of_many_gets_it(redis: Redis) -> None:
    """Raises `LockNotAcquired`."""

    def hold(index: int) -> str:
        with dispatch_lock("import"):
            time.sleep(0.3)
        return "held"

    results = at_once(5, hold)
    assert results.count("held") == 1
    assert [type(result) for result in results if result != "held"] == [LockNotAcquired] * 4


def test_it_is_renewed_while_it_is_held() -> None:
    """...so that it cannot expire in the middle of a slow dispatch."""
    with dispatch_lock("import", timeout=1):
        time.sleep(1.6)
        with pytest.raises(LockNotAcquired, match="import"), dispatch_lock("import"):
            pass


def test_it_is_freed_whatever_happens(redis: Redis) -> None:
    with pytest.raises(LookupError), dispatch_lock("import"):
        raise LookupError
    with dispatch_lock("import"):
        pass
    assert redis.keys("*lock*") == []


def test_it_is_not_freed_by_one_whose_lock_has_expired(redis: Redis) -> None:
    with dispatch_lock("import"):
        redis.flushall()
        other = dispatch_lock("import", timeout=60)
        other.__enter__()
    with pytest.raises(LockNotAcquired), dispatch_lock("import"):
        pass
    other.__exit__(None, None, None)


def test_waiting_for_it_takes_no_longer_than_said() -> None:
    with dispatch_lock("import"):
        started_at = time.monotonic()
        with pytest.raises(LockNotAcquired), dispatch_lock("import", wait=0.3):
            pass
        assert 0.1 < time.monotonic() - started_at < 3


# key


@pytest.mark.vendors("postgresql", "mariadb")
@pytest.mark.usefixtures("live_db")
def test_one_of_many_dispatches_with_the_same_key() -> None:
    """One unfinished batch per key (`DuplicateBatch` carries the other one)."""
    results = at_once(6, lambda index: batch_of([jobs.succeed], key="import", name=str(index)).dispatch())
    [batch] = [result for result in results if isinstance(result, Batch)]
    refused = [result for result in results if result is not batch]
    assert [type(error) for error in refused] == [DuplicateBatch] * 5
    assert {error.batch for error in refused} == {batch}
    assert (Batch.objects.count(), BatchJob.objects.count(), len(enqueued())) == (1, 1, 1)


@pytest.mark.parametrize("end", ["success", "failure", "cancel", "callbacks"])
def test_a_key_is_free_once_the_batch_has_finished(run_queued: Runner, record: Record, end: str) -> None:
    body = jobs.fail if end == "failure" else jobs.succeed
    callback = job_of(jobs.fail) if end == "callbacks" else jobs.succeed
    description = batch_of([body], key="import", on_finish=callback)
    batch = description.dispatch()
    with pytest.raises(DuplicateBatch, match="import") as refused:
        description.dispatch()
    assert refused.value.batch == batch
    if end == "cancel":
        batch.cancel()
        assert batch.is_finished
    else:
        run_queued.on(batch)
    again = run_queued(description)
    assert (again.key, batch.key, again.active_key) == ("import", "import", None)


def test_a_key_is_exact(run_queued: Runner) -> None:
    """...on each database, whatever its collation."""
    keys = ["import", "Import", "import ", "impört", "impo\u0308rt", "i" * 255]
    batches = [batch_of([jobs.succeed], key=key).dispatch() for key in keys]
    for key in keys:
        with pytest.raises(DuplicateBatch):
            batch_of([], key=key).dispatch()
    run_queued.on(batches[0])


def test_a_key_goes_with_its_transaction(run_queued: Runner) -> None:
    with pytest.raises(LookupError), transaction.atomic():
        batch_of([jobs.succeed], key="import").dispatch()
        raise LookupError
    assert run_queued(batch_of([jobs.succeed], key="import")).status == "succeeded"


def test_a_retry_takes_the_key_again(run_queued: Runner, record: Record) -> None:
    """With its `key` taken by another: `DuplicateBatch`, and nothing changes."""
    batch = run_queued(batch_of([job_of(jobs.flaky, "job", 1), chain(jobs.succeed)], key="import"))
    other = batch_of([jobs.succeed], key="import").dispatch()
    with pytest.raises(DuplicateBatch) as refused:
        batch.retry()
    assert refused.value.batch == other
    batch = run_queued.on(batch)
    assert (batch.run, batch.status) == (1, "failed")
    assert batch.retry() == 2
    with pytest.raises(DuplicateBatch) as refused:
        batch_of([], key="import").dispatch()
    assert refused.value.batch == batch
    assert run_queued.on(batch).status == "succeeded"
