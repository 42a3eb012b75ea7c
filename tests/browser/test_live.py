"""What an operator does while workers run, and what the page shows of it by itself."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from playwright.sync_api import Page, Route, expect

from django_job_batches import batch_of, job_of
from django_job_batches.models import Batch
from tests import jobs
from tests.browser.fitting import assert_fits
from tests.browser.site import Site
from tests.processes import Record

pytestmark = [pytest.mark.vendors("sqlite"), pytest.mark.usefixtures("record")]

BATCHES = "django_job_batches/batch/"
SLOW = 20_000
"""Milliseconds that workers may take on a machine that has other things to do."""


def of(batch: Batch) -> str:
    return f"{BATCHES}{batch.pk}/change/"


def bar_of(page: Page, batch: Batch):
    return page.get_by_role("progressbar", name=f"Progress of {batch}")


def value_of(page: Page, batch: Batch) -> int:
    return int(bar_of(page, batch).get_attribute("aria-valuenow") or 0)


def confirm(page: Page) -> None:
    page.get_by_role("button", name="Yes, do it").click()


@pytest.mark.parametrize("site", ["stock", "themed"], indirect=True)
def test_the_bars_of_the_list_move_without_a_reload(page, visit, operator, workers, wait_until):
    batch = batch_of([job_of(jobs.sleep, 0.3) for _ in range(12)], name="Import 7").dispatch()
    visit(BATCHES)
    page.evaluate("window.opened = true")
    expect(bar_of(page, batch)).to_have_attribute("aria-valuenow", "0")
    workers()
    seen: set[int] = set()
    wait_until(lambda: (seen.add(value_of(page, batch)), value_of(page, batch) == 100)[1], timeout=60, interval=0.1)
    assert len(seen) > 2
    row = page.get_by_role("row", name="Import 7")
    expect(row).to_contain_text("12 of 12 succeeded")
    expect(row.locator(".field-state")).to_have_text("succeeded")
    expect(page.get_by_role("status")).to_have_text("Import 7: succeeded")
    assert page.evaluate("window.opened")


def test_cancelling_from_the_list_stops_what_runs(page, visit, operator, workers, wait_until):
    batch = batch_of([job_of(jobs.sleep, 120), *[job_of(jobs.sleep, 1)] * 20], name="Import 7").dispatch()
    workers()
    wait_until(lambda: batch.jobs.filter(status="running").exists())
    visit(BATCHES)
    row = page.get_by_role("row", name="Import 7")
    expect(row).to_contain_text("1 running", timeout=SLOW)
    row.get_by_role("checkbox").check()
    page.get_by_label("Action:").select_option(label="Cancel selected batches and stop what runs")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.get_by_text("1 job is running now. It will be stopped in the middle of its work.")).to_be_visible()
    page.get_by_label("Reason").fill("wrong file")
    confirm(page)
    expect(page.get_by_text("1 batch was cancelled.")).to_be_visible()
    expect(page.get_by_role("row", name="Import 7")).to_contain_text("21 cancelled", timeout=SLOW)
    batch.refresh_from_db()
    assert batch.is_finished and batch.cancel_reason == "wrong file"


def test_cancelling_from_the_page_of_a_batch(page, visit, operator, workers, wait_until):
    batch = batch_of([job_of(jobs.sleep, 1.5) for _ in range(30)], name="Import 7").dispatch()
    workers()
    visit(of(batch))
    expect(page.locator("[data-live-status]")).to_have_text("running", timeout=SLOW)
    page.get_by_role("link", name="Cancel", exact=True).click()
    confirm(page)
    expect(page.locator("[data-live-status]")).to_have_text("cancelled")
    wait_until(lambda: Batch.objects.get(pk=batch.pk).is_finished)
    page.evaluate("window.opened = true")
    expect(bar_of(page, batch)).to_have_attribute("aria-valuenow", "100", timeout=SLOW)
    expect(page.get_by_role("region", name="History")).to_contain_text("Cancelled.", timeout=SLOW)
    expect(page.get_by_role("link", name="Retry", exact=True)).to_be_visible()


def test_retrying_a_group_of_errors(page, visit, operator, workers, record: Record, wait_until):
    items = [*[job_of(jobs.fail, "no price")] * 3, *[job_of(jobs.fail, "no name")] * 2, job_of(jobs.succeed)]
    batch = batch_of(items, name="Import 7", allow_failures=True).dispatch()
    workers()
    wait_until(lambda: Batch.objects.get(pk=batch.pk).is_finished)
    visit(of(batch))
    group = page.get_by_role("listitem").filter(has_text="no price")
    group.get_by_text("Traceback of an example").click()
    expect(group.get_by_text("raise ValueError(message)")).to_be_visible()
    group.get_by_role("link", name="Retry this group").click()
    expect(page.get_by_text("3 jobs that failed with this error will run again.")).to_be_visible()
    confirm(page)
    expect(page.get_by_text("1 batch runs again, with 3 items.")).to_be_visible()
    wait_until(lambda: record.count("fail no price") == 6)
    assert record.count("fail no name") == 2


def test_who_may_only_look_neither_sees_nor_can_post_what_changes(page, visit, log_in, site: Site):
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename__in=("view_batch", "view_batchjob")))
    log_in(viewer)
    batch = batch_of([job_of(jobs.succeed)], name="Import 7").dispatch()
    visit(BATCHES)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    visit(of(batch))
    for name in ("Cancel", "Cancel and stop", "Retry", "Delete"):
        expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    token = page.locator("[name=csrfmiddlewaretoken]").first.get_attribute("value") or ""
    for name in ("cancel", "stop", "retry", "retry_group", "delete"):
        answer = page.request.post(
            f"{site.url}{BATCHES}operation/{name}/",
            form={"chosen": f"{batch.pk}.1", "csrfmiddlewaretoken": token},
            headers={"Referer": site.url},
        )
        assert answer.status == 403, name
    batch.refresh_from_db()
    assert not batch.is_decided


def count_requests(page: Page) -> list[str]:
    asked: list[str] = []

    def note(route: Route) -> None:
        asked.append(route.request.url)
        route.continue_()

    page.route(re.compile("/live/"), note)
    return asked


def pass_time(page: Page, seconds: int) -> None:
    """The page's clock goes on by so much, with time for answers in between."""
    for _second in range(seconds):
        page.clock.run_for(1000)
        page.wait_for_timeout(30)


def test_nothing_is_asked_for_in_a_hidden_tab_and_less_often_when_nothing_moves(page, visit, operator, wait_until):
    batch = batch_of([job_of(jobs.succeed)], name="Import 7").dispatch()
    asked = count_requests(page)
    page.clock.install()
    visit(of(batch))
    pass_time(page, seconds=60)
    quiet = len(asked)
    assert 2 < quiet < 20  # the parts once, then the overview alone; and not every two seconds
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    pass_time(page, seconds=60)
    assert len(asked) <= quiet + 1  # it may have been about to ask
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(lambda: pass_time(page, seconds=1) or len(asked) > quiet + 1)


def test_a_lost_connection_is_said_and_got_over(page, visit, operator, problems):
    batch = batch_of([job_of(jobs.succeed)], name="Import 7").dispatch()
    visit(of(batch))
    page.route(re.compile("/live/"), lambda route: route.abort())
    expect(page.get_by_text("No connection; trying again")).to_be_visible(timeout=SLOW)
    page.unroute(re.compile("/live/"))
    expect(page.get_by_text("Kept up to date")).to_be_visible(timeout=SLOW)
    assert problems and all("net::ERR_FAILED" in problem for problem in problems)
    problems.clear()


def test_what_has_the_focus_keeps_it(page, visit, operator, workers):
    batch = batch_of([job_of(jobs.sleep, 0.5) for _ in range(10)], name="Import 7").dispatch()
    visit(of(batch))
    cancel = page.get_by_role("link", name="Cancel", exact=True)
    cancel.focus()
    workers()
    expect(page.locator("[data-live-status]")).to_have_text("running", timeout=SLOW)
    expect(cancel).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 batch will be cancelled.")).to_be_visible()


@pytest.mark.window(java_script_enabled=False)
def test_without_scripts_the_pages_work_and_say_how_to_refresh(page, visit, operator):
    batch = batch_of([job_of(jobs.succeed)], name="Import 7").dispatch()
    for path in (BATCHES, of(batch)):
        visit(path)
        expect(page.get_by_text("reload it to see what has changed")).to_be_visible()
    page.get_by_role("link", name="Cancel", exact=True).click()
    confirm(page)
    expect(page.locator("[data-live-status]")).to_have_text("cancelled")


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e\u0007\x1b[31m"


def test_hostile_text_is_shown_harmlessly(page, visit, operator, workers, wait_until):
    """HTML, control characters, right-to-left marks, a megabyte of arguments, ten of an exception's message."""
    batch = batch_of(
        [
            job_of(jobs.fail, HOSTILE).options(description=HOSTILE),
            job_of(jobs.fail, "y" * 900_000),
            job_of(jobs.fail_at_length, 10_000_000),
        ],
        name=HOSTILE,
        metadata={HOSTILE: HOSTILE},
        key=HOSTILE,
        allow_failures=True,
    ).dispatch()
    workers()
    wait_until(lambda: Batch.objects.get(pk=batch.pk).is_finished, timeout=60)
    page.on("dialog", lambda dialog: pytest.fail(f"A script has run: {dialog.message}"))
    pages = [BATCHES, of(batch), f"{BATCHES}operation/retry/?row={batch.pk}"]
    pages += [f"django_job_batches/batchjob/{job.pk}/change/" for job in batch.jobs.all()]
    for path in [*pages, f"django_job_batches/batchjob/?batch={batch.pk}"]:
        visit(path)
        page.wait_for_timeout(100)
        assert page.locator("#content img[src=x], #content script:not([src])").count() == 0
        assert len(page.content()) < 200_000, path


@pytest.mark.parametrize(("language", "word"), [("de", "Stapel"), ("zh-hans", "批次"), ("ar", "batch")])
def test_the_pages_speak_the_users_language_in_its_direction(
    page: Page, visit: Callable[[str], Page], operator: User, context, site: Site, language: str, word: str
):
    batch = batch_of([job_of(jobs.succeed)], name="Import 7").dispatch()
    context.add_cookies([{"name": "django_language", "value": language, "url": site.root}])
    for path in (BATCHES, of(batch), f"{BATCHES}operation/cancel/?row={batch.pk}"):
        visit(path)
        expect(page.locator("html")).to_have_attribute("dir", "rtl" if language == "ar" else "ltr")
        assert_fits(page)
        assert word in page.locator("body").inner_text()
