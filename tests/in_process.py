"""A worker in the process of the test: as quick as a call, for what needs RQ but no fork."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import django_rq
from django.db import connections
from rq import SimpleWorker

from django_job_batches import queues


def work(*names: str, at_most: int | None = None, serializer: Any = None) -> None:
    """Run what is in these queues (`default`, if none is named), and what it releases, as `rqworker --burst` does.

    `at_most`: so many RQ jobs, then stop.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    every = [django_rq.get_queue(name) for name in names or ("default",)]
    worker = _Deaf(every, connection=every[0].connection, serializer=serializer)
    try:
        worker.work(burst=True, max_jobs=at_most, logging_level="CRITICAL")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Deaf(SimpleWorker):
    """Listens to no commands: the thread that does so takes up to a second to end."""

    def subscribe(self) -> None: ...

    def unsubscribe(self) -> None: ...


def enqueued(name: str = "default") -> list[str]:
    """The ids of the RQ jobs that wait in a queue."""
    return list(queues.queue(name).job_ids)


def close(aliases: Sequence[str] = ("default", "other")) -> None:
    """Close this thread's connections, at the end of a thread."""
    for alias in aliases:
        connections[alias].close()
