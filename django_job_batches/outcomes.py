"""What an attempt's end means for its job: succeeded, failed, or once more."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Any

from django.db.models import F
from django.utils import timezone

from django_job_batches.conf import settings
from django_job_batches.database import storable
from django_job_batches.exceptions import BatchError, GiveUp, WorkerLost
from django_job_batches.models import BatchJob, JobStatus
from django_job_batches.options import MOST
from django_job_batches.transitions import Outcome, due_status

MAX_LOSSES = 3
"""How often a job that is lost runs again without retries of its own, by ``on_lost="retry"``."""

CLEAN = {"error_class": "", "error_message": "", "traceback": ""}


def succeeded(result: Any, has_result: bool) -> Outcome:
    """The function has returned; ``result`` is stored if ``has_result``."""
    kept = {"has_result": True, "result": result} if has_result else {}
    return Outcome(JobStatus.SUCCEEDED, CLEAN | kept)


def failed(job: BatchJob, details: dict[str, str], *, final: bool) -> Outcome:
    """The attempt has failed; it runs again if retries are left, unless this is ``final``."""
    if final or job.attempts >= job.max_attempts:
        return Outcome(JobStatus.FAILED, dict(details))
    return _once_more(job, details)


def lost(job: BatchJob) -> Outcome:
    """The process that ran the attempt has died. What it did is not known; an atomic job has done nothing."""
    details = described(WorkerLost(f"Attempt {job.attempts} was lost: its worker was killed, or its host went away."))
    details["traceback"] = ""
    changes: dict[str, Any] = {**details, "losses": F("losses") + 1}
    if job.attempts < job.max_attempts:
        return _once_more(job, changes)
    is_repeatable = job.option("atomic", False) or (job.option("on_lost", "") or settings.ON_LOST) == "retry"
    if is_repeatable and job.losses < MAX_LOSSES:
        return _once_more(job, {**changes, "max_attempts": job.attempts + 1}, delay=0)
    return Outcome(JobStatus.FAILED, changes)


def stopped(job: BatchJob) -> Outcome:
    """A stop command has killed the attempt: ours, or that of somebody at RQ's own pages."""
    if job.stop_requested_at is not None:
        return Outcome(JobStatus.CANCELLED, {"error_message": "Stopped while it was running."})
    return Outcome(JobStatus.FAILED, CLEAN | {"error_class": "Stopped", "error_message": "stopped"})


def described(error: BaseException) -> dict[str, str]:
    """The columns that hold an exception, in a form that every database stores."""
    limit = settings.MAX_ERROR_LENGTH
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception as unprintable:
        message = f"(str() of this exception raised {type(unprintable).__name__})"
    return {
        "error_class": storable(name, 255),
        "error_message": storable(message, limit),
        "traceback": storable(_traceback(error, message), limit, keep_end=True),
    }


def presentable(error: BaseException) -> BaseException:
    """``error``, or what can be told of it where RQ could not store it: text with half of a surrogate pair."""
    try:
        "".join(traceback.format_exception(type(error), error, error.__traceback__)).encode()
    except Exception:
        details = described(error)
        return BatchError(f"{details['error_class']}: {details['error_message']}")
    return error


def is_final(error: BaseException) -> bool:
    """Whether the function has asked for no further attempts."""
    return isinstance(error, GiveUp)


def _once_more(job: BatchJob, changes: dict[str, Any], delay: int | None = None) -> Outcome:
    seconds = _interval(job) if delay is None else delay
    at = timezone.now() + timedelta(seconds=seconds) if seconds else None
    return Outcome(due_status(at), {**changes, "scheduled_at": at})


def _interval(job: BatchJob) -> int:
    """RQ's rule (``Job.get_retry_interval``): of fewer intervals than retries, the first one is used several times."""
    intervals = job.option("intervals", [0]) or [0]
    retries_left = job.max_attempts - job.attempts
    seconds = intervals[max(len(intervals) - retries_left, 0)]
    return min(int(seconds), MOST["interval"]) if isinstance(seconds, (int, float)) else 0


def _traceback(error: BaseException, message: str) -> str:
    if len(message) > settings.MAX_ERROR_LENGTH:  # the message would push every frame out
        return "".join(traceback.format_tb(error.__traceback__))
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))
