"""RQ's workers with a quicker clock: what takes them minutes takes them seconds here."""

from __future__ import annotations

from typing import Any

from rq import SimpleWorker, Worker

from django_job_batches.workers import BatchWorker

HEARTBEAT = 1
LIFETIME = 4
"""Seconds after its last heartbeat at which an execution counts as lost, for RQ."""


class _Quick:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "job_monitoring_interval": HEARTBEAT, "maintenance_interval": 2})

    @property
    def dequeue_timeout(self) -> int:
        return 2

    def get_heartbeat_ttl(self, *args: Any, **kwargs: Any) -> int:
        return LIFETIME


class QuickWorker(_Quick, Worker): ...


class QuickBatchWorker(_Quick, BatchWorker): ...


class QuickSimpleWorker(_Quick, SimpleWorker): ...
