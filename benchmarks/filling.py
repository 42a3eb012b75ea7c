"""A large database in a few minutes: batches by Django, their jobs by one statement per some hundred batches."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from django_job_batches.models import Batch, BatchCounter, BatchStatus, Counts

AT_ONCE = 250
"""Batches whose jobs one statement writes."""
LANES = 16
ERRORS = 12
PLAN = "CREATE TABLE large_plan (batch_id {uuid} PRIMARY KEY, size bigint, {counts})"
KINDS = ("failed", "cancelled", "succeeded", "running")
"""The jobs of each batch in this order, by their positions; the rest is queued."""

DIALECTS = {
    "postgresql": {
        "uuid": "uuid",
        "sequence": "JOIN LATERAL generate_series(0, p.size - 1) AS s(n) ON true",
        "moment": "b.created_at + s.n * interval '10 milliseconds'",
        "json": "CAST('{}' AS jsonb)",
        "analyze": "VACUUM ANALYZE",
    },
    "mysql": {
        "uuid": "uuid",
        "sequence": "JOIN (SELECT seq AS n FROM seq_0_to_999999) AS s ON s.n < p.size",
        "moment": "b.created_at + INTERVAL (s.n * 10000) MICROSECOND",
        "json": "'{}'",
        "analyze": "ANALYZE TABLE django_job_batches_batchjob, django_job_batches_batch",
    },
}


@dataclass
class Plan:
    """A batch to be made: how many jobs of which kind it has, what is left of `size` is queued."""

    size: int
    failed: int = 0
    cancelled: int = 0
    succeeded: int = 0
    running: int = 0
    name: str = ""
    age: timedelta = timedelta()

    @property
    def queued(self) -> int:
        return self.size - self.failed - self.cancelled - self.succeeded - self.running

    @property
    def is_finished(self) -> bool:
        return not self.queued and not self.running


def unfinished(number: int, size: int) -> Iterator[Plan]:
    for _batch in range(number):
        age = timedelta(minutes=random.randrange(10, 600))
        yield Plan(size, succeeded=size // 2, running=1, name="Import", age=age)


def finished(number: int, size: int) -> Iterator[Plan]:
    """Nine in ten have succeeded, some failed, a few were cancelled, over a year."""
    for index in range(number):
        age = timedelta(minutes=random.randrange(600, 525_600))
        name = f"Nightly report {index % 40}"
        if index % 20 == 0:
            yield Plan(size, failed=min(10, size), succeeded=size - min(10, size), name=name, age=age)
        elif index % 50 == 1:
            yield Plan(size, cancelled=size - size // 2, succeeded=size // 2, name=name, age=age)
        else:
            yield Plan(size, succeeded=size, name=name, age=age)


def fill(plans: list[Plan]) -> list[Batch]:
    """Write these batches with their counters and jobs."""
    owners = list(User.objects.filter(username__startswith="owner")) or [
        User.objects.create_user(f"owner-{number}") for number in range(5)
    ]
    batches = [_batch(plan, random.choice(owners)) for plan in plans]
    for start in range(0, len(batches), AT_ONCE):
        part = batches[start : start + AT_ONCE]
        Batch.objects.bulk_create(part)
        for batch, plan in zip(part, plans[start : start + AT_ONCE], strict=True):
            BatchCounter.objects.bulk_create(_counters(batch, plan))
        _write_jobs(part, plans[start : start + AT_ONCE])
    with connection.cursor() as cursor:
        cursor.execute(DIALECTS[connection.vendor]["analyze"])
    return batches


def _batch(plan: Plan, owner: User) -> Batch:
    created = timezone.now() - plan.age
    status = BatchStatus.RUNNING
    if plan.is_finished:
        bad = BatchStatus.FAILED if plan.failed else BatchStatus.CANCELLED if plan.cancelled else None
        status = bad or BatchStatus.SUCCEEDED
    end = created + timedelta(milliseconds=10 * plan.size + 5)
    counts = Counts(plan.size, 0, plan.succeeded, plan.failed, plan.cancelled, 0)
    return Batch(
        id=uuid.uuid4(),
        name=plan.name,
        status=status,
        created_by=owner,
        metadata={"site": random.randrange(1000)},
        created_at=created,
        heartbeat_at=created,
        started_at=created,
        failed_at=created if plan.failed and plan.is_finished else None,
        cancelled_at=created if plan.cancelled else None,
        finished_at=end if plan.is_finished else None,
        final_counts=list(counts) if plan.is_finished else None,
        sealed=True,
        lanes=_lanes(plan),
        open_lanes=0 if plan.is_finished else _lanes(plan),
        next_position=plan.size,
        failures=plan.failed,
        allowed_failures=None if not plan.is_finished else 0,
    )


def _lanes(plan: Plan) -> int:
    return 1 if plan.size < 1000 else LANES


def _counters(batch: Batch, plan: Plan) -> list[BatchCounter]:
    """All in the first lane but what is pending, of which each lane has a share."""
    lanes, pending = _lanes(plan), plan.queued + plan.running
    shares = [pending // lanes + (lane < pending % lanes) for lane in range(lanes)]
    first = {"succeeded": plan.succeeded, "failed": plan.failed, "cancelled": plan.cancelled}
    return [
        BatchCounter(batch=batch, lane=0, pending=shares[0], total=shares[0] + sum(first.values()), **first),
        *[BatchCounter(batch=batch, lane=lane, pending=shares[lane], total=shares[lane]) for lane in range(1, lanes)],
    ]


def _write_jobs(batches: list[Batch], plans: list[Plan]) -> None:
    dialect = DIALECTS[connection.vendor]
    counts = ", ".join(f"{kind} bigint" for kind in KINDS)
    values = [
        (batch.pk.hex, plan.size, *(getattr(plan, kind) for kind in KINDS))
        for batch, plan in zip(batches, plans, strict=True)
    ]
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS large_plan")
        cursor.execute(PLAN.format(uuid=dialect["uuid"], counts=counts))
        cursor.executemany(f"INSERT INTO large_plan VALUES (%s, %s{', %s' * len(KINDS)})", values)
        cursor.execute(_jobs_of_the_plan(dialect))
        cursor.execute("DROP TABLE large_plan")


def _jobs_of_the_plan(dialect: dict[str, str]) -> str:
    bounds = ["+".join(f"p.{kind}" for kind in KINDS[: index + 1]) for index in range(len(KINDS))]
    cases = " ".join(f"WHEN s.n < {bound} THEN '{kind}'" for kind, bound in zip(KINDS, bounds, strict=True))
    status = f"CASE {cases} ELSE 'queued' END"
    has_failed, has_ended, has_begun = f"s.n < {bounds[0]}", f"s.n < {bounds[2]}", f"s.n < {bounds[3]}"
    message = f"CASE WHEN {has_failed} THEN concat('row has no price: ', s.n % {ERRORS}) ELSE '' END"
    columns = {
        "batch_id": "p.batch_id",
        "role": "'item'",
        "position": "s.n",
        "lane": f"CASE WHEN p.size < 1000 THEN 0 ELSE s.n % {LANES} END",
        "run": "1",
        "status": status,
        "func": "'shop.jobs.import_row'",
        "args": dialect["json"].replace("{}", "[7]"),
        "kwargs": dialect["json"],
        "options": dialect["json"],
        "queue_name": "'default'",
        "attempts": f"CASE WHEN {has_begun} THEN 1 ELSE 0 END",
        "max_attempts": "1",
        "losses": "0",
        "deadlocks": "0",
        "error_class": f"CASE WHEN {has_failed} THEN 'ValueError' ELSE '' END",
        "error_message": message,
        "traceback": message,
        "has_result": "false",
        "worker_name": "''",
        "enqueued_at": "b.created_at",
        "started_at": f"CASE WHEN {has_begun} THEN {dialect['moment']} END",
        "finished_at": f"CASE WHEN {has_ended} THEN {dialect['moment']} END",
    }
    return (
        f"INSERT INTO django_job_batches_batchjob ({', '.join(columns)}) SELECT {', '.join(columns.values())} "
        f"FROM large_plan p JOIN django_job_batches_batch b ON b.id = p.batch_id {dialect['sequence']}"
    )
