"""A lock among processes, for dispatches that must not happen twice at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from redis.exceptions import LockError
from redis.lock import Lock

from django_job_batches import queues
from django_job_batches.conf import settings
from django_job_batches.exceptions import LockNotAcquired
from django_job_batches.pulse import pulse


@contextmanager
def dispatch_lock(name: str, timeout: float = 10, wait: float = 0) -> Iterator[None]:
    """Hold the lock ``name`` in Redis; nobody else gets it meanwhile.

    ``timeout``: seconds after which the lock of a process that died is free; a living one renews it.
    ``wait``: seconds to wait for the lock. Raises ``LockNotAcquired`` when somebody else holds it longer than that,
    ``ValueError`` unless ``timeout`` is above 0.
    """
    if timeout <= 0:
        raise ValueError(f"timeout is {timeout!r}; pass the seconds after which the lock of a dead process is free.")
    connection = queues.queue(settings.QUEUE).connection
    lock = Lock(connection, f"job_batches:lock:{name}", timeout=timeout, thread_local=False)
    if not lock.acquire(blocking=wait > 0, blocking_timeout=wait or None):
        raise LockNotAcquired(f"Somebody else holds the lock {name!r}; try again later, or wait for it with wait=….")
    try:
        with pulse(partial(_renew, lock), timeout / 3):
            yield
    finally:
        with suppress(LockError):  # it expired, as after an outage of Redis; somebody else may hold it now
            lock.release()


def _renew(lock: Lock) -> bool:
    try:
        return bool(lock.reacquire())
    except LockError:
        return False
    except queues.QueueError:
        return True  # Redis may be back before the lock expires
