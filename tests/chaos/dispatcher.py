"""`python -m tests.chaos.dispatcher SEED JOBS`: dispatches so many jobs in batches, and disturbs those that run.

What fails here because a server is away is tried with the next batch; what was begun must end all the same. Batches
follow each other at the pace of the workers, so that some end, and are retried, while faults go on.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import django

BACKLOG = 800
"""With so many jobs before the workers, the next batch waits."""


def main(seed: str, jobs: int) -> None:
    from django.db import DatabaseError, InterfaceError, connections
    from redis import RedisError

    from django_job_batches import BatchError
    from tests.chaos.plan import a_batch

    rng = random.Random(seed)
    while _sum_of("total") < jobs:
        size = rng.randint(30, 300)
        try:
            if _sum_of("pending") < BACKLOG:
                a_batch(rng, min(size, jobs), f"chaos {size}").dispatch()
            for _ in range(3):
                with suppress(BatchError):
                    _disturb(rng)
            time.sleep(0.2)
        except (DatabaseError, InterfaceError, RedisError, BatchError) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            connections.close_all()
            time.sleep(0.5)
    Path(os.environ["CHAOS_DISPATCHED"]).touch()


def _sum_of(counter: str) -> int:
    from django.db.models import Sum

    from django_job_batches.models import BatchCounter

    return BatchCounter.objects.aggregate(number=Sum(counter))["number"] or 0


def _disturb(rng: random.Random) -> None:
    """From outside: add, cancel, stop, retry."""
    from django_job_batches import job_of
    from django_job_batches.models import Batch, BatchJob
    from tests.chaos import bodies

    roots = Batch.objects.filter(parent_job=None)
    what = rng.choice(["add", "cancel", "cancel job", "cancel nested", "retry", "retry", "retry callback"])
    active, finished = list(roots.active()[:20]), list(roots.finished().filter(open_callbacks=0)[:20])
    if what == "add" and active:
        rng.choice(active).add([job_of(bodies.fine)] * rng.randint(1, 60))
    elif what == "cancel" and active and rng.random() < 0.1:
        rng.choice(active).cancel("chaos", stop_running=rng.random() < 0.5)
    elif what == "cancel job":
        for job in BatchJob.objects.filter(status="queued", role="item").exclude(func="")[:3]:
            job.cancel()
    elif what == "cancel nested":
        for batch in Batch.objects.active().exclude(parent_job=None)[:1]:
            batch.cancel("chaos")
    elif what == "retry" and finished:
        rng.choice(finished).retry()
    elif what == "retry callback":
        for job in BatchJob.objects.exclude(role="item").filter(status="failed", func__endswith="boom")[:2]:
            job.retry()


if __name__ == "__main__":
    django.setup()
    main(sys.argv[1], int(sys.argv[2]))
