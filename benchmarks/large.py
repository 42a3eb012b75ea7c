"""`python -m benchmarks.large`: the reconciler and the pages of the admin at ten million jobs."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from statistics import median
from typing import Any

from benchmarks.figures import Figure, table

QUERIES, MILLISECONDS = 12, 200
REPEATS = 5
COUNTS_JOBS = re.compile(r"COUNT\(\*\)[^()]* FROM .django_job_batches_batchjob")
SLOW = 0.05
"""Seconds; slower queries are shown."""


def main() -> int:
    options = _parser().parse_args()
    name = f"{os.environ.get('TEST_DATABASE_NAME') or 'django_job_batches_large'}"
    os.environ.update(
        TEST_DATABASE=options.database, TEST_DATABASE_NAME=name, DJANGO_SETTINGS_MODULE="benchmarks.settings"
    )
    from benchmarks.stage import on_stage

    with on_stage(keep=options.keep):
        figures = [] if _is_filled() else list(_fill_and_reconcile(options.batches, options.jobs))
        figures += _pages(options.verbose)
    print(table(figures))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.add_argument("--database", choices=["postgresql", "mariadb"], default="postgresql")
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--keep", action="store_true", help="leave the database there, and use it if it is there")
    parser.add_argument("--verbose", action="store_true", help="print each query that takes longer than 50 ms")
    return parser


def _is_filled() -> bool:
    from django_job_batches.models import Batch

    return Batch.objects.exists()


# The reconciler


def _fill_and_reconcile(batches: int, jobs: int) -> Iterator[Figure]:
    """The unfinished ones alone, then with all the finished ones around them."""
    from benchmarks import filling

    huge, failed = jobs // 10, jobs // 20
    few = max(batches // 100, 1)
    size = (jobs - huge - failed) // (batches - 2)
    filling.fill(list(filling.unfinished(few, size)))
    alone = _pass()
    began = time.perf_counter()
    filling.fill(list(filling.finished(batches - few - 2, size)))
    print(f"filled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    among = _pass()
    what = f"the reconciler's statements for {few * (size - size // 2):,} unfinished jobs, among {jobs:,} / alone"
    yield Figure(_database(), what, "s", among, alone)
    filling.fill([filling.Plan(failed, failed=failed // 5, succeeded=failed - failed // 5, name="Large and failed")])
    filling.fill(
        [filling.Plan(huge, succeeded=huge // 2, running=32, name="Large and running", age=timedelta(hours=3))]
    )


def _pass() -> float:
    """Seconds in the database of a look at everything that changes nothing: Redis knows none of these jobs."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from django_job_batches.reconciling import reconcile

    times = []
    for _repeat in range(REPEATS):
        with CaptureQueriesContext(connection) as context:
            reconcile("default", dry_run=True)
        times.append(sum(float(query["time"]) for query in context))
    return median(times)


def _database() -> str:
    from django.conf import settings

    return str(settings.TEST_DATABASE)


# The pages


def _addresses() -> Iterator[tuple[str, str]]:
    """What is looked at: a name, and the address."""
    from django_job_batches.models import Batch, BatchJob

    batches, jobs = "/admin/django_job_batches/batch/", "/admin/django_job_batches/batchjob/"
    running, failed = Batch.objects.get(name="Large and running"), Batch.objects.get(name="Large and failed")
    usual = Batch.objects.filter(status="succeeded").order_by("created_at").first()
    assert usual is not None
    job = BatchJob.objects.filter(batch=failed, status="failed").order_by("pk")[50]
    yield "list of batches", batches
    middle = Batch.objects.count() // 100
    yield f"list, page {middle}", f"{batches}?p={middle}"
    for query in (
        "status__exact=failed",
        "status__exact=running",
        "failures=yes",
        "failures=no",
        "stuck=yes",
        "queue_name=default",
        "name=Import",
        f"created_by={usual.created_by_id}",
        "nested=no",
        f"created_at__year={usual.created_at.year}",
        "o=2",
        "q=Nightly",
        f"q={usual.pk}",
        f"q={job.pk}",
    ):
        yield f"list, {query.partition('-')[0]}", f"{batches}?{query}"
    shown = ",".join(f"{pk}.x" for pk in Batch.objects.values_list("pk", flat=True)[:50])
    yield "list, live", f"{batches}live/?rows={shown}"
    for name, batch in (("1,000,000 jobs, running", running), ("100,000 failed", failed), ("a usual one", usual)):
        yield f"batch, {name}", f"{batches}{batch.pk}/change/"
        for state in ("queued", "running", "failed"):
            yield f"batch, {name}, its {state} jobs", f"{batches}{batch.pk}/change/?state={state}"
        for part in ("overview", "tree", "errors", "callbacks", "throughput", "jobs", "history"):
            yield f"batch, {name}, live {part}", f"{batches}{batch.pk}/live/{part}/"
    for operation, batch in (("cancel", running), ("retry", failed), ("delete", failed)):
        yield f"{operation}?", f"{batches}operation/{operation}/?row={batch.pk}"
    yield "retry a group?", f"{batches}operation/retry_group/?row={failed.pk}&example={job.pk}"
    yield "list of jobs", jobs
    yield "jobs, page 5", f"{jobs}?p=5"
    for query in (
        "status__exact=failed",
        "status__exact=running",
        "status__exact=blocked",
        "role__exact=on_finish",
        "queue_name=default",
        f"batch={running.pk}",
        f"batch={running.pk}&status__exact=failed",
        f"batch={failed.pk}&status__exact=failed",
        f"q={job.pk}",
        "q=price",
        f"batch={failed.pk}&q=nothing",
    ):
        yield f"jobs, {query[:5]}…{query[41:]}" if query.startswith("batch") else f"jobs, {query}", f"{jobs}?{query}"
    yield "a job", f"{jobs}{job.pk}/change/"


def _pages(verbose: bool) -> Iterator[Figure]:
    from django.contrib.auth.models import User
    from django.test import Client

    user = User.objects.filter(is_superuser=True).first() or User.objects.create_superuser("Grace")
    client = Client()
    client.force_login(user)
    client.get("/admin/")
    for name, url in list(_addresses()):
        queries, seconds = _look_at(client, url)
        _complain(name, queries, verbose)
        yield Figure(_database(), f"{name}: {len(queries)} queries", "ms", seconds * 1000, budget=MILLISECONDS)


def _look_at(client: Any, url: str) -> tuple[list[dict[str, str]], float]:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as context:
        response = client.get(url, follow=False)
        assert response.status_code == 200, (url, response.status_code)
        queries = list(context)
    times = []
    for _repeat in range(REPEATS):
        began = time.perf_counter()
        client.get(url)
        times.append(time.perf_counter() - began)
    return queries, median(times)


def _complain(name: str, queries: list[dict[str, str]], verbose: bool) -> None:
    if len(queries) > QUERIES:
        print(f"{name}: {len(queries)} queries", file=sys.stderr)
    for query in queries:
        if COUNTS_JOBS.search(query["sql"]):
            print(f"{name} counts jobs: {query['sql'][:500]}", file=sys.stderr)
        if verbose and float(query["time"]) > SLOW:
            print(f"{name}, {query['time']} s: {query['sql'][-900:]}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
