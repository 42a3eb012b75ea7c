"""What a run prints."""

from __future__ import annotations

import subprocess
import sys
import time

from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection
from django.db.models import Q

from django_job_batches.models import Batch, BatchJob
from tests.chaos.verdict import Verdict
from tests.chaos.world import World
from tests.processes import ROOT
from tests.services import address, mysql_driver


def make_database() -> None:
    """The database of the run, with its tables; on SQLite what is left of an older one is removed."""
    name = settings.DATABASE_NAME
    if settings.TEST_DATABASE == "postgresql":
        import psycopg

        where = address("postgresql")
        with psycopg.connect(
            host=where["HOST"], port=where["PORT"], user=where["USER"], dbname="postgres", autocommit=True
        ) as connection_:
            for each in (name, f"{name}_other"):
                connection_.execute(f'CREATE DATABASE "{each}"')  # type: ignore[arg-type]
    elif settings.TEST_DATABASE == "mariadb":
        where = address("mariadb")
        raw = mysql_driver().connect(host=where["HOST"], port=int(where["PORT"]), user=where["USER"])
        for each in (name, f"{name}_other"):
            raw.cursor().execute(f"CREATE DATABASE `{each}` CHARACTER SET utf8mb4")
        raw.close()
    call_command("migrate", "--run-syncdb", verbosity=0)


def wait_for_the_end(world: World, seed: str, jobs: int, patience: float) -> None:
    """Until every batch has ended, or nothing has ended for so many seconds."""
    ended, give_up_at = -1, time.monotonic() + patience
    while time.monotonic() < give_up_at:
        world.tick(seed, jobs)
        try:
            if not Batch.objects.filter(Q(finished_at=None) | Q(open_callbacks__gt=0)).exists():
                time.sleep(5)  # what RQ still does after a job
                return
            number = BatchJob.objects.filter(finished_at__isnull=False).count()
        except (DatabaseError, InterfaceError):
            connection.close()
            continue
        if number != ended:
            ended, give_up_at = number, time.monotonic() + patience
    done = subprocess.run(
        [sys.executable, "-m", "django", "reconcile_batches", "--dry-run"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(f"Nothing has ended for {patience:g} seconds, and not everything has. The reconciler says:")
    print(done.stdout + done.stderr)


def show(verdict: Verdict, world: World, seconds: float) -> None:
    print(f"\n{seconds:.0f} s, {verdict.jobs:,} jobs in {verdict.batches:,} batches ", end="")
    print(f"({', '.join(f'{number} {status}' for status, number in sorted(verdict.outcomes.items()))}), ", end="")
    print(f"{verdict.executions:,} executions")
    faults = world.faults + world.aimed()
    print(f"\n{faults.total():6,} faults survived")
    for name, number in faults.most_common():
        print(f"{number:6,} {name}")
    print(f"{world.started['worker']:6,} workers and {world.started['dispatcher']} dispatchers were started")
    print(f"\n{verdict.repeated.total():6,} jobs were executed more than once")
    for name, number in verdict.repeated.most_common():
        print(f"{number:6,} {name}")
    print(f"\n{len(verdict.violations):6,} violations")
    for violation in verdict.violations[:20]:
        print(f"       {violation}")
    sys.stdout.flush()
