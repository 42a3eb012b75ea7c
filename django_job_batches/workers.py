"""A worker for RQ that makes the most of batches. Every promise holds with RQ's own workers too, only later."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import router
from rq import Queue, Worker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.worker import WorkerStatus

from django_job_batches import execution, reconciling
from django_job_batches.conf import settings
from django_job_batches.models import Batch
from django_job_batches.queues import QueueError

logger = logging.getLogger(__name__)

STEP = 1
"""Seconds that it waits for a job before it looks whether it was asked to stop."""


class BatchWorker(Worker):
    """RQ's forking worker, by ``RQ = {"WORKER_CLASS": "django_job_batches.workers.BatchWorker"}``.

    It settles the job of a killed horse at once. While it is idle it looks every ``RECONCILE_EVERY`` seconds for what
    was left behind, by RQ's own maintenance and by ours. What all horses need, it has loaded before it forks; and it
    never hands a database connection down to them. A warm stop (SIGTERM) leaves no job behind that it has just taken.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("maintenance_interval", int(settings.RECONCILE_EVERY))
        super().__init__(*args, **kwargs)
        self._misses_redis = False

    @property
    def dequeue_timeout(self) -> int:
        """Seconds. RQ adds ten, and takes a connection on which nothing came for so long as broken."""
        return max(1, min(super().dequeue_timeout, int(settings.RECONCILE_EVERY)))

    def work(self, *args: Any, **kwargs: Any) -> bool:
        with _no_connections_left():
            execution.warm_up(router.db_for_write(Batch))
        return super().work(*args, **kwargs)

    def run_maintenance_tasks(self) -> None:
        super().run_maintenance_tasks()  # type: ignore[no-untyped-call]
        with _no_connections_left():
            reconciling.look_around(router.db_for_write(Batch))

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        return super().dequeue_job_and_maintain_ttl(timeout and min(timeout, STEP), max_idle_time)

    @property
    def should_run_maintenance_tasks(self) -> bool:
        """RQ asks this before each look for a job, with none in its hands: the moment for an asked stop."""
        if self._stop_requested:
            raise StopRequested
        return bool(super().should_run_maintenance_tasks)

    def _shutdown(self) -> None:
        """RQ raises out of whatever an idle worker does. If that is taking a job, the job is in no queue any more, and
        with no worker; so the worker goes on until it knows whether it has one."""
        self._stop_requested = True
        if self.get_state() == WorkerStatus.BUSY or self._misses_redis:
            super()._shutdown()  # type: ignore[no-untyped-call]

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        """While Redis is away there is nothing to take, and an idle worker can stop at any moment."""
        try:
            super().heartbeat(*args, **kwargs)
            self._misses_redis = False
        except QueueError:
            self._misses_redis = True
            if self._stop_requested and self.get_state() != WorkerStatus.BUSY:
                raise StopRequested from None
            raise

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
