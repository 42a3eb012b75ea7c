"""The only module that knows RQ and django-rq: enqueue, remove, stop, look up."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import django_rq
from django.conf import settings as django_settings
from redis import Redis, RedisError
from rq import Callback, Queue, Retry
from rq import get_current_job as get_current_rq_job
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job as RQJob
from rq.job import JobStatus as RQStatus
from rq.timeouts import BaseTimeoutException, JobTimeoutException, TimerDeathPenalty, UnixSignalDeathPenalty
from rq.utils import parse_timeout

from django_job_batches.conf import settings

logger = logging.getLogger(__name__)

FUNCTION = "django_job_batches.execution.run_job"
ON_STOPPED = "django_job_batches.execution.stopped"
REDELIVERIES = 3
"""How often RQ brings the same attempt back after a killed horse, a lost host, or bookkeeping that failed."""

QueueError = RedisError
"""What enqueueing raises when Redis is away."""

TimedOut = BaseTimeoutException
"""What a function that exceeds its time limit gets to see."""


@dataclass
class Work:
    """One attempt of a job, as RQ gets it."""

    id: str
    args: tuple[Any, ...]
    description: str
    timeout: int
    at_front: bool = False
    at: datetime | None = None


@lru_cache(maxsize=64)
def _queue(name: str, pid: int) -> Queue:
    return django_rq.get_queue(name, commit_mode="auto")


def queue(name: str) -> Queue:
    """The RQ queue, made once per process; a new one would open a new connection to Redis."""
    return _queue(name, os.getpid())


def forget_queues() -> None:
    """Make the queues anew, as after a change of settings."""
    _queue.cache_clear()


def default_timeout(name: str) -> int:
    """Seconds that the queue allows a job; -1: no limit. Read from the settings: a queue would open a connection."""
    configured = getattr(django_settings, "RQ_QUEUES", {}).get(name, {}).get("DEFAULT_TIMEOUT")
    return int(parse_timeout(configured) or Queue.DEFAULT_TIMEOUT)


# Enqueue

_draining: ContextVar[deque[tuple[Queue, Work]] | None] = ContextVar("draining", default=None)


def enqueue(name: str, works: list[Work]) -> None:
    """Give these to RQ. A synchronous queue runs them now: in a loop, also for work that they release themselves."""
    target = queue(name)
    if target._is_async:
        _push(target, works)
        return
    waiting = _draining.get()
    if waiting is not None:
        waiting.extend((target, work) for work in works)
        return
    _drain(deque((target, work) for work in works))


def _drain(waiting: deque[tuple[Queue, Work]]) -> None:
    token = _draining.set(waiting)
    try:
        while waiting:
            target, work = waiting.popleft()
            # Not enqueue_many(): it saves a synchronous job once more after its run, as queued, for ever
            target.enqueue_job(_job(target, work, RQStatus.QUEUED))
    finally:
        _draining.reset(token)


def _push(target: Queue, works: list[Work]) -> None:
    now = [work for work in works if work.at is None]
    # RQ pushes one after the other to the front: the last one first keeps their order
    ordered = [work for work in now if not work.at_front] + [work for work in reversed(now) if work.at_front]
    if ordered:
        target.enqueue_many([_data(work) for work in ordered])
    for work in works:
        if work.at is not None:
            target.schedule_job(_job(target, work, RQStatus.SCHEDULED), _whole_second(work.at))


def _whole_second(at: datetime) -> datetime:
    """The next one: RQ cuts off fractions, and would begin too early."""
    return at + timedelta(microseconds=-at.microsecond % 1_000_000)


def _data(work: Work) -> Any:
    return Queue.prepare_data(FUNCTION, at_front=work.at_front, **_arguments(work))


def _job(target: Queue, work: Work, status: RQStatus) -> RQJob:
    return target.create_job(FUNCTION, status=status, **_arguments(work))


def _arguments(work: Work) -> dict[str, Any]:
    """What an RQ job of ours is made of, whichever way it is made."""
    return {
        "args": work.args,
        "timeout": _outer_timeout(work),
        "result_ttl": settings.RESULT_TTL,
        "failure_ttl": settings.FAILURE_TTL,
        "description": work.description,
        "job_id": work.id,
        "retry": Retry(max=REDELIVERIES, enqueue_at_front=True),
        "on_stopped": Callback(ON_STOPPED),
    }


def _outer_timeout(work: Work) -> int:
    """RQ's own limit leaves time for the bookkeeping around the function, while the database is away too."""
    return -1 if work.timeout == -1 else work.timeout + int(settings.SETTLE_FOR) * 2 + 60


# Remove, stop

LONG_SCAN = 5_000_000
"""List entries that Redis may compare for the removal of one chunk; above that, workers skip the ids themselves."""


def remove(name: str, ids: list[str]) -> None:
    """Take these out of RQ, because their rows will not run; a worker that has popped one finds it cancelled."""
    target = queue(name)
    scheduled = target.scheduled_job_registry
    scan = target.count * len(ids) <= LONG_SCAN
    with target.connection.pipeline(transaction=False) as pipeline:
        for job_id in ids:
            if scan:
                pipeline.lrem(target.key, 1, job_id)
            pipeline.zrem(scheduled.key, job_id)
            pipeline.delete(RQJob.key_for(job_id))
        pipeline.execute()


def stop(name: str, job_id: str) -> bool:
    """Have the worker kill the horse that runs this job; False if none does."""
    target = queue(name)
    try:
        send_stop_job_command(target.connection, job_id, serializer=target.serializer)
    except (InvalidJobOperation, NoSuchJobError):
        return False
    return True


# The RQ job that is running now


def current_worker_name() -> str:
    job = get_current_rq_job()
    return (job.worker_name or "") if job is not None else ""


def no_more_redeliveries() -> None:
    """The attempt is settled: whatever the function raises now, RQ shows it and does not run the job again."""
    job = get_current_rq_job()
    if job is not None:
        job.retries_left = 0


def runs_elsewhere() -> bool:
    """Whether another execution of the current RQ job, which began before this one, is alive.

    Of two redeliveries that see each other, the older one goes on. Executions whose hash has expired are dead.
    """
    job = get_current_rq_job()
    if job is None:
        return False
    executions = []
    for execution_id in ExecutionRegistry(job.id, job.connection).get_execution_ids():
        try:
            executions.append(Execution.fetch(execution_id, job.id, job.connection))
        except ValueError:
            continue
    executions.sort(key=lambda execution: (execution.created_at, execution.id))
    mine = [execution for execution in executions if getattr(execution, "worker_name", "") == job.worker_name]
    own = mine[-1] if mine else (executions[-1] if executions else None)
    return own is not None and executions[0] is not own


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise ``TimedOut`` in the block after so many seconds; -1: never. RQ's own alarm goes on afterwards."""
    if seconds == -1:
        yield
        return
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        limit = TimerDeathPenalty(seconds, type("JobTimeout", (JobTimeoutException,), {}))  # type: ignore[no-untyped-call]
        with limit:
            yield
        return
    began, handler, remaining = time.monotonic(), signal.getsignal(signal.SIGALRM), signal.alarm(0)
    try:
        with UnixSignalDeathPenalty(seconds, JobTimeoutException):  # type: ignore[no-untyped-call]
            yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            signal.alarm(max(1, remaining - int(time.monotonic() - began)))


# Outcomes that could not be written while the database was away


def _outcome_key(job_id: str) -> str:
    return f"job_batches:outcome:{job_id}"


def stash_outcome(outcome: dict[str, Any]) -> None:
    """Keep how the current RQ job ended, until a redelivery can write it to the database."""
    job = get_current_rq_job()
    if job is not None:
        lifetime = settings.FAILURE_TTL if settings.FAILURE_TTL > 0 else None
        job.connection.set(_outcome_key(job.id), json.dumps(outcome), ex=lifetime)


def stashed_outcome() -> dict[str, Any] | None:
    """What ``stash_outcome()`` kept for the current RQ job."""
    job = get_current_rq_job()
    value = job.connection.get(_outcome_key(job.id)) if job is not None else None
    return json.loads(value) if value else None


def discard_outcome() -> None:
    job = get_current_rq_job()
    if job is not None:
        job.connection.delete(_outcome_key(job.id))


# Once in a while, among all processes


def is_time_for(what: str, seconds: float) -> bool:
    """True for one caller every ``seconds``, whichever process it is in; False too while Redis is away."""
    job = get_current_rq_job()
    connection: Redis = job.connection if job is not None else queue(settings.QUEUE).connection
    try:
        return seconds <= 0 or bool(connection.set(f"job_batches:{what}", 1, nx=True, px=int(seconds * 1000)))
    except RedisError:
        return False


ALIVE = {status.value.encode() for status in (RQStatus.QUEUED, RQStatus.STARTED, RQStatus.SCHEDULED)}


def alive(name: str, ids: list[str]) -> set[str]:
    """Those of these ids that RQ holds and will run, or is running."""
    with queue(name).connection.pipeline(transaction=False) as pipeline:
        for job_id in ids:
            pipeline.hget(RQJob.key_for(job_id), "status")
        statuses = pipeline.execute()
    return {job_id for job_id, status in zip(ids, statuses, strict=True) if status in ALIVE}


def is_retry(value: Any) -> bool:
    """Whether a function has returned RQ's request to run it again."""
    return isinstance(value, Retry)
