"""How values look on the pages of the admin, and where their links lead."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import display_for_value, quote
from django.db.models import Model
from django.urls import NoReverseMatch, reverse
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timesince import timesince, timeuntil
from django.utils.translation import gettext as _
from django_rq.settings import get_queues_map

from django_job_batches import queues
from django_job_batches.admin.figures import Throughput
from django_job_batches.models import Batch, BatchJob, Counts

MAX_SHOWN = 20_000
"""Characters of a text that the page of a job shows."""


SHARES = ("succeeded", "failed", "cancelled", "running")


def progress_bar(batch: Batch, running: int = 0) -> SafeString:
    """The shares of the jobs that have succeeded, failed, were cancelled, and run, out of all."""
    counts = batch.counts
    numbers = dict(zip(SHARES, (counts.succeeded, counts.failed, counts.cancelled, running), strict=True))
    label = _("Progress of %(batch)s") % {"batch": batch}
    return format_html(
        '<span class="job-batch-progress"><span role="progressbar" aria-valuemin="0" aria-valuemax="100"'
        ' aria-valuenow="{0}" aria-valuetext="{1}" aria-label="{2}" title="{1}">{3}</span> {0} %</span>',
        batch.progress,
        _in_words(counts, running),
        label,
        _shares(numbers, max(counts.total, 1)),
    )


def _shares(numbers: dict[str, int], total: int) -> SafeString:
    """A drawing, without words: attributes of SVG are no styles, and pass any Content-Security-Policy."""
    left, parts = 0.0, []
    for name, number in numbers.items():
        width = min(100 * number / total, 100 - left)
        if width > 0:
            parts.append((name, f"{left:.3f}", f"{width:.3f}"))
        left += width
    rects = format_html_join("", '<rect class="job-batch-share-{}" x="{}" width="{}" height="10"/>', parts)
    svg = '<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false">{}</svg>'
    return format_html(svg, rects)


def _in_words(counts: Counts, running: int) -> str:
    """The counters as one sentence, for titles and screen readers."""
    if not counts.total:
        return _("no jobs")
    words = [_("%(succeeded)s of %(total)s succeeded") % counts._asdict()]
    others = ((counts.failed, _("%s failed")), (counts.cancelled, _("%s cancelled")), (running, _("%s running")))
    return ", ".join([*words, *(text % number for number, text in others if number)])


def status(row: Any) -> SafeString:
    """The status of a batch or job in words, which the style sheet can tell apart."""
    return format_html('<span class="job-batch-status job-batch-{}">{}</span>', row.status, row.get_status_display())


def counters(counts: Counts, running: int = 0) -> SafeString | str:
    """How many jobs there are and how they ended, in parts that are not broken."""
    if not counts.total:
        return _("no jobs")
    waiting = max(counts.pending - running, 0)
    others = (
        (counts.failed, _("%s failed")),
        (counts.cancelled, _("%s cancelled")),
        (running, _("%s running")),
        (waiting, _("%s waiting")),
    )
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


def rate(batch: Batch) -> str | None:
    """Jobs per second, minute or hour, in the unit that gives at least one."""
    value = batch.rate
    if value is None:
        return None
    if value >= 1:
        return _("%s/s") % number(value)
    if value * 60 >= 1:
        return _("%s/min") % number(value * 60)
    return _("%s/h") % number(value * 3_600)


def pace(batch: Batch) -> SafeString | None:
    """The rate, and while the batch runs also when it will have ended."""
    speed, end = rate(batch), batch.eta
    if speed is None:
        return None
    if end is None:
        return format_html('<span class="job-batch-unbroken">{}</span>', speed)
    is_near = end - timezone.now() < timedelta(minutes=1)
    left = _("less than a minute left") if is_near else _("%(time)s left") % {"time": timeuntil(end, depth=1)}
    return format_html(
        '<span class="job-batch-unbroken">{},</span> <span class="job-batch-unbroken" title="{}">{}</span>',
        speed,
        moment(end),
        left,
    )


HEIGHT = 60.0
WIDTH_OF_BAR = 10


def chart(throughput: Throughput) -> SafeString:
    """Bars, each with the ends of jobs that failed or were cancelled on top of those that succeeded; no words."""
    scale = HEIGHT / throughput.peak
    rects: list[tuple[str, int, str, int, str]] = []
    for index, (good, bad) in enumerate(throughput.bars):
        top = HEIGHT
        for share, part in (("succeeded", good * scale), ("failed", bad * scale)):
            top -= part
            rects.append((share, index * WIDTH_OF_BAR, f"{top:.2f}", WIDTH_OF_BAR - 1, f"{part:.2f}"))
    visible = [rect for rect in rects if rect[-1] != "0.00"]
    drawn = format_html_join("", '<rect class="job-batch-share-{}" x="{}" y="{}" width="{}" height="{}"/>', visible)
    return format_html(
        '<svg class="job-batch-chart" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true"'
        ' focusable="false">{}</svg>',
        len(throughput.bars) * WIDTH_OF_BAR,
        int(HEIGHT),
        drawn,
    )


def number(value: float) -> str:
    """With one decimal below ten."""
    return formats.number_format(round(value, 1) if value < 10 else round(value))


def age(value: datetime) -> SafeString:
    """How long ago, in one unit, with the moment itself as a title."""
    is_new = timezone.now() - value < timedelta(minutes=1)
    ago = _("just now") if is_new else _("%(time)s ago") % {"time": timesince(value, depth=1)}
    exact = display_for_value(value, "")
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(timespec="seconds"), exact, ago)


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


def dashboard_urls(jobs: Iterable[BatchJob]) -> dict[int, str]:
    """For each job that RQ still knows, its page in django-rq's dashboard, where that is installed."""
    by_queue: dict[str, list[BatchJob]] = defaultdict(list)
    for job in jobs:
        if job.attempts or job.enqueued_at:
            by_queue[job.queue_name].append(job)
    urls: dict[int, str] = {}
    for name, group in by_queue.items():
        index = get_queues_map().get(name)
        if index is not None and _dashboard_url(index, group[0].rq_job_id):
            known = _known_to_rq(name, [job.rq_job_id for job in group])
            urls |= {job.pk: _dashboard_url(index, job.rq_job_id) for job in group if job.rq_job_id in known}
    return urls


def _known_to_rq(name: str, ids: list[str]) -> set[str]:
    try:
        return {id_ for id_, where in queues.whereabouts(name, ids).items() if where.status}
    except queues.QueueError:
        return set()


def _dashboard_url(index: int, rq_job_id: str) -> str:
    for name in ("admin:django_rq_job_detail", "django_rq:job_detail"):
        try:
            return reverse(name, args=[index, rq_job_id])
        except NoReverseMatch:
            continue
    return ""


def _reverse(site: AdminSite, model: type[Model], page: str, *args: str) -> str:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"
    try:
        return reverse(name, args=args, current_app=site.name)
    except NoReverseMatch:
        return ""
