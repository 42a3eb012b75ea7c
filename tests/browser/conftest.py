"""The fixtures of the tests in a browser. They run on SQLite alone, and after all other tests.

===============  ==================================================================================================
`page`           pytest-playwright's, which fails the test for whatever the browser's console complains of
`site`           the running admin: the stock one, or `@pytest.mark.parametrize("site", ["themed"], indirect=True)`
`log_in(user)`   gives the browser that user's session
`operator`       a superuser, logged in
`visit(path)`    opens a page of the admin by its path after `/admin/`
===============  ==================================================================================================
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from playwright.sync_api import BrowserContext, ConsoleMessage, Page

from tests.browser.site import Site

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
HOW_TO_GET = "There is no Chromium: `apt install chromium` (Debian, Ubuntu), or set CHROMIUM to its path."
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """The Chromium that is installed; none is downloaded."""
    if CHROMIUM is None and os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(HOW_TO_GET)
    if CHROMIUM is None:
        pytest.skip(HOW_TO_GET)
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": ARGUMENTS}


@pytest.fixture(scope="session", autouse=True)
def _beside_an_event_loop() -> Iterator[None]:
    """Playwright keeps an event loop in this thread; the tests' own queries are none of its business."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield


@pytest.fixture(scope="session")
def _sites(
    tmp_path_factory: pytest.TempPathFactory, django_db_setup: None, redis_server: Any
) -> Iterator[Callable[[str], Site]]:
    running: dict[str, Site] = {}

    def get(variant: str) -> Site:
        if variant not in running:
            running[variant] = Site(variant, tmp_path_factory.mktemp("site") / f"{variant}.log")
        return running[variant]

    yield get
    for site in running.values():
        site.end()


@pytest.fixture
def site(_sites: Callable[[str], Site], live_db: None, request: pytest.FixtureRequest) -> Site:
    return _sites(getattr(request, "param", "stock"))


@pytest.fixture
def page(page: Page) -> Iterator[Page]:
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # the browser reports each answer of 4xx; what it means is asserted where one is expected
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(f"{message.location['url']}: {message.text}")

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.set_default_timeout(20_000)
    yield page
    assert not complaints


@pytest.fixture
def log_in(context: BrowserContext, site: Site) -> Callable[[User], User]:
    def log_in(user: User) -> User:
        session = SessionStore()
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.create()
        cookie: Any = {"name": "sessionid", "value": session.session_key, "url": site.root}
        context.add_cookies([cookie])
        return user

    return log_in


@pytest.fixture
def operator(log_in: Callable[[User], User]) -> User:
    return log_in(User.objects.create_superuser("Grace", password="x"))


@pytest.fixture
def visit(page: Page, site: Site) -> Callable[[str], Page]:
    def visit(path: str) -> Page:
        response = page.goto(f"{site.url}{path}")
        assert response is not None and response.status == 200, response
        return page

    return visit
