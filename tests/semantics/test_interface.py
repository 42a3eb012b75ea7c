"""The public interface: names, signatures, exceptions, and what descriptions are."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import django_job_batches
from django_job_batches import BatchError, GiveUp, batch_of, chain, dispatch_lock, items, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs, tasks_of_backport
from tests.processes import Record
from tests.semantics.conftest import Runner

CONTRACT = {
    job_of: "(func, /, *args, **kwargs)",
    job_of(jobs.succeed).options: (
        "(*, queue_name=None, timeout=None, retry=None, at_front=None, description=None, atomic=None, on_lost=None, "
        "run_after=None, keep_result=None)"
    ),
    chain: "(*links)",
    batch_of: (
        "(items, *, name='', on_success=None, on_failure=None, on_finish=None, allow_failures=0, queue_name=None, "
        "key=None, metadata=None, created_by=None)"
    ),
    batch_of([]).dispatch: "(using=None)",
    batch_of([]).adispatch: "(using=None)",
    Batch.add: "(self, items)",
    Batch.cancel: "(self, reason='', by=None, stop_running=False)",
    Batch.retry: "(self, jobs=None, by=None)",
    Batch.wait: "(self, timeout=None, callbacks=True)",
    BatchJob.cancel: "(self)",
    BatchJob.stop: "(self)",
    dispatch_lock: "(name, timeout=10, wait=0)",
}


def bare(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize(("function", "signature"), CONTRACT.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_signatures(function: Callable[..., Any], signature: str) -> None:
    assert bare(function) == signature


def test_the_package_exposes_its_names_without_importing_models() -> None:
    names = ("batch_of, job_of, chain, current_batch, current_job, dispatch_lock, GiveUp, BatchError, BatchFinished, "
             "DuplicateBatch, LockNotAcquired, WorkerLost")  # fmt: skip
    code = f"""
import sys, django_job_batches
assert not [name for name in sys.modules if name.startswith("django_job_batches.")], sys.modules
from django.conf import settings
settings.configure()
from django_job_batches import {names.replace("dispatch_lock, ", "")}
assert "django_job_batches.models" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(names.split(", ")) == set(django_job_batches.__all__)


@pytest.mark.parametrize("name", ["BatchFinished", "DuplicateBatch", "LockNotAcquired", "WorkerLost"])
def test_exceptions_are_batch_errors(name: str) -> None:
    assert issubclass(getattr(django_job_batches, name), BatchError)
    assert not issubclass(GiveUp, BatchError)  # the user's own


def test_what_comes_later_does_not_exist() -> None:
    """...rather than existing without effect."""
    for option in ("max_running", "deadline", "run_after"):
        with pytest.raises(TypeError):
            batch_of([], **{option: 1})
    assert [name for name in ("pause", "resume") if hasattr(Batch, name)] == []
    assert not hasattr(django_job_batches, "chunked")


def test_field_names_that_others_rely_on() -> None:
    batch = "id name status key metadata created_by cancel_reason created_at started_at failed_at cancelled_at"
    job = (
        "id batch role position status func args kwargs queue_name attempts error_class error_message traceback result"
        " worker_name enqueued_at started_at finished_at"
    )
    assert set(f"{batch} finished_at parent_job".split()) <= {field.name for field in Batch._meta.get_fields()}
    assert set(job.split()) <= {field.name for field in BatchJob._meta.get_fields()}
    assert isinstance(BatchJob.rq_job_id, property)


# Descriptions


def test_nothing_is_written_before_the_dispatch(live_db: None, django_assert_num_queries: Any) -> None:
    """A frozen description."""
    with django_assert_num_queries(0):
        description = batch_of([job_of(jobs.succeed), chain(jobs.succeed, jobs.fail)], on_finish=jobs.succeed)
    for one in (description, job_of(jobs.succeed), chain(jobs.succeed)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.items = []  # type: ignore[union-attr, misc]


def test_options_are_a_copy_and_add_up() -> None:
    """...with options."""
    first = job_of(jobs.succeed, 1)
    second = first.options(timeout=5, atomic=True)
    third = second.options(timeout=timedelta(minutes=1), retry=2)
    assert first._options == items.NO_OPTIONS
    assert (second._options.timeout, second._options.retry) == (5, None)
    assert (third._options.timeout, third._options.atomic) == (60, True)
    assert third._options.retry is not None and third._options.retry.max == 2


def test_the_same_description_can_be_dispatched_nested_and_used_again(run: Runner, record: Record) -> None:
    part = batch_of([job_of(jobs.succeed, 1)], name="part", on_finish=job_of(jobs.succeed, 2))
    whole = batch_of([part, part, chain(part, part)], on_success=part, on_finish=[part, part])
    run(part)
    run(whole)
    run(whole)
    assert Batch.objects.filter(name="part").count() == 1 + 7 + 7
    assert record.count("succeed 1") == record.count("succeed 2") == 15


def test_wherever_a_job_is_expected_a_bare_function_or_task_will_do(run: Runner, record: Record) -> None:
    inner = batch_of([jobs.succeed], on_success=jobs.echo, on_failure=jobs.echo, on_finish=tasks_of_backport.echo)
    batch = run(batch_of([jobs.echo, tasks_of_backport.echo, chain(jobs.echo, tasks_of_backport.echo), inner]))
    batch = run(batch_of([], on_finish=[jobs.echo, tasks_of_backport.echo]))
    assert batch.status == "succeeded"
    assert record.count("echo") == 4 + 2 + 2


def test_a_path_will_do_instead_of_a_function(run: Runner, record: Record) -> None:
    batch = run(batch_of([job_of("tests.jobs.succeed", 5), job_of("tests.jobs_semantics.called", "word")]))
    assert record.lines() == ["succeed 5", "word"]
    assert [job.func for job in batch.jobs.order_by("position")] == [
        "tests.jobs.succeed",
        "tests.jobs_semantics.called",
    ]


# Which option holds


def queues_of(description: Any) -> list[str]:
    batch = description.dispatch()
    return list(batch.jobs.order_by("role", "position").values_list("queue_name", flat=True))


def test_precedence_of_the_queue(live_db: None, record: Record, settings: Any) -> None:
    """The options, then the Task's, the batch's, the settings; a Task's queue "default" counts as unset."""
    settings.TASKS = {"default": {"BACKEND": "django_tasks.backends.dummy.DummyBackend", "QUEUES": []}}
    task = tasks_of_backport.echo
    high = task.using(queue_name="high")
    every = [job_of(jobs.succeed).options(queue_name="low"), job_of(high).options(queue_name="low"), high, task]
    assert queues_of(batch_of([*every, jobs.succeed])) == ["low", "low", "high", "default", "default"]
    assert queues_of(batch_of([*every, jobs.succeed], queue_name="sync")) == ["low", "low", "high", "sync", "sync"]
    settings.JOB_BATCHES = {"QUEUE": "high"}
    assert queues_of(batch_of([*every, jobs.succeed])) == ["low", "low", "high", "high", "high"]


def test_the_queue_of_callbacks(live_db: None, settings: Any) -> None:
    """`CALLBACK_QUEUE` (None: the batch's)."""
    callbacks = [jobs.succeed, job_of(jobs.succeed).options(queue_name="default")]
    assert queues_of(batch_of([], queue_name="low", on_finish=callbacks)) == ["low", "default"]
    settings.JOB_BATCHES = {"CALLBACK_QUEUE": "high"}
    assert queues_of(batch_of([], queue_name="low", on_finish=callbacks)) == ["high", "default"]


def test_each_job_runs_in_its_queue(run_queued: Runner, record: Record) -> None:
    from tests.in_process import enqueued, work

    batch = batch_of([job_of(jobs.succeed, 1), job_of(jobs.succeed, 2).options(queue_name="low")]).dispatch()
    here, there = batch.jobs.order_by("position")
    assert (enqueued("default"), enqueued("low")) == ([here.rq_job_id], [there.rq_job_id])
    work("low")
    assert record.lines() == ["succeed 2"]
    run_queued.on(batch)


# Django Tasks

PACKAGES = ["tests.tasks_of_backport"] + ["tests.tasks_of_django"] * bool(importlib.util.find_spec("django.tasks"))


@pytest.fixture(params=PACKAGES)
def tasks(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(request.param)


def test_a_django_task_of_either_package(run: Runner, record: Record, tasks: Any) -> None:
    described = [job_of(tasks.echo, (1, 2), x=None).options(keep_result=True), job_of(tasks.aio, 3)]
    batch = run(batch_of([*described, tasks.echo], on_finish=job_of(tasks.with_context, "word")))
    assert list(batch.results()) == [{"args": [[1, 2]], "kwargs": {"x": None}}]
    callback = batch.jobs.get(role="on_finish")
    assert record.lines()[-1] == f"word:1:{callback.pk}  on_finish 1"
    assert callback.func == f"{tasks.__name__}.with_context"


def test_a_django_task_by_its_path_and_with_a_forking_worker(run_forking: Runner, record: Record, tasks: Any) -> None:
    items = [job_of(f"{tasks.__name__}.echo", 1), job_of(tasks.aio, 2), job_of(tasks.with_context, "word")]
    assert run_forking(batch_of(items)).status == "succeeded"
    assert record.lines()[:2] == ["aio 2", "echo (1,) {}"]  # aio has a priority of 100, and so comes first


def test_the_path_of_a_task_stands_for_the_task(tasks: Any) -> None:
    assert job_of(f"{tasks.__name__}.aio", 2) == job_of(tasks.aio, 2)


def test_a_task_knows_its_attempt(run: Runner, record: Record, tasks: Any, monkeypatch: Any) -> None:
    job = job_of(tasks.with_context, "word").options(retry=1)
    monkeypatch.setattr("tests.jobs_semantics.whoami", lambda text: jobs.flaky(text.partition(":")[2], 9))
    batch = run(batch_of([job]))
    assert [line.split()[1].partition(":")[0] for line in record.lines()] == ["1", "2"]
    assert batch.status == "failed"
