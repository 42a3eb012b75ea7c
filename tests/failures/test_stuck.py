"""Stuck for ever (kinds of failure 8 to 17)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import Q
from django.utils import timezone

from django_job_batches import GiveUp, batch_of, chain, job_of, outbox
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_failures
from tests.failures.books import ended, numbers, rows_of
from tests.in_process import enqueued, work
from tests.models import Effect
from tests.processes import PATIENCE, ROOT


def give_up() -> None:
    raise GiveUp("there is no point")


def description_is(text: str) -> Q:
    return Q(options__description=text)


# 8: a link of a chain inside a batch fails: the rest stays pending, no callback ever


def test_f08_failed_link_of_a_chain(drain, record):
    """However a link fails, what is behind it is cancelled and counted, and the callbacks run."""
    links = {
        "raises": job_of(jobs.fail),
        "has no retries left": job_of(jobs.fail).options(retry=1),
        "gives up": job_of(give_up).options(retry=5),
        "exits": job_of(sys.exit, 3),
        "is killed": job_of(jobs.kill_self),
        "is a batch that fails": batch_of([jobs.fail, jobs.fail], allow_failures=1),
    }
    batch = batch_of(
        [chain(jobs.succeed, link, jobs.succeed, batch_of([jobs.succeed]), jobs.succeed) for link in links.values()],
        allow_failures=True,
        on_success=job_of(jobs.echo, "success"),
        on_finish=job_of(jobs.echo, "finish"),
    ).dispatch()
    drain()
    ended(batch)
    assert rows_of(batch) == ["succeeded", "failed", "cancelled", "cancelled", "cancelled"] * len(links)
    assert numbers(batch) == (6, 6, 18)
    assert record.count("succeed") == 6
    assert [line for line in record.lines() if line.startswith("echo")] == [
        "echo ('success',) {}",
        "echo ('finish',) {}",
    ]
    nested = Batch.objects.filter(parent_job__batch=batch, status="cancelled")
    assert [child.is_finished for child in nested] == [True] * 6


def test_f08_failed_link_without_allowance_fails_the_batch(live_db, record):
    batch = batch_of(
        [chain(jobs.fail, jobs.succeed), chain(jobs.succeed, jobs.succeed)],
        on_failure=job_of(jobs.echo, "failure"),
        on_finish=job_of(jobs.echo, "finish"),
    ).dispatch()
    work()
    assert ended(batch).status == "failed"
    assert numbers(batch) == (0, 1, 3)
    assert record.lines() == ["fail boom", "echo ('failure',) {}", "echo ('finish',) {}"]


def test_f08_cancelled_link_of_a_chain(live_db, record):
    links = [jobs.succeed, job_of(jobs.succeed).options(description="next"), jobs.succeed]
    batch = batch_of([chain(*links), jobs.succeed], allow_failures=1, on_finish=jobs.fail).dispatch()
    assert batch.jobs.get(description_is("next")).cancel()
    work()
    assert ended(batch).status == "succeeded"
    assert rows_of(batch) == ["succeeded", "cancelled", "cancelled", "succeeded"]
    assert record.count("fail") == 1


# 9: failures allowed: the batch never counts as finished


@pytest.mark.parametrize("allowed", [True, 2, 3, 0.5, 1.0])
def test_f09_allowed_failures_finish_the_batch(live_db, record, allowed):
    batch = batch_of(
        [jobs.fail, jobs.succeed, jobs.fail, jobs.succeed],
        allow_failures=allowed,
        on_success=job_of(jobs.echo, "success"),
        on_failure=job_of(jobs.echo, "failure"),
        on_finish=job_of(jobs.echo, "finish"),
    ).dispatch()
    work()
    assert ended(batch).status == "succeeded"
    assert numbers(batch) == (2, 2, 0)
    assert batch.has_failures
    assert [line for line in record.lines() if line.startswith("echo")] == [
        "echo ('success',) {}",
        "echo ('finish',) {}",
    ]


@pytest.mark.parametrize("allowed", [True, 3, 1.0])
def test_f09_a_batch_of_failures_alone_finishes(live_db, record, allowed):
    batch = batch_of([jobs.fail] * 3, allow_failures=allowed, on_finish=jobs.succeed).dispatch()
    work()
    assert ended(batch).status == "succeeded"
    assert numbers(batch) == (0, 3, 0)


@pytest.mark.parametrize("allowed", [0, 1, 0.25, 0.49])
def test_f09_one_failure_too_many_fails_the_batch(live_db, record, allowed):
    batch = batch_of([jobs.fail, jobs.fail, jobs.succeed, jobs.succeed], allow_failures=allowed).dispatch()
    work()
    assert ended(batch).status == "failed"


# 10: an empty batch never finishes


@pytest.mark.parametrize("items", [list, lambda: iter(()), lambda: [chain()], lambda: [chain(chain(), chain())]])
def test_f10_empty_batch(live_db, record, items):
    batch = batch_of(items(), on_success=job_of(jobs.echo, "success"), on_finish=job_of(jobs.echo, "finish")).dispatch()
    assert batch.is_finished
    assert batch.progress == 100
    work()
    assert ended(batch).status == "succeeded"
    assert record.lines() == ["echo ('success',) {}", "echo ('finish',) {}"]


def test_f10_empty_batches_inside_batches_and_as_callbacks(live_db, record):
    empty = batch_of([], on_finish=job_of(jobs.succeed, 1))
    batch = batch_of(
        [empty, chain(empty, batch_of([empty]), job_of(jobs.succeed, 2)), batch_of([])],
        on_success=[empty, batch_of([])],
        on_finish=[batch_of([empty]), job_of(jobs.succeed, 3)],
    ).dispatch()
    work()
    assert ended(batch).status == "succeeded"
    assert all(other.is_finished for other in Batch.objects.all())
    assert sorted(record.lines()) == ["succeed 1"] * 5 + ["succeed 2", "succeed 3"]


def test_f10_empty_batch_inside_a_transaction(live_db, redis, record):
    with transaction.atomic():
        batch = batch_of([], on_finish=jobs.succeed).dispatch()
        assert redis.keys("*") == []
    work()
    assert ended(batch).status == "succeeded"
    assert record.lines() == ["succeed 0"]


# 12: commit, then crash before the push to Redis

CRASH = """
import django, os
django.setup()
from django.db import transaction
from django_job_batches import batch_of
from tests import jobs
with transaction.atomic():
    transaction.on_commit(lambda: os._exit(9))  # hooks run in their order: this is before ours
    batch_of([jobs.succeed, jobs.succeed], name="left behind", on_finish=jobs.succeed).dispatch()
"""


def crash() -> None:
    """A process commits a batch, and dies before anything of it is in Redis."""
    done = subprocess.run(
        [sys.executable, "-c", CRASH], cwd=ROOT, env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    )
    assert done.returncode == 9


def test_f12_crash_between_commit_and_push_is_mended_by_the_next_dispatch(live_db, record):
    crash()
    left_behind = Batch.objects.get()
    assert (enqueued(), rows_of(left_behind)) == ([], ["queued", "queued"])
    batch_of([job_of(jobs.succeed, 9)]).dispatch()
    work()
    assert numbers(ended(left_behind)) == (2, 0, 0)
    assert record.count("succeed") == 4


def test_f12_crash_between_commit_and_push_is_mended_by_the_next_job_that_ends(live_db, redis, record):
    other = batch_of([jobs.echo]).dispatch()
    crash()
    redis.delete("job_batches:reconciled:default")  # the time for a look has come
    work()
    assert ended(other).is_finished
    assert numbers(ended(Batch.objects.get(name="left behind"))) == (2, 0, 0)


def test_f12_a_batch_whose_dispatcher_died_is_seen(live_db, record, monkeypatch):
    """Its rows went out with their commit, but it was not sealed: it cannot end, and says so."""

    def die() -> Any:
        yield jobs.succeed
        raise KeyboardInterrupt

    monkeypatch.setattr("django_job_batches.dispatching._Dispatch._break_off", lambda *args: None)
    with pytest.raises(KeyboardInterrupt):
        batch_of(die(), name="unsealed").dispatch()
    assert not Batch.objects.stuck().exists()
    Batch.objects.update(heartbeat_at=timezone.now() - timedelta(hours=1))
    assert [batch.name for batch in Batch.objects.stuck()] == ["unsealed"]


# 14: batch dispatched inside an open transaction


def test_f14_dispatch_inside_a_transaction_while_a_worker_waits(workers, record, redis):
    """No worker sees a job before the commit, and each of them is counted after it."""
    workers(simple=True)
    with transaction.atomic():
        batch = batch_of([job_of(jobs.succeed, n) for n in range(5)], on_finish=job_of(jobs.succeed, 9)).dispatch()
        with transaction.atomic():
            batch.add([job_of(jobs.succeed, 5)])
        assert redis.keys("rq:job:*") == []
    batch.wait(timeout=PATIENCE)
    assert numbers(ended(batch)) == (6, 0, 0)
    assert sorted(record.lines()) == [f"succeed {n}" for n in (0, 1, 2, 3, 4, 5, 9)]


def test_f14_rollback_leaves_nothing(live_db, redis, record):
    with pytest.raises(RuntimeError), transaction.atomic():
        batch_of([jobs.succeed, batch_of([jobs.succeed])], on_finish=jobs.succeed).dispatch()
        raise RuntimeError
    assert redis.keys("*") == []
    assert not Batch.objects.exists()
    assert not BatchJob.objects.exists()


def test_f14_rollback_to_a_savepoint_leaves_nothing(live_db, redis, record):
    with transaction.atomic():
        kept = batch_of([jobs.succeed]).dispatch()
        with pytest.raises(RuntimeError), transaction.atomic():
            batch_of([job_of(jobs.succeed, 5)]).dispatch()
            kept.add([job_of(jobs.succeed, 6)])
            kept.cancel()
            raise RuntimeError
    work()
    assert [batch.pk for batch in Batch.objects.all()] == [kept.pk]
    assert numbers(ended(kept)) == (1, 0, 0)
    assert record.lines() == ["succeed 0"]


# 15: synchronous mode: one failing job rolls back or swallows its siblings


@pytest.mark.parametrize("inside", [False, True], ids=["plain", "in a transaction"])
def test_f15_synchronous_queue_with_a_job_that_fails(live_db, record, inside):
    items = [
        job_of(jobs.write_effect, "before"),
        jobs.fail,
        job_of(jobs.leave_transaction_open),
        chain(jobs.fail, jobs.succeed),
        job_of(jobs.flaky, "x", 1).options(retry=1),
        job_of(jobs.write_effect, "after"),
    ]
    description = batch_of(items, queue_name="sync", allow_failures=True, on_finish=jobs.succeed)
    if inside:
        with transaction.atomic():
            batch = description.dispatch()
            assert record.lines() == []
    else:
        batch = description.dispatch()
    assert numbers(ended(batch)) == (3, 3, 1)
    assert list(Effect.objects.order_by("pk").values_list("name", flat=True)) == ["before", "after"]
    assert record.lines()[-1] == "succeed 0"


def test_f15_synchronous_queue_without_allowance(live_db, record):
    batch = batch_of([jobs.succeed, jobs.fail, jobs.succeed], queue_name="sync", on_failure=jobs.echo).dispatch()
    assert ended(batch).status == "failed"
    assert record.count("echo") == 1


def test_f15_a_transaction_that_is_rolled_back_later_does_not_run_its_jobs(live_db, record):
    with pytest.raises(RuntimeError), transaction.atomic():
        batch_of([jobs.succeed], queue_name="sync").dispatch()
        raise RuntimeError
    assert record.lines() == []


# 17: a time-out inside the user's transaction takes the failure record down with it


@pytest.mark.parametrize("atomic", [False, True])
def test_f17_time_out_inside_a_transaction(live_db, record, atomic):
    late = job_of(jobs_failures.sleep_in_transaction, 3).options(timeout=1, atomic=atomic)
    batch = batch_of([late, jobs.write_effect], allow_failures=1, on_finish=jobs.succeed).dispatch()
    work()
    assert numbers(ended(batch)) == (1, 1, 0)
    job = batch.jobs.get(status="failed")
    assert "timeout" in job.error_class.lower()
    assert "1 second" in job.error_message
    assert Effect.objects.get().name == "effect"


@pytest.mark.vendors("postgresql", "mariadb")
@pytest.mark.parametrize("atomic", [False, True])
def test_f17_time_out_during_a_query_inside_a_transaction(live_db, record, atomic):
    """The answer of the query is still to come on that connection: it must not be taken for that of the next one."""
    late = job_of(jobs_failures.query_in_transaction, 2).options(timeout=1, atomic=atomic)
    batch = batch_of([late, jobs.write_effect], allow_failures=1, on_finish=jobs.succeed).dispatch()
    work()
    assert not connections["default"].in_atomic_block
    assert numbers(ended(batch)) == (1, 1, 0)
    assert "timeout" in batch.jobs.get(status="failed").error_class.lower()
    assert Effect.objects.get().name == "effect"
    assert record.count("query_in_transaction") == 1


def test_f17_time_out_is_around_the_function_alone(live_db, record, monkeypatch):
    """Bookkeeping that takes longer than the job may is not interrupted."""
    flush = outbox.flush

    def slow(*args: Any, **options: Any) -> int:
        time.sleep(1.2)
        return flush(*args, **options)

    monkeypatch.setattr(outbox, "flush", slow)
    batch = batch_of([chain(job_of(jobs.succeed).options(timeout=1), jobs.succeed)]).dispatch()
    work()
    assert numbers(ended(batch)) == (2, 0, 0)
