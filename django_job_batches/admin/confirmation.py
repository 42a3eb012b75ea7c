"""Ask first, in numbers; then do it, and report what has really happened.

The page that asks carries the batches with the run that it has shown of each, so that a second click, or a second
operator, does nothing to a run that nobody has looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy, ngettext

from django_job_batches.admin.display import change_url, changelist_url, counters
from django_job_batches.admin.operations import OPERATIONS, Operation
from django_job_batches.admin.reading import ReadingAdmin
from django_job_batches.exceptions import BatchError
from django_job_batches.models import Batch

MAX_LISTED = 20
"""Batches, and errors, that are listed; of the others the page says how many they are."""

Seen = dict[uuid.UUID, int]


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Kept with the batch. Optional."),
        required=False,
        max_length=500,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


def encode(batches: Iterable[Batch]) -> str:
    return " ".join(f"{batch.pk.hex}.{batch.run}" for batch in batches)


def decode(text: str) -> Seen:
    """The batches that a page has shown, and their runs then."""
    try:
        pairs = [part.split(".") for part in text.split()]
        return {uuid.UUID(key): int(run) for key, run in pairs}
    except ValueError as error:
        raise SuspiciousOperation("The list of batches is damaged.") from error


@dataclass
class Outcome:
    """What became of the batches of one confirmed operation."""

    batches: int = 0
    number: int = 0
    unchanged: int = 0
    errors: list[str] = field(default_factory=list)

    def tell(self, operation: Operation, model_admin: admin.ModelAdmin[Any], request: HttpRequest) -> None:
        if self.batches:
            model_admin.message_user(request, operation.report(self.batches, self.number), messages.SUCCESS)
        if self.unchanged:
            text = ngettext(
                "%d batch was left alone: it was decided, retried or deleted meanwhile, or had nothing to do.",
                "%d batches were left alone: they were decided, retried or deleted meanwhile, or had nothing to do.",
                self.unchanged,
            )
            model_admin.message_user(request, text % self.unchanged, messages.WARNING)
        for error in self.errors[:MAX_LISTED]:
            model_admin.message_user(request, error, messages.ERROR)
        if hidden := len(self.errors[MAX_LISTED:]):
            text = ngettext("And %d more error.", "And %d more errors.", hidden)
            model_admin.message_user(request, text % hidden, messages.ERROR)


def carry_out(operation: Operation, batches: Iterable[Batch], seen: Seen, by: Any, reason: str) -> Outcome:
    """Do it to those of these batches that are still in the run that was seen."""
    outcome = Outcome()
    for batch in batches:
        if batch.run != seen[batch.pk]:
            continue
        try:
            number = operation.perform(batch, by=by, reason=reason)
        except BatchError as error:
            outcome.errors.append(str(error))
            continue
        outcome.batches += bool(number)
        outcome.number += number
    outcome.unchanged = len(seen) - outcome.batches - len(outcome.errors)
    return outcome


class ConfirmingAdmin(ReadingAdmin):
    """The page that asks before an operation on batches, for a selection and for a single one.

    A single one has ``?batch=<key>`` in its address, and the way leads back to the batch's own page.
    """

    confirmation_template = "admin/django_job_batches/batch/confirmation.html"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.operation_view)
        for alias in connections:  # what is done here commits by itself, and holds no locks until the response
            view = transaction.non_atomic_requests(using=alias)(view)
        return [path("operation/<slug:name>/", view, name=self._operation_name), *super().get_urls()]

    @property
    def _operation_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_operation"

    def operation_url(self, operation: Operation, **query: Any) -> str:
        url = reverse(f"admin:{self._operation_name}", args=[operation.name], current_app=self.admin_site.name)
        return f"{url}?{urlencode(query)}" if query else url

    def may(self, operation: Operation, request: HttpRequest) -> bool:
        """Whether the user has the permission for this operation: ``has_cancel_permission()`` and the like."""
        allowed = getattr(self, f"has_{operation.permission}_permission")
        return self.has_view_permission(request) and allowed(request)

    def operation_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """GET asks about the batch that ``?batch=`` names; POST does it to those in the field ``batches``."""
        operation = OPERATIONS.get(name)
        if operation is None:
            raise Http404
        if not self.may(operation, request):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask_about_one(request, operation)
        seen = decode(request.POST.get("batches", ""))
        batches = self.get_queryset(request).filter(pk__in=seen)
        form = ReasonForm(request.POST)
        if not form.is_valid():
            return self.confirm(request, operation, batches, form)
        outcome = carry_out(operation, batches, seen, request.user, form.cleaned_data["reason"])
        outcome.tell(operation, self, request)
        return HttpResponseRedirect(self._way_back(request))

    def _ask_about_one(self, request: HttpRequest, operation: Operation) -> HttpResponse:
        batch = self.get_object(request, request.GET.get("batch", ""))
        if batch is None:
            raise Http404
        return self.confirm(request, operation, [batch])

    def confirm(
        self,
        request: HttpRequest,
        operation: Operation,
        batches: Iterable[Batch],
        form: ReasonForm | None = None,
    ) -> TemplateResponse:
        """The page that asks."""
        batches = list(batches)
        refusals = {batch.pk: operation.refusal(batch) for batch in batches}
        concerned = [batch for batch in batches if not refusals[batch.pk]]
        context = {
            **self.admin_site.each_context(request),
            "title": operation.title,
            "original": operation.title,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "operation": operation,
            "sentences": operation.forecast(concerned) if concerned else [],
            "rows": [self._row(batch, refusals[batch.pk]) for batch in batches[:MAX_LISTED]],
            "unlisted": len(batches[MAX_LISTED:]),
            "left_alone": len(batches) - len(concerned),
            "batches": encode(concerned),
            "form": (form or ReasonForm()) if operation.asks_for_a_reason else None,
            "action_url": self._keeping_filters(request, self._form_url(request, operation)),
            "back_url": self._way_back(request),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, self.confirmation_template, context)

    def _row(self, batch: Batch, refusal: str) -> tuple[Batch, str, str, str]:
        return batch, self._page_of(batch), counters(batch.counts), refusal

    def _form_url(self, request: HttpRequest, operation: Operation) -> str:
        single = {"batch": request.GET["batch"]} if "batch" in request.GET else {}
        return self.operation_url(operation, **single)

    def _page_of(self, batch: Batch) -> str:
        return change_url(self.admin_site, self.model, batch.pk)

    def _way_back(self, request: HttpRequest) -> str:
        key = request.GET.get("batch")
        url = change_url(self.admin_site, self.model, key) if key else changelist_url(self.admin_site, self.model)
        return self._keeping_filters(request, url)

    def _keeping_filters(self, request: HttpRequest, url: str) -> str:
        context: Any = {"opts": self.opts, "preserved_filters": self.get_preserved_filters(request)}
        return add_preserved_filters(context, url)
