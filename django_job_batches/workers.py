"""A worker for RQ that makes the most of batches. Every promise holds with RQ's own workers too, only later."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import router
from rq import Queue, Worker
from rq.job import Job

from django_job_batches import execution, reconciling
from django_job_batches.conf import settings
from django_job_batches.models import Batch

logger = logging.getLogger(__name__)


class BatchWorker(Worker):
    """RQ's forking worker, by ``RQ = {"WORKER_CLASS": "django_job_batches.workers.BatchWorker"}``.

    It settles the job of a killed horse at once. While it is idle it looks every ``RECONCILE_EVERY`` seconds for what
    was left behind, by RQ's own maintenance and by ours. What all horses need, it has loaded before it forks; and it
    never hands a database connection down to them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("maintenance_interval", int(settings.RECONCILE_EVERY))
        super().__init__(*args, **kwargs)

    @property
    def dequeue_timeout(self) -> int:
        """Seconds that it waits for a job before it looks around."""
        return max(1, min(super().dequeue_timeout, int(settings.RECONCILE_EVERY)))

    def work(self, *args: Any, **kwargs: Any) -> bool:
        with _no_connections_left():
            execution.warm_up(router.db_for_write(Batch))
        return super().work(*args, **kwargs)

    def run_maintenance_tasks(self) -> None:
        super().run_maintenance_tasks()  # type: ignore[no-untyped-call]
        with _no_connections_left():
            reconciling.look_around(router.db_for_write(Batch))

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        execution.close_connections()
        super().fork_work_horse(job, queue)

    def handle_work_horse_killed(self, job: Job, *args: Any) -> None:
        with _no_connections_left():
            execution.killed(job, self.name)
        super().handle_work_horse_killed(job, *args)  # type: ignore[no-untyped-call]


@contextmanager
def _no_connections_left() -> Iterator[None]:
    """Nothing that fails in the block stops the worker, and nothing that it has opened is inherited by a horse."""
    try:
        yield
    except Exception:
        logger.exception("The worker goes on; what it could not do now, the reconciler will do.")
    finally:
        execution.close_connections()
