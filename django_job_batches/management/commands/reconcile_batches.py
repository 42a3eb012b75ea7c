from __future__ import annotations

import argparse
import signal
import threading
import uuid
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, close_old_connections, router

from django_job_batches import reconciling
from django_job_batches.conf import settings
from django_job_batches.models import Batch
from django_job_batches.queues import QueueError


class Command(BaseCommand):
    help = (
        "Compare the batches with RQ, and mend what was interrupted: jobs that were not enqueued or have gone from "
        "Redis, jobs whose workers have died, dispatches that were broken off. Workers do the same by themselves, as "
        "long as batch jobs run; this command does it at once, and where nothing runs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--every", type=_above_zero, metavar="SECONDS", help="go on until SIGTERM or Ctrl-C")
        parser.add_argument("--dry-run", action="store_true", help="say what would be mended, and change nothing")
        parser.add_argument("--batch", type=uuid.UUID, metavar="ID", help="only this batch, and what is nested in it")
        parser.add_argument("--database", metavar="ALIAS", help="where the batches are (default: as the routers say)")

    def handle(self, *args: Any, **options: Any) -> None:
        using = options["database"] or router.db_for_write(Batch)
        batch_id = options["batch"]
        if batch_id and not Batch.objects.using(using).filter(pk=batch_id).exists():
            raise CommandError(f"There is no batch {batch_id} in the database {using!r}.")
        if options["every"] is None:
            try:
                self._report(reconciling.reconcile(using, batch_id=batch_id, dry_run=options["dry_run"]), options)
            except QueueError as error:
                raise CommandError(f"Redis is away, so nothing can be compared: {error}") from error
            return
        self._go_on(using, options)

    def _go_on(self, using: str, options: dict[str, Any]) -> None:
        stop = _stop_on_signals()
        self.stdout.write(f"Reconciling {using!r} every {options['every']:g} s; SIGTERM or Ctrl-C ends it.")
        while not stop.is_set():
            try:
                found = reconciling.reconcile(using, batch_id=options["batch"], dry_run=options["dry_run"])
                if found:
                    self._report(found, options)
            except (QueueError, DatabaseError, InterfaceError) as error:
                self.stderr.write(f"{type(error).__name__}: {error}; trying again in {options['every']:g} s.")
            close_old_connections()
            stop.wait(options["every"])
        self.stdout.write("Stopped.")

    def _report(self, found: Counter[str], options: dict[str, Any]) -> None:
        if options["dry_run"] and found:
            self.stdout.write("Nothing was changed. This would be mended:")
        for what, explanation in reconciling.FINDINGS.items():
            if found[what]:
                self.stdout.write(f"{found[what]:8,} {explanation}")
        if found[reconciling.SUSPECTED]:
            self.stdout.write(f"{'':8} (in {settings.LOST_AFTER:g} s)")
        if not found:
            self.stdout.write(self.style.SUCCESS("Nothing was left behind."))


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"pass a number of seconds above 0, not {text!r}")
    return value


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
