"""Batches for Django and RQ: many jobs followed as one thing that ends exactly once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_job_batches.context import current_batch, current_job
    from django_job_batches.exceptions import (
        BatchError,
        BatchFinished,
        DuplicateBatch,
        GiveUp,
        LockNotAcquired,
        WorkerLost,
    )
    from django_job_batches.items import batch_of, chain, job_of
    from django_job_batches.locks import dispatch_lock

__version__ = "0.1.0"

__all__ = [
    "BatchError",
    "BatchFinished",
    "DuplicateBatch",
    "GiveUp",
    "LockNotAcquired",
    "WorkerLost",
    "batch_of",
    "chain",
    "current_batch",
    "current_job",
    "dispatch_lock",
    "job_of",
]

_HOMES = {
    "context": ("current_batch", "current_job"),
    "exceptions": ("BatchError", "BatchFinished", "DuplicateBatch", "GiveUp", "LockNotAcquired", "WorkerLost"),
    "items": ("batch_of", "chain", "job_of"),
    "locks": ("dispatch_lock",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
