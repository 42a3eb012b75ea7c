"""What is restarted while a batch runs: the database (kind of failure 37), Redis, the workers of a deployment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from redis import Redis

from django_job_batches import batch_of, chain, job_of
from django_job_batches.models import BatchJob
from tests import jobs, jobs_failures
from tests.chaos.servers import DATABASE_SERVERS, DatabaseServer, restart
from tests.failures.books import ended, has_ended, numbers, rows_of
from tests.in_process import work
from tests.invariants import assert_all_ended
from tests.processes import BATCH_WORKER, ROOT, Record, WorkerProcess, wait_until

# The database


class Elsewhere:
    """A database server that belongs to the test, and workers that use it. What the test itself wants there is done
    by processes of their own: it is connected to another one."""

    def __init__(self, server: DatabaseServer, environment: dict[str, str], workers: Callable[..., Any]) -> None:
        self.server = server
        self.environment = environment
        self._workers = workers

    def run(self, code: str) -> Any:
        """Run this code there; returns what it has put into `result`."""
        script = f"import django; django.setup()\n{code}\nimport json; print(json.dumps(result, default=str))"
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def workers(self, **options: Any) -> list[WorkerProcess]:
        return list(self._workers(env=self.environment, **options))

    def rows(self) -> list[list[Any]]:
        """Status, attempts and error of each job, in their order."""
        return list(self.run(
            "from django_job_batches.models import BatchJob\n"
            "result = [list(row) for row in BatchJob.objects.order_by('role', 'position')"
            ".values_list('status', 'attempts', 'error_message')]"
        ))  # fmt: skip


@pytest.fixture
def elsewhere(workers: Any, tmp_path: Path) -> Iterator[Elsewhere]:
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:2]:
        parent.chmod(0o755)  # for the server, which may run as another user
    folder = tmp_path / "server"
    folder.mkdir()
    server = DATABASE_SERVERS[settings.TEST_DATABASE](folder)
    server.start()
    environment = {**server.environment, "TEST_DATABASE_NAME": "elsewhere"}
    environment |= {"DJANGO_SETTINGS_MODULE": "tests.settings"}
    here = Elsewhere(server, environment, workers)
    try:
        here.run("from tests.chaos.report import make_database\nmake_database(); result = None")
        yield here
    finally:
        server.stop(signal.SIGKILL)


DISPATCH = """
from django_job_batches import batch_of, job_of
from tests import jobs
batch = batch_of([job_of(jobs.sleep, 3), *[job_of(jobs.write_effect, str(n)) for n in range(3)]],
                 on_finish=job_of(jobs.succeed, 9)).dispatch()
result = str(batch.pk)
"""


@pytest.mark.vendors("postgresql", "mariadb")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["restarted", "crashed"])
@pytest.mark.parametrize("simple", [False, True], ids=["forking", "simple"])
def test_f37_the_database_is_restarted_while_a_job_runs(
    elsewhere: Elsewhere, record: Record, how: int, simple: bool
) -> None:
    """Its end is written down when the database is back, without running the body again; the worker goes on with
    connections that work."""
    elsewhere.run(DISPATCH)
    elsewhere.workers(simple=simple)
    wait_until(partial(record.count, "sleep begins"))
    elsewhere.server.stop(how)
    wait_until(partial(record.count, "sleep ends"))
    time.sleep(1)  # the job has ended, and there is nobody to tell it to
    elsewhere.server.start()
    wait_until(partial(record.count, "succeed 9"))
    wait_until(lambda: {row[0] for row in elsewhere.rows()} == {"succeeded"})
    assert [row[1] for row in elsewhere.rows()] == [1] * 5
    assert (record.count("sleep begins"), record.count("write_effect")) == (1, 3)


@pytest.mark.vendors("postgresql", "mariadb")
def test_f37_an_idle_worker_survives_a_restart_of_the_database(elsewhere: Elsewhere, record: Record) -> None:
    elsewhere.workers(simple=True)
    elsewhere.run(DISPATCH.replace("jobs.sleep, 3", "jobs.sleep, 0"))
    wait_until(partial(record.count, "succeed 9"))
    restart(elsewhere.server, signal.SIGKILL)
    elsewhere.run(DISPATCH.replace("jobs.sleep, 3", "jobs.sleep, 0"))
    wait_until(lambda: record.count("succeed 9") == 2)
    assert {row[0] for row in elsewhere.rows()} == {"succeeded"}


# The workers


def test_a_warm_stop_lets_the_job_end(workers: Any, record: Record) -> None:
    batch = batch_of([job_of(jobs.sleep, 2), jobs.succeed], on_finish=jobs.echo).dispatch()
    [worker] = workers()
    wait_until(partial(record.count, "sleep begins"))
    assert worker.stop() == 0
    assert (rows_of(batch), record.count("sleep ends")) == (["succeeded", "queued"], 1)
    work()
    assert_all_ended()


def test_a_cold_stop_loses_the_job_and_the_next_worker_goes_on(workers: Any, record: Record, redis: Redis) -> None:
    """SIGTERM twice. RQ notes nothing; the attempt comes back, by its own maintenance or by ours, and is settled."""
    batch = batch_of([job_of(jobs.sleep, 60), jobs.succeed], allow_failures=1, on_finish=jobs.echo).dispatch()
    [worker] = workers()
    wait_until(partial(record.count, "sleep begins"))
    os.kill(worker.pid, signal.SIGTERM)
    time.sleep(1.2)
    assert worker.stop() == 0
    assert rows_of(batch)[0] == "running"
    for member in redis.zrange("rq:wip:default", 0, -1):  # 90 seconds later
        redis.zadd("rq:wip:default", {member: time.time() - 1})
        redis.delete(b"rq:execution:" + member)
    workers()
    wait_until(partial(has_ended, batch))
    assert numbers(ended(batch)) == (1, 1, 0)
    assert batch.errors()[0].error_class == "django_job_batches.exceptions.WorkerLost"


def test_a_deployment_replaces_all_workers_while_a_batch_runs(workers: Any, record: Record) -> None:
    batch = batch_of([job_of(jobs_failures.slow, f"job {n}", 0.2) for n in range(20)], on_finish=jobs.echo).dispatch()
    old = workers(2, worker_class=BATCH_WORKER)
    wait_until(lambda: record.count("job") > 6)
    assert [worker.stop() for worker in old] == [0, 0]
    assert not has_ended(batch)
    workers(2, worker_class=BATCH_WORKER)
    wait_until(partial(has_ended, batch))
    assert numbers(ended(batch)) == (20, 0, 0)
    assert record.count("job") == 40


# RQ takes jobs from several queues in another way than from one.
by_one_queue_and_two = pytest.mark.parametrize("queues", [["default"], ["default", "low"]], ids=["one", "two"])


@by_one_queue_and_two
def test_a_batch_worker_that_is_stopped_while_it_takes_a_job_runs_it(
    queues: list[str], workers: Any, record: Record
) -> None:
    batch = batch_of([jobs.succeed] * 3).dispatch()
    [worker] = workers(worker_class="tests.workers.BatchWorkerStoppedAsItTakes", queues=queues)
    assert worker.wait() == 0
    assert rows_of(batch) == ["succeeded", "queued", "queued"]


@by_one_queue_and_two
def test_an_idle_batch_worker_stops_within_seconds(queues: list[str], workers: Any, record: Record) -> None:
    [worker] = workers(worker_class=BATCH_WORKER, queues=queues)
    time.sleep(0.5)
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 10


def test_a_batch_worker_stops_while_redis_is_away(workers: Any, record: Record, redis: Redis, redis_down: Any) -> None:
    [worker] = workers(worker_class=BATCH_WORKER)
    wait_until(lambda: redis.hget(f"rq:worker:{worker.name}", "state") == b"idle")  # RQ's waits for Redis only then
    with redis_down():
        wait_until(lambda: worker.output().count("could not connect to Redis") > 1 or not worker.is_alive)
        assert worker.is_alive, worker.output()
        worker.stop()


@pytest.mark.parametrize("beat", [2, 3, 4])
def test_a_batch_worker_outlives_redis(beat: int, workers: Any, record: Record, redis_down: Any) -> None:
    """Whatever an idle one was about to ask of Redis: it waits, and goes on with the next one."""
    worker_class = "tests.workers.BatchWorkerThatLosesRedis"
    [worker] = workers(worker_class=worker_class, env={"LOSE_REDIS_AT": str(beat)})
    wait_until(lambda: "could not connect to Redis" in worker.output() or not worker.is_alive)
    assert worker.is_alive, worker.output()
    with redis_down():
        pass  # afterwards there is an empty one
    batch = batch_of([jobs.succeed]).dispatch()
    wait_until(partial(has_ended, batch))


# The code


def test_a_function_that_has_been_renamed_meanwhile(live_db: None, record: Record, monkeypatch: Any) -> None:
    """The job fails, and says so; once the row is put right, it can be retried. New rows have the new name."""
    monkeypatch.setattr(jobs, "old_name", jobs_failures.doomed, raising=False)
    monkeypatch.setattr(jobs_failures.doomed, "__module__", "tests.jobs")
    monkeypatch.setattr(jobs_failures.doomed, "__qualname__", "old_name")
    batch = batch_of([chain(job_of("tests.jobs.old_name"), jobs.succeed)]).dispatch()
    monkeypatch.delattr(jobs, "old_name")
    work()
    assert rows_of(ended(batch)) == ["failed", "cancelled"]
    [error] = batch.errors()
    assert error.error_class == "ImportError"
    assert "old_name" in error.error_message
    BatchJob.objects.filter(func="tests.jobs.old_name").update(func="tests.jobs.succeed")
    assert batch.retry() == 2
    work()
    assert numbers(ended(batch)) == (2, 0, 0)


# Stop commands


def test_a_stop_that_comes_while_the_job_is_settled_changes_nothing(workers: Any, record: Record) -> None:
    """The horse is killed after its commit: what it has written stands."""
    batch = batch_of([jobs_failures.stop_me_after_my_commit], on_finish=job_of(jobs.succeed, 9)).dispatch()
    workers()
    wait_until(partial(has_ended, batch))
    assert numbers(ended(batch)) == (1, 0, 0)
    assert record.lines() == ["stop_me_after_my_commit", "succeed 9"]
