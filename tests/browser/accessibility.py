"""What axe-core finds on a page."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

SERIOUS = ("serious", "critical")
DJANGOS_OWN = (
    "#toolbar",
    "#changelist-filter",
    ".actions",
    ".xfull",
    ".object-tools",
    ".module > h2",
    "caption",
    ".submit-row",
)
"""Of Django's frame and the theme's: the search, the filters, the menu of actions, buttons, colours of headings."""
OPTIONS = {"resultTypes": ["violations"], "preload": False}
"""Copies of style sheets, which axe would load before, are what a strict policy forbids."""


def assert_accessible(page: Page) -> None:
    """Fail for what is serious or critical in the content of a page of the admin."""
    context = {"include": [["#content"]], "exclude": [[selector] for selector in DJANGOS_OWN]}
    response: dict[str, Any] = Axe().run(page, context, OPTIONS).response
    found = [
        f"{violation['id']} ({violation['impact']}): {violation['help']}\n"
        + "\n".join(f"    {node['html'][:300]}\n    {node['failureSummary']}" for node in violation["nodes"])
        for violation in response["violations"]
        if violation["impact"] in SERIOUS
    ]
    assert not found, "\n".join(found)
