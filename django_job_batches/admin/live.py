"""Pages that stay up to date while they are open: what has changed is asked for, and answered in few statements.

A list asks for its rows, each with the version that it shows; a page for one of its parts at a time. The script is
static/django_job_batches/live.js.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.html import conditional_escape

from django_job_batches.admin.reading import ReadingAdmin

MAX_ROWS = 100
"""Rows of a list that one request may ask for."""


def version_of(*texts: Any) -> str:
    """A short name of these texts, which changes with them."""
    return hashlib.sha256("\0".join(str(text) for text in texts).encode()).hexdigest()[:12]


class LiveAdmin(ReadingAdmin):
    """``live_columns`` of the list and ``live_parts`` of the page are kept up to date.

    The page's template has an element ``data-live-part`` for each part, with what ``render_part()`` makes of it. What
    is shown, a subclass says: by ``live_rows()``, ``pulse()`` and ``part_context()``.
    """

    class Media:
        js = (forms.Script("django_job_batches/live.js", type="module"),)

    live_columns: ClassVar[tuple[str, ...]] = ()
    live_parts: ClassVar[tuple[str, ...]] = ()
    part_template = "admin/django_job_batches/{model}/parts/{part}.html"

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        rows = path("live/", self.admin_site.admin_view(self.live_rows_view), name=f"{name}_live")
        view = self.admin_site.admin_view(self.live_part_view)
        part = path("<path:object_id>/live/<slug:part>/", view, name=f"{name}_live_part")
        return [rows, part, *super().get_urls()]

    def live_url(self, *args: Any) -> str:
        """Where the rows of the list are asked for, or a part of a page: by its key and the part's name."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_live{'_part' if args else ''}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    # The list

    def live_rows(self, request: HttpRequest, keys: list[Any]) -> Iterable[models.Model]:
        """The rows with these keys, with all that ``live_columns`` need."""
        raise NotImplementedError

    def live_summary(self, request: HttpRequest) -> str:
        """What stands above the list."""
        return ""

    def pulse(self, row: Any) -> Any:
        """What changes as long as something happens to this row; unlike ages, which always change."""
        raise NotImplementedError

    def live_rows_view(self, request: HttpRequest) -> HttpResponse:
        """JSON: the columns of those rows whose version is not the one that the page shows."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        shown = self._shown(request.GET.get("rows", ""))
        columns = [name for name in self.live_columns if name in self.get_list_display(request)]
        rows, pulses = {}, []
        for row in self.live_rows(request, list(shown)):
            pulses.append(self.pulse(row))
            cells = {name: self._cell(name, row) for name in columns}
            version = version_of(*cells.values())
            if version != shown[row.pk]:
                rows[str(row.pk)] = {"version": version, "cells": cells, "name": str(row)}
        return JsonResponse({"rows": rows, "summary": self.live_summary(request), "pulse": version_of(*pulses)})

    def _cell(self, name: str, row: Any) -> str:
        value = getattr(self, name)(row)
        return conditional_escape(self.get_empty_value_display() if value in (None, "") else value)

    def _shown(self, text: str) -> dict[Any, str]:
        """The keys of the rows that the page shows, with their versions."""
        try:
            pairs = [part.partition(".") for part in text.split(",") if part]
            return {self.opts.pk.clean(key, None): version for key, _, version in pairs[:MAX_ROWS]}
        except ValidationError as error:
            raise Http404 from error

    # The page of one row

    def part_context(self, request: HttpRequest, part: str, row: Any) -> dict[str, Any]:
        """What the template of this part needs."""
        raise NotImplementedError

    def render_part(self, request: HttpRequest, part: str, row: Any) -> tuple[str, str]:
        """The part's HTML, and its version."""
        request.current_app = self.admin_site.name
        template = self.part_template.format(model=self.opts.model_name, part=part)
        html = render_to_string(template, {"original": row, **self.part_context(request, part, row)}, request=request)
        return html, version_of(html)

    def live_part_view(self, request: HttpRequest, object_id: str, part: str) -> HttpResponse:
        """The HTML of one part; 204 while it is what the page shows; 404 when the row is gone."""
        if part not in self.live_parts:
            raise Http404
        row = self.get_object(request, object_id)
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        if row is None:
            raise Http404
        html, version = self.render_part(request, part, row)
        headers = {"X-Version": version, "X-Pulse": version_of(self.pulse(row))}
        if request.GET.get("version") == version:
            return HttpResponse(status=204, headers=headers)
        return HttpResponse(html, headers=headers)
