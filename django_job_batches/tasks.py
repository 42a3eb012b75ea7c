"""Django Tasks, of ``django.tasks`` and of the ``django_tasks`` backport, as functions to call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from django_job_batches.items import is_task
from django_job_batches.models import BatchJob


def callable_of(target: Any, job: BatchJob) -> Callable[..., Any]:
    """The function to call for what a job's path leads to; a Task that takes its context gets it."""
    if not is_task(target):
        return cast("Callable[..., Any]", target)
    func = cast("Callable[..., Any]", target.func)
    return partial(func, _context(target, job)) if target.takes_context else func


def _context(task: Any, job: BatchJob) -> Any:
    """A context whose ``attempt`` is the job's."""
    base = next(
        sys.modules[kind.__module__]
        for kind in type(task).__mro__
        if hasattr(sys.modules[kind.__module__], "TaskContext")
    )
    result = base.TaskResult(
        task=task,
        id=str(job.pk),
        status=base.TaskResultStatus.RUNNING,
        enqueued_at=job.enqueued_at,
        started_at=job.started_at,
        finished_at=None,
        last_attempted_at=job.started_at,
        args=job.args,
        kwargs=job.kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[job.worker_name] * job.attempts,
    )
    return base.TaskContext(task_result=result)
