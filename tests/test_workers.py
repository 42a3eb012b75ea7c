"""`BatchWorker`: what it does earlier, or better, than RQ's own worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest
from redis import Redis

from django_job_batches import batch_of, job_of
from tests import jobs, jobs_failures
from tests.failures.books import ended, has_ended, numbers, rows_of
from tests.invariants import assert_all_ended
from tests.processes import BATCH_WORKER, PATIENCE, ROOT, Record, wait_until


@pytest.mark.parametrize("worker_class", [BATCH_WORKER, "rq.Worker"])
def test_f07_a_killed_horse(worker_class: str, workers: Any, record: Record) -> None:
    """As by the out-of-memory killer. The batch ends within seconds, with RQ's own worker too."""
    batch = batch_of([jobs.kill_self, job_of(jobs.succeed, 1)], allow_failures=1, on_finish=job_of(jobs.succeed, 2))
    batch = batch.dispatch()
    workers(worker_class=worker_class)
    wait_until(partial(has_ended, batch), timeout=10)
    assert numbers(ended(batch)) == (1, 1, 0)
    assert batch.errors()[0].error_class == "django_job_batches.exceptions.WorkerLost"
    assert record.lines() == ["kill_self", "succeed 1", "succeed 2"]


def test_a_killed_horse_is_settled_by_its_worker(workers: Any, record: Record) -> None:
    """...at once, and RQ does not bring the attempt back for it."""
    batch = batch_of([jobs.kill_self]).dispatch()
    [worker] = workers(worker_class=BATCH_WORKER)
    wait_until(partial(has_ended, batch), timeout=10)
    worker.stop()
    assert_all_ended()
    assert worker.output().count(batch.jobs.get().rq_job_id) >= 1
    assert worker.output().count("default: ") <= 1


@pytest.mark.parametrize("worker_class", [BATCH_WORKER, "rq.Worker"])
@pytest.mark.parametrize("body", [jobs_failures.die_before_settling, jobs_failures.die_after_commit])
def test_f11_a_horse_that_dies_around_its_last_commit(
    body: Any, worker_class: str, workers: Any, record: Record
) -> None:
    """Before it, or between it and the callback's enqueue: the callback runs all the same."""
    batch = batch_of([body], allow_failures=1, on_finish=job_of(jobs.succeed, 2)).dispatch()
    workers(worker_class=worker_class)
    wait_until(partial(has_ended, batch), timeout=10)
    status = "failed" if body is jobs_failures.die_before_settling else "succeeded"
    assert rows_of(ended(batch)) == [status]
    assert record.lines() == [body.__name__, "succeed 2"]


def test_a_lost_neighbour_is_noticed_by_an_idle_worker(workers: Any, record: Record, redis: Redis) -> None:
    """By one that RQ would let sleep for minutes."""
    env = {"DJANGO_SETTINGS_MODULE": "tests.settings_restless"}
    batch = batch_of([job_of(jobs.sleep, 60)], on_finish=jobs.succeed).dispatch()
    [neighbour] = workers(worker_class=BATCH_WORKER, env=env)
    wait_until(partial(record.count, "sleep begins"))
    workers(worker_class=BATCH_WORKER, env=env)
    neighbour.kill_all()
    for member in redis.zrange("rq:wip:default", 0, -1):
        redis.zadd("rq:wip:default", {member: time.time() - 1})  # 90 seconds later
    wait_until(partial(has_ended, batch))
    assert ended(batch).errors()[0].error_class == "django_job_batches.exceptions.WorkerLost"


@pytest.mark.vendors("postgresql", "mariadb")
def test_f36_no_connection_is_handed_down(workers: Any, record: Record) -> None:
    """Kind of failure 36, after everything that makes the worker itself use the database."""
    env = {"DJANGO_SETTINGS_MODULE": "tests.settings_restless"}
    items = [jobs.kill_self, *[jobs_failures.name_connection] * 5]
    batch = batch_of(items, allow_failures=1).dispatch()
    workers(worker_class=BATCH_WORKER, env=env)
    wait_until(partial(has_ended, batch))
    lines = [line for line in record.lines() if line.startswith("connection")]
    assert len({line.split()[1] for line in lines}) == 5


def test_in_a_pool(live_db: None, record: Record) -> None:
    batch = batch_of([job_of(jobs.succeed, n) for n in range(4)] + [jobs.kill_self], allow_failures=1).dispatch()
    pool = subprocess.Popen(
        [sys.executable, "-m", "django", "rqworker-pool", "default", "--num-workers=2", "--worker-class", BATCH_WORKER],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        start_new_session=True,
    )
    try:
        wait_until(partial(has_ended, batch))
    finally:
        pool.terminate()
        pool.wait(PATIENCE)
    assert numbers(ended(batch)) == (4, 1, 0)


def test_as_the_setting_of_a_project(live_db: None, record: Record) -> None:
    batch = batch_of([jobs.succeed, jobs.kill_self], allow_failures=1).dispatch()
    done = subprocess.run(
        [sys.executable, "-m", "django", "rqworker", "default", "--burst"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings_restless"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert numbers(ended(batch)) == (1, 1, 0)
