"""Tasks of `django.tasks`, which Django has from 6.0 on."""

from __future__ import annotations

from typing import Any

from django.tasks import TaskContext, task

from tests import jobs, jobs_semantics


@task
def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return jobs.echo(*args, **kwargs)


@task(priority=100)
async def aio(n: int) -> int:
    return await jobs.aio(n)


@task(takes_context=True)
def with_context(context: TaskContext[Any, Any], word: str) -> None:
    jobs_semantics.whoami(f"{word}:{context.attempt}:{context.task_result.id}")
