"""Filters of the admin's lists. None of them counts jobs, or looks through them for its choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_job_batches.admin.display import shortened
from django_job_batches.conf import queue_names, settings
from django_job_batches.models import Batch, BatchCounter

LATELY = 500
"""Batches, the newest ones, in which choices are looked for."""
CHOICES = 15


class QueueFilter(SimpleListFilter):
    """By queue; the choices are those of ``RQ_QUEUES``. What names no queue is on ``JOB_BATCHES["QUEUE"]``."""

    title = _("queue")
    parameter_name = "queue_name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in sorted(queue_names())]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        if name is None:
            return queryset
        return queryset.filter(queue_name__in=(name, "") if name == settings.QUEUE else (name,))


class FailuresFilter(SimpleListFilter):
    """Batches with failed jobs, by their counters."""

    title = _("failures")
    parameter_name = "failures"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", gettext("With failures")), ("no", gettext("Without failures"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in ("yes", "no"):
            return queryset
        failed = Exists(BatchCounter.objects.filter(batch=OuterRef("pk"), failed__gt=0))
        return queryset.filter(failed if self.value() == "yes" else ~failed)


class StuckFilter(SimpleListFilter):
    """Batches that no longer move by themselves; ``reconcile_batches`` sees to them."""

    title = _("stuck")
    parameter_name = "stuck"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", gettext("Stuck"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() != "yes":
            return queryset
        return queryset.filter(pk__in=Batch.objects.using(queryset.db).stuck().order_by().values("pk"))


class NestedFilter(SimpleListFilter):
    """Batches by themselves, or those that are part of others."""

    title = _("nesting")
    parameter_name = "nested"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("no", gettext("By themselves")), ("yes", gettext("Part of another"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        is_whole = {"no": True, "yes": False}.get(self.value() or "")
        return queryset if is_whole is None else queryset.filter(parent_job__isnull=is_whole)


class NameFilter(SimpleListFilter):
    """By name; the choices are the most frequent ones of late."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = model_admin.get_queryset(request).order_by("-created_at").values_list("name", flat=True)
        names = [name for name, _number in Counter(rows[:LATELY]).most_common(CHOICES) if name]
        if (chosen := self.value()) and chosen not in names:
            names.append(chosen)
        return [(name, shortened(name, 40)) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(name=self.value())


class OwnerFilter(SimpleListFilter):
    """By who started them; the choices are those who did of late."""

    title = _("created by")
    parameter_name = "created_by"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = model_admin.get_queryset(request).exclude(created_by=None).order_by("-created_at")
        owners = Counter(rows.values_list("created_by", flat=True)[:LATELY])
        keys = [key for key, _number in owners.most_common(CHOICES)]
        users = get_user_model()._default_manager.filter(pk__in=keys) if keys else ()
        return sorted(((str(user.pk), str(user)) for user in users), key=itemgetter(1))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        try:
            return queryset.filter(created_by=self.value())
        except (ValueError, ValidationError) as error:
            raise IncorrectLookupParameters(error) from error


class BatchFilter(SimpleListFilter):
    """Jobs of one batch: not to be chosen here, but shown, and to be lifted, where a link has set it."""

    title = _("batch")
    parameter_name = "batch"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, str]]:
        if self.value() is not None:
            batch = Batch.objects.using(model_admin.get_queryset(request).db).filter(pk=self._pk()).first()
            yield str(self.value()), str(batch or self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(batch=self._pk())

    def _pk(self) -> Any:
        try:
            return Batch._meta.pk.to_python(self.value())
        except ValidationError as error:
            raise IncorrectLookupParameters(error) from error
