"""Each page, in the stock and the themed admin, light and dark, narrow and wide."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page

from django_job_batches import batch_of, chain, job_of
from django_job_batches.items import BatchDescription
from django_job_batches.models import Batch, BatchJob
from tests import jobs
from tests.browser.accessibility import assert_accessible
from tests.browser.fitting import assert_fits
from tests.browser.site import Site

pytestmark = [pytest.mark.vendors("sqlite"), pytest.mark.usefixtures("record", "operator")]

SCREENSHOTS = os.environ.get("SCREENSHOTS")
"""A folder in which pictures of the pages are left."""


def part(*items: object, **options: object) -> BatchDescription:
    """What runs in this process."""
    return batch_of(items, queue_name="sync", **options)


def some_batches(owner: User) -> Batch:
    """Batches in various states; returns the one that has most to show."""
    batch_of([job_of(jobs.succeed, n) for n in range(40)], name="Nightly report").dispatch()
    part(*[job_of(jobs.succeed)] * 8, name="Thumbnails", created_by=owner).dispatch()
    batch_of([job_of(jobs.succeed)] * 3, name="Newsletter").dispatch().cancel("sent by mistake", by=owner)
    validate = part(*[job_of(jobs.succeed)] * 4, name="Validate")
    load = part(*[job_of(jobs.fail, f"row {n % 2} has no price") for n in range(6)], job_of(jobs.succeed), name="Load")
    return part(
        chain(validate, part(*[job_of(jobs.succeed)] * 3, name="Import")),
        load,
        *[job_of(jobs.succeed)] * 10,
        *[job_of(jobs.fail, "the file ends early")] * 5,
        name="Import website 7",
        created_by=owner,
        metadata={"site": 7},
        allow_failures=True,
        on_finish=job_of(jobs.succeed, 1).options(description="Clean up"),
        on_failure=job_of(jobs.echo),
    ).dispatch()


@pytest.fixture
def pages(operator: User, site: Site) -> dict[str, str]:
    batch = some_batches(operator)
    failed = BatchJob.objects.filter(batch=batch, status="failed", role="item").exclude(func="").first()
    base = "django_job_batches/"
    return {
        "list": f"{base}batch/",
        "batch": f"{base}batch/{batch.pk}/change/",
        "confirmation": f"{base}batch/operation/retry/?row={batch.pk}",
        "jobs": f"{base}batchjob/?batch={batch.pk}",
        "job": f"{base}batchjob/{failed.pk}/change/" if failed else "",
    }


def test_a_strict_policy_finds_nothing_to_forbid(
    page: Page, visit: Callable[[str], Page], pages: dict[str, str]
) -> None:
    """The fixture `page` fails for what the browser complains of."""
    for path in pages.values():
        visit(path)
        page.wait_for_timeout(300)
    visit(pages["batch"]).get_by_text("Traceback of an example").first.click()


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("site", ["stock", "themed"], indirect=True)
def test_pages_fit_and_are_accessible(
    page: Page, visit: Callable[[str], Page], site: Site, pages: dict[str, str], scheme: str, width: int
) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 900})
    for name, path in pages.items():
        visit(path)
        if SCREENSHOTS:
            picture = Path(SCREENSHOTS) / f"{name}-{site.variant}-{scheme}-{width}.png"
            page.screenshot(path=picture, full_page=True, caret="initial")  # hiding it takes a style of its own
        assert_fits(page)
        assert_accessible(page)
