"""What a job sees while it runs, and what becomes of what it returns or raises."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from redis import Redis
from rq.command import send_stop_job_command

from django_job_batches import batch_of, current_batch, current_job, execution, job_of, queues
from django_job_batches.models import Batch, BatchJob
from tests import jobs, jobs_semantics
from tests.failures.books import first_item, numbers, rows_of
from tests.in_process import enqueued, work
from tests.models import Effect
from tests.processes import PATIENCE, Record
from tests.semantics.conftest import Runner


def keep(job: Any, **options: Any) -> Any:
    return job_of(job).options(keep_result=True, **options)


# current_batch(), current_job()


def test_inside_a_job(run: Runner, record: Record) -> None:
    """The `Batch`, the `BatchJob`; `None` elsewhere."""
    batch = run(batch_of([job_of(jobs_semantics.reports_itself)], name="mine"))
    job = batch.jobs.get()
    assert record.lines() == [f"{batch.pk} {job.pk} running 1 {job.rq_job_id}"]
    assert (current_batch(), current_job()) == (None, None)


def test_inside_a_forked_horse_an_async_job_and_an_atomic_one(run_forking: Runner, record: Record) -> None:
    who = job_of(jobs_semantics.whoami, "who")
    items = [who, job_of(jobs_semantics.whoami_async, "who"), who.options(atomic=True)]
    run_forking(batch_of(items, name="mine"))
    assert record.lines() == ["who mine item 1"] * 3


def test_the_batch_of_a_job_can_be_read_and_written(run: Runner) -> None:
    batch = run(batch_of([jobs_semantics.notes_in_metadata], name="mine", metadata={"site": 1}))
    assert batch.metadata == {"site": 1, "seen by": "mine"}


# Results


def test_kept_results(run: Runner) -> None:
    """`keep_result=True`: a JSON-serializable return value is stored, `None` too; without it nothing is."""
    batch = run(
        batch_of(
            [
                keep(jobs_semantics.nothing),
                job_of(jobs.succeed, 1),
                keep(jobs.fail),
                keep(job_of(jobs.echo, (1,)).func),
            ],
            allow_failures=1,
        )
    )
    assert list(batch.results()) == [None, {"args": [], "kwargs": {}}]
    assert list(batch.jobs.order_by("position").values_list("has_result", flat=True)) == [True, False, False, True]


def test_results_come_in_the_order_of_the_items(run_queued: Runner) -> None:
    items = [job_of(jobs.succeed, n).options(keep_result=True, at_front=n % 2 == 0) for n in range(6)]
    assert list(run_queued(batch_of(items)).results()) == list(range(6))


def test_a_retry_of_rqs_own_is_no_result(run: Runner) -> None:
    """A function that returns `rq.Retry` fails, with a hint, instead of running again behind the batch's back."""
    batch = run(batch_of([jobs_semantics.returns_a_retry]))
    [group] = batch.errors()
    assert (group.error_class, "retry=" in group.error_message) == ("TypeError", True)


# Exceptions


@pytest.mark.parametrize(
    ("text", "stored"), [("nul \0 byte", "nul \\x00 byte"), ("half \ud800", "half \\ud800"), ("emoji 🙂", "emoji 🙂")]
)
def test_every_database_stores_the_error(run_queued: Runner, monkeypatch: Any, text: str, stored: str) -> None:
    monkeypatch.setattr("tests.jobs.succeed", lambda n=0: jobs_semantics.says(text))
    batch = run_queued(batch_of([job_of("tests.jobs.succeed")]))
    [group] = batch.errors()
    assert group.error_message == stored


def test_errors_are_cut_to_a_set_length(run_queued: Runner, settings: Any) -> None:
    """The exception's class, its message and the end of its traceback."""
    settings.JOB_BATCHES = {"MAX_ERROR_LENGTH": 200}
    run_queued(
        batch_of([job_of(jobs_semantics.says, "word " * 100), job_of(jobs_semantics.says, "short")], allow_failures=2)
    )
    long, short = BatchJob.objects.order_by("pk")
    assert (len(long.error_message), long.error_message[:5]) == (200, "word ")
    assert len(long.traceback) <= 200 and len(short.traceback) <= 200
    assert short.traceback.endswith("ValueError: short\n")


def test_what_is_raised_besides_exceptions(run_forking: Runner, record: Record) -> None:
    """`sys.exit()` in a job, and an exception without words, are failures like others."""
    batch = run_forking(
        batch_of([jobs_semantics.leaves, jobs_semantics.unprintable, job_of(jobs.succeed, 1)], allow_failures=2)
    )
    classes = [job.error_class for job in batch.jobs.order_by("position")]
    assert classes == ["SystemExit", "tests.jobs_semantics.UnprintableError", ""]
    assert numbers(batch) == (1, 2, 0)


def test_a_function_that_is_gone(run: Runner) -> None:
    """...when its turn comes: a failure that says so."""
    with pytest.raises(ValueError, match="cannot be imported"):
        job_of("tests.jobs.gone")
    jobs_semantics.passing = jobs.succeed
    description = batch_of([job_of("tests.jobs_semantics.passing"), jobs.succeed], allow_failures=1)
    del jobs_semantics.passing
    batch = run(description)
    assert rows_of(batch) == ["failed", "succeeded"]
    assert "passing" in batch.errors()[0].error_message


def test_rq_shows_a_failure_and_does_not_try_again(run_forking: Runner, record: Record) -> None:
    from rq.job import Job
    from rq.registry import FailedJobRegistry

    batch = run_forking(batch_of([jobs.fail], on_failure=job_of(jobs.succeed, 1)))
    queue = queues.queue("default")
    [job_id] = FailedJobRegistry(queue=queue).get_job_ids()
    assert job_id == batch.jobs.get(role="item").rq_job_id
    result = Job.fetch(job_id, connection=queue.connection).latest_result()
    assert result is not None and result.exc_string is not None and "ValueError: boom" in result.exc_string
    assert record.count("fail") == 1


# Coroutines


@pytest.mark.parametrize("path", ["aio_behind_a_decorator", "aio_object"])
def test_a_coroutine_of_what_is_no_coroutine_function(run: Runner, record: Record, path: str) -> None:
    batch = run(batch_of([job_of(f"tests.jobs_semantics.{path}", 3).options(keep_result=True)]))
    assert (list(batch.results()), record.lines()) == ([3], ["aio 3"])


def test_a_coroutine_function_that_fails_or_takes_too_long(run: Runner) -> None:
    late = job_of(jobs_semantics.oversleeps_async).options(timeout=1)
    batch = run(batch_of([jobs_semantics.fails_async, late, keep(jobs.aio)], allow_failures=2))
    classes = [job.error_class for job in batch.jobs.order_by("position")]
    assert classes[0] == "ValueError" and "Timeout" in classes[1] and classes[2] == ""
    assert list(batch.results()) == [0]


# atomic=True


@pytest.mark.parametrize("atomic", [True, False])
def test_body_and_bookkeeping_commit_in_one_transaction(run: Runner, atomic: bool) -> None:
    batch = run(batch_of([keep(jobs_semantics.is_inside_a_transaction, atomic=atomic)]))
    assert list(batch.results()) == [atomic]


def test_an_atomic_job_leaves_no_effects_of_what_fails(run: Runner, record: Record) -> None:
    """...of each failed attempt; it has retries, gives up, keeps results like others."""
    flaky = job_of(jobs_semantics.effect_until, 2).options(atomic=True, retry=2, keep_result=True)
    batch = run(
        batch_of([flaky, job_of(jobs_semantics.effect_then_give_up).options(atomic=True, retry=5)], allow_failures=1)
    )
    assert (numbers(batch), list(batch.results())) == ((1, 1, 0), ["third time"])
    assert list(Effect.objects.values_list("name", flat=True)) == ["third time"]
    assert [job.attempts for job in batch.jobs.order_by("position")] == [3, 1]


@pytest.mark.vendors("postgresql", "mariadb")
def test_an_atomic_job_whose_attempt_was_settled_by_somebody_else(run_queued: Runner) -> None:
    """P8: it is rolled back as a whole. (On SQLite nobody else can write meanwhile.)"""
    batch = run_queued(batch_of([job_of(jobs_semantics.settled_while_it_writes).options(atomic=True)]))
    assert (batch.status, rows_of(batch), Effect.objects.count()) == ("failed", ["failed"], 0)
    assert batch.jobs.get().error_class == "django_job_batches.exceptions.WorkerLost"


def test_a_lost_atomic_job_runs_again(run_forking: Runner, record: Record) -> None:
    """It has left no effects, and runs again in the same way."""
    batch = run_forking(batch_of([job_of(jobs_semantics.effect_then_die, 2).options(atomic=True)]))
    assert (batch.status, Effect.objects.count(), record.count("effect_then_die")) == ("succeeded", 1, 3)
    job = batch.jobs.get()
    assert (job.attempts, job.losses, job.error_class) == (3, 2, "")


def test_a_lost_job_is_one_failed_attempt_among_others(run_forking: Runner, record: Record) -> None:
    """It runs again if it has retries left; a callback too."""
    dies = job_of(jobs_semantics.effect_then_die, 1)
    batch = run_forking(batch_of([dies.options(retry=1)], on_success=dies, on_finish=job_of(jobs.succeed, 1)))
    assert (batch.status, rows_of(batch, "on_success")) == ("succeeded", ["succeeded"])
    batch = run_forking(batch_of([jobs.succeed], on_success=jobs.kill_self, on_finish=job_of(jobs.succeed, 2)))
    assert (batch.status, rows_of(batch, "on_success")) == ("succeeded", ["failed"])
    assert record.lines()[-2:] == ["kill_self", "succeed 2"]


# Double deliveries


def test_double_enqueues_and_late_duplicates_are_harmless(run_queued: Runner, record: Record) -> None:
    """The claim is a conditional UPDATE: what was claimed, has ended or is not there yet is passed over."""
    batch = batch_of([job_of(jobs.succeed, 1), job_of(jobs.succeed, 2)]).dispatch()
    job = first_item(batch)
    for attempt in (2, 1, 1, 2, 99):
        execution.run_job("default", job.pk, attempt)
    execution.run_job("default", 0, 1)
    assert record.lines() == ["succeed 1"]
    work()
    assert record.lines() == ["succeed 1", "succeed 2"]
    assert numbers(run_queued.on(batch)) == (2, 0, 0)


def test_a_callback_or_link_that_comes_before_its_time_does_not_run(run_queued: Runner, record: Record) -> None:
    batch = batch_of([job_of(jobs.succeed, 1)], on_success=job_of(jobs.succeed, 2)).dispatch()
    callback = batch.jobs.get(role="on_success")
    execution.run_job("default", callback.pk, 1)
    assert record.lines() == []
    waiting = batch_of([batch_of([], on_finish=jobs.succeed), jobs.fail]).dispatch()
    assert waiting.jobs.count() == 2
    run_queued.on(batch)
    assert record.lines()[0] == "succeed 1"


def test_nothing_is_left_open_after_a_job(run: Runner) -> None:
    run(batch_of([job_of(jobs.leave_transaction_open), jobs.succeed], allow_failures=1))
    assert not connection.in_atomic_block
    assert (Effect.objects.count(), enqueued()) == (0, [])
    assert Batch.objects.get().status == "succeeded"


# What ends otherwise


def test_a_result_that_json_cannot_hold_fails_the_job(run: Runner) -> None:
    batch = run(batch_of([keep(jobs_semantics.unserializable)]))
    assert batch.errors()[0].error_class == "TypeError"


@pytest.mark.parametrize("body", [jobs_semantics.overslept, jobs_semantics.sleeps_in_transaction])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_time_out_is_a_failed_attempt(run: Runner, record: Record, body: Any, atomic: bool) -> None:
    """Inside the user's transaction too, which does not take the record of the failure down with it."""
    batch = run(batch_of([job_of(body).options(timeout=1, atomic=atomic)], on_failure=job_of(jobs.succeed, 1)))
    assert batch.status == "failed"
    assert "JobTimeout" in batch.errors()[0].error_class
    assert (Effect.objects.count(), record.lines()) == (0, ["overslept", "succeed 1"])


def test_a_late_outcome_is_refused(live_db: None, record: Record, caplog: pytest.LogCaptureFixture) -> None:
    """Of an older attempt (fencing by `attempts`): nothing is counted, nothing is written."""
    batch = batch_of([jobs_semantics.settled_by_somebody], queue_name="sync").dispatch()
    batch.refresh_from_db()
    assert (batch.pending_jobs, batch.status) == (1, "running")
    assert "too late" in caplog.text


def test_stopped_by_somebody_else(workers: Any, record: Record, redis: Redis, wait_until: Any) -> None:
    """By the stop button of django-rq: failed, "stopped"."""
    batch = batch_of([job_of(jobs.sleep, 60)], on_failure=jobs.succeed).dispatch()
    workers()
    wait_until(lambda: record.count("sleep begins"))
    send_stop_job_command(redis, batch.jobs.get(role="item").rq_job_id)
    batch.wait(timeout=PATIENCE)
    batch.refresh_from_db()
    assert (batch.status, batch.errors()[0].error_message) == ("failed", "stopped")
    assert record.count("sleep ends") == 0
