"""Batches at random: flat, nested, chained, with callbacks, retries and failures."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from rq import Retry

from django_job_batches import batch_of, chain, job_of
from tests.chaos import bodies


def a_batch(rng: random.Random, size: int, name: str) -> Any:
    """About so many rows."""
    allowance = rng.choice([True, True, True, 0.5, 8])
    return batch_of(
        _items(rng, size),
        name=name,
        allow_failures=allowance,
        on_success=rng.choice([None, job_of(bodies.fine), [bodies.fine, batch_of([bodies.fine])]]),
        on_failure=rng.choice([None, job_of(bodies.fine)]),
        on_finish=[job_of(bodies.query), rng.choice([bodies.boom, batch_of([bodies.fine] * 2, on_finish=bodies.fine)])],
    )


def _items(rng: random.Random, size: int) -> Iterator[Any]:
    kinds = [
        (45, lambda: job_of(bodies.fine)),
        (8, lambda: job_of(bodies.query).options(retry=2)),
        (6, lambda: job_of(bodies.slow).options(on_lost="retry")),
        (4, lambda: job_of(bodies.slow)),
        (0.5, lambda: job_of(bodies.long).options(on_lost=rng.choice(["fail", "retry"]))),
        (8, lambda: job_of(bodies.effect).options(atomic=True)),
        (6, lambda: job_of(bodies.flaky).options(retry=Retry(max=2, enqueue_at_front=True))),
        (2, lambda: job_of(bodies.flaky).options(retry=Retry(max=1, interval=1))),
        (2, lambda: job_of(bodies.boom)),
        (1, lambda: job_of(bodies.give_up).options(retry=3)),
        (1, lambda: job_of(bodies.leave_open)),
        (2, lambda: job_of(bodies.add_more)),
        (4, lambda: chain(bodies.fine, job_of(bodies.query).options(retry=1), bodies.fine)),
        (1, lambda: chain(bodies.fine, bodies.boom, bodies.fine, a_nested_one(rng))),
        (3, lambda: a_nested_one(rng)),
        (2, lambda: chain(a_nested_one(rng), bodies.fine, a_nested_one(rng))),
    ]
    makers = [maker for _, maker in kinds]
    weights = [weight for weight, _ in kinds]
    for _ in range(size):
        yield rng.choices(makers, weights)[0]()


def a_nested_one(rng: random.Random) -> Any:
    items = [rng.choice([bodies.fine, bodies.fine, bodies.query, bodies.slow]) for _ in range(rng.randint(0, 5))]
    return batch_of(items, allow_failures=rng.choice([0, 2, True]), on_success=bodies.fine, on_finish=bodies.query)
