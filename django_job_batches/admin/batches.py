"""The pages of batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_job_batches.admin import display, figures, tables, tree
from django_job_batches.admin.background import under_way
from django_job_batches.admin.batch_operations import (
    BATCH_OPERATIONS,
    CANCEL,
    CANCEL_AND_STOP,
    DELETE,
    RETRY,
    RETRY_GROUP,
)
from django_job_batches.admin.confirmation import ConfirmingAdmin
from django_job_batches.admin.filters import (
    FailuresFilter,
    NameFilter,
    NestedFilter,
    OwnerFilter,
    QueueFilter,
    StuckFilter,
)
from django_job_batches.admin.live import LiveAdmin
from django_job_batches.admin.searching import batch_id, job_id
from django_job_batches.models import Batch, BatchJob, BatchQuerySet, JobStatus, Role

MAX_GROUPS = 20
"""Groups of errors that the page of a batch shows."""
MAX_ENTRIES = 20
"""Entries of the history that it shows."""
COUNTED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


class BatchList(ChangeList):
    """Reads what runs for all rows of the page at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        cast(BatchAdmin, self.model_admin).count_running(self.result_list)


@admin.register(Batch)
class BatchAdmin(ConfirmingAdmin, LiveAdmin):
    """Batches: to watch, to cancel, to retry; nobody edits them."""

    list_display = ("title", "state", "progress", "pace", "age", "duration", "created_by")
    list_display_links = ("title",)
    list_filter = (
        "status",
        FailuresFilter,
        StuckFilter,
        QueueFilter,
        NameFilter,
        OwnerFilter,
        NestedFilter,
        "created_at",
    )
    list_select_related = ("created_by",)
    list_per_page = 25
    list_max_show_all = 100
    search_fields = ("^id", "name", "key", "metadata")
    search_help_text = _("Name, key or metadata of a batch, its id or the beginning of it, or the id of a job in it.")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    show_full_result_count = False
    actions = ("cancel_selected", "cancel_and_stop_selected", "retry_selected", "delete_selected")
    operations: ClassVar[dict[str, Any]] = BATCH_OPERATIONS
    hands_over = True
    fieldsets = (
        (
            _("Origin and options"),
            {
                "fields": (
                    ("id", "key", "created_by"),
                    ("run", "queue", "allowance", "deadlocks"),
                    "details",
                ),
            },
        ),
        (_("Times"), {"fields": (("created_at", "started_at", "failed_at", "cancelled_at", "finished_at"),)}),
    )
    change_list_template = "admin/django_job_batches/batch/change_list.html"
    change_form_template = "admin/django_job_batches/batch/change_form.html"
    live_columns = ("state", "progress", "pace", "age", "duration")
    live_parts = ("overview", "tree", "errors", "callbacks", "throughput", "jobs", "history")

    # Who may do what

    def has_delete_permission(self, request: HttpRequest, obj: Batch | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or not DELETE.refusal(obj))

    # Columns and fields

    @admin.display(description=_("name"), ordering="name")
    def title(self, batch: Batch) -> str:
        return str(batch)

    @admin.display(description=_("status"), ordering="status")
    def state(self, batch: Batch) -> SafeString:
        return display.status(batch)

    @admin.display(description=_("progress"))
    def progress(self, batch: Batch) -> SafeString:
        running = getattr(batch, "running_now", 0)
        bar, counters = display.progress_bar(batch, running), display.counters(batch.counts, running)
        html = '<span data-live-row="{}">{}</span> <span class="job-batch-counters">{}</span>'
        return format_html(html, batch.pk, bar, counters)

    @admin.display(description=_("pace"))
    def pace(self, batch: Batch) -> SafeString | None:
        return display.pace(batch)

    @admin.display(description=_("age"), ordering="-created_at")
    def age(self, batch: Batch) -> SafeString:
        return display.age(batch.created_at)

    @admin.display(description=_("duration"))
    def duration(self, batch: Batch) -> str | None:
        return display.duration(batch.duration)

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

    def _batches(self, request: HttpRequest) -> BatchQuerySet:
        return cast(BatchQuerySet, self.get_queryset(request))

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BatchList]:
        return BatchList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        summary = {} if request.method == "POST" else {"live_summary": self.live_summary(request)}
        context = {**summary, "live_url": self.live_url(), **(extra_context or {})}
        return super().changelist_view(request, context)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        found, may_have_duplicates = super().get_search_results(request, queryset, search_term)
        if (pk := job_id(search_term)) is not None:
            found |= queryset.filter(pk__in=BatchJob.objects.filter(pk=pk).values("batch"))
        elif (key := batch_id(search_term)) is not None:
            found |= queryset.filter(pk=key)
        return found, may_have_duplicates

    def count_running(self, batches: Iterable[Batch]) -> None:
        """Note with each of these batches how many of its jobs run now."""
        active = [batch for batch in batches if not batch.is_finished]
        running = figures.count_running(active[0]._state.db, [batch.pk for batch in active]) if active else {}
        for batch in active:
            batch.__dict__["running_now"] = running.get(batch.pk, 0)

    def live_rows(self, request: HttpRequest, keys: list[Any]) -> list[Batch]:
        batches = list(self._batches(request).with_counts().filter(pk__in=keys).order_by())
        self.count_running(batches)
        return batches

    def live_summary(self, request: HttpRequest) -> str:
        numbers = figures.summary(self._batches(request))
        url = display.changelist_url(self.admin_site, Batch)
        return render_to_string("admin/django_job_batches/batch/summary.html", {"numbers": numbers, "list_url": url})

    def pulse(self, row: Batch) -> Any:
        return row.status, row.run, row.finished_at, row.open_callbacks, row.counts, getattr(row, "running_now", 0)

    @admin.action(permissions=["cancel"], description=_("Cancel selected batches"))
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Batch]) -> HttpResponse:
        return self.confirm(request, CANCEL, _lean(queryset))

    @admin.action(permissions=["cancel"], description=_("Cancel selected batches and stop what runs"))
    def cancel_and_stop_selected(self, request: HttpRequest, queryset: QuerySet[Batch]) -> HttpResponse:
        return self.confirm(request, CANCEL_AND_STOP, _lean(queryset))

    @admin.action(permissions=["retry"], description=_("Retry failed and cancelled jobs of selected batches"))
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Batch]) -> HttpResponse:
        return self.confirm(request, RETRY, _lean(queryset))

    @admin.action(permissions=["delete"], description=_("Delete selected batches"))
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Batch]) -> HttpResponse:
        return self.confirm(request, DELETE, _lean(queryset))

    # The page of one batch

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Batch | None:
        """With its counters, and the batches around it."""
        try:
            pk = Batch._meta.pk.to_python(object_id)
        except ValidationError:
            return None
        batches = self._batches(request).with_counts().select_related("created_by", tree.ANCESTORS)
        return batches.filter(pk=pk).order_by().first()

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        batch: Batch = kwargs.get("obj") or context["original"]
        parts = {name: self.render_part(request, name, batch) for name in self.live_parts}
        context = {
            **context,
            "live_url": self.live_url(batch.pk, "part"),
            "parts": {name: {"html": html, "version": version} for name, (html, version) in parts.items()},
            "show_delete": False,
            "jobs_url": self._jobs_url(request, batch),
        }
        return super().render_change_form(request, context, *args, **kwargs)

    def part_context(self, request: HttpRequest, part: str, row: Batch) -> dict[str, Any]:
        context: dict[str, Any] = getattr(self, f"_{part}")(request, row)
        return context

    def _overview(self, request: HttpRequest, batch: Batch) -> dict[str, Any]:
        self.count_running([batch])
        running = getattr(batch, "running_now", 0)
        jobs = self._jobs_url(request, batch)
        numbers = {status: getattr(batch, f"{status}_jobs") for status in COUNTED} | {JobStatus.RUNNING: running}
        return {
            "bar": display.progress_bar(batch, running),
            "numbers": [
                (status.label, number, f"{jobs}&status__exact={status}" if jobs and number else "")
                for status, number in numbers.items()
            ],
            "pending": max(batch.pending_jobs - running, 0),
            "jobs_url": jobs,
            "duration": display.duration(batch.duration),
            "rate": display.rate(batch),
            "eta": display.moment(batch.eta),
            "offers": self.offers(request, batch),
            "under_way": under_way(batch),
        }

    def _rows(self, batch: Batch) -> list[BatchJob]:
        """The first rows, read once for those parts of a page that need them."""
        if not hasattr(batch, "first_rows"):
            batch.__dict__["first_rows"] = tree.first_rows(batch)
        rows: list[BatchJob] = batch.__dict__["first_rows"]
        return rows

    def _tree(self, request: HttpRequest, batch: Batch) -> dict[str, Any]:
        nested = Batch.objects.using(batch._state.db).with_counts()
        root = tree.place_of(batch, self._rows(batch), nested)
        for node in root.walk():
            if node.batch is not None:
                node.url = self._page_of(node.batch)
                node.bar = display.progress_bar(node.batch) if node.job is not None else ""
            elif node.job is not None:
                node.url = self._job_url(node.job.pk)
        return {"root": root, "is_alone": root.is_here and not root.below}

    def _callbacks(self, request: HttpRequest, batch: Batch) -> dict[str, Any]:
        rows = sorted((row for row in self._rows(batch) if row.role != Role.ITEM), key=lambda row: row.position)
        return {"callbacks": [(row, self._job_url(row.pk)) for row in rows]}

    def _errors(self, request: HttpRequest, batch: Batch) -> dict[str, Any]:
        if not batch.failed_jobs:
            return {}
        errors = figures.errors(batch, MAX_GROUPS)
        may_retry = self.may(RETRY_GROUP, request) and not RETRY_GROUP.refusal(batch)
        groups = [
            (
                group,
                self._job_url(group.example),
                self.operation_url(RETRY_GROUP, row=batch.pk, example=group.example) if may_retry else "",
            )
            for group in errors.groups
        ]
        return {"errors": errors, "groups": groups, "max_shown": display.MAX_SHOWN}

    def _throughput(self, request: HttpRequest, batch: Batch) -> dict[str, Any]:
        found = figures.throughput(batch)
        return {"throughput": found, "chart": display.chart(found) if found else ""}

    def _jobs(self, request: HttpRequest, batch: Batch) -> dict[str, Any]:
        page = tables.job_page(batch, request.GET.get("state", ""), request.GET.get("after", ""))
        dashboard = display.dashboard_urls(page.jobs)
        jobs = [
            (job, self._job_url(job.pk), display.duration(job.duration), dashboard.get(job.pk, "")) for job in page.jobs
        ]
        return {"page": page, "jobs": jobs, "states": JobStatus.choices, "jobs_url": self._jobs_url(request, batch)}

    def _history(self, request: HttpRequest, batch: Batch) -> dict[str, Any]:
        entries = LogEntry.objects.filter(
            content_type=get_content_type_for_model(batch), object_id=str(batch.pk)
        ).select_related("user")
        return {"entries": entries.order_by("-action_time")[:MAX_ENTRIES]}

    def _jobs_url(self, request: HttpRequest, batch: Batch) -> str:
        """The list of the items, if the user may see it."""
        jobs = self.admin_site._registry.get(BatchJob)
        if jobs is None or not jobs.has_view_permission(request):
            return ""
        return display.changelist_url(self.admin_site, BatchJob, batch=batch.pk, role__exact=Role.ITEM.value)

    def _job_url(self, pk: int) -> str:
        return display.change_url(self.admin_site, BatchJob, pk)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Deleting asks as everything else does."""
        return HttpResponseRedirect(self.operation_url(DELETE, row=object_id))


def _lean(batches: QuerySet[Batch]) -> QuerySet[Batch]:
    """What is asked before an operation needs neither the owners nor the metadata of perhaps ten thousand."""
    return batches.select_related(None).defer("metadata")
