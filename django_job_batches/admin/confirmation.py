"""Ask first, in numbers; then do it, and report what has really happened.

The page that asks carries the rows with the version that it has shown of each, so that a second click, or a second
operator, does nothing to a run that nobody has looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.core.exceptions import PermissionDenied, SuspiciousOperation, ValidationError
from django.db import connections, transaction
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext, gettext_lazy, ngettext

from django_job_batches.admin.background import hand_over, hand_over_all
from django_job_batches.admin.display import change_url, changelist_url
from django_job_batches.admin.operations import Operation, Order
from django_job_batches.admin.reading import ReadingAdmin
from django_job_batches.database import home_of
from django_job_batches.exceptions import BatchError
from django_job_batches.queues import QueueError

MAX_LISTED = 20
"""Rows, and errors, that are listed; of the others the page says how many they are."""
IN_REQUEST = 2_500
"""Jobs, about, that one request writes: half a second. What is more goes on in a worker."""
COST_OF_ROW = 20
"""What a row costs besides its jobs, in jobs."""
MANY = 100
"""With more rows than these, a worker does it all."""

Seen = dict[Any, str]


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Kept with the batch. Optional."),
        required=False,
        max_length=500,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )


def encode(rows: Iterable[Any], operation: Operation[Any]) -> str:
    return " ".join(f"{row.pk}.{operation.version(row)}" for row in rows)


def decode(text: str, model: type[Model]) -> Seen:
    """The rows that a page has shown, and their versions then."""
    try:
        pairs = [part.split(".") for part in text.split()]
        return {model._meta.pk.clean(key, None): version for key, version in pairs}
    except (ValueError, ValidationError) as error:
        raise SuspiciousOperation("The list of what was chosen is damaged.") from error


@dataclass
class Outcome:
    """What became of the rows of one confirmed operation."""

    done: int = 0
    number: int = 0
    handed_over: int = 0
    unchanged: int = 0
    errors: list[str] = field(default_factory=list)

    def messages(self, operation: Operation[Any]) -> Iterable[tuple[int, str]]:
        if self.done:
            yield messages.SUCCESS, operation.report(self.done, self.number)
        if self.handed_over:
            text = ngettext(
                "%(operation)s: %(number)d batch is large; a worker goes on with it, and its page shows how far it is.",
                "%(operation)s: a worker goes on with %(number)d batches; their pages show how far it is.",
                self.handed_over,
            )
            yield messages.INFO, text % {"operation": operation.label, "number": self.handed_over}
        if self.unchanged:
            text = ngettext(
                "%d was left alone: it was decided, retried or deleted meanwhile, or had nothing to do.",
                "%d were left alone: they were decided, retried or deleted meanwhile, or had nothing to do.",
                self.unchanged,
            )
            yield messages.WARNING, text % self.unchanged
        for error in self.errors[:MAX_LISTED]:
            yield messages.ERROR, error
        if len(self.errors) > MAX_LISTED:
            more = len(self.errors) - MAX_LISTED
            text = ngettext("and %d more error of this kind", "and %d more errors of this kind", more)
            yield messages.ERROR, text % more


def carry_out(operation: Operation[Any], rows: Iterable[Any], seen: Seen, order: Order) -> Outcome:
    """Do it to those rows that still are as they were seen: here what is done soon, the rest in a worker."""
    outcome, left = Outcome(), IN_REQUEST
    for row in rows:
        if operation.version(row) != seen[row.pk]:
            continue
        left -= COST_OF_ROW
        cost = operation.cost(row)
        try:
            if cost > left:
                _hand_over(operation, row, seen[row.pk], order, begins=left > 0)
                outcome.handed_over += 1
            elif number := operation.perform(row, order):
                left -= cost
                outcome.done += 1
                outcome.number += number
        except BatchError as error:
            outcome.errors.append(str(error))
        except QueueError as error:
            outcome.errors.append(gettext("%(row)s: Redis does not answer (%(error)s).") % {"row": row, "error": error})
    outcome.unchanged = len(seen) - outcome.done - outcome.handed_over - len(outcome.errors)
    return outcome


def _hand_over(operation: Operation[Any], row: Any, version: str, order: Order, *, begins: bool) -> None:
    if begins:
        operation.begin(row, order)
    hand_over(operation, row, version, order)


class ConfirmingAdmin(ReadingAdmin):
    """The page that asks before an operation, for a selection of rows and for a single one.

    A single one has ``?row=<key>`` in its address, and the way leads back to its own page.
    """

    confirmation_template = "admin/django_job_batches/confirmation.html"
    operations: ClassVar[dict[str, Operation[Any]]]
    hands_over: ClassVar[bool] = False
    """Whether what takes long goes on in a worker: that of batches does."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.operation_view)
        for alias in connections:  # what is done here commits by itself, and holds no locks until the response
            view = transaction.non_atomic_requests(using=alias)(view)
        return [path("operation/<slug:name>/", view, name=self._operation_name), *super().get_urls()]

    @property
    def _operation_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_operation"

    def operation_url(self, operation: Operation[Any], **query: Any) -> str:
        url = reverse(f"admin:{self._operation_name}", args=[operation.name], current_app=self.admin_site.name)
        return f"{url}?{urlencode(query)}" if query else url

    def offers(self, request: HttpRequest, row: Any) -> list[tuple[str, Operation[Any]]]:
        """What the user may do to this row, now, with the address of the page that asks."""
        may = [o for o in self.operations.values() if not o.needs_an_example and self.may(o, request)]
        return [(self.operation_url(o, row=row.pk), o) for o in may if not o.refusal(row)]

    def may(self, operation: Operation[Any], request: HttpRequest) -> bool:
        """Whether the user has the permission for this operation: ``has_cancel_permission()`` and the like."""
        allowed = getattr(self, f"has_{operation.permission}_permission")
        return self.has_view_permission(request) and allowed(request)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self._has_permission(request, "cancel")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return self._has_permission(request, "retry")

    def _has_permission(self, request: HttpRequest, action: str) -> bool:
        """The permissions are those of batches, for their jobs too."""
        return request.user.has_perm(f"{self.opts.app_label}.{action}_batch")

    def operation_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """GET asks about the row that ``?row=`` names; POST does it to those in the field ``chosen``."""
        operation = self.operations.get(name)
        if operation is None:
            raise Http404
        if not self.may(operation, request):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask_about_one(request, operation)
        seen = decode(request.POST.get("chosen", ""), self.model)
        rows = self.get_queryset(request).filter(pk__in=seen)
        form = ReasonForm(request.POST)
        if not form.is_valid():
            return self.confirm(request, operation, rows, form)
        order = self._order(request, operation, form.cleaned_data["reason"])
        if len(seen) > MANY:
            outcome = self._hand_over_all(operation, rows, seen, order)
        else:
            outcome = carry_out(operation, rows, seen, order)
        for level, text in outcome.messages(operation):
            self.message_user(request, text, level)
        return HttpResponseRedirect(self._way_back(request, seen))

    def _hand_over_all(self, operation: Operation[Any], rows: QuerySet[Any], seen: Seen, order: Order) -> Outcome:
        if not self.hands_over:
            raise SuspiciousOperation("So many cannot have been chosen on a page of this site.")
        visible = rows.order_by().values_list("pk", flat=True)
        chosen = " ".join(sorted(f"{pk}.{seen[pk]}" for pk in visible))
        try:
            hand_over_all(operation, home_of(self.model()), chosen, order)
        except QueueError as error:
            return Outcome(errors=[gettext("Nothing was done: Redis does not answer (%s).") % error])
        return Outcome(handed_over=len(chosen.split()))

    def _order(self, request: HttpRequest, operation: Operation[Any], reason: str = "") -> Order:
        example = request.GET.get("example", "")
        if operation.needs_an_example and not (example.isascii() and example.isdigit() and len(example) < 19):
            raise Http404
        by: Any = request.user
        return Order(by, reason, int(example) if operation.needs_an_example else None)

    def _ask_about_one(self, request: HttpRequest, operation: Operation[Any]) -> HttpResponse:
        row = self.get_object(request, request.GET.get("row", ""))
        if row is None:
            raise Http404
        return self.confirm(request, operation, [row])

    def confirm(
        self,
        request: HttpRequest,
        operation: Operation[Any],
        rows: Iterable[Any],
        form: ReasonForm | None = None,
    ) -> TemplateResponse:
        """The page that asks."""
        rows = list(rows)
        refusals = {row.pk: operation.refusal(row) for row in rows}
        concerned = [row for row in rows if not refusals[row.pk]]
        order = self._order(request, operation)
        context = {
            **self.admin_site.each_context(request),
            "title": operation.title,
            "original": operation.title,
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "operation": operation,
            "sentences": operation.forecast(concerned, order) if concerned else [],
            "rows": [(row, self._page_of(row), refusals[row.pk]) for row in rows[:MAX_LISTED]],
            "unlisted": len(rows[MAX_LISTED:]),
            "left_alone": len(rows) - len(concerned),
            "chosen": encode(concerned, operation),
            "form": (form or ReasonForm()) if operation.asks_for_a_reason else None,
            "action_url": self._keeping_filters(request, self._form_url(request, operation)),
            "back_url": self._way_back(request),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, self.confirmation_template, context)

    def _form_url(self, request: HttpRequest, operation: Operation[Any]) -> str:
        query = {key: request.GET[key] for key in ("row", "example") if key in request.GET}
        return self.operation_url(operation, **query)

    def _page_of(self, row: Any) -> str:
        return change_url(self.admin_site, self.model, row.pk)

    def _way_back(self, request: HttpRequest, seen: Seen | None = None) -> str:
        key = request.GET.get("row")
        is_there = key and (seen is None or self.get_queryset(request).filter(pk__in=seen).exists())
        url = change_url(self.admin_site, self.model, key) if is_there else changelist_url(self.admin_site, self.model)
        return self._keeping_filters(request, url)

    def _keeping_filters(self, request: HttpRequest, url: str) -> str:
        context: Any = {"opts": self.opts, "preserved_filters": self.get_preserved_filters(request)}
        return add_preserved_filters(context, url)
