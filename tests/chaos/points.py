"""Where a process can be killed between the claim of a job and the last enqueue, numbered in the order of the way.

The functions are wrapped from outside, in the processes of a run alone; the package knows nothing of it.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from django_job_batches import dispatching, execution, outbox, queues, reconciling, retrying, settling, transitions
from tests.processes import Record

BEFORE, AFTER = "before", "after"
POINTS: list[tuple[Any, str, str]] = [
    (transitions, "claim", BEFORE),
    (transitions, "claim", AFTER),
    (settling, "settle", BEFORE),
    (transitions, "settle", AFTER),  # before its commit
    (outbox, "_follow_up", BEFORE),  # after the commit
    (outbox, "push", BEFORE),  # leased
    (queues, "enqueue", AFTER),
    (outbox, "open_nested", BEFORE),
    (outbox, "sweep", BEFORE),
    (outbox, "cancel_jobs", AFTER),
    (outbox, "close_books", BEFORE),
    (outbox, "_follow_up", AFTER),
    (queues, "no_more_redeliveries", BEFORE),
    (queues, "no_more_redeliveries", AFTER),
    (reconciling, "_end_lost", AFTER),
    (outbox, "enqueue_again", BEFORE),
    (dispatching._Dispatch, "_enqueue", BEFORE),
    (dispatching._Dispatch, "_seal", BEFORE),
    (retrying._Rerun, "_queue", AFTER),
    (retrying._Rerun, "fill_nested", AFTER),
]


def name_of(number: int) -> str:
    home, name, when = POINTS[number - 1]
    return f"point {number}: {when} {home.__name__.rpartition('.')[2]}.{name}"


def lay(rate: float) -> None:
    """Let this process kill itself at each point with this probability; its faults are written down before."""
    for number, (home, name, when) in enumerate(POINTS, 1):
        setattr(home, name, _wrapped(getattr(home, name), number, when, rate))


def _wrapped(function: Callable[..., Any], number: int, when: str, rate: float) -> Callable[..., Any]:
    @wraps(function)
    def with_point(*args: Any, **kwargs: Any) -> Any:
        if when == BEFORE:
            _pass(number, rate)
        result = function(*args, **kwargs)
        if when == AFTER:
            _pass(number, rate)
        return result

    return with_point


def _pass(number: int, rate: float) -> None:
    if random.SystemRandom().random() < rate:  # forked processes would share any other
        Record(Path(os.environ["CHAOS_FAULTS"])).write(name_of(number))
        os.kill(os.getpid(), signal.SIGKILL)


# Promises that are broken on purpose


def break_promise(name: str) -> None:
    if name:
        PROMISES[name]()


def _drop_the_fencing() -> None:
    """P8: an attempt settles the row, whatever has happened to it meanwhile."""

    def settle(job: Any, attempt: int, outcome: Any, effects: Any) -> bool:
        row = transitions.jobs_of(effects.using).filter(pk=job.pk)
        current = row.get()
        if current.is_ended and outcome.status not in ("queued", "scheduled"):
            return bool(row.update(status=outcome.status))
        return original(job, current.attempts, outcome, effects)

    original = transitions.settle
    transitions.settle = settle


def _count_before_the_guard() -> None:
    """P1: the lane counts a job as ended whether or not its row changes."""

    def settle(job: Any, attempt: int, outcome: Any, effects: Any) -> bool:
        if outcome.status not in ("queued", "scheduled"):
            transitions.after_end(job, outcome.status, effects)
        rows = transitions.jobs_of(effects.using).filter(pk=job.pk, status="running", attempts=attempt)
        return bool(rows.update(status=outcome.status, finished_at=transitions.timezone.now(), **outcome.changes))

    transitions.settle = settle


def _skip_the_repair() -> None:
    """P6: what was cut off after a commit is not looked for."""
    execution.catch_up = lambda using, batch_id: None
    reconciling._Look._not_enqueued = lambda self: None  # type: ignore[method-assign]
    reconciling._Look._gone = lambda self: None  # type: ignore[method-assign]
    dispatching._Dispatch._enqueue_rest = lambda self: None  # type: ignore[method-assign]


PROMISES: dict[str, Callable[[], None]] = {
    "fencing": _drop_the_fencing,
    "guard": _count_before_the_guard,
    "repair": _skip_the_repair,
}
