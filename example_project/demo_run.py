"""One import from the press of the button to the report. Imported when Django has been set up."""

import shutil
import time
import uuid
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import django_rq
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import OperationalError, connection
from django.urls import resolve, reverse
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rq import Worker

from django_job_batches.models import Batch
from example_project.airports.imports import Variant
from example_project.demo_browser import Browser
from example_project.demo_checks import checks, rq_leftovers
from example_project.demo_processes import DemoError, Processes
from example_project.demo_report import family, reasons, table

ADMIN = "admin"  # the name and the password


class Demo:
    """The steps of the demo, with what they share."""

    def __init__(self, options: Namespace, console: Console, processes: Processes) -> None:
        self.variant = Variant(options.variant)
        self.workers: int = options.workers
        self.console = console
        self.processes = processes
        self.give_up_at = time.monotonic() + options.time_limit
        self.port: int = options.port

    def run(self) -> bool:
        """Return whether everything came out as expected; raise ``DemoError`` if it did not come so far."""
        prepare_database()
        self.start()
        root = self.watch(self.press_button())
        self.console.print(table(root))
        for reason in reasons(root):
            self.console.print(f"  {escape(reason)}", highlight=False)
        good = self.judge(root)
        self.browser.get(batch_page(root))
        self.console.print(f"The batch in the admin: {self.browser.url}", soft_wrap=True)
        self.console.print(f"Log in as {ADMIN} with the password {ADMIN}.")
        return good

    def start(self) -> None:
        """Start the workers and the web server, and wait until they are there."""
        environment = {"DEMO_SQLITE_TIMEOUT": "2"} if self.variant is Variant.DEADLOCK else {}
        for number in range(1, self.workers + 1):
            self.processes.start_manage(f"worker-{number}", "rqworker", "default", environment=environment)
        self.browser = Browser(self.processes.start_web(self.port, self.give_up_at))
        self.wait_until(self.workers_are_there, "the workers to start")

    def workers_are_there(self) -> bool:
        return Worker.count(django_rq.get_connection("default")) == self.workers

    def press_button(self) -> uuid.UUID:
        """Log in and dispatch the import as a user would; return the key of the batch whose page comes up."""
        self.browser.submit("/admin/login/", username=ADMIN, password=ADMIN)
        self.browser.submit(reverse("airports:import"), variant=self.variant.value)
        match = resolve(urlsplit(self.browser.url).path)
        if "object_id" not in match.kwargs:
            message = f"The button led to {self.browser.url}, not to the batch."
            raise DemoError(message)
        return uuid.UUID(match.kwargs["object_id"])

    def watch(self, key: uuid.UUID) -> Batch:
        """Show the progress until the batch and its callbacks have ended; return it as it is then."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            bars: dict[uuid.UUID, TaskID] = {}

            def finished() -> bool:
                for depth, batch in family(Batch.objects.get(pk=key)):
                    if batch.pk not in bars:
                        bars[batch.pk] = progress.add_task("  " * depth + batch.name, total=100)
                    progress.update(bars[batch.pk], completed=batch.progress)
                return Batch.objects.get(pk=key).is_finished

            self.wait_until(finished, "the batch to finish")
            finished()
        return self.wait_for_callbacks(Batch.objects.get(pk=key))

    def wait_for_callbacks(self, batch: Batch) -> Batch:
        try:
            batch.wait(timeout=max(1.0, self.give_up_at - time.monotonic()))
        except TimeoutError as error:
            message = "The callbacks did not end in time."
            raise DemoError(message) from error
        return Batch.objects.get(pk=batch.pk)

    def judge(self, root: Batch) -> bool:
        """Print what was expected and what was found; return whether they agree."""
        self.wait_until(lambda: not rq_leftovers(), "RQ's queues to become empty")
        good = True
        for check in checks(root, self.variant):
            mark = "[green]✓[/green]" if check.good else "[red]✗[/red]"
            text = check.what if check.good else f"{check.what} (found: {check.found})"
            self.console.print(f"{mark} {escape(text)}", highlight=False, soft_wrap=True)
            good = good and check.good
        return good

    def serve(self) -> None:
        """Keep everything running until somebody stops the demo."""
        self.console.print(f"Serving at {self.browser.base_url}/admin/ until Ctrl-C.")
        while True:
            self.processes.check()
            time.sleep(0.5)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        self.processes.wait_until(condition, what, self.give_up_at)


def batch_page(batch: Batch) -> str:
    return reverse("admin:django_job_batches_batch_change", args=[batch.pk])


def prepare_database() -> None:
    """Bring the schema up to date, make the superuser, and end what an interrupted demo has left behind."""
    _create_database()
    call_command("migrate", verbosity=0, interactive=False)
    users = get_user_model()._default_manager
    if not users.filter(username=ADMIN).exists():
        users.create_superuser(ADMIN, "admin@example.com", ADMIN)
    for batch in Batch.objects.active().filter(parent_job=None):
        batch.cancel("The demo that ran it has ended.")
    shutil.rmtree(Path(settings.STAGING_DIR), ignore_errors=True)


def _create_database() -> None:
    try:
        connection.ensure_connection()
    except OperationalError:
        if connection.vendor == "sqlite":
            raise
        name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
        with connection._nodb_cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
