"""Runs the tests on every database that answers, and says loudly what was not tested.

`python -m tests [--database NAME]... [--at-once N] [pytest's arguments]`. With REQUIRE_SERVICES=1 in the
environment a database that does not answer is an error, and so is one that was asked for by its name. The same
goes for a browser that is not installed, which is needed on SQLite (see tests/browser).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from example_project.redis_server import INSTALL_HINT, find_redis_server
from tests.services import DATABASES, HOW_TO_GET, SERVICES, are_required, why_unreachable

RULE = "=" * 100
COVERAGE = [sys.executable, "-m", "coverage"]
NO_TESTS = 5  # pytest's exit code, when nothing was selected for this database


class Result(NamedTuple):
    """How the tests went on one database: pytest's exit code, how long it took, and a line for each failure."""

    code: int
    seconds: float
    failures: list[str]


def main() -> int:
    """Run everything; return 0 if all that had to be tested was, and passed."""
    options, pytest_arguments = _parser().parse_known_args()
    if find_redis_server() is None:
        print(INSTALL_HINT, file=sys.stderr)
        return 2
    wanted = options.database or SERVICES
    missing = {name: why for name in wanted if (why := why_unreachable(name))}
    if missing and (options.database or are_required()):
        print(f"Nothing was run.\n{_describe(missing)}", file=sys.stderr)
        return 2
    reachable = [name for name in wanted if name in DATABASES and name not in missing]
    results = _run_all(reachable, pytest_arguments, options.at_once)
    _summarize(results, missing)
    codes = [result.code for result in results.values()]
    return int(any(code not in (0, NO_TESTS) for code in codes) or set(codes) == {NO_TESTS})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__, add_help=False)
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one (repeatable)")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="databases that are tested at once")
    return parser


def _run_all(databases: Sequence[str], arguments: Sequence[str], at_once: int) -> dict[str, Result]:
    """The result per database; all of them together are measured for coverage."""
    _coverage("erase")
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        results = dict(zip(databases, pool.map(partial(_pytest, arguments=arguments), databases), strict=True))
    _coverage("combine", "--quiet")
    _coverage("report")
    return results


def _pytest(database: str, arguments: Sequence[str]) -> Result:
    """Run pytest on a database, each line of its output with the database's name before it."""
    started_at, failures = time.monotonic(), []
    with subprocess.Popen(
        [*COVERAGE, "run", "-m", "pytest", *arguments],
        env={**os.environ, "TEST_DATABASE": database},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            print(f"{database:10} | {line}", end="", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):
                failures.append(line.rstrip())
    return Result(process.returncode, time.monotonic() - started_at, failures)


def _coverage(*arguments: str) -> None:
    subprocess.run([*COVERAGE, *arguments], check=False)


def _summarize(results: dict[str, Result], missing: dict[str, str]) -> None:
    print(f"\n{RULE}")
    for database, (code, seconds, failures) in results.items():
        outcome = {0: "passed", NO_TESTS: "had no test to run"}.get(code, f"FAILED (pytest's exit code {code})")
        print(f"{database:12} {outcome} in {seconds:.0f} s")
        for failure in failures:
            print(f"    {failure}")
    if missing:
        print(f"\n{_describe(missing)}")
    print(RULE, flush=True)


def _describe(missing: dict[str, str]) -> str:
    lines = []
    for service, why in missing.items():
        lines += [f"!!! NOT TESTED: {service}: {why}", f"    To have it tested: {HOW_TO_GET[service]}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
