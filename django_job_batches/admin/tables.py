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
    found = list(_rows(batch, state, start)[: PER_PAGE + 1])
    jobs = found[:PER_PAGE]
    last = jobs[-1] if len(found) > PER_PAGE else None
    place = None if last is None else last.pk if state else last.position
    filters = {"state": state} if state else {}
    return JobPage(
        jobs,
        state,
        first=f"?{urlencode(filters)}" if start >= 0 else "",
        next=f"?{urlencode({**filters, 'after': place})}" if place is not None else "",
    )


def _rows(batch: Batch, state: str, start: int) -> QuerySet[BatchJob]:
    """By the order of an index: of positions, or within one status of keys."""
    rows = batch.jobs.filter(role=Role.ITEM).defer(*LEFT_OUT)
    if state:
        return rows.filter(status=state, pk__gt=start).order_by("pk")
    return rows.filter(position__gt=start).order_by("position")
