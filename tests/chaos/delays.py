"""`python -m tests.chaos.delays`: how long it takes until what was lost is noticed, with the default settings.

Each case has a Redis and a database of its own: SQLite, but where the database goes away PostgreSQL. All of one way
wait side by side, for some minutes. The figures are in docs/recovery.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import django

from tests.chaos.delay_cases import CASES, Case
from tests.chaos.delay_scene import Scene, Way, database_of, environment_of
from tests.processes import BATCH_WORKER

PATIENCE = 900

WAYS = [
    Way("rq.Worker, other jobs come by", traffic=True),
    Way("BatchWorker, idle", worker=BATCH_WORKER),
    Way("rq.Worker, idle, and reconcile_batches --every 30", command=True),
]


def measure(way: Way, empty_database: Path, case: Case) -> str:
    """Seconds until it is noticed, and what the rows say then."""
    if case.only not in ("", way.worker):
        return "cannot happen"
    scene = Scene(way, empty_database)
    try:
        with scene.turn():
            scene.open(has_server=case.has_server)
            case.happens(scene)
            began = time.monotonic()
            scene.watch()
        while not case.is_noticed(scene):
            if time.monotonic() - began > PATIENCE:
                return f"not within {PATIENCE} s; {scene.says()}"
            time.sleep(0.2)
        return f"{time.monotonic() - began:.0f} s; {scene.says()}"
    except Exception as error:
        return f"not measured: {type(error).__name__}: {error}"
    finally:
        scene.end()


def _empty_database() -> Path:
    path = database_of(f"delays-{os.getpid()}")
    path.parent.mkdir()
    os.environ.update(environment_of(f"delays-{os.getpid()}"))
    django.setup()
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", "--run-syncdb", verbosity=0)
    connections.close_all()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.delays", description=__doc__)
    parser.add_argument("--way", type=int, choices=range(len(WAYS)), help="only this column of the table")
    parser.add_argument("--only", default="", help="only cases in whose name this regular expression is found")
    options = parser.parse_args()
    cases = [case for case in CASES if re.search(options.only, case.name)]
    empty = _empty_database()
    for way in WAYS if options.way is None else [WAYS[options.way]]:
        print(f"\n{way.name}", flush=True)
        with ThreadPoolExecutor(len(cases)) as pool:
            for case, result in zip(cases, pool.map(partial(measure, way, empty), cases), strict=True):
                print(f"{case.name:62} {result}", flush=True)
    shutil.rmtree(empty.parent)


if __name__ == "__main__":
    main()
