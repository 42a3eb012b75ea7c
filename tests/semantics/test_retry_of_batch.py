"""`Batch.retry()` and `BatchJob.retry()`: a finished batch runs again, a new run."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import transaction

from django_job_batches import BatchError, batch_of, chain, execution, job_of, outbox
from django_job_batches.models import Batch, BatchJob
from django_job_batches.retrying import _Rerun
from tests import jobs, jobs_semantics
from tests.failures.books import numbers, rows_of
from tests.in_process import enqueued, work
from tests.processes import Record
from tests.semantics.conftest import Runner


def note(number: int) -> Any:
    return job_of(jobs.succeed, number)


def flaky(name: str, times: int = 1) -> Any:
    return job_of(jobs.flaky, name, times)


def test_only_what_failed_or_was_cancelled_runs_again(run: Runner, record: Record) -> None:
    """...its failed and cancelled items. Returns how many."""
    batch = run(batch_of([note(1), chain(note(2), flaky("link"), note(3)), flaky("job")], allow_failures=True))
    assert batch.retry() == 3
    batch = run.on(batch)
    assert (batch.run, numbers(batch)) == (2, (5, 0, 0))
    assert [record.count(f"succeed {n}") for n in (1, 2, 3)] == [1, 1, 1]


def test_while_it_runs_again_it_is_as_new(live_db: None, record: Record) -> None:
    """The decisions of the last run are gone, and what has succeeded before counts as done."""
    batch = batch_of([note(1), jobs.fail, note(2)]).dispatch()
    work()
    batch.refresh_from_db()
    assert (batch.status, batch.progress, batch.failed_at is None) == ("failed", 100, False)
    assert batch.retry() == 2
    assert (batch.status, batch.failed_at, batch.finished_at, batch.started_at) == ("queued", None, None, None)
    assert (batch.total_jobs, batch.pending_jobs, batch.failed_jobs, batch.progress) == (3, 2, 0, 33)
    assert batch.add([note(3)]) == 1
    assert batch.cancel("no, not again")
    batch.refresh_from_db()
    assert (batch.status, batch.cancel_reason, numbers(batch)) == ("cancelled", "no, not again", (1, 0, 3))
    assert batch.retry() == 3
    assert (batch.status, batch.cancelled_at, batch.cancel_reason) == ("queued", None, "")


def test_attempts_are_never_reset(run: Runner, record: Record) -> None:
    """...not by `retry()` either; the row keeps the highest attempt it is allowed."""
    batch = run(batch_of([flaky("job", 9).options(retry=1)]))
    ids = [batch.jobs.get().rq_job_id]
    for number in (2, 3, 4):
        assert batch.retry() == 1
        batch = run.on(batch)
        job = batch.jobs.get()
        assert (job.attempts, job.max_attempts, job.run) == (2 * number, 2 * number, number)
        ids.append(job.rq_job_id)
    assert len(set(ids)) == 4
    assert record.count("flaky") == 8


def test_an_outcome_of_an_older_run_is_refused(run_queued: Runner, record: Record) -> None:
    """P8: an outcome that comes late, from an older attempt or an older run, is refused."""
    batch = run_queued(batch_of([flaky("job")]))
    job = batch.jobs.get()
    assert batch.retry() == 1
    batch = run_queued.on(batch)
    for attempt in (1, 2, 3):
        execution.run_job("default", job.pk, attempt)
    assert numbers(run_queued.on(batch)) == (1, 0, 0)
    assert record.count("flaky") == 2


@pytest.mark.parametrize("again", [True, False])
def test_what_is_not_retried_is_judged_again(run: Runner, record: Record, again: bool) -> None:
    """...or those of a queryset of them: the others keep their outcome, and count at the end of the new run."""
    batch = run(batch_of([flaky("0"), flaky("1"), note(2), flaky("3")], allow_failures=1))
    before = numbers(batch)
    assert before == (0, 2, 2) and batch.status == "failed"
    queryset = BatchJob.objects.filter(args__0="0") if again else BatchJob.objects.filter(func="tests.jobs.succeed")
    assert batch.retry(jobs=queryset) == 1
    batch = run.on(batch)
    assert (batch.status, numbers(batch)) == (("succeeded", (1, 1, 2)) if again else ("failed", (1, 2, 1)))


def test_a_queryset_of_others_changes_nothing(run: Runner) -> None:
    """0 changes nothing: rows of other batches, callbacks and what has succeeded are none of its items."""
    other = run(batch_of([jobs.fail]))
    batch = run(batch_of([jobs.fail, jobs.succeed], allow_failures=True, on_finish=jobs.fail))
    for jobs_of_others in (
        BatchJob.objects.filter(batch=other),
        batch.jobs.filter(role="on_finish"),
        batch.jobs.filter(status="succeeded"),
        BatchJob.objects.none(),
    ):
        assert batch.retry(jobs=jobs_of_others) == 0
    batch = run.on(batch)
    assert (batch.run, batch.status, Batch.objects.get(pk=other.pk).run) == (1, "succeeded", 1)


def test_a_sliced_or_ordered_queryset_will_do(run: Runner) -> None:
    batch = run(batch_of([jobs.fail] * 3, allow_failures=True))
    pks = batch.jobs.order_by("-pk").values("pk")
    assert (
        batch.retry(jobs=BatchJob.objects.filter(pk__in=list(pks.values_list("pk", flat=True)[:1])).order_by("-pk"))
        == 1
    )
    assert list(run.on(batch).jobs.order_by("pk").values_list("run", flat=True)) == [1, 1, 2]


def test_one_row(run: Runner, record: Record) -> None:
    """`BatchJob.retry()`: the same for one row."""
    batch = run(batch_of([flaky("0"), flaky("1"), note(2)], allow_failures=True))
    job = batch.jobs.get(position=0)
    assert job.retry()
    batch = run.on(batch)
    job.refresh_from_db()
    assert (job.status, batch.status, numbers(batch)) == ("succeeded", "succeeded", (2, 1, 0))
    assert not job.retry() and not batch.jobs.get(position=2).retry()
    assert run.on(batch).run == 2


# Trees


def tree(times: int) -> Any:
    part = batch_of([note(1), flaky("leaf", times), note(2)], name="part", on_finish=note(3))
    return batch_of([chain(part, batch_of([note(4)], on_success=note(5)), note(6)), note(7)], on_failure=note(8))


def test_a_tree_twice(run: Runner, record: Record) -> None:
    """The root's retry goes down into nested batches."""
    batch = run(tree(2))
    assert batch.status == "failed"
    for _ in range(2):
        assert batch.retry() > 0
        batch = run.on(batch)
    assert (batch.status, batch.run, Batch.objects.get(name="part").run) == ("succeeded", 3, 3)
    counts = {n: record.lines().count(f"succeed {n}") for n in range(1, 9)}
    assert {1, counts[4], counts[5], counts[6], counts[7]} == {1}
    assert (counts[3], counts[8], record.count("flaky")) == (3, 2, 3)


def test_a_tree_with_a_forking_worker(run_forking: Runner, record: Record) -> None:
    batch = run_forking(tree(1))
    assert batch.retry() > 0
    assert run_forking.on(batch).status == "succeeded"


def test_a_part_of_a_tree(run: Runner, record: Record) -> None:
    """A queryset may name the row of a nested batch; what failed in that runs again."""
    parts = [batch_of([flaky(str(n)), note(n)], name=str(n)) for n in range(2)]
    batch = run(batch_of(parts, allow_failures=True))
    assert batch.retry(jobs=batch.jobs.filter(position=1)) == 1
    batch = run.on(batch)
    assert (rows_of(batch), Batch.objects.get(name="0").run) == (["failed", "succeeded"], 1)


def test_a_row_of_a_nested_batch_is_refused_naming_the_root(run: Runner) -> None:
    """Of a nested batch: refused, naming its root."""
    batch = run(batch_of([batch_of([batch_of([jobs.fail], name="inner")])]))
    inner = Batch.objects.get(name="inner")
    for retry in (inner.retry, inner.jobs.get().retry):
        with pytest.raises(BatchError, match=str(batch.pk)):
            retry()
    assert run.on(batch).run == 1


def test_a_batch_that_was_called_off_before_it_began(run_queued: Runner, record: Record) -> None:
    batch = batch_of([chain(note(1), batch_of([note(2)], on_finish=note(3)))], on_finish=note(4)).dispatch()
    batch.cancel()
    batch = run_queued.on(batch)
    assert sorted(record.lines()) == ["succeed 3", "succeed 4"]
    assert batch.retry() == 2
    batch = run_queued.on(batch)
    assert (batch.status, record.lines()[2:]) == ("succeeded", ["succeed 1", "succeed 2", "succeed 3", "succeed 4"])


# Who, and where


def test_who_has_retried_stands_in_the_admins_log(run_queued: Runner) -> None:
    user = User.objects.create(username="operator")
    batch = run_queued(batch_of([jobs.fail], on_failure=jobs.fail))
    assert batch.jobs.get(role="on_failure").retry(by=user)
    batch = run_queued.on(batch, in_order=False)
    assert batch.retry(by=user) == 1
    messages = LogEntry.objects.filter(user=user, object_id=str(batch.pk)).values_list("change_message", flat=True)
    assert sorted(messages) == ["Retried 1 jobs.", "Retried the callback tests.jobs.fail."]


def test_inside_a_transaction_that_is_rolled_back(run_queued: Runner, record: Record) -> None:
    """Nothing reaches Redis before the commit, a rollback leaves nothing."""
    batch = run_queued(batch_of([flaky("job")], on_failure=flaky("callback")))
    with pytest.raises(LookupError), transaction.atomic():
        assert batch.retry() == 1
        raise LookupError
    assert enqueued() == []
    batch = run_queued.on(batch)
    assert (batch.run, batch.status) == (1, "failed")
    with transaction.atomic():
        assert batch.jobs.get(role="on_failure").retry()
        assert enqueued() == []
    assert len(enqueued()) == 1
    batch = run_queued.on(batch)
    with transaction.atomic():
        assert batch.retry() == 1
        assert enqueued() == []
    assert run_queued.on(batch).status == "succeeded"


def test_results_are_those_of_the_last_run(run: Runner, record: Record) -> None:
    kept = flaky("job").options(keep_result=True)
    batch = run(batch_of([kept, job_of(jobs.succeed, 5).options(keep_result=True)], allow_failures=True))
    assert list(batch.results()) == [5]
    batch.retry()
    batch = run.on(batch)
    assert (list(batch.results()), batch.errors()) == (["job", 5], [])


def test_a_job_that_retries_its_own_batch_is_refused(run: Runner) -> None:
    """...while the batch runs: it has not finished."""
    batch = run(batch_of([jobs_semantics.retries_its_batch]))
    [group] = batch.errors()
    assert group.error_class == "django_job_batches.exceptions.BatchError"


def test_it_is_decided_while_its_rows_are_still_being_queued(
    run_queued: Runner, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is queued afterwards is called off all the same, the links of a chain that are not due yet too."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 1}
    batch = run_queued(batch_of([jobs.fail, chain(jobs.fail, jobs.succeed, jobs.succeed)], allow_failures=1))
    queue, chunks = _Rerun._queue, []

    def then_cancel(*args: Any) -> Any:
        chunks.append(queue(*args))
        return chunks[-1]

    def flush(*args: Any, **options: Any) -> int:
        if len(chunks) == 1:
            Batch.objects.get().cancel()
        return original(*args, **options)

    original = outbox.flush
    monkeypatch.setattr(_Rerun, "_queue", then_cancel)
    monkeypatch.setattr(outbox, "flush", flush)
    assert batch.retry() == 4
    assert run_queued.on(batch).status == "cancelled"
