"""``python -m example_project.demo``: import 28,000 airports in batches, and see how that ends.

Everything that is needed is started and stopped again: a Redis on a private socket, workers, a web server.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import django
from rich.console import Console
from rich.markup import escape

from example_project.demo_processes import DemoError, Interrupted, Processes, stop_signals_raise
from example_project.redis_server import RedisServer, RedisServerError

VARIANTS = {
    "broken": "some rows are broken: the validation fails and the import is called off",
    "side-by-side": "both batches side by side, with broken rows: the failing one cancels the other",
    "deadlock": "two validations deadlock and survive it in place (SQLite: the database is locked)",
    "flaky": "a flaky validation is retried at the front of the queue, before the import",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if everything came out as expected."""
    options = _parser().parse_args(arguments)
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        with stop_signals_raise():
            return _run(options, console, serve=at_terminal)
    except Interrupted as interrupted:
        console.print(f"Stopped by {interrupted}; everything that was started has been ended.")
        return interrupted.exit_code
    except (DemoError, RedisServerError) as error:
        console.print(f"[red]The demo failed.[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1


def _run(options: argparse.Namespace, console: Console, *, serve: bool) -> int:
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        os.environ["DEMO_REDIS_SOCKET"] = str(redis.socket)
        os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
        django.setup()
        from django.conf import settings

        from example_project.demo_run import Demo  # models can be imported from here on

        log_dir = settings.VAR_DIR / "log"
        processes = stack.enter_context(Processes(log_dir))
        demo = Demo(options, console, processes)
        try:
            good = demo.run()
        except DemoError as error:
            raise DemoError(f"{error}\n{processes.tails()}") from error
        console.print("[green]As expected.[/green]" if good else "[red]Not as expected.[/red]")
        if not good:
            console.print(escape(processes.tails()), highlight=False, soft_wrap=True)
        if serve:
            with suppress(Interrupted):  # the usual way to end it
                demo.serve()
    if good:
        for folder in (log_dir, settings.STAGING_DIR):
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo",
        description="Imports the 28,000 airports of the airportsdata package: a batch validates them, "
        "another imports them, a clean-up always runs. At a terminal the web server stays up until Ctrl-C; "
        "without one everything stops at the end, and the exit code is 0 if it all came out as expected.",
        epilog="Environment: DEMO_DATABASE=sqlite|postgresql|mariadb and the other variables that "
        "example_project/settings.py describes.",
    )
    variants = parser.add_mutually_exclusive_group()
    for name, text in VARIANTS.items():
        variants.add_argument(f"--{name}", dest="variant", action="store_const", const=name, help=text)
    parser.add_argument("--workers", type=int, default=2, help="how many workers to start (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="of the web server, if free (default: %(default)s)")
    parser.add_argument(
        "--time-limit", type=float, default=120, metavar="SECONDS", help="give up then (default: %(default)s)"
    )
    parser.set_defaults(variant="plain")
    return parser


if __name__ == "__main__":
    sys.exit(main())
