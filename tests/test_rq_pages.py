"""Kind of failure 35: what operators press on django-rq's own pages never breaks a batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import django_rq
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django_rq.settings import get_queues_map
from redis import Redis

from django_job_batches import batch_of, chain, job_of, memory, reconciling
from django_job_batches.models import Batch, BatchJob
from tests import jobs
from tests.failures.books import ended, numbers, rows_of
from tests.in_process import work
from tests.invariants import assert_all_ended
from tests.processes import PATIENCE, Record, wait_until

Press = Callable[..., None]


@pytest.fixture
def press(live_db: None, record: Record, client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Press:
    """`press("delete_job", row)`: the button of that name, on the page of the row's RQ job, or of its queue."""
    settings.JOB_BATCHES = {"LOST_AFTER": 0.2, "RECONCILE_EVERY": 3600}
    monkeypatch.setattr(reconciling, "SECOND_LOOK", 0.05)
    memory.is_time_for("reconciled:default", 3600)
    client.force_login(User.objects.create_superuser("boss"))

    def press(name: str, row: BatchJob | None = None, **data: Any) -> None:
        place = [get_queues_map()["default"], *([row.rq_job_id] if row is not None else [])]
        address = reverse(f"admin:django_rq_{name}", args=place)
        assert client.post(address, {"post": "yes", **data}).status_code == 302

    return press


def after_one_look(batch: Batch) -> Batch:
    """One pass of the reconciler, and the work that it leaves."""
    time.sleep(0.3)
    reconciling.reconcile("default")
    work()
    assert_all_ended()
    return ended(batch)


def a_batch(**options: Any) -> Batch:
    items = [job_of(jobs.succeed, 1), chain(job_of(jobs.succeed, 2), job_of(jobs.succeed, 3))]
    return batch_of(items, on_finish=job_of(jobs.succeed, 9), **options).dispatch()


def test_empty_the_queue(press: Press, record: Record) -> None:
    batch = a_batch()
    press("clear")
    assert django_rq.get_queue("default").count == 0
    assert numbers(after_one_look(batch)) == (3, 0, 0)
    assert sorted(record.lines()) == ["succeed 1", "succeed 2", "succeed 3", "succeed 9"]


def test_delete_a_job(press: Press) -> None:
    batch = a_batch()
    press("delete_job", batch.jobs.get(role="item", position=1))
    assert numbers(after_one_look(batch)) == (3, 0, 0)


def test_delete_many(press: Press) -> None:
    batch = a_batch()
    ids = [row.rq_job_id for row in batch.jobs.filter(status="queued")]
    press("actions", action="delete", job_ids=ids)
    assert numbers(after_one_look(batch)) == (3, 0, 0)


def test_enqueue_what_waits_already(press: Press, record: Record) -> None:
    batch = a_batch()
    press("enqueue_job", batch.jobs.get(role="item", position=0))
    work()
    assert numbers(after_one_look(batch)) == (3, 0, 0)
    assert record.count("succeed") == 4


@pytest.mark.parametrize("how", ["requeue_job", "requeue_all", "actions"])
def test_requeue_what_has_failed(press: Press, record: Record, how: str) -> None:
    """It has ended for its batch, whose callbacks have run: to run it again, retry it in the batch."""
    batch = batch_of([jobs.fail], on_failure=job_of(jobs.succeed, 1), on_finish=job_of(jobs.succeed, 9)).dispatch()
    work()
    row = batch.jobs.get(role="item")
    arguments = {"requeue_job": (row,), "requeue_all": (), "actions": ()}[how]
    press(how, *arguments, action="requeue", job_ids=[row.rq_job_id])
    assert django_rq.get_queue("default").count == 1
    assert after_one_look(batch).status == "failed"
    assert record.lines() == ["fail boom", "succeed 1", "succeed 9"]
    assert batch.retry() == 1
    assert after_one_look(batch).run == 2


def test_requeue_between_two_attempts(press: Press, record: Record) -> None:
    batch = batch_of([job_of(jobs.flaky, "x", 1).options(retry=1)]).dispatch()
    work(at_most=1)
    failed = django_rq.get_queue("default").failed_job_registry.get_job_ids()
    press("actions", action="requeue", job_ids=failed)
    assert numbers(after_one_look(batch)) == (1, 0, 0)
    assert record.count("flaky") == 2


def test_delete_what_has_failed(press: Press) -> None:
    batch = batch_of([jobs.fail]).dispatch()
    work()
    press("delete_failed_jobs")
    assert after_one_look(batch).status == "failed"
    assert batch.retry() == 1


def test_stop_a_running_job(press: Press, record: Record, workers: Any) -> None:
    batch = batch_of([job_of(jobs.sleep, 60), jobs.succeed], allow_failures=1).dispatch()
    workers()
    wait_until(partial(record.count, "sleep begins"))
    press("stop_job", batch.jobs.get(position=0))
    batch.wait(timeout=PATIENCE)
    assert numbers(ended(batch)) == (1, 1, 0)
    assert batch.errors()[0].error_message == "stopped"


def test_delete_a_running_job(press: Press, record: Record, workers: Any) -> None:
    """Its function goes on, and its end counts."""
    batch = batch_of([job_of(jobs.sleep, 2)]).dispatch()
    [worker] = workers()
    wait_until(partial(record.count, "sleep begins"))
    press("delete_job", batch.jobs.get())
    batch.wait(timeout=PATIENCE)
    worker.stop()
    assert (ended(batch).status, rows_of(batch)) == ("succeeded", ["succeeded"])


def test_looking_at_the_pages_brings_abandoned_jobs_back(
    press: Press, record: Record, workers: Any, redis: Redis, client: Client
) -> None:
    """Looking is enough for RQ to clean up its registries, in the web server."""
    batch = batch_of([job_of(jobs.sleep, 60)], on_finish=jobs.succeed).dispatch()
    [worker] = workers()
    wait_until(partial(record.count, "sleep begins"))
    worker.kill_all()
    for member in redis.zrange("rq:wip:default", 0, -1):  # 90 seconds later
        redis.zadd("rq:wip:default", {member: time.time() - 1})
        redis.delete(b"rq:execution:" + member)
    assert client.get(reverse("admin:django_rq_home")).status_code == 200
    work()
    assert ended(batch).errors()[0].error_class == "django_job_batches.exceptions.WorkerLost"
