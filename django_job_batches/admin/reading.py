"""Pages to read: nothing is added or edited, and what says nothing is left out."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

EMPTY = (None, "")


class ReadingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # cannot be subscripted at run time
    class Media:
        css = {"all": ("django_job_batches/admin.css",)}  # noqa: RUF012  as Django writes it

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """The fieldsets without those fields that have no value, and without those that have no field left."""
        filled = []
        for label, options in super().get_fieldsets(request, obj):
            rows = [self._filled(row, obj) for row in options["fields"]]
            if any(rows):
                filled.append((label, {**options, "fields": [row for row in rows if row]}))
        return filled

    def _filled(self, row: Any, obj: Any) -> Any:
        if isinstance(row, (list, tuple)):
            return tuple(name for name in row if self._filled(name, obj))
        return row if self._value(row, obj) not in EMPTY else ""

    def _value(self, name: str, obj: Any) -> Any:
        method = getattr(self, name, None)
        return method(obj) if callable(method) else getattr(obj, name, None)
