"""The scenario: validate in parts, import in parts if everything is valid, clean up in any case."""

from collections.abc import Iterator
from typing import Any

from django.db import models, transaction
from rq import Retry

from django_job_batches import batch_of, chain, job_of
from django_job_batches.items import BatchDescription, JobDescription
from django_job_batches.models import Batch
from example_project.airports import jobs, staging
from example_project.airports.locking import locking_jobs
from example_project.airports.models import AirportImport


class Variant(models.TextChoices):
    """What is to happen in an import, to see how it ends."""

    PLAIN = "plain", "Everything is valid, and imported"
    BROKEN = "broken", "Some rows are broken: the import is called off"
    SIDE_BY_SIDE = "side-by-side", "Broken rows, without a chain: the failing batch cancels the other"
    DEADLOCK = "deadlock", "Two validations deadlock, and survive it in place"
    FLAKY = "flaky", "A flaky validation is retried at the front of the queue"


def start_import(variant: Variant = Variant.PLAIN, user: Any = None) -> Batch:
    """Stage the airports and dispatch the batch that validates and imports them.

    ``user`` is shown as the one who started it. Returns the batch; its ``metadata`` names the import.
    """
    airport_import = AirportImport.objects.create()
    broken = variant in (Variant.BROKEN, Variant.SIDE_BY_SIDE)
    row_count, part_count = staging.stage(airport_import.pk, staging.airports(broken=broken))
    with transaction.atomic():  # all or nothing; nothing is enqueued before the commit
        AirportImport.objects.filter(pk=airport_import.pk).update(row_count=row_count, part_count=part_count)
        return _batch(airport_import.pk, part_count, variant, user).dispatch()


def _batch(import_id: int, part_count: int, variant: Variant, user: Any) -> BatchDescription:
    validate = batch_of(_validations(import_id, part_count, variant), name="Validate")
    load = batch_of(
        [job_of(jobs.import_rows, import_id, part).options(retry=2, keep_result=True) for part in range(part_count)],
        name="Import",
    )
    return batch_of(
        [validate, load] if variant is Variant.SIDE_BY_SIDE else [chain(validate, load)],
        name=f"Airports {import_id} ({variant.value})",
        on_finish=job_of(jobs.clean_up, import_id),
        metadata={"airport_import": import_id, "variant": variant.value},
        created_by=user,
    )


def _validations(import_id: int, part_count: int, variant: Variant) -> Iterator[JobDescription]:
    if variant is Variant.DEADLOCK:
        yield from locking_jobs(import_id)
    if variant is Variant.FLAKY:
        retry = Retry(max=2, enqueue_at_front=True)
        yield job_of(jobs.ask_flaky_service, import_id).options(retry=retry)
    for part in range(part_count):
        yield job_of(jobs.validate_rows, import_id, part)
    yield job_of(jobs.validate_codes, import_id, part_count)
