"""What takes too long for a request goes on in a worker.

The paths of ``go_on`` and ``go_on_with_all`` stand in RQ jobs and are a promise; they never change.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Model
from django.utils.translation import gettext_lazy as _

from django_job_batches import queues
from django_job_batches.admin.batch_operations import BATCH_OPERATIONS
from django_job_batches.admin.operations import Operation, Order
from django_job_batches.conf import settings
from django_job_batches.database import at_home, home_of
from django_job_batches.exceptions import BatchError
from django_job_batches.models import Batch

logger = logging.getLogger(__name__)

FUNCTION = "django_job_batches.admin.background.go_on"
FUNCTION_FOR_ALL = "django_job_batches.admin.background.go_on_with_all"
TEXTS = {
    "queued": _("waits for a worker"),
    "started": _("goes on in the background"),
    "failed": _("has failed; the log of the worker says why"),
}


def hand_over(operation: Operation[Any], row: Model, version: str, order: Order) -> None:
    """Have a worker do it, if the row has this version still; raises ``QueueError`` while Redis is away."""
    by = order.by.pk if order.by is not None else None
    queues.hand_over(
        FUNCTION,
        (operation.name, home_of(row), row.pk, version, by, order.reason, order.example),
        job_id=_id(operation.name, row, version),
        description=f"{operation.name} {row._meta.verbose_name} {row.pk}",
    )


def hand_over_all(operation: Operation[Any], using: str, chosen: str, order: Order) -> None:
    """The same for many batches, which ``chosen`` names with their versions; one worker goes through them."""
    by = order.by.pk if order.by is not None else None
    digest = hashlib.sha256(chosen.encode()).hexdigest()
    queues.hand_over(
        FUNCTION_FOR_ALL,
        (operation.name, using, chosen, by, order.reason, order.example),
        job_id=f"job_batches-{operation.name}-{digest}",
        description=f"{operation.name} {len(chosen.split())} {Batch._meta.verbose_name_plural}",
    )


def go_on_with_all(name: str, using: str, chosen: str, by: Any, reason: str, example: int | None) -> None:
    """What RQ calls; what cannot be done to one batch does not stop the rest."""
    for part in chosen.split():
        key, _, version = part.partition(".")
        try:
            go_on(name, using, uuid.UUID(key), version, by, reason, example)
        except BatchError as error:
            logger.warning("Batch %s was left alone: %s", key, error)


def go_on(name: str, using: str, pk: Any, version: str, by: Any, reason: str, example: int | None) -> None:
    """What RQ calls."""
    operation = BATCH_OPERATIONS[name]
    row = Batch.objects.using(using).filter(pk=pk).first()
    if row is None or operation.version(row) != version:
        logger.info("Batch %s is left alone: it was deleted or runs again since somebody wanted to %s it.", pk, name)
        return
    user = get_user_model()._default_manager.filter(pk=by).first() if by is not None else None
    operation.go_on(at_home(row, using), Order(user, reason, example))


def under_way(batch: Batch) -> list[tuple[Any, Any]]:
    """What a worker was told to do to this batch, or does just now: names of operations, and how far that is."""
    # a retry, and a deletion, begin a new run
    runs = range(max(batch.run - 1, 1), batch.run + 1)
    ids = {_id(name, batch, str(run)): name for name in BATCH_OPERATIONS for run in runs}
    try:
        known = queues.whereabouts(settings.QUEUE, list(ids))
    except queues.QueueError:
        return []
    return [
        (BATCH_OPERATIONS[name].label, TEXTS[known[id_].status])
        for id_, name in ids.items()
        if known[id_].status in TEXTS
    ]


def _id(name: str, row: Model, version: str) -> str:
    return f"job_batches-{name}-{row.pk.hex}-{version}"
