"""RQ's worker and ours, stopped in the moments between taking a job from its queue and starting it."""

from __future__ import annotations

import os
import signal
from typing import Any

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
