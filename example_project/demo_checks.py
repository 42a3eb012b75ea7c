"""Did the import end as it should? Looked up in the database and in Redis, not in what the jobs say."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import django_rq
from django.db import connection
from django.db.models import Max, Min

from django_job_batches.models import Batch, BatchJob
from example_project.airports import staging
from example_project.airports.imports import Variant
from example_project.airports.locking import bodies_run
from example_project.airports.models import Airport, AirportImport, CountryCheck
from example_project.demo_report import callbacks, family

OUTCOMES = {  # of the whole, of the validation, of the import
    Variant.PLAIN: ("succeeded", "succeeded", "succeeded"),
    Variant.BROKEN: ("failed", "failed", "cancelled"),
    Variant.SIDE_BY_SIDE: ("failed", "failed", "cancelled"),
    Variant.DEADLOCK: ("succeeded", "succeeded", "succeeded"),
    Variant.FLAKY: ("succeeded", "succeeded", "succeeded"),
}
ENDED = ("succeeded", "failed", "cancelled")


class Check(NamedTuple):
    """What was expected, in words; what was found; and whether that will do."""

    what: str
    found: Any
    good: bool


def checks(root: Batch, variant: Variant) -> Iterator[Check]:
    """Yield everything that has to be true after an import."""
    airport_import = AirportImport.objects.get(pk=root.metadata["airport_import"])
    by_name = {batch.name: batch for _, batch in family(root)}
    validate, load = by_name["Validate"], by_name["Import"]
    yield from _outcomes((root, validate, load), OUTCOMES[variant])
    yield from _counters((root, validate, load))
    yield from _airports(airport_import, load, variant)
    yield from _clean_up(airport_import, root)
    if variant is Variant.DEADLOCK:
        yield from _deadlock(airport_import, validate)
    if variant is Variant.FLAKY:
        yield from _flaky(validate, load)


def rq_leftovers() -> dict[str, int]:
    """Return where RQ still has jobs that have not ended; nothing there is touched."""
    queue = django_rq.get_queue("default")
    counts = {
        "queued": queue.count,
        "popped": queue.connection.llen(queue.intermediate_queue_key),
        "started": len(queue.started_job_registry.get_job_ids(cleanup=False)),
        "scheduled": len(queue.scheduled_job_registry.get_job_ids(cleanup=False)),
        "deferred": len(queue.deferred_job_registry.get_job_ids(cleanup=False)),
    }
    return {place: count for place, count in counts.items() if count}


def _equal(what: str, found: Any, expected: Any) -> Check:
    return Check(f"{what}: {expected}", found, found == expected)


def _outcomes(batches: tuple[Batch, ...], expected: tuple[str, ...]) -> Iterator[Check]:
    for batch, status in zip(batches, expected, strict=True):
        yield _equal(f"{batch.name} has", str(batch.status), status)


def _counters(batches: tuple[Batch, ...]) -> Iterator[Check]:
    for batch in batches:
        rows = BatchJob.objects.filter(batch=batch, role="item")
        found = {
            "pending": batch.pending_jobs,
            "succeeded": batch.succeeded_jobs,
            "failed": batch.failed_jobs,
            "cancelled": batch.cancelled_jobs,
        }
        ended = {status: rows.filter(status=status).count() for status in ENDED}
        good = found == {"pending": 0, **ended} and sum(ended.values()) == batch.total_jobs
        good = good and batch.progress == 100
        yield Check(f"the counters of {batch.name} agree with its rows, none is pending", found, good)


def _airports(airport_import: AirportImport, load: Batch, variant: Variant) -> Iterator[Check]:
    found = Airport.objects.filter(last_import=airport_import).count()
    jobs = BatchJob.objects.filter(batch=load)
    if variant is Variant.BROKEN:
        yield _equal("import jobs that ever started", jobs.filter(attempts__gt=0).count(), 0)
        yield _equal("airports that this import wrote", found, 0)
        return
    reported = sum(job.result or 0 for job in jobs.filter(status="succeeded"))
    yield _equal("airports that this import wrote, as its jobs say", found, reported)
    if variant is Variant.SIDE_BY_SIDE:
        cancelled = load.cancelled_jobs
        yield Check(f"import jobs that the failing validation cancelled: {cancelled}", cancelled, cancelled > 0)
    else:
        yield _equal("airports that this import wrote, as were staged", found, airport_import.row_count)


def _clean_up(airport_import: AirportImport, root: Batch) -> Iterator[Check]:
    ran = [(job.role, job.func.rpartition(".")[2], str(job.status), job.attempts) for job in callbacks(root)]
    expected = [("on_finish", "clean_up", "succeeded", 1)]
    yield _equal("callbacks (event, function, outcome, attempts)", ran, expected)
    yield _equal("the clean-up took effect this many times", airport_import.clean_ups, 1)
    yield _equal("the clean-up saw the batch as", airport_import.outcome, str(root.status))
    yield _equal("staged files are left", staging.is_staged(airport_import.pk), False)


def _deadlock(airport_import: AirportImport, validate: Batch) -> Iterator[Check]:
    survived = validate.deadlocks
    yield Check(f"deadlocks (or a locked database) survived: {survived}", survived, survived >= 1)
    jobs = BatchJob.objects.filter(batch=validate, func__contains=".locking.")
    in_these = sum(job.deadlocks for job in jobs)
    yield Check(f"of these, in the two jobs that lock: {in_these}", in_these, in_these >= 1)
    yield _equal("attempts of these two jobs", [job.attempts for job in jobs], [1, 1])
    runs, in_place = bodies_run(airport_import.pk), connection.vendor != "sqlite"
    yield Check(f"runs of their functions: {runs}", runs, runs >= 3 if in_place else runs == 2)
    effects = CountryCheck.objects.filter(airport_import=airport_import).values_list("checks", flat=True)
    yield _equal("effects of the two jobs in each of two rows", list(effects), [2, 2])


def _flaky(validate: Batch, load: Batch) -> Iterator[Check]:
    jobs = BatchJob.objects.filter(batch=validate)
    flaky = jobs.get(func__endswith="ask_flaky_service")
    yield _equal("attempts of the flaky validation", flaky.attempts, 3)
    others = jobs.exclude(pk=flaky.pk)
    overtaken, total = others.filter(started_at__gt=flaky.finished_at).count(), others.count()
    yield Check(
        f"retried at the front, it overtook most of the {total} others: {overtaken}", overtaken, overtaken > total / 2
    )
    end = jobs.aggregate(Max("finished_at"))["finished_at__max"]
    start = load.jobs.aggregate(Min("started_at"))["started_at__min"]
    yield Check("the import began after the last validation", start, start >= end)
