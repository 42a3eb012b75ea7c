"""Runs the tests on every database that answers, and says loudly what was not tested.

`python -m tests [--database NAME]... [pytest's arguments]`. With REQUIRE_SERVICES=1 in the environment a
database that does not answer is an error, and so is one that was asked for by its name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from example_project.redis_server import INSTALL_HINT, find_redis_server
from tests.services import DATABASES, HOW_TO_GET, why_unreachable

RULE = "=" * 100
NO_TESTS = 5  # pytest's exit code, when nothing was selected for this database


def main() -> int:
    """Run everything; return 0 if all that had to be tested was, and passed."""
    options, pytest_arguments = _parser().parse_known_args()
    if find_redis_server() is None:
        print(INSTALL_HINT, file=sys.stderr)
        return 2
    wanted = options.database or DATABASES
    missing = {name: why for name in wanted if (why := why_unreachable(name))}
    if missing and (options.database or os.environ.get("REQUIRE_SERVICES") == "1"):
        print(f"Nothing was run.\n{_describe(missing)}", file=sys.stderr)
        return 2
    results = _run_all([name for name in wanted if name not in missing], pytest_arguments)
    _summarize(results, missing)
    codes = [code for code, _ in results.values()]
    return int(any(code not in (0, NO_TESTS) for code in codes) or set(codes) == {NO_TESTS})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__, add_help=False)
    parser.add_argument("--database", action="append", choices=DATABASES, help="only this one (repeatable)")
    return parser


def _run_all(databases: Sequence[str], arguments: Sequence[str]) -> dict[str, tuple[int, float]]:
    """Exit code and seconds per database; all of them together are measured for coverage."""
    _coverage("erase")
    results = {}
    for database in databases:
        print(f"\n{RULE}\nTesting on {database}\n{RULE}", flush=True)
        started_at = time.monotonic()
        code = _pytest(database, arguments)
        results[database] = (code, time.monotonic() - started_at)
    _coverage("combine", "--quiet")
    _coverage("report")
    return results


def _pytest(database: str, arguments: Sequence[str]) -> int:
    env = {**os.environ, "TEST_DATABASE": database}
    return _coverage("run", "-m", "pytest", *arguments, env=env)


def _coverage(*arguments: str, env: dict[str, str] | None = None) -> int:
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], env=env, check=False).returncode


def _summarize(results: dict[str, tuple[int, float]], missing: dict[str, str]) -> None:
    print(f"\n{RULE}")
    for database, (code, seconds) in results.items():
        outcome = {0: "passed", NO_TESTS: "had no test to run"}.get(code, f"FAILED (pytest's exit code {code})")
        print(f"{database:12} {outcome} in {seconds:.0f} s")
    if missing:
        print(f"\n{_describe(missing)}")
    print(RULE, flush=True)


def _describe(missing: dict[str, str]) -> str:
    lines = []
    for database, why in missing.items():
        lines += [f"!!! NOT TESTED: {database}: {why}", f"    To have it tested: {HOW_TO_GET[database]}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
