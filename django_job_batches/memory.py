"""What we keep in Redis besides the jobs: nothing that cannot be lost. The database is the truth."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from redis import Redis

from django_job_batches.conf import settings
from django_job_batches.pulse import pulse
from django_job_batches.queues import QueueError, current_connection, queue

DAY = 86_400
SILENT = "job_batches:silent"


def _shared() -> Redis:
    return queue(settings.QUEUE).connection


# Once in a while, among all processes


def is_time_for(what: str, seconds: float) -> bool:
    """True for one caller every ``seconds``, whichever process it is in; False too while Redis is away."""
    try:
        key = f"job_batches:{what}"
        return seconds <= 0 or bool(current_connection().set(key, 1, nx=True, px=int(seconds * 1000)))
    except QueueError:
        return False


def make_time_soon_for(what: str, seconds: float = 1.0) -> None:
    """Have ``is_time_for()`` say so earlier."""
    with suppress(QueueError):
        current_connection().set(f"job_batches:{what}", 1, px=int(seconds * 1000))


# Outcomes that could not be written while the database was away, for a redelivery to write


def _outcome_key(rq_job_id: str) -> str:
    return f"job_batches:outcome:{rq_job_id}"


def stash_outcome(queue_name: str, rq_job_id: str, report: dict[str, Any]) -> None:
    lifetime = settings.FAILURE_TTL if settings.FAILURE_TTL > 0 else None
    queue(queue_name).connection.set(_outcome_key(rq_job_id), json.dumps(report), ex=lifetime)


def stashed_outcome(queue_name: str, rq_job_id: str) -> dict[str, Any] | None:
    value = queue(queue_name).connection.get(_outcome_key(rq_job_id))
    return json.loads(value) if value else None


def discard_outcome(queue_name: str, rq_job_id: str) -> None:
    queue(queue_name).connection.delete(_outcome_key(rq_job_id))


# Signs of life, of what RQ does not watch


@contextmanager
def kept_alive(names: Collection[Any]) -> Iterator[None]:
    """Say in the block, now and then, that whatever is in ``names`` at that moment lives."""
    with pulse(partial(_say_alive, names, settings.LOST_AFTER), settings.LOST_AFTER / 3):
        yield


def _say_alive(names: Collection[Any], seconds: float) -> bool:
    with suppress(QueueError), _shared().pipeline(transaction=False) as pipeline:
        for name in list(names):
            pipeline.set(f"job_batches:alive:{name}", 1, px=int(seconds * 1000))
        pipeline.execute()
    return True


def is_alive(name: Any) -> bool:
    return bool(_shared().exists(f"job_batches:alive:{name}"))


def silent_for(name: str) -> float:
    """Seconds since this was first asked about something that gave no sign of life; 0 at first."""
    now = time.time()
    with _shared().pipeline(transaction=False) as pipeline:
        pipeline.zremrangebyscore(SILENT, 0, now - DAY)
        pipeline.zadd(SILENT, {name: now}, nx=True)
        pipeline.zscore(SILENT, name)
        return max(0.0, now - float(pipeline.execute()[-1]))


def heard_of(names: Collection[str]) -> None:
    """These have given a sign of life after all, or are dealt with."""
    if names:
        _shared().zrem(SILENT, *names)


# How far the last look came


def remember(what: str, value: str) -> None:
    """For a day; "" forgets it."""
    key = f"job_batches:{what}"
    if value:
        _shared().set(key, value, ex=DAY)
    else:
        _shared().delete(key)


def remembered(what: str) -> str:
    value = _shared().get(f"job_batches:{what}")
    return value.decode() if isinstance(value, bytes) else value or ""
