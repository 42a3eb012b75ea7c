"""The pages of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import get_permission_codename
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_job_batches.admin import display
from django_job_batches.admin.confirmation import ConfirmingAdmin
from django_job_batches.admin.filters import FailuresFilter, QueueFilter
from django_job_batches.admin.operations import CANCEL, CANCEL_AND_STOP, OPERATIONS, RETRY
from django_job_batches.admin.searching import batch_id, job_id
from django_job_batches.exceptions import BatchError
from django_job_batches.models import Batch, BatchJob, JobStatus, Role

MAX_ROWS = 50
"""Rows in each of the tables below the fields of a batch."""


CALLBACKS = (Role.ON_SUCCESS, Role.ON_FAILURE, Role.ON_FINISH)


@admin.register(Batch)
class BatchAdmin(ConfirmingAdmin):
    """Batches: to watch, to cancel, to retry; nobody edits them."""

    list_display = ("title", "state", "progress", "counters", "created_at", "duration", "created_by")
    list_display_links = ("title",)
    list_filter = ("status", FailuresFilter, QueueFilter, "created_at")
    list_select_related = ("created_by",)
    list_per_page = 50
    search_fields = ("^id", "name", "key")
    search_help_text = _("Name or key of a batch, its id or the beginning of it, or the id of one of its jobs.")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    show_full_result_count = False
    actions = ("cancel_selected", "cancel_and_stop_selected", "retry_selected")
    fieldsets = (
        (None, {"fields": (("state", "progress", "duration", "eta"), "cancel_reason", "error", "parent")}),
        (_("Times"), {"fields": (("created_at", "started_at", "failed_at", "cancelled_at", "finished_at"),)}),
        (
            _("Origin and options"),
            {
                "fields": (
                    ("id", "key", "created_by"),
                    ("run", "queue", "allowance", "deadlocks"),
                    "details",
                )
            },
        ),
    )
    change_form_template = "admin/django_job_batches/batch/change_form.html"

    # Who may do what

    def has_delete_permission(self, request: HttpRequest, obj: Batch | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or not _why_kept(obj))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self._has_permission(request, "cancel")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return self._has_permission(request, "retry")

    def _has_permission(self, request: HttpRequest, action: str) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{get_permission_codename(action, self.opts)}")

    # Columns and fields

    @admin.display(description=_("name"), ordering="name")
    def title(self, batch: Batch) -> str:
        return str(batch)

    @admin.display(description=_("status"), ordering="status")
    def state(self, batch: Batch) -> SafeString:
        return display.status(batch)

    @admin.display(description=_("progress"))
    def progress(self, batch: Batch) -> SafeString:
        return display.progress_bar(batch)

    @admin.display(description=_("jobs"))
    def counters(self, batch: Batch) -> str:
        return display.counters(batch.counts)

    @admin.display(description=_("duration"))
    def duration(self, batch: Batch) -> str | None:
        return display.duration(batch.duration)

    @admin.display(description=_("estimated end"))
    def eta(self, batch: Batch) -> Any:
        return display.moment(batch.eta)

    @admin.display(description=_("part of"))
    def parent(self, batch: Batch) -> Any:
        row = batch.parent_job
        if row is None:
            return None
        batch_link = display.link(display.change_url(self.admin_site, Batch, row.batch_id), row.batch)
        job_link = display.link(display.change_url(self.admin_site, BatchJob, row.pk), row.get_role_display())
        return format_html("{} ({})", batch_link, job_link)

    @admin.display(description=_("queue"))
    def queue(self, batch: Batch) -> str:
        return batch.queue_name or gettext("as each job says")

    @admin.display(description=_("allowed failures"))
    def allowance(self, batch: Batch) -> str:
        if batch.allowed_millionths is not None:
            return f"{batch.allowed_millionths / 10_000:g} %"
        return gettext("any number") if batch.allowed_failures is None else str(batch.allowed_failures)

    @admin.display(description=_("deadlocks survived"))
    def deadlocks(self, batch: Batch) -> int:
        return batch.deadlocks

    @admin.display(description=_("metadata"))
    def details(self, batch: Batch) -> SafeString | None:
        return display.pretty(batch.metadata) if batch.metadata else None

    # The list

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        found, may_have_duplicates = super().get_search_results(request, queryset, search_term)
        if (pk := job_id(search_term)) is not None:
            found |= queryset.filter(pk__in=BatchJob.objects.filter(pk=pk).values("batch"))
        elif (key := batch_id(search_term)) is not None:
            found |= queryset.filter(pk=key)
        return found, may_have_duplicates

    @admin.action(permissions=["cancel"], description=_("Cancel selected batches"))
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Batch]) -> HttpResponse:
        return self.confirm(request, CANCEL, queryset)

    @admin.action(permissions=["cancel"], description=_("Cancel selected batches and stop what runs"))
    def cancel_and_stop_selected(self, request: HttpRequest, queryset: QuerySet[Batch]) -> HttpResponse:
        return self.confirm(request, CANCEL_AND_STOP, queryset)

    @admin.action(permissions=["retry"], description=_("Retry failed and cancelled jobs of selected batches"))
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Batch]) -> HttpResponse:
        return self.confirm(request, RETRY, queryset)

    # The page of one batch

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        batch: Batch = kwargs.get("obj") or context["original"]
        return super().render_change_form(request, {**context, **self._surroundings(request, batch)}, *args, **kwargs)

    def _surroundings(self, request: HttpRequest, batch: Batch) -> dict[str, Any]:
        """What the page shows around the fields: buttons, and tables of what belongs to the batch."""
        tools = [operation for operation in OPERATIONS.values() if self.may(operation, request)]
        jobs = self._jobs_url(request, batch)
        nested = Batch.objects.using(batch._state.db).filter(parent_job__batch=batch.pk, parent_job__role=Role.ITEM)
        callbacks = batch.jobs.filter(role__in=CALLBACKS).order_by("role", "position")
        errors = batch.errors(limit=MAX_ROWS + 1) if batch.failed_jobs else []
        return {
            "operations": [(self.operation_url(o, batch=batch.pk), o) for o in tools if not o.refusal(batch)],
            "jobs_url": jobs,
            "states": self._states(batch, jobs),
            "callbacks": [(row, self._job_url(row.pk)) for row in callbacks],
            "nested": [self._nested_row(child) for child in nested.order_by("parent_job")[:MAX_ROWS]],
            "errors_by_kind": [(group, self._job_url(group.example)) for group in errors[:MAX_ROWS]],
            "more_errors": len(errors) > MAX_ROWS,
        }

    def _nested_row(self, batch: Batch) -> tuple[Batch, str, SafeString, str]:
        return batch, self._page_of(batch), display.progress_bar(batch), display.counters(batch.counts)

    def _states(self, batch: Batch, jobs: str) -> list[tuple[Any, int, str]]:
        """For each counter its name, its number, and the list of these jobs."""
        links = {name: f"{jobs}&status__exact={name}" for name in (JobStatus.SUCCEEDED, JobStatus.FAILED)}
        links[JobStatus.CANCELLED] = f"{jobs}&status__exact={JobStatus.CANCELLED}"
        states: list[tuple[Any, int, str]] = [
            (status.label, getattr(batch, f"{status}_jobs"), url) for status, url in links.items()
        ]
        states += [(gettext("pending"), batch.pending_jobs, ""), (gettext("total"), batch.total_jobs, jobs)]
        return [(label, number, url if jobs and number else "") for label, number, url in states]

    def _jobs_url(self, request: HttpRequest, batch: Batch) -> str:
        """The list of the items, if the user may see it."""
        jobs = self.admin_site._registry.get(BatchJob)
        if jobs is None or not jobs.has_view_permission(request):
            return ""
        return display.changelist_url(self.admin_site, BatchJob, batch=batch.pk, role__exact=Role.ITEM.value)

    def _job_url(self, pk: int) -> str:
        return display.change_url(self.admin_site, BatchJob, pk)

    # Deleting

    def get_deleted_objects(
        self, objs: Iterable[Batch], request: HttpRequest
    ) -> tuple[list[str], dict[Any, int], set[Any], list[str]]:
        batches = list(objs)
        numbers = {
            self.opts.verbose_name_plural: len(batches),
            BatchJob._meta.verbose_name_plural: sum(batch.total_jobs for batch in batches),
        }
        kept = [f"{batch}: {reason}" for batch in batches if (reason := _why_kept(batch))]
        lacking = set() if self.has_delete_permission(request) else {self.opts.verbose_name}
        return [f"{capfirst(self.opts.verbose_name)}: {batch}" for batch in batches], numbers, lacking, kept

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Batch]) -> None:
        with transaction.atomic(using=queryset.db):
            for batch in queryset:
                batch.delete()

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, extra_context)
        except BatchError as error:
            return self._refused(request, error, display.change_url(self.admin_site, self.model, object_id))

    def response_action(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse | None:
        try:
            return super().response_action(request, *args, **kwargs)
        except BatchError as error:
            return self._refused(request, error, request.get_full_path())

    def _refused(self, request: HttpRequest, error: BatchError, url: str) -> HttpResponse:
        self.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(url)


def _why_kept(batch: Batch) -> str:
    """Why this batch cannot be deleted now; "" if it can. ``Batch.delete()`` has the last word."""
    if batch.parent_job_id is not None:
        return gettext("part of another batch; delete that one")
    if not batch.is_finished:
        return gettext("has not finished; cancel it, and wait for its end")
    return gettext("its callbacks have not ended yet") if batch.open_callbacks else ""
