"""Database connections (kinds of failure 36 and 38)."""

from __future__ import annotations

from typing import Any

import pytest

from django_job_batches import batch_of, chain, job_of
from django_job_batches.models import Batch
from django_job_batches.signals import batch_finished, batch_started, job_failed
from tests import jobs, jobs_failures
from tests.failures.books import ended, numbers
from tests.in_process import work
from tests.processes import PATIENCE, wait_until

# 36: a connection opened in the worker before the fork is shared by all horses


@pytest.mark.vendors("postgresql", "mariadb")
def test_f36_horses_share_no_connection_with_their_worker(workers, record):
    """A stop command is the one thing that makes the worker itself talk to the database. The horses that it forks
    afterwards have connections of their own."""
    batch = batch_of([job_of(jobs.sleep, 30)], allow_failures=1).dispatch()
    (worker,) = workers()
    wait_until(lambda: record.count("sleep begins"))
    assert batch.jobs.get().stop()
    batch.wait(PATIENCE)
    assert numbers(ended(batch)) == (0, 0, 1)
    later = batch_of([jobs_failures.name_connection] * 3, on_finish=jobs_failures.name_connection).dispatch()
    later.wait(PATIENCE)
    assert numbers(ended(later)) == (3, 0, 0)
    connections = [line for line in record.lines() if line.startswith("connection")]
    assert len(set(connections)) == 4
    assert worker.is_alive


# 38: read replicas: the row just written is not there yet


class Lagging:
    """Reads go to a replica to which nothing has been copied yet, unless a row's own database is known."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, *args: Any, **hints: Any) -> bool:
        return True


@pytest.fixture
def lagging(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Lagging()]


@pytest.mark.usefixtures("lagging")
def test_f38_nothing_of_a_batch_is_read_from_a_replica(live_db, record):
    heard: list[str] = []

    def hear(signal: Any, **kwargs: Any) -> None:
        row = kwargs.get("batch") or kwargs["job"]
        heard.append(f"{type(row).__name__} {row.status}")

    signals = (job_failed, batch_started, batch_finished)
    for signal in signals:
        signal.connect(hear)
    try:
        batch = batch_of(
            [
                chain(jobs.succeed, batch_of([job_of(jobs.flaky, "x", 1).options(retry=1)]), jobs.succeed),
                job_of(jobs.aio).options(atomic=True, keep_result=True),
                jobs_failures.add_to_own_batch,
                jobs.fail,
            ],
            allow_failures=1,
            key="one at a time",
            on_success=jobs.echo,
            on_finish=batch_of([jobs.succeed], on_finish=jobs.echo),
        ).dispatch()
        assert batch.total_jobs == 6
        work()
    finally:
        for signal in signals:
            signal.disconnect(hear)
    _check_on_primary(batch, "succeeded", (6, 1, 0))
    assert record.count("echo") == 2
    assert sorted(heard) == ["Batch running"] * 3 + ["Batch succeeded"] * 3 + ["BatchJob failed"]


@pytest.mark.usefixtures("lagging")
def test_f38_operators_reach_the_primary(live_db, record):
    batch = batch_of([jobs.fail, jobs.succeed, jobs.succeed], on_failure=jobs.echo, on_finish=jobs.echo).dispatch()
    work()
    _check_on_primary(batch, "failed", (0, 1, 2))
    assert batch.retry() == 3
    assert batch.cancel("enough")
    assert batch.is_cancelled
    work()
    _check_on_primary(batch, "cancelled", (0, 0, 3))
    assert not Batch.objects.exists()  # that is the replica
    batch.wait(1)
    assert batch.delete()[0] == 7


@pytest.mark.usefixtures("lagging")
def test_f38_a_batch_that_was_sent_elsewhere_stays_there(live_db, record):
    """`dispatch(using=…)` is stronger than the router, for the jobs too: a row of the same number is another one."""
    here = batch_of([job_of(jobs.succeed, 1), jobs.fail], on_failure=jobs.echo).dispatch()
    there = batch_of([job_of(jobs.succeed, 2), jobs_failures.add_to_own_batch], on_finish=jobs.echo).dispatch(
        using="other"
    )
    work()
    assert numbers(_fresh(here, "default")) == (1, 1, 0)
    assert numbers(_fresh(there, "other")) == (3, 0, 0)
    assert there.is_finished
    assert record.count("echo") == 2


def _fresh(batch: Batch, using: str) -> Batch:
    batch.refresh_from_db(using=using)
    return batch


def _check_on_primary(batch: Batch, status: str, counts: tuple[int, int, int]) -> None:
    batch.refresh_from_db(using="default")
    assert (batch.status, batch.is_finished, batch.open_callbacks) == (status, True, 0)
    assert numbers(batch) == counts
