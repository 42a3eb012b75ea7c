"""The fixtures of the tests in a browser, which run on SQLite alone.

===============  ==================================================================================================
`page`           a page in a window of its own, which fails the test for whatever it complains of
`problems`       its complaints (of the policy, of scripts, of answers of 400 and more); expected ones are taken out
`site`           the running admin: the stock one, or `@pytest.mark.parametrize("site", ["themed"], indirect=True)`
`log_in(user)`   gives the window that user's session
`operator`       a superuser, logged in
`visit(path)`    opens a page of the admin by its path after `/admin/`
===============  ==================================================================================================

`@pytest.mark.window(java_script_enabled=False)` gives the window other options of Playwright's `new_context`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.browser.site import Site
from tests.services import HOW_TO_GET, are_required, find_chromium, why_unreachable

# No sandbox, for containers have none; and nothing that talks to the world.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 20_000  # milliseconds


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The Chromium that is installed; none is downloaded.

    As long as it runs, Playwright keeps an event loop in this thread; the tests' own queries are none of its business.
    """
    if why := why_unreachable("chromium"):
        give_up = pytest.fail if are_required() else pytest.skip
        give_up(f"No browser: {why} To have one: {HOW_TO_GET['chromium']}")
    with pytest.MonkeyPatch.context() as environment, sync_playwright() as playwright:
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        with playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS) as chromium:
            yield chromium


@pytest.fixture(scope="package")
def _sites(
    tmp_path_factory: pytest.TempPathFactory, django_db_setup: None, redis_server: Any
) -> Iterator[Callable[[str], Site]]:
    """The site of each variant, started when it is first asked for."""
    folder = tmp_path_factory.mktemp("sites")
    with ExitStack() as running:
        yield cache(lambda variant: running.enter_context(Site(variant, folder / f"{variant}.log")))


@pytest.fixture
def site(_sites: Callable[[str], Site], live_db: None, request: pytest.FixtureRequest) -> Site:
    return _sites(getattr(request, "param", "stock"))


@pytest.fixture
def problems() -> list[str]:
    """What the page has complained of so far."""
    return []


@pytest.fixture
def context(
    browser: Browser, site: Site, problems: list[str], request: pytest.FixtureRequest
) -> Iterator[BrowserContext]:
    """The window: with cookies of its own, and closed after the test."""
    options = {key: value for marker in request.node.iter_markers("window") for key, value in marker.kwargs.items()}
    with browser.new_context(base_url=site.url, **options) as window:
        window.set_default_timeout(PATIENCE)
        _collect(problems, window)
        yield window
    assert not problems, "\n".join(problems)


def _collect(problems: list[str], window: BrowserContext) -> None:
    def note(message: ConsoleMessage) -> None:
        place = message.location["url"]
        if message.type == "error" and not place.endswith("/favicon.ico"):  # the admin has none
            problems.append(f"{place}: {message.text}")

    window.on("console", note)
    window.on("weberror", lambda raised: problems.append(str(raised.error)))


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def log_in(context: BrowserContext, site: Site) -> Callable[[User], User]:
    def log_in(user: User) -> User:
        client = Client()
        client.force_login(user)
        session = client.cookies[settings.SESSION_COOKIE_NAME]
        context.add_cookies([{"name": session.key, "value": session.value, "url": site.root}])
        return user

    return log_in


@pytest.fixture
def operator(log_in: Callable[[User], User]) -> User:
    return log_in(User.objects.create_superuser("Grace", password="x"))


@pytest.fixture
def visit(page: Page) -> Callable[[str], Page]:
    def visit(path: str) -> Page:
        response = page.goto(path)
        assert response is not None and response.status == 200, response
        return page

    return visit
