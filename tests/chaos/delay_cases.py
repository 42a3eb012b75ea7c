"""What happens, and when it counts as noticed: at least one case for each row of the table in docs/recovery.md."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rq.command import send_stop_job_command

from tests.chaos.delay_scene import Scene
from tests.processes import wait_until

Happens = Callable[[Scene], None]
Noticed = Callable[[Scene], bool]

SIMPLE = "rq.SimpleWorker"

# When it is noticed


def found(query: str) -> Noticed:
    """When the query finds something."""

    def is_noticed(scene: Scene) -> bool:
        rows = scene.rows(query)
        return bool(rows) and rows[0][0] is not None

    return is_noticed


BATCH = "FROM django_job_batches_batch WHERE name = 'measured'"
JOBS = f"FROM django_job_batches_batchjob WHERE batch_id = (SELECT id {BATCH}) AND status"
FINISHED = f"SELECT finished_at {BATCH}"

ended = found(FINISHED)
totals_written = found(f"SELECT final_counts {BATCH}")
item_succeeded = found(f"SELECT finished_at {JOBS} = 'succeeded' AND role = 'item'")
callback_succeeded = found(f"SELECT finished_at {JOBS} = 'succeeded' AND role = 'on_finish'")


def all_ended(scene: Scene) -> bool:
    return all(finished_at is not None for [finished_at] in scene.rows(FINISHED))


def ended_and_stopped(scene: Scene) -> bool:
    """The job, and its worker."""
    return ended(scene) and not scene.workers[0].is_alive


def refused(scene: Scene) -> bool:
    """What was requeued has gone through a worker, and neither ran nor changed its row."""
    query = "SELECT status, attempts FROM django_job_batches_batchjob WHERE func = 'tests.jobs.fail'"
    if scene.client().hget(f"rq:job:{scene.noted}", "status") != b"finished":
        return False
    return scene.rows(query) == [("failed", 1)] and scene.record.count("fail") == 1


def too_late(scene: Scene) -> bool:
    """The horse has come to its end, and the row says what it said."""
    query = "SELECT status FROM django_job_batches_batchjob WHERE func = 'tests.jobs.sleep'"
    return not scene.workers[0].horses() and scene.rows(query) == [("failed",)]


# Horses


def horse_killed(scene: Scene) -> None:
    scene.worker_at_work().kill_horse()


def horse_ends_silently(scene: Scene) -> None:
    scene.worker()
    scene.worker()
    scene.dispatch("job_of(jobs_failures.end_silently)")
    scene.wait_for("end_silently")


def time_limit_ignored(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs_failures.sleep_without_alarm, 3000).options(timeout=1)")
    scene.wait_for("sleep_without_alarm")


# Workers


def worker_and_horse_killed(scene: Scene) -> None:
    first = scene.worker_at_work()
    scene.worker()
    first.kill_all()


def worker_killed(scene: Scene, seconds: int = 3000) -> None:
    first = scene.worker_at_work(seconds)
    scene.worker()
    first.kill()


def worker_killed_and_job_ends(scene: Scene) -> None:
    worker_killed(scene, 20)
    scene.let_others_begin()
    scene.wait_for("sleep ends")


def worker_killed_and_job_ends_late(scene: Scene) -> None:
    worker_killed(scene, 150)
    scene.watch()
    scene.let_others_begin()
    wait_until(partial(ended, scene), 145)
    scene.wait_for("sleep ends")


def warm_stop(scene: Scene) -> None:
    worker = scene.worker_at_work(8)
    os.kill(worker.pid, signal.SIGTERM)
    scene.wait_for("sleep ends")


def stopped_as_it_takes(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    kind = scene.way.worker.rpartition(".")[2]
    scene.worker(f"tests.workers.{kind}StoppedAsItTakes").wait()
    scene.worker()


def cold_stop(scene: Scene) -> None:
    first = scene.worker_at_work()
    scene.worker()
    os.kill(first.pid, signal.SIGTERM)
    time.sleep(1.5)
    os.kill(first.pid, signal.SIGTERM)


def popped(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.client().lpop("rq:queue:default")
    scene.worker()


# Redis


def emptied(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.press("clear", on_job=False)
    scene.worker()


def deleted(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.press("delete_job")
    scene.worker()


def evicted(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.client().delete(f"rq:job:{scene.rq_job_id()}")
    scene.worker()


def flushed_while_waiting(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.client().flushall()
    scene.worker()


def flushed_while_running(scene: Scene) -> None:
    """...and another job is for the same worker."""
    scene.worker_at_work(15)
    scene.client().flushall()
    scene.dispatch("job_of(jobs.succeed)")
    scene.wait_for("sleep ends")


def flushed_and_killed(scene: Scene) -> None:
    first = scene.worker_at_work()
    first.kill_all()
    scene.client().flushall()
    scene.worker()


def requeued(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.fail)")
    wait_until(partial(totals_written, scene), 120)
    wait_until(lambda: scene.rq_status() == "failed", 120)
    scene.noted = scene.rq_job_id()
    scene.press("requeue_job")


# Stops


def stopped_on_page(scene: Scene) -> None:
    scene.worker_at_work()
    scene.press("stop_job")


def cancelled_and_stopped(scene: Scene) -> None:
    scene.worker_at_work()
    scene.run("Batch.objects.get(name='measured').cancel(stop_running=True)")


def job_stopped(scene: Scene) -> None:
    scene.worker_at_work()
    scene.run("assert BatchJob.objects.get().stop()")


def stopped_while_settled(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs_failures.stop_me_after_my_commit)", options="on_finish=jobs.succeed")
    scene.wait_for("stop_me_after_my_commit")


def stopped_on_simple_worker(scene: Scene) -> None:
    scene.worker_at_work(8, SIMPLE)
    scene.press("stop_job")
    scene.wait_for("sleep ends")


def cancelled_in_rq(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.run("django_rq.get_queue('default').fetch_job(BatchJob.objects.get().rq_job_id).cancel()")
    scene.worker()


# Processes that die between two steps


def not_pushed(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.succeed)", before="outbox.flush = die")


def dispatcher_dies(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.succeed)", before="dispatching._Dispatch._enqueue = die", streaming=True)


def retry_dies(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.fail)")
    wait_until(partial(totals_written, scene), 120)
    scene.run("retrying._Rerun._queue = die\nBatch.objects.get(name='measured').retry()")


def sweep_dies(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.succeed).options(queue_name='low')")  # nobody claims it
    scene.run("outbox.sweep = die\nBatch.objects.get(name='measured').cancel()")


def totals_not_written(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("", before="outbox.close_books = die")


def no_scheduler(scene: Scene) -> None:
    scene.worker()
    scene.dispatch("job_of(jobs.succeed).options(run_after=timedelta(seconds=1))")


# Servers that are away


def redis_away(scene: Scene) -> None:
    scene.redis.stop()
    scene.dispatch("job_of(jobs.succeed)")
    scene.redis.start()
    scene.worker()


def for_20_seconds(scene: Scene) -> None:
    time.sleep(20)


def until_outcome_waits(scene: Scene) -> None:
    wait_until(lambda: scene.client().keys("job_batches:outcome:*"), 300)


def until_worker_gives_up(scene: Scene) -> None:
    """It tries to write the stop down as long as RQ lets it."""
    wait_until(lambda: scene.rq_status() == "stopped", 300)


def until_rq_gives_up(scene: Scene) -> None:
    """It has brought the attempt back as often as it may."""
    wait_until(lambda: scene.rq_status() == "failed", 600)


def no_database_at_end(away: Happens, scene: Scene) -> None:
    scene.worker_at_work(8)
    scene.server.stop()
    scene.let_others_begin()
    scene.wait_for("sleep ends")
    away(scene)
    scene.server.start()


def no_database_at_stop(away: Happens, scene: Scene) -> None:
    scene.worker_at_work()
    scene.server.stop()
    scene.let_others_begin()
    send_stop_job_command(scene.client(), scene.rq_job_id())
    away(scene)
    scene.server.start()


def no_database_at_claim(away: Happens, scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    held_back = scene.client().lpop("rq:queue:default")
    scene.worker()
    scene.server.stop()
    scene.let_others_begin()
    scene.client().rpush("rq:queue:default", held_back)
    away(scene)
    scene.server.start()


def function_removed(scene: Scene) -> None:
    scene.dispatch("job_of(jobs.succeed)")
    scene.run("BatchJob.objects.update(func='tests.jobs.no_longer_there')")
    scene.worker()


@dataclass
class Case:
    """The clock runs from the end of `happens`, when somebody is there to notice it, until `is_noticed`.

    `only`: it cannot happen to any other kind of worker.
    """

    name: str
    happens: Happens
    is_noticed: Noticed = ended
    has_server: bool = False
    only: str = ""


def _away(at: str, happens: Callable[[Happens, Scene], None], until: str, away: Happens) -> Case:
    return Case(f"the database is away at {at}, {until}", partial(happens, away), has_server=True)


CASES = [
    Case("a horse is killed", horse_killed),
    Case("a horse ends by os._exit(0)", horse_ends_silently),
    Case("a job that blocks SIGALRM exceeds its time (1 s)", time_limit_ignored),
    Case("a worker is killed with its horse", worker_and_horse_killed),
    Case("a worker is killed, its horse goes on for long", worker_killed),
    Case("a worker is killed, its job ends 20 s later", worker_killed_and_job_ends),
    Case("a worker is killed, its job ends 150 s later", worker_killed_and_job_ends_late, too_late),
    Case("a worker is stopped", warm_stop, ended_and_stopped),
    Case("a worker is stopped just as it takes a job", stopped_as_it_takes),
    Case("a worker is stopped twice", cold_stop),
    Case("a worker dies between taking a job and starting it", popped),
    Case('"empty queue": a job that waits', emptied),
    Case('"delete": a job that waits', deleted),
    Case("Redis evicts a job that waits", evicted),
    Case("FLUSHALL: a job that waits", flushed_while_waiting),
    Case("FLUSHALL: a job that runs", flushed_while_running, all_ended),
    Case("FLUSHALL: a job that ran, and its worker died too", flushed_and_killed),
    Case('"requeue" on django-rq\'s pages', requeued, refused),
    Case('"stop" on django-rq\'s pages', stopped_on_page),
    Case("cancel(stop_running=True)", cancelled_and_stopped),
    Case("BatchJob.stop()", job_stopped),
    _away("a stop", no_database_at_stop, "for 20 s", for_20_seconds),
    _away("a stop", no_database_at_stop, "until the worker has given up", until_worker_gives_up),
    Case("a stop while the job is being settled", stopped_while_settled, callback_succeeded),
    Case("a stop on SimpleWorker", stopped_on_simple_worker, only="rq.Worker"),
    Case("cancel() in RQ", cancelled_in_rq),
    Case("a process dies between a commit and its push", not_pushed),
    Case("a streaming dispatch dies: the job of its last chunk", dispatcher_dies, item_succeeded),
    Case("a streaming dispatch dies: the batch", dispatcher_dies),
    Case("a retry dies half-way", retry_dies),
    Case("a process dies between a decision and its sweep", sweep_dies),
    Case("the totals were not written", totals_not_written, totals_written),
    Case("a delayed job is due, without a scheduler", no_scheduler),
    Case("Redis is away at a dispatch", redis_away),
    _away("a job's end", no_database_at_end, "for 20 s", for_20_seconds),
    _away("a job's end", no_database_at_end, "until the outcome waits in Redis", until_outcome_waits),
    _away("a job's end", no_database_at_end, "until RQ has given up", until_rq_gives_up),
    _away("a job's claim", no_database_at_claim, "for 20 s", for_20_seconds),
    _away("a job's claim", no_database_at_claim, "until RQ has given up", until_rq_gives_up),
    Case("a function was removed", function_removed),
]
