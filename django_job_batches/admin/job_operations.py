"""What an operator can do to single jobs."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_job_batches import history
from django_job_batches.admin.operations import Operation, Order
from django_job_batches.models import NOT_STARTED, UNSUCCESSFUL, BatchJob, JobStatus, Role
from django_job_batches.retrying import event_has_come


class JobOperation(Operation[BatchJob]):
    def version(self, row: BatchJob) -> str:
        return f"{row.run}-{row.attempts}-{row.status}"

    def report(self, rows: int, number: int) -> str:
        return str(self.done)

    done: Any


class RetryJob(JobOperation):
    name = "retry"
    permission = "retry"
    label = gettext_lazy("Retry")
    title = gettext_lazy("Retry a job")
    done = gettext_lazy("The job runs again.")

    def refusal(self, row: BatchJob) -> str:
        if row.status not in UNSUCCESSFUL:
            return _("is %(status)s") % {"status": row.get_status_display()}
        if row.role != Role.ITEM:
            return "" if event_has_come(row) else _("was not called: its event has not come")
        if row.batch.parent_job_id is not None:
            return _("part of a nested batch; retry the outermost one")
        if not row.batch.is_finished:
            return _("its batch has not finished yet")
        return _("callbacks of its batch have not ended yet") if row.batch.open_callbacks else ""

    def forecast(self, rows: list[BatchJob], order: Order) -> list[str]:
        if rows[0].role != Role.ITEM:
            return [_("This callback will run again, and nothing else.")]
        again = _("This job will run again, and its batch begins a new run with it; callbacks run again.")
        chain = _("What is left of its chain runs after it.") if rows[0].chain is not None else ""
        return [text for text in (again, chain) if text]

    def perform(self, row: BatchJob, order: Order) -> int:
        return int(row.retry(by=order.by))


class CancelJob(JobOperation):
    name = "cancel"
    permission = "cancel"
    label = gettext_lazy("Cancel")
    title = gettext_lazy("Cancel a job")
    done = gettext_lazy("The job was cancelled.")
    is_dangerous = True

    def refusal(self, row: BatchJob) -> str:
        waits = row.status in NOT_STARTED or (row.is_nested_batch and row.status == JobStatus.RUNNING)
        return "" if waits else _("is %(status)s") % {"status": row.get_status_display()}

    def forecast(self, rows: list[BatchJob], order: Order) -> list[str]:
        if rows[0].is_nested_batch:
            return [_("The nested batch will be cancelled; what has not started of it will never run.")]
        never = _("This job will never run. For its batch it counts like a failed one.")
        chain = _("What follows it in its chain will not run either.") if rows[0].chain is not None else ""
        return [text for text in (never, chain) if text]

    def perform(self, row: BatchJob, order: Order) -> int:
        done = row.cancel()
        if done:
            history.record(row.batch, order.by, f"Cancelled job {row.pk}.")
        return int(done)


class StopJob(JobOperation):
    name = "stop"
    permission = "cancel"
    label = gettext_lazy("Stop")
    title = gettext_lazy("Stop a job")
    done = gettext_lazy("The job was told to stop.")
    is_dangerous = True

    def refusal(self, row: BatchJob) -> str:
        return "" if row.status == JobStatus.RUNNING else _("is not running")

    def forecast(self, rows: list[BatchJob], order: Order) -> list[str]:
        if rows[0].is_nested_batch:
            return [_("The nested batch will be cancelled, and what runs of it is stopped in the middle of its work.")]
        return [_("This job will be stopped in the middle of its work, and ends as cancelled.")]

    def perform(self, row: BatchJob, order: Order) -> int:
        done = row.stop()
        if done:
            history.record(row.batch, order.by, f"Stopped job {row.pk}.")
        return int(done)


JOB_OPERATIONS: dict[str, Operation[Any]] = {
    operation.name: operation for operation in (RetryJob(), CancelJob(), StopJob())
}
