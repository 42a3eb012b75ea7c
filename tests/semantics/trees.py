"""Batches of every shape, made by chance: what a random generator with the same seed builds again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

from django.db.models import QuerySet

from django_job_batches import batch_of, chain, job_of
from django_job_batches.models import Batch, BatchJob
from tests import jobs_semantics

DEEPEST = 3


class Trees:
    """Descriptions with names of their own for each job, so that the record tells them apart."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._numbers = count()

    def batch(self, depth: int = 0) -> Any:
        """A batch of up to four items, chains and nested batches, and callbacks of both kinds."""
        items = [self._item(depth) for _ in range(self.random.choice((0, 1, 2, 2, 3, 4)))]
        roles = {role: self._callbacks(depth) for role in ("on_success", "on_failure", "on_finish")}
        allowed = self.random.choice((0, 0, 0, 1, 2, 0.3, 0.5, True))
        return batch_of(items, name=self._name("batch"), allow_failures=allowed, **roles)

    def items(self) -> list[Any]:
        """A few more, for `add()`."""
        return [self._item(DEEPEST - 1) for _ in range(self.random.choice((0, 1, 2)))]

    def _item(self, depth: int) -> Any:
        kind = self.random.random()
        if kind < 0.2:
            return chain(*[self._link(depth) for _ in range(self.random.choice((0, 1, 2, 3)))])
        return self._link(depth)

    def _link(self, depth: int) -> Any:
        if depth < DEEPEST and self.random.random() < 0.25:
            return self.batch(depth + 1)
        failing = self.random.choice((0, 0, 0, 0, 0, 1, 1, 2, 9))
        job = job_of(jobs_semantics.step, self._name("step"), failing)
        return job.options(
            retry=self.random.choice((None, None, 1)),
            atomic=self.random.choice((None, None, None, True)),
            at_front=self.random.choice((None, None, True)),
        )

    def _callbacks(self, depth: int) -> list[Any]:
        return [self._link(depth + 1) for _ in range(self.random.choice((0, 0, 1, 1, 2)))]

    def _name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"


class Operator:
    """Somebody who cancels, adds and retries here and there, while others work."""

    def __init__(self, trees: Trees) -> None:
        self.trees = trees
        self.random = trees.random

    def interfere(self) -> None:
        """One deed, or none."""
        deeds = (self._cancel_batch, self._cancel_job, self._add, self._add, *[_nothing] * 12)
        self.random.choice(deeds)()

    def retry(self, root: Batch) -> int:
        """The root again, or a part of it."""
        if self.random.random() < 0.5:
            return root.retry()
        rows = [row.pk for row in root.jobs.all() if self.random.random() < 0.5]
        return root.retry(jobs=BatchJob.objects.filter(pk__in=rows))

    def retry_callbacks(self) -> int:
        """Each failed callback by itself; how many there were."""
        rows = BatchJob.objects.exclude(role="item").filter(status="failed").order_by("pk")
        return sum(row.retry() for row in rows)

    def _cancel_batch(self) -> None:
        self._any(Batch.objects.order_by("created_at")).cancel("by chance")

    def _cancel_job(self) -> None:
        self._any(BatchJob.objects.filter(role="item").order_by("pk")).cancel()

    def _add(self) -> None:
        batch = self._any(Batch.objects.order_by("created_at"))
        batch.refresh_from_db()
        if not batch.is_decided:
            batch.add(self.trees.items())

    def _any(self, rows: QuerySet[Any]) -> Any:
        return self.random.choice(list(rows) or [_Nobody()])


class _Nobody:
    is_decided = True

    def cancel(self, reason: str = "") -> None: ...

    def refresh_from_db(self) -> None: ...


def _nothing() -> None: ...


def repetitions(lines: list[str]) -> Iterator[str]:
    """What the record holds more often than once."""
    seen = set()
    for line in lines:
        if line in seen:
            yield line
        seen.add(line)
