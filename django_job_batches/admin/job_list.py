"""The list of jobs. Their table can be huge: whatever is asked for is found by an index, or looked for in few rows."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.views.main import PAGE_VAR, SEARCH_VAR, ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest

from django_job_batches.admin.filters import BatchFilter
from django_job_batches.admin.searching import job_id
from django_job_batches.admin.tables import LEFT_OUT, keys_in_state
from django_job_batches.models import BatchJob, Role

LOOKED_AT = 20_000
"""Jobs, the newest ones, among which is looked for what no index leads to."""
LOOKED_AT_IN_BATCH = 2_000
"""The same of one batch: its first items."""
IN_STATE = 2_000
"""Jobs of a batch in one state that are listed: the newest ones."""


class JobList(ChangeList):
    """In the order of an index, without the columns that only the page of one job shows; of one batch the items,
    unless another role is asked for.

    ``looked_at`` tells how many jobs were looked at where that may not have been all; otherwise it is None.
    """

    looked_at: int | None = None

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[BatchJob]:
        jobs = super().get_queryset(request, *args, **kwargs)
        return self._few(request, jobs).defer(*LEFT_OUT).prefetch_related("batch")

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.full_result_count = self.result_count  # or the search form would print a number that nobody has counted

    def _few(self, request: HttpRequest, jobs: QuerySet[BatchJob]) -> QuerySet[BatchJob]:
        """Those among which the database can look without an index."""
        text = request.GET.get(SEARCH_VAR, "")
        if job_id(text) is not None:
            return jobs
        if self._is_of_one_batch(request):
            if (state := request.GET.get("status__exact")) and not text:
                return self._in_state(jobs, state)
            if text or self._asks_for(request, "queue_name"):
                return self._first_of_batch(request, jobs)
            # by the index of batch, role and position; what is constant must not stand in the order, or MariaDB sorts
            ordered = jobs.order_by("position").filter(position__gte=0)
            return ordered if self._asks_for(request, "role") else ordered.filter(role=Role.ITEM)
        newest = self.root_queryset.order_by("-pk").values_list("pk", flat=True).first() or 0
        if newest <= LOOKED_AT or not set(request.GET) - {PAGE_VAR}:
            return jobs
        self.looked_at = LOOKED_AT
        return jobs.filter(pk__gt=newest - LOOKED_AT)

    def _first_of_batch(self, request: HttpRequest, jobs: QuerySet[BatchJob]) -> QuerySet[BatchJob]:
        items = self.root_queryset.filter(batch=request.GET[BatchFilter.parameter_name], role=Role.ITEM)
        keys = list(items.order_by("position").values_list("pk", flat=True)[:LOOKED_AT_IN_BATCH])
        self.looked_at = LOOKED_AT_IN_BATCH if len(keys) == LOOKED_AT_IN_BATCH else None
        return jobs.filter(pk__in=keys).order_by("pk")

    def _in_state(self, jobs: QuerySet[BatchJob], state: str) -> QuerySet[BatchJob]:
        keys = keys_in_state(jobs, state, IN_STATE, newest=True)
        self.looked_at = IN_STATE if len(keys) == IN_STATE else None
        return jobs.filter(pk__in=keys)

    def _is_of_one_batch(self, request: HttpRequest) -> bool:
        return bool(request.GET.get(BatchFilter.parameter_name))

    def _asks_for(self, request: HttpRequest, field: str) -> bool:
        return any(name.partition("__")[0] == field for name in request.GET)
