"""Every text of the package is there in each language that is shipped, with the same placeholders."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils.translation.template import templatize

import django_job_batches

PACKAGE = Path(django_job_batches.__file__).parent
LANGUAGES = ("de", "zh_Hans")
MARKS = {"_", "gettext", "gettext_lazy", "ngettext"}
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[sd]")


def texts() -> Iterator[tuple[str, str]]:
    """Each text that is to be translated, with its plural or ""."""
    for path in PACKAGE.rglob("*.py"):
        yield from texts_in(path.read_text())
    for path in PACKAGE.rglob("*.html"):
        calls = re.findall(r"""\b(?:_|n?gettext)\((?:[^()'"]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*\)""", code_of(path))
        yield from texts_in("\n".join(calls))


def code_of(template: Path) -> str:
    return str(templatize(template.read_text(), origin=str(template)))


def texts_in(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKS:
            strings = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if strings:
                yield strings[0], strings[1] if len(strings) > 1 else ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_translated(language):
    catalog = PACKAGE / "locale" / language / "LC_MESSAGES" / "django.mo"
    with catalog.open("rb") as file:
        translations = gettext.GNUTranslations(file)
    known = translations._catalog  # type: ignore[attr-defined]
    found = set(texts())
    assert len(found) > 200
    missing = sorted(text for text, plural in found if ((text, 0) if plural else text) not in known)
    assert not missing, "run makemessages, translate, and run compilemessages"


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_keep_the_placeholders(language):
    catalog = PACKAGE / "locale" / language / "LC_MESSAGES" / "django.mo"
    with catalog.open("rb") as file:
        known = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    for text, plural in texts():
        for number in (0, 1):
            translated = known.get((text, number) if plural else text)
            if translated is not None:
                assert sorted(PLACEHOLDER.findall(translated)) == sorted(PLACEHOLDER.findall(plural or text)), (
                    translated
                )
