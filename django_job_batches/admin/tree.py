"""The place of a batch: what it is part of, and what is in it, as a tree of lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from django.db.models import QuerySet

from django_job_batches.models import Batch, BatchJob, Role

ITEMS_DRAWN = 100
"""Items of a batch, the first ones, that are looked at for its chains and nested batches."""
LINKS_DRAWN = 20
ANCESTORS = "parent_job__batch__parent_job__batch__parent_job__batch"
"""The batches around a batch that are drawn, for ``select_related()``."""


@dataclass
class Node:
    """One line of the tree, with those below it. ``chain``: they run one after the other.

    ``batch`` and ``job`` say what it is about; a line with neither is about ``number`` jobs, or is a mere heading.
    """

    batch: Batch | None = None
    job: BatchJob | None = None
    number: int = 0
    is_chain: bool = False
    is_cut: bool = False
    is_here: bool = False
    below: list[Node] = field(default_factory=list)
    url: str = ""
    bar: str = ""

    def walk(self) -> Iterator[Node]:
        """This line and all below it."""
        yield self
        for node in self.below:
            yield from node.walk()

    @property
    def role(self) -> Any:
        return self.job.get_role_display() if self.job is not None and self.job.role != Role.ITEM else ""


def first_rows(batch: Batch) -> list[BatchJob]:
    """The first items of a batch, and its callbacks, in one statement."""
    # by positions one by one: of a range, PostgreSQL expects far more rows, and prepares for them at length
    rows = batch.jobs.filter(role__in=list(Role), position__in=range(ITEMS_DRAWN)).order_by("position")
    fields = ("batch", "role", "position", "chain", "status", "func", "options", "error_class", "queue_name")
    return list(rows.only(*fields))


def place_of(batch: Batch, rows: list[BatchJob], nested: QuerySet[Batch]) -> Node:
    """The tree around ``batch``, whose ``first_rows()`` are given; ``nested``: where nested batches are read from."""
    pks = [row.pk for row in rows if row.is_nested_batch]
    children = {child.parent_job_id: child for child in nested.filter(parent_job__in=pks)} if pks else {}
    here = Node(batch=batch, is_here=True, below=list(_items(batch, rows, children)))
    callbacks = sorted((row for row in rows if row.role != Role.ITEM), key=lambda row: row.position)
    here.below += [Node(batch=children.get(row.pk), job=row) for row in callbacks]
    return _with_ancestors(batch, here)


def _with_ancestors(batch: Batch, node: Node) -> Node:
    for _level in range(ANCESTORS.count("batch")):
        if batch.parent_job is None:
            return node
        batch = batch.parent_job.batch
        node = Node(batch=batch, below=[node])
    node.is_cut = batch.parent_job_id is not None
    return node


def _items(batch: Batch, rows: list[BatchJob], children: dict[int | None, Batch]) -> Iterator[Node]:
    items = [row for row in rows if row.role == Role.ITEM]
    plain = 0
    for chain, links in groupby(items, key=lambda row: row.chain):
        lines = [Node(batch=children.get(row.pk), job=row) for row in links]
        if chain is not None:
            yield Node(is_chain=True, below=lines[:LINKS_DRAWN], is_cut=len(lines) > LINKS_DRAWN)
            continue
        yield from (line for line in lines if line.batch is not None)
        plain += sum(line.batch is None for line in lines)
    if plain:
        yield Node(number=plain)
    if (more := batch.next_position - ITEMS_DRAWN) > 0:
        yield Node(number=more, is_cut=True)
