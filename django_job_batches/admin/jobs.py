"""The pages of jobs. Their table can be huge: nothing here counts it, or sorts it without an index."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from django.contrib import admin
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_job_batches.admin import display
from django_job_batches.admin.confirmation import ConfirmingAdmin
from django_job_batches.admin.filters import BatchFilter, QueueFilter
from django_job_batches.admin.job_list import JobList
from django_job_batches.admin.job_operations import JOB_OPERATIONS
from django_job_batches.admin.paginator import PeekingPaginator
from django_job_batches.admin.searching import job_id
from django_job_batches.models import Batch, BatchJob


@admin.register(BatchJob)
class JobAdmin(ConfirmingAdmin):
    """Jobs: to look at, to retry, to cancel, to stop."""

    list_display = ("id", "job", "state", "batch_link", "role", "tries", "error_class", "started_at", "duration")
    list_filter = (BatchFilter, "status", "role", QueueFilter)
    sortable_by = ()
    ordering = ("-id",)
    list_per_page = 50
    search_fields = ("func", "error_class", "error_message")
    search_help_text = _("Id of a job or of an RQ job, or part of a function's path, an exception or its message.")
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = None
    operations: ClassVar[dict[str, Any]] = JOB_OPERATIONS
    change_list_template = "admin/django_job_batches/batchjob/change_list.html"
    change_form_template = "admin/django_job_batches/batchjob/change_form.html"
    paginator = PeekingPaginator
    fieldsets = (
        (None, {"fields": (("state", "tries", "duration"), ("batch_link", "role"), "nested")}),
        (_("Error"), {"fields": ("error_class", "message", "trace")}),
        (_("Result"), {"fields": ("returned",)}),
        (_("Call"), {"fields": ("func", "arguments", "keyword_arguments", "job_options", ("queue_name", "rq_job"))}),
        (
            _("Times"),
            {
                "fields": (
                    ("scheduled_at", "enqueued_at", "started_at", "finished_at", "stop_requested_at"),
                    ("worker_name", "losses", "deadlocks"),
                )
            },
        ),
    )

    def has_delete_permission(self, request: HttpRequest, obj: BatchJob | None = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobList

    def get_paginator(self, request: HttpRequest, *args: Any, **kwargs: Any) -> PeekingPaginator:
        paginator = cast(PeekingPaginator, super().get_paginator(request, *args, **kwargs))
        paginator.look_from(request.GET.get(PAGE_VAR, ""))
        return paginator

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """A number is a key, and found at once; put it in quotation marks to look for it in messages."""
        if (pk := job_id(search_term)) is not None:
            return queryset.filter(pk=pk), False
        return super().get_search_results(request, queryset, search_term)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        job: BatchJob = kwargs.get("obj") or context["original"]
        context = {**context, "offers": self.offers(request, job)}
        return super().render_change_form(request, context, *args, **kwargs)

    # Columns and fields

    @admin.display(description=_("job"))
    def job(self, job: BatchJob) -> str:
        return display.shortened(str(job), 200)

    @admin.display(description=_("status"))
    def state(self, job: BatchJob) -> SafeString:
        return display.status(job)

    @admin.display(description=_("batch"))
    def batch_link(self, job: BatchJob) -> Any:
        return display.link(display.change_url(self.admin_site, Batch, job.batch_id), job.batch)

    @admin.display(description=_("nested batch"))
    def nested(self, job: BatchJob) -> Any:
        batch: Batch | None = getattr(job, "nested_batch", None)
        return batch and display.link(display.change_url(self.admin_site, Batch, batch.pk), batch)

    @admin.display(description=_("attempts"))
    def tries(self, job: BatchJob) -> str | None:
        if job.is_nested_batch:
            return None
        return gettext("%(attempts)s of %(most)s") % {"attempts": job.attempts, "most": job.max_attempts}

    @admin.display(description=_("duration"))
    def duration(self, job: BatchJob) -> str | None:
        return display.duration(job.duration)

    @admin.display(description=_("arguments"))
    def arguments(self, job: BatchJob) -> SafeString | None:
        return display.pretty(job.args) if job.args else None

    @admin.display(description=_("keyword arguments"))
    def keyword_arguments(self, job: BatchJob) -> SafeString | None:
        return display.pretty(job.kwargs) if job.kwargs else None

    @admin.display(description=_("options"))
    def job_options(self, job: BatchJob) -> SafeString | None:
        return display.pretty(job.options) if job.options else None

    @admin.display(description=_("message"))
    def message(self, job: BatchJob) -> SafeString | None:
        return display.preformatted(job.error_message)

    @admin.display(description=_("traceback"))
    def trace(self, job: BatchJob) -> SafeString | None:
        return display.preformatted(job.traceback)

    @admin.display(description=_("result"))
    def returned(self, job: BatchJob) -> SafeString | None:
        return display.pretty(job.result) if job.has_result else None

    @admin.display(description=_("RQ job"))
    def rq_job(self, job: BatchJob) -> Any:
        """The id of the RQ job; a link to its page where django-rq's dashboard is installed."""
        if job.is_nested_batch:
            return None
        return display.link(display.dashboard_urls([job]).get(job.pk, ""), job.rq_job_id)
