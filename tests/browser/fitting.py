"""Whether a page fits into its window: on a telephone nobody wants to push it to and fro."""

from __future__ import annotations

from playwright.sync_api import Page

# What is inside of something that cuts it off or scrolls does not widen the page, unless it is positioned elsewhere.
STICKING_OUT = """() => {
    const excess = (element) => Math.round(element.getBoundingClientRect().right - innerWidth);
    const around = (element) => getComputedStyle(element).position === "absolute"
        ? element.offsetParent : element.parentElement;
    const isHeld = (element) => {
        const box = around(element);
        return Boolean(box) && box !== document.body && (getComputedStyle(box).overflowX !== "visible" || isHeld(box));
    };
    return [...document.body.querySelectorAll("*")]
        .filter((element) => excess(element) > 0 && !isHeld(element))
        .map((element) => `${excess(element)} px: ${element.outerHTML.slice(0, 150)}`);
}"""


def assert_fits(page: Page) -> None:
    """Fail with what sticks out if the page can be scrolled sideways."""
    excess = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert excess <= 0, "\n".join([f"{page.url} is {excess} px too wide:", *page.evaluate(STICKING_OUT)])
