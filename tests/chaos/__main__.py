"""Chaos: real workers and servers, killed at random, and every promise checked at the end.

Each run has a Redis and a database server of its own, in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.servers import DATABASE_SERVERS, DatabaseServer, MissingServerError, RedisOfRun
from tests.services import DATABASES

PATIENCE = 60
"""Seconds without the end of any job after which what has not ended never will, once nothing happens any more."""


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the servers end with us
    seed = options.seed or secrets.token_hex(4)
    base = "/tmp" if len(tempfile.gettempdir()) > 40 else tempfile.gettempdir()  # a socket's path must be short
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=base))
    folder.chmod(0o755)
    print(
        f"database {options.database}, seed {seed}, {options.jobs} jobs, {options.faults} faults, in {folder}",
        flush=True,
    )
    try:
        violations = _run(options, seed, folder)
    except MissingServerError as error:
        print(error, file=sys.stderr)
        return 2
    if not violations and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"The logs are in {folder}.")
    return int(bool(violations))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--database", choices=DATABASES, default="sqlite")
    parser.add_argument("--seed", help="of what is decided here; processes keep their own pace (default: a new one)")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=100, help="at least so many, until all has been dispatched too")
    parser.add_argument("--rate", type=float, default=0.002, help="of processes that kill themselves at each point")
    parser.add_argument("--break", dest="broken", default="", choices=("fencing", "guard", "repair"),
                        help="break a promise on purpose, to see that it is noticed")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    return parser


def _run(options: argparse.Namespace, seed: str, folder: Path) -> int:
    redis = RedisOfRun(folder)
    make = DATABASE_SERVERS.get(options.database)
    database = make(_subfolder(folder, "database")) if make else None
    environment = {
        **redis.environment,
        **(database.environment if database else {}),
        "TEST_DATABASE": options.database,
        "TEST_DATABASE_NAME": folder.name.replace("-", "_"),
        "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
        "CHAOS_RECORD": str(folder / "record"),
        "CHAOS_FAULTS": str(folder / "faults"),
        "CHAOS_DISPATCHED": str(folder / "dispatched"),
    }
    os.environ.update(environment)
    redis.start()
    try:
        if database is not None:
            database.start()
        return _with_servers(options, seed, folder, (redis, database), environment)
    finally:
        redis.stop()
        if database is not None:
            database.stop()


def _subfolder(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir(mode=0o755)
    return path


def _with_servers(
    options: argparse.Namespace,
    seed: str,
    folder: Path,
    servers: tuple[RedisOfRun, DatabaseServer | None],
    environment: dict[str, str],
) -> int:
    import django

    django.setup()
    from tests.chaos import report, verdict
    from tests.chaos.world import World

    report.make_database()
    everywhere = {**environment, "CHAOS_RATE": str(options.rate), "CHAOS_BREAK": options.broken}
    world = World(folder, *servers, everywhere)
    rng = random.Random(seed)
    started_at = time.monotonic()
    try:
        next_fault = started_at + 3
        while not world.has_dispatched or world.number_of_faults() < options.faults:
            world.tick(seed, options.jobs)
            if time.monotonic() > next_fault:
                world.strike(rng)
                next_fault = time.monotonic() + rng.expovariate(1 / 0.7)
        world.calm_down()
        seconds = time.monotonic() - started_at
        report.wait_for_the_end(world, seed, options.jobs, PATIENCE)
    finally:
        world.end()
    result = verdict.judge(folder / "record", verdict.open_connections())
    report.show(result, world, seconds)
    return len(result.violations)


if __name__ == "__main__":
    sys.exit(main())
