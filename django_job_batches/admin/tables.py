"""The jobs of a batch on its page: paged by key, never counted, never all at once."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.db.models import QuerySet

from django_job_batches.models import Batch, BatchJob, JobStatus, Role

PER_PAGE = 25
LEFT_OUT = ("args", "kwargs", "result", "error_message", "traceback")
"""Columns that only the page of one job shows."""


@dataclass(frozen=True)
class JobPage:
    """One page: its jobs, and the queries of the addresses of the first and next one, "" if this is that."""

    jobs: list[BatchJob]
    state: str
    first: str
    next: str


def job_page(batch: Batch, state: str, after: str) -> JobPage:
    """``state``: a job's status, anything else stands for all; ``after``: where the page before has ended."""
    state = state if state in JobStatus else ""
    start = int(after) if after.isascii() and after.isdigit() and len(after) < 19 else -1
    jobs, last = _in_state(batch, state, start) if state else _in_order(batch, start)
    filters = {"state": state} if state else {}
    return JobPage(
        jobs,
        state,
        first=f"?{urlencode(filters)}" if start >= 0 else "",
        next=f"?{urlencode({**filters, 'after': last})}" if last is not None else "",
    )


def _in_order(batch: Batch, start: int) -> tuple[list[BatchJob], int | None]:
    """The items after this position, and the last one's if there are more."""
    rows = batch.jobs.filter(role=Role.ITEM, position__gt=start).order_by("position")
    found = list(rows.defer(*LEFT_OUT)[: PER_PAGE + 1])
    jobs = found[:PER_PAGE]
    return jobs, jobs[-1].position if len(found) > PER_PAGE else None


def _in_state(batch: Batch, state: str, start: int) -> tuple[list[BatchJob], int | None]:
    """The items in this state after this key, and the last key if there are more."""
    keys = keys_in_state(batch.jobs.filter(pk__gt=start), state, PER_PAGE + 1)
    jobs = batch.jobs.filter(pk__in=keys[:PER_PAGE], role=Role.ITEM).order_by("pk").defer(*LEFT_OUT)
    return list(jobs), keys[PER_PAGE - 1] if len(keys) > PER_PAGE else None


def keys_in_state(jobs: QuerySet[BatchJob], state: str, number: int, *, newest: bool = False) -> list[int]:
    """The keys of the first jobs of one batch in this state.

    Read from an index that holds all that is asked for; with other columns in the same statement, MariaDB looks
    through the whole table in the order of its keys instead.
    """
    rows = jobs.filter(status=state).order_by("-pk" if newest else "pk")
    return list(rows.values_list("pk", flat=True)[:number])
