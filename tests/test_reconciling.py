"""The reconciler: what was interrupted, or changed behind the batch's back, is found and brought to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from io import StringIO
from typing import Any

import django_rq
import pytest
from django.core.management import CommandError, call_command
from redis import Redis
from rq.job import Job as RQJob

from django_job_batches import batch_of, chain, job_of, memory, outbox, queues, reconciling, settling
from django_job_batches.models import Batch, BatchJob
from tests import jobs
from tests.failures.books import ended, numbers, rows_of
from tests.in_process import enqueued, work
from tests.invariants import assert_all_ended
from tests.processes import PATIENCE, ROOT, Record, WorkerProcess, wait_until

LOST_AFTER = 0.4


@pytest.fixture(autouse=True)
def soon(live_db: None, record: Record, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is silent for a moment counts as lost; workers of these tests leave it to us to look."""
    settings.JOB_BATCHES = {"LOST_AFTER": LOST_AFTER, "RECONCILE_EVERY": 3600, "CHUNK_SIZE": 3}
    monkeypatch.setattr(reconciling, "SECOND_LOOK", 0.05)
    memory.is_time_for("reconciled:default", 3600)


def reconcile(**options: Any) -> dict[str, int]:
    time.sleep(LOST_AFTER + 0.1)
    return dict(reconciling.reconcile("default", **options))


def rq_job(row: BatchJob) -> RQJob:
    return RQJob.fetch(row.rq_job_id, connection=django_rq.get_connection())


def finish(batch: Batch) -> Batch:
    """Work until nothing is left; the books of everything must be right then."""
    work()
    assert_all_ended()
    return ended(batch)


# Nothing is wrong


def test_nothing_is_found_where_nothing_is_wrong(settings: Any) -> None:
    delayed = job_of(jobs.succeed).options(run_after=timedelta(hours=1))
    batch_of([jobs.succeed] * 4, on_finish=jobs.succeed).dispatch()
    batch_of([delayed, chain(jobs.succeed, batch_of([jobs.succeed]))]).dispatch()
    assert reconcile() == {}
    work()
    assert reconcile() == {}
    assert BatchJob.objects.filter(status="queued").count() == 0


def test_a_job_that_runs_is_let_alone(workers: Any, record: Record) -> None:
    batch = batch_of([job_of(jobs.sleep, 2)]).dispatch()
    workers()
    wait_until(partial(record.count, "sleep begins"))
    assert reconcile() == {}
    batch.wait(timeout=PATIENCE)
    assert (ended(batch).status, record.count("sleep ends")) == ("succeeded", 1)


def test_ten_thousand_ended_rows_cost_nothing(django_assert_max_num_queries: Any) -> None:
    batch = batch_of([jobs.succeed] * 2).dispatch()
    finish(batch)
    with django_assert_max_num_queries(10):
        assert reconcile() == {}


# Rows and RQ


def empty_the_queue(batch: Batch) -> None:
    django_rq.get_queue("default").empty()


def delete_each(batch: Batch) -> None:
    for row in batch.jobs.filter(role="item"):
        rq_job(row).delete()


def flush_redis(batch: Batch) -> None:
    django_rq.get_connection().flushall()


def pop_and_die(batch: Batch) -> None:
    """As a worker of two queues that dies between BLPOP and the start."""
    django_rq.get_connection().delete("rq:queue:default")


def move_and_die(batch: Batch) -> None:
    """As a worker of one queue that dies there."""
    connection = django_rq.get_connection()
    while connection.lmove("rq:queue:default", "rq:queue:default:intermediate"):
        pass


def start_and_die(batch: Batch) -> None:
    """As a worker whose host goes away before the horse has claimed its row."""
    connection = django_rq.get_connection()
    connection.delete("rq:queue:default")
    for row in batch.jobs.filter(role="item"):
        connection.hset(RQJob.key_for(row.rq_job_id), "status", "started")
        connection.zadd("rq:wip:default", {f"{row.rq_job_id}:execution": time.time() - 1})


def fail_before_the_claim(batch: Batch) -> None:
    """As when workers could not even load what we have RQ call."""
    empty = django_rq.get_queue("default")
    for job in empty.get_jobs():
        job.set_status("failed")
    django_rq.get_connection().delete("rq:queue:default")


@pytest.mark.parametrize(
    "how", [empty_the_queue, delete_each, flush_redis, pop_and_die, move_and_die, start_and_die, fail_before_the_claim]
)
def test_f13_jobs_that_have_gone_from_rq_are_enqueued_again(how: Callable[[Batch], None], record: Record) -> None:
    """Kinds of failure 13 and 35: lost between pop and start; "empty queue" and "delete" on django-rq's pages."""
    batch = batch_of([job_of(jobs.succeed, n) for n in range(5)], on_finish=job_of(jobs.succeed, 9)).dispatch()
    how(batch)
    assert reconcile(dry_run=True) == {reconciling.GONE: 5}
    assert reconcile() == {reconciling.GONE: 5}
    assert sorted(enqueued()) == sorted(row.rq_job_id for row in batch.jobs.filter(role="item"))
    assert numbers(finish(batch)) == (5, 0, 0)
    assert sorted(record.lines()) == [f"succeed {n}" for n in (0, 1, 2, 3, 4, 9)]
    assert reconcile() == {}


def test_a_job_in_a_long_queue_is_looked_for(monkeypatch: pytest.MonkeyPatch, redis: Redis) -> None:
    monkeypatch.setattr(queues, "FIRST_LOOK", 2)
    monkeypatch.setattr(queues, "SEARCHES", 2)
    batch = batch_of([job_of(jobs.succeed, n) for n in range(8)]).dispatch()
    redis.lrem("rq:queue:default", 1, batch.jobs.get(position=5).rq_job_id)
    assert reconcile() == {}  # those before it are looked for first
    work(at_most=4)
    assert reconcile() == {reconciling.GONE: 1}
    assert numbers(finish(batch)) == (8, 0, 0)


def test_f35_a_job_that_is_cancelled_in_rq_is_cancelled(record: Record) -> None:
    batch = batch_of([jobs.succeed, job_of(jobs.succeed, 2)], allow_failures=1).dispatch()
    rq_job(batch.jobs.get(position=0)).cancel()
    assert reconcile() == {reconciling.CANCELLED: 1}
    assert numbers(finish(batch)) == (1, 0, 1)
    assert record.lines() == ["succeed 2"]


@pytest.mark.parametrize("runs_before", [False, True])
def test_f35_requeue_on_the_pages_of_rq(runs_before: bool, record: Record) -> None:
    """A job that has failed and is requeued there has ended for its batch: the claim refuses it."""
    batch = batch_of([jobs.fail], on_failure=jobs.succeed).dispatch()
    work(at_most=1)
    failed = rq_job(batch.jobs.get(role="item"))
    if runs_before:
        work()
    failed.requeue()
    assert ended(finish(batch)).status == "failed"
    assert sorted(record.lines()) == ["fail boom", "succeed 0"]


def test_f12_rows_that_were_committed_and_not_enqueued(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    with monkeypatch.context() as patches:
        patches.setattr(outbox, "_follow_up", lambda effects: None)
        batch = batch_of([chain(jobs.succeed, jobs.succeed)]).dispatch()
        work()
    assert (rows_of(batch), enqueued()) == (["succeeded", "queued"], [])
    assert reconcile(dry_run=True) == {reconciling.NOT_ENQUEUED: 1}
    assert reconcile() == {reconciling.NOT_ENQUEUED: 1}
    assert numbers(finish(batch)) == (2, 0, 0)


def test_a_lease_whose_owner_died_before_the_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a streaming dispatch does that dies right after the commit of a chunk."""
    with monkeypatch.context() as patches:
        patches.setattr(queues, "enqueue", lambda name, works: None)
        batch = batch_of([jobs.succeed] * 7).dispatch()
    assert reconcile() == {reconciling.GONE: 7}
    assert numbers(finish(batch)) == (7, 0, 0)


def test_a_delayed_job_without_a_scheduler(record: Record) -> None:
    batch = batch_of([job_of(jobs.succeed).options(run_after=timedelta(seconds=1))]).dispatch()
    assert reconcile() == {}
    time.sleep(2)
    assert reconcile() == {reconciling.OVERDUE: 1}
    assert numbers(finish(batch)) == (1, 0, 0)
    assert django_rq.get_queue("default").scheduled_job_registry.count == 0


def test_a_delayed_job_that_has_gone(redis: Redis) -> None:
    batch = batch_of([job_of(jobs.succeed).options(run_after=timedelta(hours=1))]).dispatch()
    redis.delete("rq:scheduled:default")
    assert reconcile() == {reconciling.OVERDUE: 1}
    assert redis.zcard("rq:scheduled:default") == 1
    assert rows_of(batch) == ["scheduled"]


# Workers


def a_horse(workers: Any, record: Record, **options: Any) -> tuple[Batch, WorkerProcess]:
    """One job that sleeps, in a worker of its own."""
    sleep = job_of(jobs.sleep, 60).options(**options)
    batch = batch_of([sleep], on_failure=job_of(jobs.succeed, 1), on_finish=job_of(jobs.succeed, 2)).dispatch()
    worker = workers(1)[0]
    wait_until(partial(record.count, "sleep begins"))
    return batch, worker


def forget_executions(redis: Redis) -> None:
    """As time does: nobody prolongs what the dead worker had said."""
    for key in redis.keys("rq:wip:*"):
        for member in redis.zrange(key, 0, -1):
            redis.zadd(key, {member: time.time() - 1})
    for key in redis.keys("rq:job:*"):
        if redis.type(key) == b"hash" and redis.hexists(key, "last_heartbeat"):
            redis.hset(key, "last_heartbeat", "2020-01-01T00:00:00.000000Z")


def test_f07_worker_and_horse_are_killed(workers: Any, record: Record, redis: Redis) -> None:
    batch, worker = a_horse(workers, record)
    worker.kill_all()
    assert reconcile() == {}  # it had said that it lives
    forget_executions(redis)
    assert reconcile(dry_run=True) == {reconciling.LOST: 1}
    assert reconcile() == {reconciling.LOST: 1}
    batch = finish(batch)
    assert (batch.status, batch.errors()[0].error_class) == ("failed", "django_job_batches.exceptions.WorkerLost")
    assert sorted(record.lines()) == ["sleep begins 60", "succeed 1", "succeed 2"]


@pytest.mark.parametrize("queues", [["default"], ["default", "low"]], ids=["one", "two"])
def test_a_job_that_a_worker_has_just_taken_as_it_is_stopped(queues: list[str], workers: Any, record: Record) -> None:
    """RQ's own worker leaves it behind, in no queue (BatchWorker: see failures/test_restart.py)."""
    batch = batch_of([job_of(jobs.succeed, n) for n in range(3)]).dispatch()
    [worker] = workers(worker_class="tests.workers.WorkerStoppedAsItTakes", queues=queues)
    assert worker.wait() == 0
    work()
    assert rows_of(batch) == ["queued", "succeeded", "succeeded"]
    assert reconcile() == {"gone": 1}
    assert numbers(finish(batch)) == (3, 0, 0)
    assert sorted(record.lines()) == ["succeed 0", "succeed 1", "succeed 2"]


def test_f07_a_lost_job_with_retries_runs_again(workers: Any, record: Record, redis: Redis) -> None:
    batch, worker = a_horse(workers, record, retry=1)
    worker.kill_all()
    forget_executions(redis)
    BatchJob.objects.filter(role="item").update(args=[0])
    assert reconcile() == {reconciling.LOST: 1}
    assert numbers(finish(batch)) == (1, 0, 0)
    job = batch.jobs.get(role="item")
    assert (job.attempts, job.losses) == (2, 1)


def test_f07_redis_is_emptied_under_a_lost_job(workers: Any, record: Record, redis: Redis) -> None:
    """There is nothing left that tells; what stays silent for a while is lost."""
    batch, worker = a_horse(workers, record)
    worker.kill_all()
    redis.flushall()
    assert reconcile() == {reconciling.SUSPECTED: 1}
    assert reconcile() == {reconciling.LOST: 1}
    assert finish(batch).status == "failed"


def test_f27_a_horse_whose_worker_was_killed_comes_too_late(workers: Any, record: Record, redis: Redis) -> None:
    batch = batch_of([job_of(jobs.sleep, 3)]).dispatch()
    [worker] = workers(1)
    wait_until(partial(record.count, "sleep begins"))
    worker.kill()
    forget_executions(redis)
    assert reconcile() == {reconciling.LOST: 1}
    assert ended(batch).status == "failed"
    wait_until(partial(record.count, "sleep ends"))
    time.sleep(0.5)
    batch = ended(batch)
    assert (batch.status, numbers(batch)) == ("failed", (0, 1, 0))


def give_up(row: BatchJob, status: Any) -> None:
    """As RQ does with a job that has ended."""
    job = rq_job(row)
    job.set_status(status)
    django_rq.get_queue("default").failed_job_registry.add(job, 60)
    job.cleanup(60)


def test_a_stop_that_could_not_be_written_down(workers: Any, record: Record, redis: Redis) -> None:
    batch, worker = a_horse(workers, record)
    worker.kill_all()
    give_up(batch.jobs.get(role="item"), "stopped")
    forget_executions(redis)
    assert reconcile() == {reconciling.LOST: 1}
    assert finish(batch).errors()[0].error_message == "stopped"


def test_an_outcome_that_was_kept_in_redis_is_written(workers: Any, record: Record, redis: Redis) -> None:
    """The database was away for so long that all redeliveries failed."""
    batch, worker = a_horse(workers, record)
    worker.kill_all()
    job = batch.jobs.get(role="item")
    memory.stash_outcome("default", job.rq_job_id, {"result": None, "has_result": False})
    give_up(job, "failed")
    forget_executions(redis)
    assert reconcile() == {reconciling.LOST: 1}
    assert finish(batch).status == "succeeded"
    assert redis.keys("job_batches:outcome:*") == []


# Batches

DISPATCHER = """
import django, os, sys, time
django.setup()
from django_job_batches import batch_of, job_of
from tests import jobs

def items():
    for number in range(4):
        yield job_of(jobs.succeed, number)
    yield batch_of([job_of(jobs.succeed, 5)], name="inner")
    print("reading", flush=True)
    time.sleep(float(sys.argv[1]))
    yield job_of(jobs.succeed, 6)

batch_of(items(), name="outer", on_finish=job_of(jobs.succeed, 9)).dispatch()
"""


@pytest.fixture
def dispatcher() -> Iterator[Callable[[float], subprocess.Popen[str]]]:
    """A process that dispatches, and waits so many seconds for its sixth item."""
    started = []

    def start(seconds: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", DISPATCHER, str(seconds)],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings_soon"},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_dispatcher_that_was_killed(dispatcher: Any, record: Record) -> None:
    """What was not written never will be; the batch is called off, and its clean-up runs."""
    process = dispatcher(60)
    process.kill()
    process.wait()
    batch = Batch.objects.get(name="outer")
    assert reconcile(dry_run=True) == {reconciling.SUSPECTED: 1}
    assert reconcile() == {reconciling.BROKEN_OFF: 1}
    batch = finish(batch)
    assert batch.status == "cancelled"
    assert "broken off" in batch.error and "broken off" in batch.cancel_reason
    assert record.lines() == ["succeed 9"]


def test_a_dispatcher_that_waits_long_for_its_items(dispatcher: Any, record: Record) -> None:
    process = dispatcher(2)
    assert [reconcile(), reconcile()] == [{}, {}]
    assert process.wait(PATIENCE) == 0
    assert finish(Batch.objects.get(name="outer")).status == "succeeded"


def test_a_dispatcher_that_sleeps_too_long_is_told_so(dispatcher: Any, record: Record) -> None:
    """Stopped with its machine, say: when it wakes up, its batch is not its own any more."""
    process = dispatcher(0.5)
    process.send_signal(signal.SIGSTOP)
    assert reconcile() == {reconciling.SUSPECTED: 1}
    assert reconcile() == {reconciling.BROKEN_OFF: 1}
    process.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE) == 1
    assert finish(Batch.objects.get(name="outer")).status == "cancelled"
    assert record.lines() == ["succeed 9"]


@pytest.mark.parametrize("after", ["_hold_callbacks", "_queue", "fill_nested"])
def test_a_retry_that_was_broken_off(after: str, monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    """It can be retried again."""
    inner = batch_of([jobs.succeed, jobs.succeed], name="inner")
    items = [job_of(jobs.flaky, "outer", 1), chain(inner, job_of(jobs.succeed, 3)), *[job_of(jobs.succeed, 4)] * 5]
    batch = batch_of(items, on_finish=batch_of([job_of(jobs.succeed, 9)])).dispatch()
    finish(batch)

    class DiedError(BaseException):
        pass

    def die(*args: Any, **options: Any) -> None:
        original(*args, **options)
        raise DiedError

    from django_job_batches.retrying import _Rerun

    original = getattr(_Rerun, after)
    with monkeypatch.context() as patches:
        patches.setattr(_Rerun, after, die)
        with pytest.raises(DiedError):
            ended(batch).retry()
    found = [reconcile(), reconcile(), reconcile()]
    assert sum(look.get(reconciling.BROKEN_OFF, 0) for look in found) >= 1
    batch = finish(batch)
    assert batch.status in ("cancelled", "failed")
    assert (batch.run, batch.error, record.count("succeed 9")) == (2, "", 2)
    assert batch.retry()
    assert finish(batch).status == "succeeded"


def test_a_batch_that_was_cancelled_and_not_swept(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    batch = batch_of([jobs.succeed, batch_of([jobs.succeed] * 2), chain(jobs.succeed, jobs.succeed)]).dispatch()
    with monkeypatch.context() as patches:
        patches.setattr(outbox, "_follow_up", lambda effects: None)
        batch.cancel()
    assert not outbox.is_swept("default", batch.pk)
    assert reconcile() == {reconciling.HALF_CANCELLED: 1}
    assert numbers(finish(batch)) == (0, 0, 4)
    assert record.lines() == []


def test_totals_that_were_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([jobs.succeed]).dispatch()
    with monkeypatch.context() as patches:
        patches.setattr(outbox, "_follow_up", lambda effects: None)
        work()
    assert Batch.objects.get().final_counts is None
    assert reconcile() == {reconciling.OPEN_BOOKS: 1}
    assert numbers(finish(batch)) == (1, 0, 0)


# By itself


def test_it_comes_by_itself_wherever_batch_jobs_run(redis: Redis, record: Record) -> None:
    lost = batch_of([jobs.succeed]).dispatch()
    redis.flushall()
    time.sleep(LOST_AFTER + 0.1)
    other = batch_of([job_of(jobs.succeed, 1)]).dispatch()
    assert numbers(finish(other)) == numbers(ended(lost)) == (1, 0, 0)


def test_it_never_comes_in_a_process_that_is_no_worker(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A synchronous queue may run in a web server."""
    monkeypatch.setattr(reconciling, "look_around", lambda using: pytest.fail("It came."))
    redis.delete("job_batches:reconciled:default")
    batch = batch_of([jobs.succeed], queue_name="sync").dispatch()
    assert ended(batch).status == "succeeded"


def test_f16_a_row_that_cannot_be_mended_stops_nothing(redis: Redis, settings: Any) -> None:
    """Its queue is not configured any more: it is passed over, with a warning."""
    batch = batch_of([jobs.succeed] * 3, queue_name="high").dispatch()
    other = batch_of([jobs.succeed] * 3).dispatch()
    redis.flushall()
    row = batch.jobs.first()
    assert row is not None
    BatchJob.objects.filter(pk=row.pk).update(queue_name="gone")
    assert reconcile() == {reconciling.GONE: 5}
    work("default", "high")
    assert numbers(ended(other)) == (3, 0, 0)
    assert rows_of(batch) == ["queued", "succeeded", "succeeded"]


def test_f16_rows_that_hold_nonsense_stop_nothing(redis: Redis, record: Record) -> None:
    """Written by hand, say: what has the wrong form counts as not given, in workers and on pages too."""
    batch = batch_of([jobs.succeed] * 5, allow_failures=True, on_finish=job_of(jobs.succeed, 9)).dispatch()
    for position, options in enumerate(([], {"retries": "x", "intervals": ["y"], "timeout": {}}, "text")):
        BatchJob.objects.filter(role="item", position=position).update(options=options)
    BatchJob.objects.filter(role="item", position=3).update(args={"a": 1}, kwargs=[2])
    BatchJob.objects.filter(role="item", position=4).update(func="no such path")
    redis.flushall()
    assert reconcile() == {reconciling.GONE: 5}
    assert numbers(finish(batch)) == (3, 2, 0)
    Batch.objects.update(final_counts={"a": "b"})
    assert numbers(Batch.objects.get()) == (3, 2, 0)


def test_f16_times_at_the_end_of_the_calendar_stop_nothing(redis: Redis, record: Record) -> None:
    """They are refused today; a row may be older than that."""
    end = datetime.max.replace(tzinfo=timezone.utc)
    batch_of([job_of(jobs.succeed).options(run_after=timedelta(hours=1))] * 2).dispatch()
    BatchJob.objects.filter(position=0).update(scheduled_at=end)
    redis.flushall()
    reconcile()
    assert redis.zcard("rq:scheduled:default") == 2
    batch = batch_of([job_of(jobs.fail).options(retry=1)]).dispatch()
    BatchJob.objects.filter(batch=batch).update(options={"retries": 1, "intervals": [10**12]})
    work()
    assert rows_of(batch) == ["scheduled"]


def test_f16_a_group_that_cannot_be_enqueued_is_gone_through_one_by_one(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of([jobs.succeed] * 3).dispatch()
    redis.flushall()
    bad = batch.jobs.first()
    assert bad is not None
    work_of = outbox._work

    def fails_for_one(using: str, job: BatchJob) -> Any:
        return work_of(using, job) if job.pk != bad.pk else {}["a row that nobody has thought of"]

    monkeypatch.setattr(outbox, "_work", fails_for_one)
    assert reconcile() == {reconciling.NOT_MENDED: 1, reconciling.GONE: 2}
    assert len(enqueued()) == 2


def test_f16_a_worker_with_a_very_long_name(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    monkeypatch.setattr(queues, "current_worker_name", lambda: "w" * 300)
    assert finish(batch_of([jobs.succeed]).dispatch()).status == "succeeded"


def test_f16_a_row_that_cannot_be_ended_stops_nothing(
    workers: Any, record: Record, redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch, worker = a_horse(workers, record)
    worker.kill_all()
    forget_executions(redis)
    waiting = batch_of([jobs.succeed]).dispatch()
    django_rq.get_queue("default").empty()
    with monkeypatch.context() as patches:
        patches.setattr(settling, "settle", lambda *args: {}["a row that nobody has thought of"])
        assert reconcile() == {reconciling.NOT_MENDED: 1, reconciling.GONE: 1}
    assert "could not be mended" in caplog.text
    assert reconcile() == {reconciling.LOST: 1}
    assert (finish(batch).status, ended(waiting).status) == ("failed", "succeeded")


def test_a_short_look_goes_on_where_the_last_one_ended(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of([jobs.succeed] * 10).dispatch()
    redis.flushall()
    time.sleep(LOST_AFTER + 0.1)
    looks = []
    while not looks or looks[-1]:
        looks.append(reconciling.reconcile("default", seconds=0)[reconciling.GONE])
    assert looks == [3, 3, 3, 1, 0]
    assert numbers(finish(batch)) == (10, 0, 0)


def test_many_at_once(redis: Redis, record: Record, workers: Any) -> None:
    batch = batch_of([job_of(jobs.succeed, n) for n in range(20)]).dispatch()
    redis.flushall()
    time.sleep(LOST_AFTER + 0.1)
    command = [sys.executable, "-m", "django", "reconcile_batches"]
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings_soon"}
    processes = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(PATIENCE) for process in processes] == [0] * 4
    assert len(enqueued()) == len(set(enqueued())) == 20
    assert numbers(finish(batch)) == (20, 0, 0)
    assert len(record.lines()) == 20


# The command


def call(*arguments: str) -> str:
    output = StringIO()
    call_command("reconcile_batches", *arguments, stdout=output, stderr=output)
    return output.getvalue()


def test_the_command_says_what_it_has_found() -> None:
    assert call() == "Nothing was left behind.\n"
    batch = batch_of([jobs.succeed] * 4).dispatch()
    empty_the_queue(batch)
    time.sleep(LOST_AFTER + 0.1)
    assert call("--dry-run").splitlines()[0] == "Nothing was changed. This would be mended:"
    assert call().split() == [
        "4",
        "jobs",
        "had",
        "gone",
        "from",
        "RQ",
        "before",
        "their",
        "start:",
        "enqueued",
        "again",
    ]
    finish(batch)


def test_the_command_for_one_batch_and_what_is_nested_in_it() -> None:
    batch = batch_of([jobs.succeed, batch_of([jobs.succeed] * 2)]).dispatch()
    other = batch_of([jobs.succeed]).dispatch()
    empty_the_queue(batch)
    time.sleep(LOST_AFTER + 0.1)
    assert call("--batch", str(batch.pk)).split()[0] == "3"
    assert call("--batch", str(other.pk)).split()[0] == "1"
    finish(batch)


def test_the_command_refuses_what_it_cannot_do(redis_down: Any) -> None:
    with pytest.raises(CommandError, match="There is no batch"):
        call("--batch", str(uuid.uuid4()))
    with redis_down(), pytest.raises(CommandError, match="Redis is away"):
        call()


def test_the_command_as_a_service() -> None:
    """It goes on through an outage, and ends by SIGTERM."""
    batch = batch_of([jobs.succeed] * 2).dispatch()
    empty_the_queue(batch)
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "reconcile_batches", "--every", "0.2"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings_soon", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(lambda: len(enqueued()) == 2)
    process.terminate()
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert output.splitlines()[-1] == "Stopped."
    assert numbers(finish(batch)) == (2, 0, 0)
