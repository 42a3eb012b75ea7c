"""`python -m benchmarks`: what batches cost, as ratios, against the budgets of the design."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.figures import Figure, read_json, table, write_json
from tests.services import DATABASES, HOW_TO_GET, why_unreachable

PARTS = ("working", "dispatching", "settling")


def main() -> int:
    options = _parser().parse_args()
    databases = options.database or [name for name in DATABASES if _answers(name)]
    if len(databases) == 1:
        figures = _measure(databases[0], options.part or list(PARTS), options.quick)
    else:
        figures = [figure for name in databases for figure in _in_a_process_of_its_own(name, options)]
        print(table(figures))
    if options.json:
        write_json(options.json, figures)
    return 1 if options.strict and any(figure.is_met is False for figure in figures) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure batches against plain RQ jobs. A table tells each ratio, its budget, and whether it is "
        "met. Redis and the workers are private ones; the database is a new one on the server, dropped at the end.",
    )
    parser.add_argument("--database", action="append", choices=DATABASES, help="default: all that answer")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all of them")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds: minutes become seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a budget is not met")
    return parser


def _answers(database: str) -> bool:
    reason = why_unreachable(database)
    if reason:
        print(f"{database} is left out: {reason}\n  {HOW_TO_GET[database]}", file=sys.stderr)
    return not reason


def _in_a_process_of_its_own(database: str, options: argparse.Namespace) -> list[Figure]:
    """Django's settings are those of one database in each process."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks", "--database", database, "--json", str(result)]
        command += ["--quick"] * options.quick + [f"--part={part}" for part in options.part or ()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return read_json(result)


def _measure(database: str, parts: list[str], quick: bool) -> list[Figure]:
    os.environ.update(TEST_DATABASE=database, DJANGO_SETTINGS_MODULE="benchmarks.settings")
    from benchmarks.stage import on_stage

    figures = []
    with on_stage():
        for measure in _measures(parts):
            for figure in measure(quick):
                print(table([figure]).splitlines()[-1], file=sys.stderr, flush=True)
                figures.append(figure)
    print(table(figures))
    return figures


def _measures(parts: list[str]) -> list[Callable[[bool], Iterator[Figure]]]:
    return [import_module(f"benchmarks.{part}").measure for part in parts]


if __name__ == "__main__":
    sys.exit(main())
