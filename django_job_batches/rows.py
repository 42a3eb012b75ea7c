"""Descriptions as unsaved rows."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_job_batches.conf import settings
from django_job_batches.items import BatchDescription, JobDescription
from django_job_batches.models import Batch, BatchJob, BatchStatus, JobStatus, Role
from django_job_batches.options import Options


def batch_row(description: BatchDescription, parent_job: BatchJob | None = None) -> Batch:
    """The row of a batch; a nested one has the queue of the batch around it, unless it names its own, and waits for
    its turn, which holds one more of its lanes open."""
    is_nested = parent_job is not None
    return Batch(
        name=description.name,
        status=BatchStatus.WAITING if is_nested else BatchStatus.DISPATCHING,
        key=description.key or "",
        active_key=active_key(description.key),
        metadata=description.metadata,
        created_by_id=description.created_by.pk if description.created_by is not None else None,
        parent_job_id=parent_job.pk if parent_job is not None else None,
        queue_name=description.queue_name or (parent_job.queue_name if parent_job is not None else ""),
        allowed_failures=description.allowance.number,
        allowed_millionths=description.allowance.millionths,
        open_lanes=2 if is_nested else 1,
    )


def active_key(key: str | None) -> str | None:
    """What is unique among unfinished batches: a digest, since collations differ in what they hold to be equal."""
    return hashlib.sha256(key.encode()).hexdigest() if key else None


def job_row(description: JobDescription | BatchDescription, batch: Batch, **columns: Any) -> BatchJob:
    """The row of an item or callback; of a nested batch, the one that stands for it in its parent."""
    is_callback = columns.get("role", Role.ITEM) != Role.ITEM
    callback_queue = settings.CALLBACK_QUEUE if is_callback else None
    if isinstance(description, BatchDescription):
        name = {"description": description.name} if description.name else {}
        queue = callback_queue or batch.queue_name
        return BatchJob(batch_id=batch.pk, run=batch.run, options=name, queue_name=queue, **columns)
    options = description._options
    retries = options.retry.max if options.retry else 0
    return BatchJob(
        batch_id=batch.pk,
        run=batch.run,
        func=description.func,
        args=description.args,
        kwargs=description.kwargs,
        options=stored_options(options),
        queue_name=options.queue_name or callback_queue or batch.queue_name or settings.QUEUE,
        max_attempts=1 + retries,
        scheduled_at=_scheduled_at(options),
        **columns,
    )


def stored_options(options: Options) -> dict[str, Any]:
    """Those options that have no column, where something was said, as JSON."""
    stored: dict[str, Any] = {
        "timeout": options.timeout,
        "at_front": options.at_front,
        "description": options.description,
        "atomic": options.atomic,
        "on_lost": options.on_lost,
        "keep_result": options.keep_result,
    }
    if options.retry is not None and options.retry.max:
        stored["retries"] = options.retry.max
        stored["intervals"] = list(options.retry.intervals) if any(options.retry.intervals) else None
        stored["retry_at_front"] = options.retry.at_front
    return {name: value for name, value in stored.items() if value not in (None, False)}


def initial_status(row: BatchJob, is_first_link: bool) -> JobStatus:
    """Of an item that is being written: a later link of a chain is blocked."""
    if not is_first_link:
        return JobStatus.BLOCKED
    is_due = row.scheduled_at is None or row.scheduled_at <= timezone.now()
    return JobStatus.QUEUED if is_due else JobStatus.SCHEDULED


def _scheduled_at(options: Options) -> Any:
    if isinstance(options.run_after, timedelta):
        return timezone.now() + options.run_after
    return options.run_after
