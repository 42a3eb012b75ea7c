"""Batches of every shape end rightly, whatever is cancelled, added and retried meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from django_job_batches.models import Batch, BatchCounter, BatchJob
from tests.in_process import enqueued, work
from tests.invariants import assert_all_ended
from tests.processes import Record
from tests.semantics.trees import Operator, Trees, repetitions

pytestmark = pytest.mark.usefixtures("live_db")

RUNS = 3


@pytest.mark.parametrize("seed", range(10))
def test_any_tree_ends_rightly(seed: int, record: Record) -> None:
    """P1, P2, P3, P7: each job ends once and is counted once, each batch finishes, each callback runs once per run."""
    trees = Trees(seed)
    operator = Operator(trees)
    root = trees.batch().dispatch()
    _work_through(operator)
    for _ in range(RUNS):
        _check(root, record)
        if operator.retry(root):
            _work_through(operator)
    _check(root, record)
    if operator.retry_callbacks():
        _work_through(operator)
        _check(root, record, in_order=False)
    root.delete()
    assert (Batch.objects.count(), BatchJob.objects.count(), BatchCounter.objects.count()) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(100, 104))
def test_any_tree_ends_rightly_on_a_synchronous_queue(seed: int, record: Record, settings: Any) -> None:
    settings.JOB_BATCHES = {"QUEUE": "sync"}
    root = Trees(seed).batch().dispatch()
    for _ in range(RUNS):
        _check(root, record)
        root.retry()
    _check(root, record)


def _work_through(operator: Operator) -> None:
    while enqueued():
        work(at_most=1)
        operator.interfere()


def _check(root: Batch, record: Record, *, in_order: bool = True) -> None:
    root.refresh_from_db()
    assert_all_ended(in_order=in_order)
    assert list(repetitions(record.lines())) == []
