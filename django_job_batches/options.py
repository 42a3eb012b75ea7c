"""The options of jobs and batches, checked when they are given. Nothing here touches a database or Redis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, timedelta
from typing import Any, NamedTuple

from django.utils import timezone
from django.utils.functional import Promise

from django_job_batches.arguments import text
from django_job_batches.conf import queue_names

MILLION = 1_000_000
MOST = {"allow_failures": 2**63 - 1, "timeout": 10**9, "retry": MILLION, "interval": 10**9}
"""What the columns, the calendar, and the alarm of the operating system can hold."""


class RetryPlan(NamedTuple):
    """How often, after how many seconds, and from which end of the queue a failed job runs again."""

    max: int
    intervals: tuple[int, ...] = (0,)
    at_front: bool = False


class Allowance(NamedTuple):
    """How many items may fail: a number, a share in millionths, or (both None) any number."""

    number: int | None = 0
    millionths: int | None = None


@dataclass(frozen=True)
class Options:
    """The options of a job; None where nothing was said, so that the batch's or the settings' value holds."""

    queue_name: str | None = None
    timeout: int | None = None
    retry: RetryPlan | None = None
    at_front: bool | None = None
    description: str | None = None
    atomic: bool | None = None
    on_lost: str | None = None
    run_after: datetime | timedelta | None = None
    keep_result: bool | None = None


def given_options(
    *,
    queue_name: Any,
    timeout: Any,
    retry: Any,
    at_front: Any,
    description: Any,
    atomic: Any,
    on_lost: Any,
    run_after: Any,
    keep_result: Any,
) -> dict[str, Any]:
    """Those options that are not None, checked; ``TypeError`` or ``ValueError`` for what cannot work."""
    options = {
        "queue_name": checked_queue(queue_name),
        "timeout": checked_timeout(timeout),
        "retry": checked_retry(retry),
        "at_front": checked_flag(at_front, "at_front"),
        "description": checked_text(description, "description"),
        "atomic": checked_flag(atomic, "atomic"),
        "on_lost": checked_on_lost(on_lost),
        "run_after": checked_run_after(run_after),
        "keep_result": checked_flag(keep_result, "keep_result"),
    }
    return {name: value for name, value in options.items() if value is not None}


def checked_allowance(value: Any) -> Allowance:
    if value is True:
        return Allowance(None, None)
    if value is False or not isinstance(value, (int, float)):
        raise TypeError(f"allow_failures is {value!r}; pass a number of items, a share such as 0.05, or True.")
    if isinstance(value, int) and 0 <= value <= MOST["allow_failures"]:
        return Allowance(value, None)
    if isinstance(value, float) and 0 <= value <= 1:
        return Allowance(None, math.ceil(value * MILLION - 0.001))  # up, so that a third of three is one
    raise ValueError(f"allow_failures is {value!r}; pass a whole number from 0 on, or a share between 0 and 1.")


def checked_queue(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"queue_name is {name!r:.200}; pass the name of a queue in settings.RQ_QUEUES.")
    if name is not None and name not in queue_names():
        known = ", ".join(sorted(queue_names())) or "none"
        raise ValueError(f"There is no queue {name!r} in settings.RQ_QUEUES (configured: {known}).")
    return name


def checked_timeout(value: Any) -> int | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not math.isfinite(seconds) or seconds != int(seconds):
        raise TypeError(f"timeout is {value!r}; pass whole seconds, a timedelta, or -1 for no limit.")
    if seconds < 1 and seconds != -1:
        raise ValueError(f"timeout is {value!r}; pass at least 1 second, or -1 for no limit.")
    if seconds > MOST["timeout"]:
        raise ValueError(f"timeout is {value!r}, more than {MOST['timeout']:,} seconds; pass -1 for no limit.")
    return int(seconds)


def checked_retry(value: Any) -> RetryPlan | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        plan = RetryPlan(value)
    else:
        try:
            plan = RetryPlan(value.max, tuple(value.intervals) or (0,), bool(value.enqueue_at_front))
        except AttributeError:
            raise TypeError(f"retry is {value!r}; pass an rq.Retry, or the number of retries.") from None
    if not 0 <= plan.max <= MOST["retry"]:
        raise ValueError(f"retry is {plan.max}; pass 0 or more retries, and at most {MOST['retry']:,}.")
    if any(not 0 <= seconds <= MOST["interval"] for seconds in plan.intervals):
        raise ValueError(f"retry has the intervals {plan.intervals!r:.200}; pass 0 to {MOST['interval']:,} seconds.")
    return plan


def checked_flag(value: Any, name: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise TypeError(f"{name} is {value!r}; pass True or False.")


def checked_on_lost(value: Any) -> str | None:
    if value in (None, "fail", "retry"):
        return value  # type: ignore[no-any-return]
    raise ValueError(f'on_lost is {value!r}; pass "fail" or "retry".')


def checked_run_after(value: Any) -> datetime | timedelta | None:
    if value is None:
        return value
    if isinstance(value, timedelta):
        try:
            checked_run_after(timezone.now() + value)
        except OverflowError:
            raise ValueError(f"run_after is {value!r}, beyond the end of the calendar; pass less.") from None
        return value
    if not isinstance(value, datetime):
        raise TypeError(f"run_after is {value!r}; pass an aware datetime or a timedelta.")
    if timezone.is_naive(value):
        raise ValueError("run_after has no time zone; pass an aware datetime, such as timezone.now() + timedelta(…).")
    if value.year >= MAXYEAR:
        raise ValueError(f"run_after is {value!r}, at the end of the calendar; pass less.")
    return value


def checked_text(value: Any, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.200}; pass text.")
    return text(value, name)


def checked_label(value: Any, name: str) -> str:
    """Text, or a translation that is looked up now."""
    if not isinstance(value, (str, Promise)):
        raise TypeError(f"{name} is {value!r:.200}; pass text.")
    return text(str(value), name)


def checked_user(value: Any, name: str) -> Any:
    if value is None:
        return None
    from django.contrib.auth import get_user_model

    if not isinstance(value, get_user_model()) or value.pk is None:
        raise TypeError(f"{name} is {value!r:.200}; pass a saved user, or None.")
    return value
