"""What the hammered batches are made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django_job_batches import batch_of, chain, job_of
from tests.concurrency import bodies


@dataclass(frozen=True)
class Shape:
    """How a batch takes failures, the share of its jobs that fail, and whether it is cancelled half-way."""

    allow_failures: Any
    failing: float
    cancelled: bool = False


SHAPES = (
    Shape(True, 0.08),
    Shape(0, 0.002),
    Shape(8, 0.01),
    Shape(0.05, 0.04),
    Shape(True, 0.08, cancelled=True),
    Shape(3, 0.0),
)


def hammered(shape: Shape, size: int, name: str) -> Any:
    """A batch of about so many items of all kinds."""
    return batch_of(
        _items(shape, size),
        name=name,
        allow_failures=shape.allow_failures,
        on_success=job_of(bodies.fine),
        on_failure=[job_of(bodies.query), job_of(bodies.boom), batch_of([bodies.write, bodies.fine])],
        on_finish=[job_of(bodies.fine), batch_of([bodies.fine, bodies.write], on_finish=bodies.fine)],
    )


def _items(shape: Shape, size: int) -> Iterator[Any]:
    kinds: list[tuple[float, Callable[[], Any]]] = [
        (0.50, lambda: job_of(bodies.fine)),
        (0.08, lambda: job_of(bodies.query)),
        (0.08, lambda: job_of(bodies.write)),
        (0.04, lambda: job_of(bodies.write).options(atomic=True, retry=2)),
        (0.08, lambda: job_of(bodies.flaky).options(retry=2)),
        (0.06, lambda: chain(bodies.fine, _either(shape), bodies.fine, bodies.query)),
        (0.04, lambda: _nested(shape)),
        (0.02, lambda: chain(_nested(shape), bodies.fine, _nested(shape))),
        (0.04, lambda: job_of(bodies.add_more)),
        (0.02, lambda: job_of(bodies.cancel_another if shape.failing else bodies.fine)),
        (shape.failing, lambda: job_of(bodies.boom_at_first)),
        (shape.failing / 2, lambda: job_of(bodies.boom)),
    ]
    weights = [weight for weight, _ in kinds]
    for _ in range(size):
        yield random.choices(kinds, weights)[0][1]()


def _either(shape: Shape) -> Any:
    return bodies.boom_at_first if random.random() < shape.failing * 2 else bodies.fine


def _nested(shape: Shape) -> Any:
    items = [_either(shape) for _ in range(4)]
    return batch_of(items, allow_failures=random.choice((0, 1, True)), on_success=bodies.fine, on_finish=bodies.query)
