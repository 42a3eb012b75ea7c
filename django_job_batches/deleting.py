"""Deleting batches, in pieces, and never while anything of them can still run."""

from __future__ import annotations

import uuid
from functools import partial

from django.db.models import F

from django_job_batches.conf import settings
from django_job_batches.database import atomically, home_of
from django_job_batches.exceptions import BatchError
from django_job_batches.models import Batch, BatchCounter, BatchJob
from django_job_batches.transitions import batches_of, jobs_of, tree_of


def delete(batch: Batch) -> tuple[int, dict[str, int]]:
    """See ``Batch.delete()``; returns what ``Model.delete()`` does."""
    using = home_of(batch)
    current = batches_of(using).get(pk=batch.pk)
    if not current.is_finished or current.open_callbacks:
        raise BatchError(f"Batch {batch.pk} has not ended; cancel it, and wait for its end, before deleting it.")
    if current.parent_job_id is not None and jobs_of(using).filter(pk=current.parent_job_id).exists():
        raise BatchError(f"Batch {batch.pk} is part of another batch; delete that one.")
    atomically(partial(_claim_tree, using, batch.pk), using)
    numbers = _delete_tree(using, current)
    return sum(numbers.values()), numbers


def _claim_tree(using: str, batch_id: uuid.UUID) -> None:
    """From now on nobody can retry anything of it: who does it now compares the runs of batches."""
    for level in reversed(tree_of(using, batch_id)):
        ended = batches_of(using).filter(pk__in=level, finished_at__isnull=False, open_callbacks=0)
        if ended.update(run=F("run") + 1, error="Its deletion was broken off.") < len(level):
            raise BatchError(f"Something in batch {batch_id} runs again; wait for its end before deleting it.")


def _delete_tree(using: str, batch: Batch) -> dict[str, int]:
    numbers = {Batch._meta.label: 0, BatchJob._meta.label: 0, BatchCounter._meta.label: 0}
    for child in batches_of(using).filter(parent_job__batch=batch.pk):
        for label, number in _delete_tree(using, child).items():
            numbers[label] += number
    jobs = jobs_of(using).filter(batch=batch.pk).order_by("pk")
    while pks := list(jobs.values_list("pk", flat=True)[: settings.CHUNK_SIZE]):
        doomed = jobs_of(using).filter(pk__in=pks)
        numbers[BatchJob._meta.label] += atomically(partial(doomed._raw_delete, using), using) or 0
    counters = BatchCounter.objects.using(using).filter(batch=batch.pk)
    numbers[BatchCounter._meta.label] += atomically(partial(counters._raw_delete, using), using) or 0
    row = batches_of(using).filter(pk=batch.pk)
    numbers[Batch._meta.label] += atomically(partial(row._raw_delete, using), using) or 0
    return numbers
