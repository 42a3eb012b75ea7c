"""Life after the end (kinds of failure 33 and 34)."""

from __future__ import annotations

import time

import pytest
from django.db import transaction

from django_job_batches import BatchFinished, batch_of, job_of, transitions
from django_job_batches.models import BatchJob
from tests import jobs
from tests.failures.books import ended, numbers
from tests.in_process import work

# 33: data that expires before the batch ends


def test_f33_results_expire_in_redis_before_the_batch_ends(live_db, redis, record, settings):
    settings.JOB_BATCHES = {"RESULT_TTL": 1, "FAILURE_TTL": 1}
    results = [job_of(jobs.echo, n).options(keep_result=True) for n in range(2)]
    batch = batch_of([*results, jobs.fail, jobs.succeed], allow_failures=1, on_finish=jobs.succeed).dispatch()
    work(at_most=3)
    time.sleep(1.1)
    assert len(redis.keys("rq:job:*")) == 1
    batch.refresh_from_db()
    assert batch.progress == 75
    work()
    redis.flushall()
    assert numbers(ended(batch)) == (3, 1, 0)
    assert [result["args"] for result in batch.results()] == [[0], [1]]
    assert [(group.error_class, group.count) for group in batch.errors()] == [("ValueError", 1)]
    assert batch.retry() == 1
    work()
    assert numbers(ended(batch)) == (3, 1, 0)


# 34: add() to a batch that has just finished


@pytest.mark.parametrize("inside", [False, True], ids=["plain", "in a transaction"])
@pytest.mark.parametrize(
    "how", ["succeeded", "failed", "cancelled", "failed, still running", "cancelled, still running"]
)
def test_f34_add_to_a_batch_that_is_decided(live_db, redis, record, how, inside):
    first = jobs.fail if how.startswith("failed") else jobs.succeed
    batch = batch_of([first, jobs.succeed], on_finish=jobs.echo).dispatch()
    if how.endswith("running"):
        last = batch.jobs.select_related("batch").get(role="item", position=1)
        assert transitions.claim(last, 1, "some worker")
        redis.lrem("rq:queue:default", 1, last.rq_job_id)  # nobody else gets it
    if how.startswith("cancelled"):
        batch.cancel()
    work()
    batch.refresh_from_db()
    assert batch.status == how.partition(",")[0]
    before = batch.counts, BatchJob.objects.count(), redis.llen("rq:queue:default")
    for items in ([jobs.succeed], (job_of(jobs.succeed) for _ in range(3)), [batch_of([jobs.succeed])]):
        with pytest.raises(BatchFinished, match="decided"):
            if inside:
                with transaction.atomic():
                    batch.add(items)
            else:
                batch.add(items)
    batch.refresh_from_db()
    assert (batch.counts, BatchJob.objects.count(), redis.llen("rq:queue:default")) == before
    assert batch.status == how.partition(",")[0]
    assert record.count("echo") == (0 if how.endswith("running") else 1)


def test_f34_add_nothing_to_a_batch_that_has_finished(live_db, record):
    batch = batch_of([]).dispatch()
    assert batch.add([]) == 0
    assert ended(batch).total_jobs == 0


def test_f34_the_caller_may_go_on_after_the_refusal(live_db, record):
    """Inside the caller's transaction, which is not broken by it."""
    batch = batch_of([]).dispatch()
    with transaction.atomic():
        with pytest.raises(BatchFinished):
            batch.add([jobs.succeed])
        other = batch_of([jobs.succeed]).dispatch()
    work()
    assert numbers(ended(other)) == (1, 0, 0)
