"""The figures of docs/recovery.md; measuring them takes too long for a test."""

from __future__ import annotations

from tests.chaos.delay_cases import CASES
from tests.processes import ROOT


def test_each_case_has_its_figures_in_the_documentation() -> None:
    _, _, measured = (ROOT / "docs" / "recovery.md").read_text().partition("### Measured")
    table = measured.partition("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert rows == ["what happens", *(case.name for case in CASES)]
