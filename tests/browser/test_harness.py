"""What makes a test in the browser fail."""

from __future__ import annotations

import pytest

from tests.browser.accessibility import assert_accessible
from tests.browser.fitting import assert_fits

pytestmark = [pytest.mark.vendors("sqlite"), pytest.mark.usefixtures("operator")]


@pytest.mark.parametrize("site", ["stock", "themed"], indirect=True)
def test_an_inline_script_is_a_problem(visit, problems):
    visit("").evaluate("document.body.setAttribute('onclick', 'alert(1)')")
    assert "Content Security Policy" in problems.pop()


def test_an_inline_style_is_a_problem(visit, problems):
    visit("").evaluate("document.body.insertAdjacentHTML('beforeend', '<p style=\"color: red\">red</p>')")
    assert "Content Security Policy" in problems.pop()


def test_an_error_in_a_script_is_a_problem(visit, problems):
    page = visit("")
    page.evaluate("setTimeout(() => { throw new Error('out of order') })")
    page.evaluate("new Promise(resolve => setTimeout(resolve))")
    assert "out of order" in problems.pop()


def test_an_answer_that_is_an_error_is_a_problem(page, problems):
    page.goto("no-such-page/")
    assert "404" in problems.pop()


def test_what_is_not_accessible_is_reported(visit):
    page = visit("")
    assert_accessible(page)
    page.evaluate("document.querySelector('#content').insertAdjacentHTML('beforeend', '<button></button>')")
    with pytest.raises(AssertionError, match="button-name"):
        assert_accessible(page)


def test_what_sticks_out_is_reported(visit):
    page = visit("")
    assert_fits(page)
    page.evaluate("document.querySelector('#content h1').style.width = '5000px'")
    with pytest.raises(AssertionError, match=r"px: <h1"):
        assert_fits(page)
