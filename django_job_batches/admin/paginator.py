"""Pages of a table that is too large to be counted."""

from __future__ import annotations

from typing import Any, cast

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.utils.functional import cached_property

PAGES_AHEAD = 5


class PeekingPaginator(Paginator):  # type: ignore[type-arg]  # cannot be subscripted at run time
    """Looks a few pages ahead of the page that is asked for, instead of counting everything.

    ``count`` is how many rows are known by that, and ``is_exact`` whether there are no more than these.
    """

    page_asked_for = 1

    def look_from(self, page: str) -> None:
        """``page`` is the one that is asked for; whatever is no sensible number stands for the first."""
        is_number = page.isascii() and page.isdigit() and len(page) < 10
        self.page_asked_for = max(int(page), 1) if is_number else 1

    @cached_property
    def count(self) -> int:
        return self._first + self._found

    @property
    def is_exact(self) -> bool:
        return self._found <= self._most

    @property
    def known(self) -> int:
        """There are at least so many rows, and more than that unless ``is_exact``."""
        return self._first + min(self._found, self._most)

    @property
    def _first(self) -> int:
        return (self.page_asked_for - 1) * self.per_page

    @property
    def _most(self) -> int:
        return PAGES_AHEAD * self.per_page

    @cached_property
    def _found(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)  # in their order: its index is how they are found soon
        return rows[self._first : self._first + self._most + 1].count()
