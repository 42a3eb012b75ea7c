"""RQ's worker and ours, with what they are unlikely to meet: a stop, or the end of Redis, in one exact moment."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Worker

from django_job_batches.workers import BatchWorker


class _StoppedAsItTakes:
    def reorder_queues(self, *args: Any, **kwargs: Any) -> None:
        """What RQ does as soon as it has a job in its hands."""
        if not self._stop_requested:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)
        super().reorder_queues(*args, **kwargs)  # type: ignore[misc]


class WorkerStoppedAsItTakes(_StoppedAsItTakes, Worker): ...


class BatchWorkerStoppedAsItTakes(_StoppedAsItTakes, BatchWorker): ...


class BatchWorkerThatLosesRedis(BatchWorker):
    """The server ends just before one of the worker's heartbeats, the one that LOSE_REDIS_AT counts."""

    beats = 0

    def heartbeat(self, *args: Any, **kwargs: Any) -> None:
        self.beats += 1
        if self.beats == int(os.environ["LOSE_REDIS_AT"]):
            self.connection.set_retry(Retry(NoBackoff(), 0))
            os.kill(self.connection.info("server")["process_id"], signal.SIGTERM)
            with suppress(RedisError):
                while self.connection.ping():
                    time.sleep(0.01)
        super().heartbeat(*args, **kwargs)
