"""What an operator can do to batches."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_job_batches import cancelling, history, outbox
from django_job_batches.admin.figures import count_running, count_same, same_error
from django_job_batches.admin.operations import Operation, Order
from django_job_batches.database import after_commit, home_of
from django_job_batches.models import ENDED, UNSUCCESSFUL, Batch, JobStatus, Role

UNENDED = tuple(status for status in JobStatus if status not in ENDED)


class BatchOperation(Operation[Batch]):
    def version(self, row: Batch) -> str:
        return str(row.run)


class Cancel(BatchOperation):
    name = "cancel"
    permission = "cancel"
    label = gettext_lazy("Cancel")
    title = gettext_lazy("Cancel batches")
    asks_for_a_reason = True
    is_dangerous = True
    stop_running = False

    def refusal(self, row: Batch) -> str:
        return _("already %(status)s") % {"status": row.get_status_display()} if row.is_decided else ""

    def forecast(self, rows: list[Batch], order: Order) -> list[str]:
        nested = nested_in(rows, UNENDED)
        pending = sum(batch.pending_jobs for batch in (*rows, *nested)) - len(nested)
        running = _running_jobs([*rows, *nested])
        return [
            ngettext("%d batch will be cancelled.", "%d batches will be cancelled.", len(rows)) % len(rows),
            *_and_nested(len(nested)),
            ngettext(
                "%d job has not ended. If it has not started, it will never run.",
                "%d jobs have not ended. Those that have not started will never run.",
                pending,
            )
            % pending,
            self._fate_of_running(running) % running if running else _("None of them is running now."),
            _("Callbacks for the end of these batches (on_finish) still run."),
        ]

    def _fate_of_running(self, running: int) -> str:
        return ngettext(
            "%d job is running now. It will end by itself.",
            "%d jobs are running now. They will end by themselves.",
            running,
        )

    def cost(self, row: Batch) -> int:
        return row.pending_jobs

    def perform(self, row: Batch, order: Order) -> int:
        return int(row.cancel(reason=order.reason, by=order.by, stop_running=self.stop_running))

    def begin(self, row: Batch, order: Order) -> None:
        """Decide now, so that nothing new begins; what waits is called off by the worker."""
        cancelling.cancel(row, reason=order.reason, by=order.by, stop_running=self.stop_running, sweeps=False)

    def go_on(self, row: Batch, order: Order) -> None:
        self.perform(row, order)
        outbox.sweep(home_of(row), row.pk)

    def report(self, rows: int, number: int) -> str:
        return ngettext("%d batch was cancelled.", "%d batches were cancelled.", rows) % rows


class CancelAndStop(Cancel):
    name = "stop"
    label = gettext_lazy("Cancel and stop")
    title = gettext_lazy("Cancel batches and stop what runs")
    stop_running = True

    def _fate_of_running(self, running: int) -> str:
        return ngettext(
            "%d job is running now. It will be stopped in the middle of its work.",
            "%d jobs are running now. They will be stopped in the middle of their work.",
            running,
        )


class Retry(BatchOperation):
    name = "retry"
    permission = "retry"
    label = gettext_lazy("Retry")
    title = gettext_lazy("Retry failed and cancelled jobs")

    def refusal(self, row: Batch) -> str:
        if row.parent_job_id is not None:
            return _("part of another batch; retry that one")
        if not row.is_finished:
            return _("has not finished yet")
        if row.open_callbacks:
            return _("its callbacks have not ended yet")
        if row.error:
            return _("was not written to its end; dispatch it anew")
        return "" if row.failed_jobs or row.cancelled_jobs else _("nothing in it failed or was cancelled")

    def forecast(self, rows: list[Batch], order: Order) -> list[str]:
        nested = nested_in(rows, UNSUCCESSFUL)
        jobs = sum(batch.failed_jobs + batch.cancelled_jobs for batch in (*rows, *nested)) - len(nested)
        return [
            ngettext("%d batch will run again.", "%d batches will run again.", len(rows)) % len(rows),
            *_and_nested(len(nested)),
            ngettext("%d failed or cancelled job will run.", "%d failed or cancelled jobs will run.", jobs) % jobs,
            _("Jobs that have succeeded do not run again. Callbacks run again."),
        ]

    def cost(self, row: Batch) -> int:
        return row.failed_jobs + row.cancelled_jobs

    def perform(self, row: Batch, order: Order) -> int:
        return row.retry(by=order.by)

    def report(self, rows: int, number: int) -> str:
        again = ngettext("%d batch runs again", "%d batches run again", rows) % rows
        return _("%(again)s, with %(items)s.") % {
            "again": again,
            "items": ngettext("%d item", "%d items", number) % number,
        }


class RetryGroup(Retry):
    """Those failed jobs alone that have the error of an example."""

    name = "retry_group"
    label = gettext_lazy("Retry this group")
    title = gettext_lazy("Retry the jobs that failed with one error")
    needs_an_example = True

    def forecast(self, rows: list[Batch], order: Order) -> list[str]:
        (batch,) = rows
        known, is_all = count_same(batch, order.example or 0)
        if not known:
            return []
        number = str(known) if is_all else f"≥ {known}"
        return [
            ngettext(
                "%s job that failed with this error will run again.",
                "%s jobs that failed with this error will run again.",
                known,
            )
            % number,
            _("Jobs of a chain run with all that is left of their chain. Callbacks run again."),
        ]

    def perform(self, row: Batch, order: Order) -> int:
        jobs = same_error(row, order.example or 0)
        return 0 if jobs is None else row.retry(jobs=jobs, by=order.by)


class Delete(BatchOperation):
    name = "delete"
    permission = "delete"
    label = gettext_lazy("Delete")
    title = gettext_lazy("Delete batches")
    is_dangerous = True

    def refusal(self, row: Batch) -> str:
        if row.parent_job_id is not None:
            return _("part of another batch; delete that one")
        if not row.is_finished:
            return _("has not finished; cancel it, and wait for its end")
        return _("its callbacks have not ended yet") if row.open_callbacks else ""

    def forecast(self, rows: list[Batch], order: Order) -> list[str]:
        nested = nested_in(rows, JobStatus)
        jobs = sum(batch.total_jobs for batch in (*rows, *nested))
        return [
            ngettext("%d batch will be deleted.", "%d batches will be deleted.", len(rows)) % len(rows),
            *_and_nested(len(nested)),
            ngettext("%d job will be deleted with it.", "%d jobs will be deleted with them.", jobs) % jobs,
            _("This cannot be undone."),
        ]

    def cost(self, row: Batch) -> int:
        return row.total_jobs

    def perform(self, row: Batch, order: Order) -> int:
        using, known_as = home_of(row), Batch(pk=row.pk, name=row.name)
        row.delete()
        after_commit(partial(history.record, known_as, order.by, "", is_deletion=True), using)
        return 1

    def report(self, rows: int, number: int) -> str:
        return ngettext("%d batch was deleted.", "%d batches were deleted.", rows) % rows


CANCEL, CANCEL_AND_STOP, RETRY, RETRY_GROUP, DELETE = Cancel(), CancelAndStop(), Retry(), RetryGroup(), Delete()
BATCH_OPERATIONS: dict[str, Operation[Any]] = {
    operation.name: operation for operation in (CANCEL, CANCEL_AND_STOP, RETRY, RETRY_GROUP, DELETE)
}


def nested_in(batches: list[Batch], statuses: Iterable[JobStatus]) -> list[Batch]:
    """The batches nested in these as items, at any depth, whose row in their parent has one of ``statuses``."""
    found: list[Batch] = []
    level = batches
    while level:
        rows = Batch.objects.using(level[0]._state.db).filter(parent_job__batch__in=[batch.pk for batch in level])
        level = list(rows.filter(parent_job__role=Role.ITEM, parent_job__status__in=list(statuses)))
        found += level
    return found


def _running_jobs(batches: list[Batch]) -> int:
    return count_running(batches[0]._state.db, [batch.pk for batch in batches]).total()


def _and_nested(number: int) -> list[str]:
    if not number:
        return []
    return [ngettext("So will %d batch nested in them.", "So will %d batches nested in them.", number) % number]
