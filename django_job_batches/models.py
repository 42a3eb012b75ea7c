"""The schema, and what can be read from it. Every write is in transitions.py and the modules that build on it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.conf import settings as django_settings
from django.db import connections, models
from django.db.models import Count, Exists, F, Min, OuterRef, Q, Sum
from django.db.models.query import ModelIterable
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_job_batches.conf import settings
from django_job_batches.database import find_by_key_alone
from django_job_batches.exceptions import BatchError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

Row = TypeVar("Row", bound=models.Model)
T = TypeVar("T")


class BatchStatus(models.TextChoices):
    WAITING = "waiting", _("waiting")
    DISPATCHING = "dispatching", _("dispatching")
    QUEUED = "queued", _("queued")
    RUNNING = "running", _("running")
    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


class JobStatus(models.TextChoices):
    BLOCKED = "blocked", _("blocked")
    HELD = "held", _("held")
    SCHEDULED = "scheduled", _("scheduled")
    QUEUED = "queued", _("queued")
    RUNNING = "running", _("running")
    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


class Role(models.TextChoices):
    ITEM = "item", _("item")
    ON_SUCCESS = "on_success", _("on success")
    ON_FAILURE = "on_failure", _("on failure")
    ON_FINISH = "on_finish", _("on finish")


DUE = (JobStatus.QUEUED, JobStatus.SCHEDULED)
NOT_STARTED = (JobStatus.BLOCKED, *DUE)
UNSUCCESSFUL = (JobStatus.FAILED, JobStatus.CANCELLED)
ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


class Counts(NamedTuple):
    """The counters of a batch, read in one statement, so that they add up."""

    total: int = 0
    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    deadlocks: int = 0


@dataclass(frozen=True)
class ErrorGroup:
    """Failed jobs of a batch with the same error; ``example`` is the id of the first of them."""

    error_class: str
    error_message: str
    count: int
    example: int


class RowQuerySet(models.QuerySet[Row]):
    """An UPDATE whose WHERE names the key takes the way by the key, on each database."""

    def update(self, **kwargs: Any) -> int:
        rows = self.all()
        rows._for_write = True  # type: ignore[attr-defined]
        if connections[rows.db].vendor == "mysql":
            find_by_key_alone(rows.query)
        return super(RowQuerySet, rows).update(**kwargs)


class JobQuerySet(RowQuerySet["BatchJob"]):
    def delete(self) -> tuple[int, dict[str, int]]:
        """Refused: the counters of the batch would no longer be those of its jobs."""
        raise BatchError("Jobs are deleted with their batch alone, by Batch.delete(); cancel those that shall not run.")

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]


class BatchQuerySet(RowQuerySet["Batch"]):
    def delete(self) -> tuple[int, dict[str, int]]:
        """``Batch.delete()`` of each, with what is nested in it; ``BatchError`` at the first one that can still run."""
        numbers: Counter[str] = Counter()
        for pk in list(self.values_list("pk", flat=True)):
            for batch in self.model._default_manager.using(self.db).filter(pk=pk, parent_job=None):
                numbers += Counter(batch.delete()[1])
        return numbers.total(), dict(numbers)

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def active(self) -> BatchQuerySet:
        """Batches that have not ended, those that wait for their turn included."""
        return self.filter(finished_at=None)

    def finished(self) -> BatchQuerySet:
        """Batches whose last item has ended; callbacks may still run."""
        return self.exclude(finished_at=None)

    def stuck(self) -> BatchQuerySet:
        """Active batches that no longer move by themselves: their dispatcher died, work that is due was not enqueued
        for ``LOST_AFTER`` seconds, or nothing is left that could go on."""
        before = timezone.now() - timedelta(seconds=settings.LOST_AFTER)
        jobs = BatchJob.objects.filter(batch=OuterRef("pk"))
        # one by one: for several states at once, MariaDB reads all items of a batch
        moving = [Exists(jobs.filter(status=status, role=Role.ITEM)) for status in (*DUE, JobStatus.RUNNING)]
        quiet = self.active().exclude(status=BatchStatus.WAITING).filter(heartbeat_at__lt=before)
        return quiet.filter(
            Q(sealed=False)
            | Exists(jobs.filter(status__in=DUE, enqueued_at=None))
            | ~(moving[0] | moving[1] | moving[2])
        )

    def with_counts(self) -> BatchQuerySet:
        """The counters in the same statement: for a few batches that are found by their keys."""
        return self.annotate(**{f"sum_of_{name}": Sum(f"counters__{name}", default=0) for name in Counts._fields})

    def _fetch_all(self) -> None:
        is_new = self._result_cache is None
        super()._fetch_all()
        if is_new and issubclass(self._iterable_class, ModelIterable):
            peers = list(self._result_cache or ())
            for batch in peers:
                batch._peers = peers


class Batch(models.Model):
    id = models.UUIDField(_("id"), primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(_("name"), max_length=255, blank=True)
    status = models.CharField(_("status"), max_length=16, choices=BatchStatus.choices)
    key = models.CharField(_("key"), max_length=255, blank=True)
    active_key = models.CharField(max_length=64, null=True, unique=True, editable=False)  # noqa: DJ001
    metadata = models.JSONField(_("metadata"), default=dict, blank=True)
    created_by = models.ForeignKey(
        django_settings.AUTH_USER_MODEL,
        verbose_name=_("created by"),
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        db_constraint=False,
    )
    parent_job = models.OneToOneField(
        "BatchJob",
        verbose_name=_("job in the parent batch"),
        null=True,
        blank=True,
        on_delete=models.DO_NOTHING,
        related_name="nested_batch",
        db_constraint=False,
    )
    queue_name = models.CharField(_("queue"), max_length=100, blank=True)
    cancel_reason = models.TextField(_("reason"), blank=True)
    error = models.TextField(_("dispatch error"), blank=True)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    failed_at = models.DateTimeField(_("failed at"), null=True, blank=True)
    cancelled_at = models.DateTimeField(_("cancelled at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    heartbeat_at = models.DateTimeField(_("last sign of the dispatcher at"), default=timezone.now)

    run = models.PositiveIntegerField(_("run"), default=1)
    sealed = models.BooleanField(default=False)
    lanes = models.PositiveSmallIntegerField(default=0)
    open_lanes = models.PositiveSmallIntegerField(default=1)
    next_position = models.PositiveBigIntegerField(default=0)
    callbacks = models.PositiveSmallIntegerField(_("callbacks"), default=0)
    open_callbacks = models.PositiveSmallIntegerField(default=0)
    failures = models.PositiveBigIntegerField(default=0)
    allowed_failures = models.PositiveBigIntegerField(_("allowed failures"), null=True, blank=True, default=0)
    allowed_millionths = models.PositiveBigIntegerField(_("allowed failures per million"), null=True, blank=True)
    final_counts = models.JSONField(null=True, editable=False)

    objects = models.Manager.from_queryset(BatchQuerySet)()

    _peers: list[Batch]
    _counts: Counts | None = None

    class Meta:
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        ordering = ("-created_at",)
        default_permissions = ("view", "delete")
        permissions = (("cancel_batch", _("Can cancel batch")), ("retry_batch", _("Can retry batch")))
        indexes = (
            models.Index(fields=("-created_at",), name="job_batch_created"),
            models.Index(fields=("status", "-created_at"), name="job_batch_status"),
            models.Index(fields=("finished_at",), name="job_batch_finished"),
            models.Index(fields=("name",), name="job_batch_name"),
            models.Index(fields=("key",), name="job_batch_key"),
        )
        constraints = (
            models.CheckConstraint(condition=Q(failed_at=None) | Q(cancelled_at=None), name="job_batch_one_decision"),
            models.CheckConstraint(condition=Q(finished_at=None) | Q(open_lanes=0), name="job_batch_finished_is_empty"),
            models.CheckConstraint(
                condition=Q(finished_at=None) | Q(active_key=None), name="job_batch_finished_frees_key"
            ),
            models.CheckConstraint(
                condition=~Q(status=BatchStatus.SUCCEEDED) | Q(finished_at__isnull=False),
                name="job_batch_success_is_an_end",
            ),
        )

    def __str__(self) -> str:
        return self.name or str(_("Batch %(id)s")) % {"id": str(self.pk)[:8]}

    # What can be read

    @property
    def total_jobs(self) -> int:
        return self.counts.total

    @property
    def pending_jobs(self) -> int:
        """Jobs that have not ended yet."""
        return self.counts.pending

    @property
    def succeeded_jobs(self) -> int:
        return self.counts.succeeded

    @property
    def failed_jobs(self) -> int:
        return self.counts.failed

    @property
    def cancelled_jobs(self) -> int:
        return self.counts.cancelled

    @property
    def deadlocks(self) -> int:
        """Deadlocks, serialization failures and lock time-outs that transactions of this batch have survived."""
        return self.counts.deadlocks

    @property
    def counts(self) -> Counts:
        """The counters, read once per instance; of a list of batches, all in one query."""
        if self._counts is None:
            peers = getattr(self, "_peers", [self])
            _read_counts([batch for batch in peers if batch._counts is None])
        assert self._counts is not None  # noqa: S101  set just now
        return self._counts

    @property
    def progress(self) -> int:
        """Percent of the jobs that have ended, rounded down; 100 only when the batch has finished."""
        if self.is_finished:
            return 100
        total, pending = self.counts.total, self.counts.pending
        return min(99, 100 * (total - pending) // total) if total else 0

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None

    @property
    def is_running(self) -> bool:
        return self.started_at is not None and not self.is_finished

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled_at is not None

    @property
    def has_failures(self) -> bool:
        return self.failed_jobs > 0

    @property
    def is_decided(self) -> bool:
        return self.failed_at is not None or self.cancelled_at is not None or self.is_finished

    @property
    def duration(self) -> timedelta | None:
        """From the first job's start to the end, or until now; None before the start."""
        if self.started_at is None:
            return None
        return max((self.finished_at or timezone.now()) - self.started_at, timedelta())

    @property
    def rate(self) -> float | None:
        """Jobs that have ended per second so far; None before the first one has."""
        duration, ended = self.duration, self.counts.total - self.counts.pending
        return ended / duration.total_seconds() if duration and ended else None

    @property
    def eta(self) -> datetime | None:
        """When the batch will have finished, if it goes on at its pace so far; None if that cannot be told."""
        duration, counts = self.duration, self.counts
        ended = counts.total - counts.pending
        if self.is_finished or not duration or not ended:
            return None
        return timezone.now() + duration / ended * counts.pending

    def errors(self, limit: int | None = None) -> list[ErrorGroup]:
        """The failed items, grouped by exception and message, most frequent first; at most ``limit`` groups."""
        groups = (
            self._items(JobStatus.FAILED)
            .values_list("error_class", "error_message")
            .annotate(count=Count("pk"), example=Min("pk"))
            .order_by("-count", "error_class", "error_message")
        )
        return [ErrorGroup(*group) for group in groups[:limit]]

    def results(self) -> models.QuerySet[BatchJob, Any]:
        """What the items with ``keep_result=True`` have returned, in the order of the items."""
        kept = self._items(JobStatus.SUCCEEDED).filter(has_result=True)
        return kept.order_by("position").values_list("result", flat=True)

    def _items(self, status: JobStatus) -> models.QuerySet[BatchJob]:
        return BatchJob.objects.using(self._state.db).filter(batch=self, role=Role.ITEM, status=status)

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        super().refresh_from_db(*args, **kwargs)
        for name in Counts._fields:
            self.__dict__.pop(f"sum_of_{name}", None)
        self._counts = None
        self._peers = [self]

    # What can be done; the work is in the modules above this one

    def add(self, items: Iterable[Any]) -> int:
        """More items for this batch; returns how many rows they became.

        Raises ``BatchFinished`` once something has been decided about the batch, ``TypeError`` for a single job.
        """
        from django_job_batches.dispatching import add

        return add(self, items)

    def cancel(self, reason: str = "", by: AbstractBaseUser | None = None, stop_running: bool = False) -> bool:
        """Call the batch and its nested batches off: what has not started never runs; what runs ends by itself, or
        is stopped if ``stop_running``. True if this call did it, False if it was decided already."""
        from django_job_batches.cancelling import cancel

        return cancel(self, reason=reason, by=by, stop_running=stop_running)

    def retry(self, jobs: models.QuerySet[BatchJob] | None = None, by: AbstractBaseUser | None = None) -> int:
        """Run the failed and cancelled items of a finished batch again, or those of the queryset ``jobs``.

        A link is retried with all that is left of its chain. Returns how many items; 0 changes nothing. Raises
        ``BatchError`` while the batch or its callbacks run, and for a nested batch, whose root is retried instead;
        ``DuplicateBatch`` when another batch has its key now.
        """
        from django_job_batches.retrying import retry

        return retry(self, jobs=jobs, by=by)

    def wait(self, timeout: float | None = None, callbacks: bool = True) -> None:
        """Return when the items, and the callbacks unless told otherwise, have ended. For scripts and tests.

        ``timeout``: seconds, after which ``TimeoutError`` is raised. ``BatchError`` inside ``atomic()``.
        """
        from django_job_batches.waiting import wait

        wait(self, timeout=timeout, callbacks=callbacks)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Delete a finished batch with all that belongs to it; ``BatchError`` while anything of it can still run."""
        from django_job_batches.deleting import delete

        return delete(self)


class BatchJob(models.Model):
    id = models.BigAutoField(_("id"), primary_key=True)
    batch = models.ForeignKey(
        Batch, verbose_name=_("batch"), on_delete=models.DO_NOTHING, related_name="jobs", db_constraint=False,
        db_index=False,
    )  # fmt: skip
    role = models.CharField(_("role"), max_length=10, choices=Role.choices, default=Role.ITEM)
    position = models.PositiveBigIntegerField(_("position"))
    chain = models.PositiveBigIntegerField(_("chain"), null=True, blank=True)
    lane = models.PositiveSmallIntegerField(default=0)
    run = models.PositiveIntegerField(default=1)
    status = models.CharField(_("status"), max_length=10, choices=JobStatus.choices)
    func = models.CharField(_("function"), max_length=255, blank=True)
    args = models.JSONField(_("arguments"), default=list, blank=True)
    kwargs = models.JSONField(_("keyword arguments"), default=dict, blank=True)
    options = models.JSONField(_("options"), default=dict, blank=True)
    queue_name = models.CharField(_("queue"), max_length=100, blank=True)
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    max_attempts = models.PositiveIntegerField(_("attempts at most"), default=1)
    losses = models.PositiveSmallIntegerField(_("lost attempts"), default=0)
    deadlocks = models.PositiveIntegerField(_("deadlocks survived"), default=0)
    error_class = models.CharField(_("exception"), max_length=255, blank=True)
    error_message = models.TextField(_("message"), blank=True)
    traceback = models.TextField(_("traceback"), blank=True)
    has_result = models.BooleanField(default=False)
    result = models.JSONField(_("result"), null=True, blank=True)
    worker_name = models.CharField(_("worker"), max_length=255, blank=True)
    scheduled_at = models.DateTimeField(_("scheduled for"), null=True, blank=True)
    enqueued_at = models.DateTimeField(_("enqueued at"), null=True, blank=True)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)
    stop_requested_at = models.DateTimeField(_("stop requested at"), null=True, blank=True)

    objects = models.Manager.from_queryset(JobQuerySet)()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        ordering = ("pk",)
        default_permissions = ("view",)
        indexes = (
            models.Index(fields=("batch", "status", "id"), name="job_batch_job_batch_status"),
            models.Index(fields=("status", "enqueued_at"), name="job_batch_job_outbox"),
        )
        constraints = (
            models.UniqueConstraint(fields=("batch", "role", "position"), name="job_batch_job_position"),
            models.CheckConstraint(
                condition=Q(status__in=ENDED, finished_at__isnull=False)
                | (~Q(status__in=ENDED) & Q(finished_at__isnull=True)),
                name="job_batch_job_end_has_a_time",
            ),
            models.CheckConstraint(condition=Q(attempts__lte=F("max_attempts")), name="job_batch_job_attempts_bounded"),
        )

    def __str__(self) -> str:
        return self.option("description", "") or self.func or str(_("Nested batch"))

    @property
    def rq_job_id(self) -> str:
        """The id of the RQ job of the attempt that runs or comes next, or else of the last one."""
        attempt = self.attempts + (self.status in (*NOT_STARTED, JobStatus.HELD))
        return f"{self.batch_id.hex}-{self.pk}-{max(attempt, 1)}"

    def option(self, name: str, default: T) -> T:
        """The option of this name, or the default if there is none, or one of another type: no row stops a list."""
        value = self.options.get(name) if isinstance(self.options, dict) else None
        return value if isinstance(value, type(default)) else default

    @property
    def is_nested_batch(self) -> bool:
        """Whether this row stands for a batch rather than for a function."""
        return not self.func

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED

    @property
    def duration(self) -> timedelta | None:
        """How long the last attempt took, or takes so far."""
        if self.started_at is None:
            return None
        return max((self.finished_at or timezone.now()) - self.started_at, timedelta())

    def retry(self, by: AbstractBaseUser | None = None) -> bool:
        """Run this failed or cancelled job again: an item as ``Batch.retry()`` does, of a callback just that one."""
        from django_job_batches.retrying import retry_job

        return retry_job(self, by=by)

    def cancel(self) -> bool:
        """Call this job off if it has not started; True if this call did it. A nested batch is cancelled whole."""
        from django_job_batches.cancelling import cancel_job

        return cancel_job(self)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Refused, as by ``JobQuerySet``."""
        return type(self).objects.filter(pk=self.pk).delete()

    def stop(self) -> bool:
        """Stop this job if it runs; True if the command was sent. It then ends as cancelled."""
        from django_job_batches.cancelling import stop_job

        return stop_job(self)


class BatchCounter(models.Model):
    """One lane: the counters of a share of a batch's jobs, so that no single row is everybody's."""

    batch = models.ForeignKey(
        Batch, on_delete=models.DO_NOTHING, related_name="counters", db_constraint=False, db_index=False
    )
    lane = models.PositiveSmallIntegerField()
    total = models.PositiveBigIntegerField(default=0)
    pending = models.PositiveBigIntegerField(default=0)
    succeeded = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    cancelled = models.PositiveBigIntegerField(default=0)
    deadlocks = models.PositiveIntegerField(default=0)

    class Meta:
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=("batch", "lane"), name="job_batch_counter_lane"),
            models.CheckConstraint(
                condition=Q(total=F("pending") + F("succeeded") + F("failed") + F("cancelled")),
                name="job_batch_counter_adds_up",
            ),
        )

    def __str__(self) -> str:
        return f"{self.batch_id}/{self.lane}"


def summed_counts(using: str | None, batch_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, Counts]:
    """The counters of these batches, summed over their lanes, in one statement."""
    sums = {name: Sum(name) for name in Counts._fields}
    rows = BatchCounter.objects.using(using).filter(batch__in=list(batch_ids)).values_list("batch_id")
    return {row[0]: Counts(*(int(value) for value in row[1:])) for row in rows.annotate(**sums)}


def _read_counts(batches: list[Batch]) -> None:
    """Give each of these batches its counters; only those without final ones cost a query, one for all."""
    known = {batch.pk: counts for batch in batches if (counts := _final_counts(batch) or _annotated_counts(batch))}
    open_ids = [batch.pk for batch in batches if batch.pk not in known]
    sums = summed_counts(batches[0]._state.db, open_ids) if open_ids else {}
    for batch in batches:
        batch._counts = known.get(batch.pk) or sums.get(batch.pk, Counts())


def _annotated_counts(batch: Batch) -> Counts | None:
    """What ``with_counts()`` has read with this batch; None if it was read without."""
    sums: list[Any] = [batch.__dict__.get(f"sum_of_{name}") for name in Counts._fields]
    return None if None in sums else Counts(*map(int, sums))


def _final_counts(batch: Batch) -> Counts | None:
    """What the row of a finished batch keeps; None if that is not what we write there."""
    kept = batch.final_counts
    if not isinstance(kept, (list, tuple)) or not all(isinstance(number, int) for number in kept):
        return None
    return Counts(*kept) if len(kept) == len(Counts._fields) else None
