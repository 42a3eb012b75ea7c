"""The only module that knows RQ and django-rq: enqueue, remove, stop, look up."""

from __future__ import annotations

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
from datetime import MAXYEAR, datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

import django_rq
from django.conf import settings as django_settings
from redis import ConnectionError as RedisConnectionError
from redis import Redis, RedisError
from redis import TimeoutError as RedisTimeoutError
from rq import Callback, Queue, Retry
from rq import get_current_job as get_current_rq_job
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.executions import Execution, ExecutionRegistry
from rq.job import Job as RQJob
from rq.job import JobStatus as RQStatus
from rq.results import Result
from rq.timeouts import BaseTimeoutException, JobTimeoutException, TimerDeathPenalty, UnixSignalDeathPenalty
from rq.utils import as_text, parse_timeout, str_to_date

from django_job_batches.conf import settings

logger = logging.getLogger(__name__)

FUNCTION = "django_job_batches.execution.run_job"
ON_STOPPED = "django_job_batches.execution.stopped"
REDELIVERIES = 3
"""How often RQ brings the same attempt back after a killed horse, a lost host, or bookkeeping that failed."""

QueueError = RedisError
"""What enqueueing raises when Redis is away, or refuses something."""

NO_ANSWER = (RedisConnectionError, RedisTimeoutError)
"""Of these, those that say that Redis is away, and so for all of its queues."""

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


def ping() -> None:
    """Raise ``QueueError`` if Redis is away."""
    queue(settings.QUEUE).connection.ping()


Server = tuple[str, ...]
"""Where a Redis is: what tells one from another."""

PLACES = ("URL", "UNIX_SOCKET_PATH", "HOST", "PORT", "SENTINELS", "MASTER_NAME", "USE_REDIS_CACHE")
"""The keys of a queue's settings that say where its Redis is."""


def server(name: str) -> Server:
    """The Redis of this queue."""
    configured = _configured(name)
    return tuple(repr(configured.get(place)) for place in PLACES)


def default_timeout(name: str) -> int:
    """Seconds that the queue allows a job; -1: no limit."""
    return int(parse_timeout(_configured(name).get("DEFAULT_TIMEOUT")) or Queue.DEFAULT_TIMEOUT)


def _configured(name: str) -> dict[str, Any]:
    """The settings of this queue; to ask the queue itself would open a connection."""
    return dict(getattr(django_settings, "RQ_QUEUES", {}).get(name, {}))


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


def hand_over(function: str, args: tuple[Any, ...], *, job_id: str, description: str) -> None:
    """Have a worker of ``JOB_BATCHES["QUEUE"]`` call this function of ours, before everything else that waits there.

    ``job_id``: while an RQ job of this name waits or runs, nothing is added.
    """
    target = queue(settings.QUEUE)
    if job_id in alive(settings.QUEUE, [job_id]):
        return
    target.enqueue_call(
        function,
        args=args,
        timeout=-1,
        result_ttl=settings.RESULT_TTL,
        failure_ttl=settings.FAILURE_TTL,
        description=description,
        job_id=job_id,
        at_front=True,
        retry=Retry(max=REDELIVERIES, enqueue_at_front=True),
    )


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
    fraction = timedelta(microseconds=-at.microsecond % 1_000_000)
    return at + fraction if at.year < MAXYEAR else at


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
    """Take these out of RQ, because their rows will not run; a worker that has popped one finds it cancelled.

    It may have ended since, without any effect: what RQ keeps of that goes too.
    """
    target = queue(name)
    scan = target.count * len(ids) <= LONG_SCAN
    registries = [
        target.scheduled_job_registry,
        target.canceled_job_registry,
        target.finished_job_registry,
        target.failed_job_registry,
    ]
    with target.connection.pipeline(transaction=False) as pipeline:
        for job_id in ids:
            if scan:
                pipeline.lrem(target.key, 1, job_id)
            pipeline.lrem(target.intermediate_queue_key, 1, job_id)
            for registry in registries:
                pipeline.zrem(registry.key, job_id)
            pipeline.delete(RQJob.key_for(job_id), Result.get_key(job_id))  # type: ignore[no-untyped-call]
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


def current_connection() -> Redis:
    """The connection that the current RQ job came by, or else that of the default queue."""
    job = get_current_rq_job()
    return job.connection if job is not None else queue(settings.QUEUE).connection


def is_in_worker() -> bool:
    """Whether a worker runs the current RQ job; a synchronous queue runs it in whatever process enqueues."""
    return bool(current_worker_name())


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


# Where is it? What RQ knows of its jobs

ALIVE = ("queued", "started", "scheduled")
FIRST_LOOK = 20_000
"""So many of the next jobs of a queue are read at once..."""
SEARCHES = 50
"""...and so many of those that are not among them are looked for, each through the whole list."""


@dataclass(frozen=True)
class Whereabouts:
    """``status``: RQ's, "" if it knows no such job. ``seen_at``: when a worker last said that it runs the job;
    ``is_executing``: whether that still holds, by the time that the worker gave itself for saying it again."""

    status: str = ""
    seen_at: datetime | None = None
    is_executing: bool = False


def whereabouts(name: str, ids: list[str]) -> dict[str, Whereabouts]:
    """What RQ knows of these jobs of the queue ``name``; read, never cleaned up."""
    target = queue(name)
    with target.connection.pipeline(transaction=False) as pipeline:
        for job_id in ids:
            pipeline.hmget(RQJob.key_for(job_id), "status", "last_heartbeat")
        pipeline.zrangebyscore(target.started_job_registry.key, time.time(), "+inf")
        *found, executions = pipeline.execute()
    executing = {as_text(entry).partition(":")[0] for entry in executions}
    return {
        job_id: Whereabouts((status or b"").decode(), _moment(seen_at), job_id in executing)
        for job_id, (status, seen_at) in zip(ids, found, strict=True)
    }


def _moment(value: bytes | None) -> datetime | None:
    if not value:
        return None
    moment = str_to_date(value)
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc)


def alive(name: str, ids: list[str]) -> set[str]:
    """Those of these ids that RQ holds and will run, or is running."""
    return {job_id for job_id, where in whereabouts(name, ids).items() if where.status in ALIVE}


def unlisted(name: str, ids: list[str]) -> set[str]:
    """Those of these ids, queued by RQ's own word, that are in no list: a worker died between the pop and the start,
    or somebody has emptied the queue by hand.

    ``ids``: the oldest first. In a long queue, only so many of those that are not among the next jobs are looked for
    at a time: what is lost is older than what waits.
    """
    target = queue(name)
    connection = target.connection
    if not ids:
        return set()
    next_jobs = {as_text(entry) for entry in connection.lrange(target.key, 0, FIRST_LOOK - 1)}
    missing = [job_id for job_id in ids if job_id not in next_jobs]
    if len(next_jobs) < FIRST_LOOK:
        return set(missing)
    return {job_id for job_id in missing[:SEARCHES] if connection.lpos(target.key, job_id) is None}


def unscheduled(name: str, ids: list[str]) -> set[str]:
    """Those of these ids, scheduled by RQ's own word, that its registry does not hold."""
    target = queue(name)
    with target.connection.pipeline(transaction=False) as pipeline:
        for job_id in ids:
            pipeline.zscore(target.scheduled_job_registry.key, job_id)
        return {job_id for job_id, score in zip(ids, pipeline.execute(), strict=True) if score is None}


def is_synchronous(name: str) -> bool:
    """Whether the process that enqueues runs the jobs itself."""
    return not queue(name)._is_async


def is_retry(value: Any) -> bool:
    """Whether a function has returned RQ's request to run it again."""
    return isinstance(value, Retry)
