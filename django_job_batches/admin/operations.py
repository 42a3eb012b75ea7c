"""What an operator can do: what it concerns, what it will do in numbers, and what it has done.

What can be done to batches is in batch_operations.py, to jobs in job_operations.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from django.db.models import Model

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django_stubs_ext import StrOrPromise

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class Order:
    """Who wants it and why; ``example``: the key of a job, for what is done to jobs like that one."""

    by: AbstractBaseUser | None = None
    reason: str = ""
    example: int | None = None


class Operation(ABC, Generic[Row]):
    """One thing that can be done to rows. ``permission`` is the first half of the permission's code name."""

    name: ClassVar[str]
    permission: ClassVar[str]
    label: ClassVar[StrOrPromise]
    title: ClassVar[StrOrPromise]
    asks_for_a_reason: ClassVar[bool] = False
    needs_an_example: ClassVar[bool] = False
    is_dangerous: ClassVar[bool] = False

    @abstractmethod
    def version(self, row: Row) -> str:
        """What must still be so when it is done; a page that was shown before is refused otherwise."""

    @abstractmethod
    def refusal(self, row: Row) -> str:
        """Why this row would be left alone; "" if it would not."""

    @abstractmethod
    def forecast(self, rows: list[Row], order: Order) -> list[str]:
        """What will happen to these rows, in sentences with numbers."""

    def cost(self, row: Row) -> int:
        """How many jobs, about, are written for it."""
        return 1

    @abstractmethod
    def perform(self, row: Row, order: Order) -> int:
        """Do it; 0 when there was nothing to do (any more). Raises ``BatchError`` when it cannot be done."""

    def begin(self, row: Row, order: Order) -> None:
        """What is done at once where ``go_on()`` does the rest in a worker."""

    def go_on(self, row: Row, order: Order) -> Any:
        """In a worker: all of it, or what ``begin()`` has left."""
        return self.perform(row, order)

    @abstractmethod
    def report(self, rows: int, number: int) -> str:
        """What was done to so many rows; ``number`` is the sum of what ``perform()`` returned."""
