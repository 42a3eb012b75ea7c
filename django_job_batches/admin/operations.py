"""What an operator can do to batches: which of them it concerns, what it will do in numbers, and what it has done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_job_batches.models import ENDED, UNSUCCESSFUL, Batch, BatchJob, JobStatus, Role

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

UNENDED = tuple(status for status in JobStatus if status not in ENDED)


class Operation(ABC):
    """One thing that can be done to batches. ``permission`` is the first half of the permission's code name."""

    name: ClassVar[str]
    permission: ClassVar[str]
    label: ClassVar[StrOrPromise]
    title: ClassVar[StrOrPromise]
    asks_for_a_reason: ClassVar[bool] = False

    @abstractmethod
    def refusal(self, batch: Batch) -> str:
        """Why this batch would be left alone; "" if it would not."""

    @abstractmethod
    def forecast(self, batches: list[Batch]) -> list[str]:
        """What will happen to these batches, in sentences with numbers."""

    @abstractmethod
    def perform(self, batch: Batch, *, by: Any, reason: str) -> int:
        """Do it; 0 when there was nothing to do (any more). Raises ``BatchError`` when it cannot be done."""

    @abstractmethod
    def report(self, batches: int, number: int) -> str:
        """What was done to so many batches; ``number`` is the sum of what ``perform()`` returned."""


class Cancel(Operation):
    name = "cancel"
    permission = "cancel"
    label = gettext_lazy("Cancel")
    title = gettext_lazy("Cancel batches")
    asks_for_a_reason = True
    stop_running = False

    def refusal(self, batch: Batch) -> str:
        return _("already %(status)s") % {"status": batch.get_status_display()} if batch.is_decided else ""

    def forecast(self, batches: list[Batch]) -> list[str]:
        nested = nested_in(batches, UNENDED)
        pending = sum(batch.pending_jobs for batch in (*batches, *nested)) - len(nested)
        running = _running_jobs([*batches, *nested])
        return [
            ngettext("%d batch will be cancelled.", "%d batches will be cancelled.", len(batches)) % len(batches),
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

    def perform(self, batch: Batch, *, by: Any, reason: str) -> int:
        return int(batch.cancel(reason=reason, by=by, stop_running=self.stop_running))

    def report(self, batches: int, number: int) -> str:
        return ngettext("%d batch was cancelled.", "%d batches were cancelled.", batches) % batches


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


class Retry(Operation):
    name = "retry"
    permission = "retry"
    label = gettext_lazy("Retry")
    title = gettext_lazy("Retry failed and cancelled jobs")

    def refusal(self, batch: Batch) -> str:
        if batch.parent_job_id is not None:
            return _("part of another batch; retry that one")
        if not batch.is_finished:
            return _("has not finished yet")
        if batch.open_callbacks:
            return _("its callbacks have not ended yet")
        return "" if batch.failed_jobs or batch.cancelled_jobs else _("nothing in it failed or was cancelled")

    def forecast(self, batches: list[Batch]) -> list[str]:
        nested = nested_in(batches, UNSUCCESSFUL)
        jobs = sum(batch.failed_jobs + batch.cancelled_jobs for batch in (*batches, *nested)) - len(nested)
        return [
            ngettext("%d batch will run again.", "%d batches will run again.", len(batches)) % len(batches),
            *_and_nested(len(nested)),
            ngettext("%d failed or cancelled job will run.", "%d failed or cancelled jobs will run.", jobs) % jobs,
            _("Jobs that have succeeded do not run again. Callbacks run again."),
        ]

    def perform(self, batch: Batch, *, by: Any, reason: str) -> int:
        return batch.retry(by=by)

    def report(self, batches: int, number: int) -> str:
        again = ngettext("%d batch runs again", "%d batches run again", batches) % batches
        return _("%(again)s, with %(items)s.") % {
            "again": again,
            "items": ngettext("%d item", "%d items", number) % number,
        }


CANCEL, CANCEL_AND_STOP, RETRY = Cancel(), CancelAndStop(), Retry()
OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in (CANCEL, CANCEL_AND_STOP, RETRY)}


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
    """Few, since each keeps a worker busy; found by an index."""
    running = BatchJob.objects.using(batches[0]._state.db).filter(status=JobStatus.RUNNING, role=Role.ITEM)
    return running.filter(batch__in=[batch.pk for batch in batches]).exclude(func="").count()


def _and_nested(number: int) -> list[str]:
    if not number:
        return []
    return [ngettext("So will %d batch nested in them.", "So will %d batches nested in them.", number) % number]
