"""Bad input is refused at once, by an error that says what to do, and nothing half-made remains."""

from __future__ import annotations

import datetime
import decimal
import functools
import math
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction
from django.utils.translation import gettext_lazy
from redis.exceptions import ConnectionError
from rq import Retry

from django_job_batches import BatchError, batch_of, chain, dispatch_lock, job_of, queues
from django_job_batches.arguments import MAX_DEPTH
from django_job_batches.models import Batch, BatchCounter, BatchJob
from tests import jobs
from tests.failures.books import ended, numbers
from tests.in_process import enqueued, work


class Thing:
    def method(self) -> None:
        """Cannot be imported by a path."""

    @classmethod
    def made(cls) -> None:
        """Cannot be imported by a path either."""


def nothing_is_left(redis: Any) -> bool:
    tables = (Batch, BatchJob, BatchCounter)
    return not any(table.objects.exists() for table in tables) and redis.keys("*") == []


# What to run


def nested() -> Any:
    def inner() -> None:
        """Nested."""

    return inner


@pytest.mark.parametrize(
    ("func", "error", "words"),
    [
        (lambda: None, ValueError, "lambda"),
        (nested(), ValueError, "nested function"),
        ("tests.jobs.no_such_function", ValueError, "cannot be imported"),
        ("no_such_module.function", ValueError, "cannot be imported"),
        ("no_dots", ValueError, "cannot be imported"),
        ("..two.dots", ValueError, "cannot be imported"),
        (".succeed", ValueError, "cannot be imported"),
        ("", ValueError, "cannot be imported"),
        ("tests.jobs.PROC", ValueError, "imported"),
        ("x" * 300 + ".y", ValueError, "longer than 255"),
        (None, TypeError, "module-level function"),
        (7, TypeError, "module-level function"),
        (len([]), TypeError, "without calling it"),
        (functools.partial(jobs.succeed, 1), TypeError, "module-level function"),
        (Thing().method, TypeError, "module-level function"),
        (Thing.made, TypeError, "module-level function"),
        (Thing(), TypeError, "module-level function"),
    ],
)
def test_functions_that_no_worker_could_call(func, error, words):
    with pytest.raises(error, match=words):
        job_of(func)


def test_a_function_that_its_module_does_not_hold(monkeypatch):
    monkeypatch.setattr(jobs, "succeed", jobs.fail)
    func = jobs.fail
    assert job_of(func).func == "tests.jobs.fail"
    with pytest.raises(TypeError, match="func"):
        job_of()  # type: ignore[call-arg]


# Arguments


class Text(str):
    __slots__ = ()


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
DEEP: Any = [1]
DEEPEST: Any = [1]
for _ in range(MAX_DEPTH - 1):
    DEEP, DEEPEST = [DEEP], {"a": DEEPEST}
DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (b"bytes", TypeError, "a bytes, which JSON cannot hold"),
        (bytearray(b"x"), TypeError, "pass text"),
        (math.nan, TypeError, "nan"),
        (math.inf, TypeError, "inf"),
        (-math.inf, TypeError, "inf"),
        ("a\0b", TypeError, "NUL"),
        ("half \ud83d", TypeError, "surrogate"),
        ({1: 2}, TypeError, "only strings as keys"),
        ({None: 2}, TypeError, "only strings as keys"),
        ({"a\0": 2}, TypeError, "NUL"),
        ({1, 2}, TypeError, "pass a list"),
        ((n for n in range(2)), TypeError, "pass a list"),
        (range(3), TypeError, "range"),
        (datetime.date(2024, 1, 1), TypeError, "pass its primary key, or a string"),
        (decimal.Decimal("1.5"), TypeError, "Decimal"),
        (uuid.uuid4(), TypeError, "UUID"),
        (object(), TypeError, "object"),
        (int, TypeError, "the class int"),
        (jobs.succeed, TypeError, "function"),
        (1j, TypeError, "complex"),
        (User(username="x"), TypeError, "pass its primary key"),
        (DEEP, ValueError, "levels deep"),
        (CIRCLE, ValueError, "levels deep"),
        ("x" * 10_000_000, ValueError, "store the data and pass its key"),
        (["é" * 1000] * 600, ValueError, "MAX_ARGUMENTS"),
        (10**5000, ValueError, "cannot be written as JSON"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) or len(value) > 30 else None,
)
def test_arguments_that_cannot_be_stored(value, error, words):
    """Wherever they are: as an argument, by a name, or deep inside of one; and the argument is named."""
    with pytest.raises(error, match=words):
        job_of(jobs.echo, value)
    with pytest.raises(error, match=words):
        job_of(jobs.echo, name=value)
    with pytest.raises(error, match=words):
        job_of(jobs.echo, [1, {"a": [value]}])
    with pytest.raises(error, match=r"argument 2 of tests\.jobs\.echo|the arguments of tests\.jobs\.echo"):
        job_of(jobs.echo, 1, value)


def test_arguments_come_as_they_were_given(live_db, record):
    """What is accepted is stored by each database, and given back unchanged; a tuple becomes a list."""
    given: list[Any] = [
        None, True, False, 0, -1, 2**63, 10**30, 1.5, -0.0, 1e15, 5e-324, "", "é 🐘 \u2028 \\ \" '", "\x01\x7f\ufffe",
        "a" * 100_000, [], {}, [[], {}], {"": 1, "é": {"$": [None]}}, " trailing ",
    ]  # fmt: skip
    deepest = job_of(jobs.echo, DEEPEST, key=DEEPEST)
    kept = job_of(jobs.echo, *given, (1, (2,)), Text("t"), key=given[-2]).options(keep_result=True)
    batch = batch_of([kept, deepest]).dispatch()
    job, other = batch.jobs.order_by("position")
    assert (other.args, other.kwargs) == ([DEEPEST], {"key": DEEPEST})
    expected = [*given, [1, [2]], "t"]
    assert job.args == expected
    assert [type(value) for value in job.args] == [type(value) for value in expected]
    work()
    ended(batch)
    assert list(batch.results()) == [{"args": expected, "kwargs": {"key": given[-2]}}]


def test_results_that_cannot_be_stored_fail_their_job(live_db, record, monkeypatch):
    for number, value in enumerate([b"x", math.nan, "\0", object(), CIRCLE, "x" * 1_100_000, Retry(1)]):
        monkeypatch.setattr(jobs, f"returns_{number}", functools.partial(lambda value: value, value), raising=False)
    items = [job_of(f"tests.jobs.returns_{number}").options(keep_result=True) for number in range(7)]
    batch = batch_of(items, allow_failures=True).dispatch()
    work()
    assert numbers(ended(batch)) == (0, 7, 0)
    assert set(batch.jobs.values_list("error_class", flat=True)) == {"TypeError", "ValueError"}


def test_arguments_that_the_function_does_not_take_fail_their_job(live_db, record):
    batch = batch_of([job_of(jobs.succeed, 1, 2, 3), job_of(jobs.succeed, no=1)], allow_failures=True).dispatch()
    work()
    assert numbers(ended(batch)) == (0, 2, 0)
    assert set(batch.jobs.values_list("error_class", flat=True)) == {"TypeError"}


# Options


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"queue_name": "no such queue"}, ValueError, "configured: default, high, low, sync"),
        ({"queue_name": ""}, ValueError, "RQ_QUEUES"),
        ({"queue_name": []}, TypeError, "name of a queue"),
        ({"timeout": 0}, ValueError, "at least 1"),
        ({"timeout": -2}, ValueError, "-1 for no limit"),
        ({"timeout": 1.5}, TypeError, "whole seconds"),
        ({"timeout": True}, TypeError, "whole seconds"),
        ({"timeout": "60"}, TypeError, "whole seconds"),
        ({"timeout": math.inf}, TypeError, "whole seconds"),
        ({"timeout": math.nan}, TypeError, "whole seconds"),
        ({"timeout": 10**9 + 1}, ValueError, "-1 for no limit"),
        ({"retry": -1}, ValueError, "0 or more"),
        ({"retry": 10**6 + 1}, ValueError, "at most"),
        ({"retry": Retry(10**10)}, ValueError, "at most"),
        ({"retry": Retry(1, interval=10**12)}, ValueError, "intervals"),
        ({"retry": True}, TypeError, "rq.Retry"),
        ({"retry": "3"}, TypeError, "rq.Retry"),
        ({"retry": 1.5}, TypeError, "rq.Retry"),
        ({"at_front": 1}, TypeError, "True or False"),
        ({"atomic": "yes"}, TypeError, "True or False"),
        ({"keep_result": 0}, TypeError, "True or False"),
        ({"on_lost": "ignore"}, ValueError, '"fail" or "retry"'),
        ({"on_lost": True}, ValueError, '"fail" or "retry"'),
        ({"run_after": 60}, TypeError, "aware datetime"),
        ({"run_after": datetime.datetime(2030, 1, 1)}, ValueError, "no time zone"),
        ({"run_after": datetime.timedelta.max}, ValueError, "calendar"),
        ({"run_after": datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)}, ValueError, "calendar"),
        ({"run_after": "tomorrow"}, TypeError, "aware datetime"),
        ({"description": 7}, TypeError, "pass text"),
        ({"description": "a\0b"}, TypeError, "NUL"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_options_that_cannot_work(options, error, words):
    with pytest.raises(error, match=words):
        job_of(jobs.succeed).options(**options)


# Batches


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"allow_failures": -1}, ValueError, "from 0 on"),
        ({"allow_failures": 1.5}, ValueError, "between 0 and 1"),
        ({"allow_failures": -0.1}, ValueError, "between 0 and 1"),
        ({"allow_failures": math.nan}, ValueError, "between 0 and 1"),
        ({"allow_failures": "2"}, TypeError, "a number of items"),
        ({"allow_failures": False}, TypeError, "a number of items"),
        ({"allow_failures": None}, TypeError, "a number of items"),
        ({"allow_failures": 10**19}, ValueError, "allow_failures"),
        ({"name": "n" * 256}, ValueError, "256 characters, more than 255"),
        ({"name": "a\0b"}, TypeError, "NUL"),
        ({"name": None}, TypeError, "pass text"),
        ({"name": 7}, TypeError, "pass text"),
        ({"key": ""}, ValueError, "key is empty"),
        ({"key": "k" * 256}, ValueError, "more than 255"),
        ({"key": 7}, TypeError, "pass text"),
        ({"queue_name": "no such queue"}, ValueError, "RQ_QUEUES"),
        ({"metadata": [1]}, TypeError, "pass a dict"),
        ({"metadata": "x"}, TypeError, "pass a dict"),
        ({"metadata": {"a": b"x"}}, TypeError, "metadata"),
        ({"metadata": {1: 2}}, TypeError, "only strings as keys"),
        ({"metadata": {"a": math.nan}}, TypeError, "nan"),
        ({"metadata": {"a": DEEP}}, ValueError, "levels deep"),
        ({"created_by": "admin"}, TypeError, "saved user"),
        ({"created_by": User(username="new")}, TypeError, "saved user"),
        ({"created_by": AnonymousUser()}, TypeError, "saved user"),
        ({"created_by": 7}, TypeError, "saved user"),
        ({"created_by": Batch()}, TypeError, "saved user"),
        ({"on_finish": "tests.jobs.succeed"}, TypeError, "job_of"),
        ({"on_finish": chain(jobs.succeed)}, TypeError, "wrap a chain in a batch"),
        ({"on_success": [lambda: None]}, ValueError, "lambda"),
        ({"on_failure": 7}, TypeError, "job_of"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_batches_that_cannot_work(options, error, words):
    with pytest.raises(error, match=words):
        batch_of([jobs.succeed], **options)


@pytest.mark.parametrize(
    "items",
    [
        job_of(jobs.succeed),
        jobs.succeed,
        chain(jobs.succeed),
        batch_of([]),
        "tests.jobs.succeed",
        b"x",
        None,
        7,
        {"a": 1},
    ],
    ids=["job", "function", "chain", "batch", "path", "bytes", "None", "number", "dict"],
)
def test_a_single_thing_instead_of_an_iterable(live_db, redis, items):
    with pytest.raises(TypeError, match=r"batch_of\(\) takes an iterable"):
        batch_of(items)
    assert nothing_is_left(redis)
    batch = batch_of([]).dispatch()
    with pytest.raises(TypeError, match=r"add\(\) takes an iterable"):
        batch.add(items)


@pytest.mark.parametrize("item", [None, 7, "tests.jobs.succeed", [jobs.succeed], (jobs.succeed, 1), Thing()])
def test_items_that_are_none(item):
    with pytest.raises(TypeError, match=r"item 2 .* not a job, chain or batch"):
        batch_of([jobs.succeed, item])
    with pytest.raises(TypeError, match=r"link 2 of chain\(\)"):
        chain(jobs.succeed, item)


def deep(levels: int) -> Any:
    tree = batch_of([jobs.succeed])
    for _ in range(levels - 1):
        tree = batch_of([tree])
    return tree


def test_batches_that_are_nested_too_deeply(live_db, redis, record):
    """At the end of the innermost one, all those around it would end in one transaction, by recursion."""
    deep(51).dispatch()
    work()
    assert ended(Batch.objects.get(parent_job=None)).status == "succeeded"
    with pytest.raises(ValueError, match="50 levels") as caught:
        deep(52).dispatch()
    work()
    assert ended(batch_from(caught)).status == "failed"


# What is done to a batch


@pytest.mark.parametrize("by", [AnonymousUser(), "admin", 7, User(username="new")])
def test_who_does_it_is_checked_before_it_is_done(live_db, record, by):
    batch = batch_of([jobs.fail], on_finish=jobs.fail).dispatch()
    with pytest.raises(TypeError, match="by is"):
        batch.cancel(by=by)
    assert not batch.is_cancelled
    work()
    batch.refresh_from_db()
    with pytest.raises(TypeError, match="by is"):
        batch.retry(by=by)
    with pytest.raises(TypeError, match="by is"):
        batch.jobs.get(role="on_finish").retry(by=by)
    assert ended(batch).run == 1


@pytest.mark.parametrize("reason", [None, 7, "a\0b"])
def test_reasons_that_are_no_text(live_db, reason):
    batch = batch_of([jobs.succeed]).dispatch()
    with pytest.raises(TypeError, match="reason"):
        batch.cancel(reason)
    assert batch.cancel(gettext_lazy("wrong file"))
    assert batch.cancel_reason == "wrong file"


@pytest.mark.parametrize("chosen", [[], [1], "all", User.objects.all()])
def test_a_retry_of_what_is_no_queryset_of_jobs(live_db, record, chosen):
    batch = batch_of([jobs.fail]).dispatch()
    work()
    with pytest.raises(TypeError, match="queryset of BatchJob"):
        ended(batch).retry(jobs=chosen)


def test_querysets_delete_whole_batches_and_no_single_jobs(live_db, record):
    for _ in range(2):
        batch_of([jobs.succeed, batch_of([jobs.succeed])]).dispatch()
    with pytest.raises(BatchError, match="has not ended"):
        Batch.objects.all().delete()
    work()
    batch_of([jobs.succeed]).dispatch()
    for doomed in (BatchJob.objects.all(), Batch.objects.finished()[0].jobs.all(), BatchJob.objects.first()):
        with pytest.raises(BatchError, match="with their batch"):
            doomed.delete()
    assert Batch.objects.finished().delete() == (
        14,
        {"django_job_batches.Batch": 4, "django_job_batches.BatchJob": 6, "django_job_batches.BatchCounter": 4},
    )
    assert (Batch.objects.count(), BatchJob.objects.count(), BatchCounter.objects.count()) == (1, 1, 1)


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_lock_that_would_never_be_free(timeout):
    with pytest.raises(ValueError, match="timeout"), dispatch_lock("x", timeout=timeout):
        pass


@pytest.mark.parametrize("user", ["deleted", "saved"])
def test_who_created_a_batch_may_be_gone(live_db, user):
    creator = User.objects.create(username="x")
    description = batch_of([], created_by=creator)
    if user == "deleted":
        User.objects.all().delete()
    batch = description.dispatch()
    assert batch.created_by_id == creator.pk


# Generators


def test_a_generator_that_is_used_twice(live_db, record):
    description = batch_of(job_of(jobs.succeed, n) for n in range(2))
    first = description.dispatch()
    with pytest.raises(ValueError, match="used already"):
        description.dispatch()
    work()
    assert numbers(ended(first)) == (2, 0, 0)
    other = Batch.objects.exclude(pk=first.pk).get()
    assert (other.status, other.is_finished, other.total_jobs) == ("failed", True, 0)
    items = (job_of(jobs.succeed, n) for n in range(2))
    batch_of(items).dispatch()
    with pytest.raises(ValueError, match="used already"):
        batch_of(items).dispatch()


def test_a_list_may_be_used_twice(live_db, record):
    description = batch_of([jobs.succeed])
    batches = [description.dispatch(), description.dispatch()]
    work()
    assert [numbers(ended(batch)) for batch in batches] == [(1, 0, 0)] * 2


def batch_from(caught: Any) -> Batch:
    """The batch that an exception brings along."""
    batch = caught.value.batch
    assert isinstance(batch, Batch)
    return batch


def breaks_off(after: int, error: type[BaseException] = ZeroDivisionError) -> Iterator[Any]:
    for n in range(after):
        yield job_of(jobs.succeed, n)
    raise error("half-way")


@pytest.mark.parametrize("after", [0, 1, 4, 5])
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_generator_that_raises_half_way(live_db, record, settings, after, error):
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}
    description = batch_of(breaks_off(after, error), on_success=jobs.fail, on_failure=jobs.echo, on_finish=jobs.echo)
    with pytest.raises(error, match="half-way") as caught:
        description.dispatch()
    batch = batch_from(caught)
    assert (batch.status, batch.error) == ("failed", f"{error.__name__}: half-way")
    work()
    assert numbers(ended(batch)) == (0, 0, after - after % 2)
    assert record.lines() == ["echo () {}"] * 2


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_generator_whose_error_cannot_be_printed(live_db, record):
    with pytest.raises(UnprintableError) as caught:
        batch_of(breaks_off(1, UnprintableError)).dispatch()
    assert batch_from(caught).error == "UnprintableError: (str() of this exception raised RuntimeError)"
    assert ended(batch_from(caught)).status == "failed"


@pytest.mark.parametrize("after", [0, 3])
def test_a_generator_that_raises_inside_a_transaction(live_db, redis, settings, after):
    """Nothing remains, even if the caller goes on."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}
    with transaction.atomic(), pytest.raises(ZeroDivisionError) as caught:
        batch_of(breaks_off(after), on_failure=jobs.echo).dispatch()
    assert not hasattr(caught.value, "batch")
    assert nothing_is_left(redis)


@pytest.mark.parametrize("item", [None, b"x", lambda: None])
def test_a_generator_that_yields_something_else(live_db, record, item):
    with pytest.raises((TypeError, ValueError)) as caught:
        batch_of(value for value in [jobs.succeed, item]).dispatch()
    assert ended(batch_from(caught)).status == "failed"


def test_a_nested_generator_that_raises_half_way(live_db, record):
    inner = batch_of(breaks_off(1), name="inner", on_finish=jobs.echo)
    with pytest.raises(ZeroDivisionError) as caught:
        batch_of([jobs.succeed, chain(jobs.succeed, inner)], name="outer", on_finish=jobs.echo).dispatch()
    work()
    assert ended(batch_from(caught)).status == "failed"
    assert batch_from(caught).name == "outer"
    assert [batch.is_finished for batch in Batch.objects.all()] == [True, True]
    assert record.count("echo") == 2


def test_a_generator_that_raises_in_add(live_db, record, settings):
    """What was written before it failed is part of the batch, which has failed; if nothing was, it goes on."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}
    batch = batch_of([jobs.succeed], on_finish=jobs.echo).dispatch()
    with pytest.raises(ZeroDivisionError):
        batch.add(breaks_off(1))
    batch.refresh_from_db()
    assert (batch.status, batch.total_jobs) == ("queued", 1)
    with pytest.raises(ZeroDivisionError) as caught:
        batch.add(breaks_off(3))
    assert batch_from(caught).pk == batch.pk
    work()
    assert (ended(batch).status, numbers(batch)) == ("failed", (0, 0, 3))
    assert record.count("echo") == 1


# Redis is down


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py tries each call several times, with pauses, which are what takes long."""
    monkeypatch.setattr("redis.retry.sleep", lambda seconds: None)


def test_redis_down_at_dispatch(live_db, redis, impatient, redis_down, record, caplog):
    """The rows stay, the caller gets the batch and a logged warning, and the next dispatch enqueues what is due."""
    nested = batch_of([job_of(jobs.succeed, 2)])
    with redis_down():
        items = [job_of(jobs.succeed, 1), nested, chain(jobs.fail, jobs.succeed)]
        batch = batch_of(items, allow_failures=True, on_finish=jobs.echo).dispatch()
        assert batch.add([job_of(jobs.succeed, 3)]) == 1
        with transaction.atomic():
            inside = batch_of([job_of(jobs.succeed, 4)]).dispatch()
        empty = batch_of([], on_finish=job_of(jobs.succeed, 5)).dispatch()
    assert "Redis is away" in caplog.text
    assert {entry.levelname for entry in caplog.records} == {"WARNING"}
    assert (batch.status, batch.total_jobs, empty.is_finished) == ("queued", 5, True)
    batch_of([job_of(jobs.succeed, 6)]).dispatch()
    work()
    assert numbers(ended(batch)) == (3, 1, 1)
    assert numbers(ended(inside)) == (1, 0, 0)
    ended(empty)
    assert record.count("echo") == 1
    assert {"succeed 4", "succeed 5", "succeed 6"} < set(record.lines())


def test_redis_down_at_dispatch_and_the_next_job_that_ends(live_db, redis, impatient, redis_down, record):
    with redis_down():
        batch = batch_of([job_of(jobs.succeed, 1)]).dispatch()
    pks = {job.pk for job in BatchJob.objects.all()}
    with pytest.MonkeyPatch.context() as blind:  # a process that dies before it has a look at what else is due
        blind.setattr("django_job_batches.dispatching._Dispatch._enqueue_rest", lambda self: None)
        other = batch_of([job_of(jobs.succeed, 2)]).dispatch()
    assert len(enqueued()) == 1
    work()
    assert numbers(ended(other)) == numbers(ended(batch)) == (1, 0, 0)
    assert pks == {batch.jobs.get().pk}


def test_redis_that_fails_half_way(live_db, record, settings, monkeypatch, caplog):
    """Of several chunks, some reach it: nothing is enqueued twice, nothing is lost."""
    settings.JOB_BATCHES = {"CHUNK_SIZE": 2}
    enqueue, calls = queues.enqueue, []

    def flaky(name: str, works: list[queues.Work]) -> None:
        calls.append(len(works))
        if len(calls) == 2:
            raise ConnectionError("reset by peer")
        enqueue(name, works)

    monkeypatch.setattr(queues, "enqueue", flaky)
    batch = batch_of(job_of(jobs.succeed, n) for n in range(7)).dispatch()
    assert "Redis is away" in caplog.text
    assert len(enqueued()) == len(set(enqueued())) == 7
    work()
    assert numbers(ended(batch)) == (7, 0, 0)
    assert sorted(record.lines()) == [f"succeed {n}" for n in range(7)]


def test_redis_down_when_jobs_are_released_or_called_off(live_db, redis, impatient, redis_down, record):
    batch = batch_of([chain(jobs.succeed, jobs.succeed)], on_finish=jobs.echo).dispatch()
    with redis_down():
        assert batch.cancel("while Redis is away")
    assert (batch.status, batch.is_finished) == ("cancelled", True)
    batch_of([]).dispatch()
    work()
    assert numbers(ended(batch)) == (0, 0, 2)
    assert record.lines() == ["echo () {}"]
