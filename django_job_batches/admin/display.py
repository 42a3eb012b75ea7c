"""How values look on the pages of the admin, and where their links lead."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import display_for_value, quote
from django.db.models import Model
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_job_batches.models import Batch, Counts

MAX_SHOWN = 20_000
"""Characters of a text that the page of a job shows."""


def progress_bar(batch: Batch) -> SafeString:
    percent = batch.progress
    return format_html(
        '<span class="job-batch-progress"><progress max="100" value="{}" aria-label="{}"></progress> {} %</span>',
        percent,
        _("Progress of %(batch)s") % {"batch": batch},
        percent,
    )


def status(row: Any) -> SafeString:
    """The status of a batch or job in words, which the style sheet can tell apart."""
    return format_html('<span class="job-batch-status job-batch-{}">{}</span>', row.status, row.get_status_display())


def counters(counts: Counts) -> SafeString | str:
    """How many jobs there are and how they ended, in parts that are not broken."""
    if not counts.total:
        return _("no jobs")
    others = ((counts.failed, _("%s failed")), (counts.cancelled, _("%s cancelled")), (counts.pending, _("%s pending")))
    parts = [_("%(succeeded)s of %(total)s succeeded") % counts._asdict()]
    parts += [text % number for number, text in others if number]
    last = len(parts) - 1
    return format_html_join(
        " ",
        '<span class="job-batch-unbroken">{}{}</span>',
        ((part, "" if index == last else ",") for index, part in enumerate(parts)),
    )


def duration(value: timedelta | None) -> str | None:
    """Seconds with a tenth below a minute, hours and minutes and seconds above."""
    if value is None:
        return None
    seconds = value.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=int(seconds)))


def moment(value: datetime | None) -> Any:
    """As the admin shows its own dates and times."""
    return display_for_value(value, "") if value else None


def pretty(value: Any) -> SafeString | None:
    """A JSON value, indented."""
    return preformatted(json.dumps(value, indent=2, ensure_ascii=False))


def preformatted(text: str) -> SafeString | None:
    """``text`` in its own lines; None for no text."""
    if not text:
        return None
    return format_html('<pre class="job-batch-text" tabindex="0">{}</pre>', shortened(text, MAX_SHOWN))


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def link(url: str, text: Any) -> Any:
    """``text`` as a link, or as it is where there is no ``url``."""
    return format_html('<a href="{}">{}</a>', url, text) if url else text


def change_url(site: AdminSite, model: type[Model], pk: Any) -> str:
    """The page of one object; "" where ``model`` is not registered with ``site``."""
    return _reverse(site, model, "change", quote(str(pk)))


def changelist_url(site: AdminSite, model: type[Model], **filters: Any) -> str:
    """The list of ``model``, filtered; "" where it is not registered with ``site``."""
    url = _reverse(site, model, "changelist")
    return f"{url}?{urlencode(filters)}" if url and filters else url


def _reverse(site: AdminSite, model: type[Model], page: str, *args: str) -> str:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"
    try:
        return reverse(name, args=args, current_app=site.name)
    except NoReverseMatch:
        return ""
