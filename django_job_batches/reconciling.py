"""Rows against Redis: what was interrupted between two steps is found, and brought to its end.

Each check looks at what should not stay as it is, asks RQ about it, and mends it by the same guarded transitions that
everything else uses. So it may run at any time, in many processes at once. Counters are never computed from rows.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter

from django.db.models import F, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_job_batches import memory, outbox, queues, retrying, settling, transitions
from django_job_batches.conf import queue_names, settings
from django_job_batches.database import at_home, repeated, storable
from django_job_batches.models import DUE, Batch, BatchJob, JobStatus
from django_job_batches.transitions import batches_of, jobs_of

logger = logging.getLogger(__name__)

AT_ONCE = 1.0
"""Seconds that each check takes at most where jobs wait for their turn meanwhile."""
SECOND_LOOK = 0.5
"""Seconds before a job that is in no list is looked for once more."""
RUNNING_AT_ONCE = 10_000
"""Running jobs that are looked at, at most: as many as there are workers, and those that were lost."""

NOT_ENQUEUED = "not enqueued"
GONE = "gone"
OVERDUE = "overdue"
CANCELLED = "cancelled"
LOST = "lost"
BROKEN_OFF = "broken off"
HALF_CANCELLED = "half cancelled"
OPEN_BOOKS = "open books"
SUSPECTED = "suspected"
NOT_MENDED = "not mended"

FINDINGS = {
    NOT_ENQUEUED: _("jobs were due and had not been given to RQ: enqueued"),
    GONE: _("jobs had gone from RQ before their start: enqueued again"),
    OVERDUE: _("delayed jobs had been enqueued by no scheduler: enqueued"),
    CANCELLED: _("jobs had been cancelled in RQ: cancelled"),
    LOST: _("jobs had lost their worker, or were stopped: ended, or queued again where retries are left"),
    BROKEN_OFF: _("batches were broken off in their dispatch or retry: cancelled"),
    HALF_CANCELLED: _("failed or cancelled batches had jobs that still waited: these were cancelled"),
    OPEN_BOOKS: _("finished batches had no totals yet: written"),
    SUSPECTED: _("jobs or batches give no sign of life, but may live: look again in a while"),
    NOT_MENDED: _("jobs or batches could not be mended: the log says why"),
}
"""What can be found, and what is done about it."""


def reconcile(
    using: str, *, batch_id: uuid.UUID | None = None, dry_run: bool = False, seconds: float | None = None
) -> Counter[str]:
    """Look through what has not ended on the database ``using``, and mend it; returns how much was found of what.

    ``batch_id``: only this batch, and what is nested in it. ``dry_run``: find, and change nothing. ``seconds``: each
    check stops after these; the next call goes on. Raises ``queues.QueueError`` when Redis is away, since nothing can
    be compared then.
    """
    queues.ping()
    look = _Look(using, batch_id, dry_run, seconds)
    is_through = look.at_everything()
    if not is_through and set(look.found) - {SUSPECTED}:
        memory.make_time_soon_for(_turn(using))  # there may be more of it
    if set(look.found) - {NOT_ENQUEUED, SUSPECTED}:
        logger.warning("%s on %r: %s", "To be mended" if dry_run else "Mended", using, dict(look.found))
    return look.found


def look_around(using: str) -> None:
    """``reconcile()``, once in ``RECONCILE_EVERY`` seconds among all workers, shortly, and without raising anything."""
    if not memory.is_time_for(_turn(using), settings.RECONCILE_EVERY):
        return
    try:
        reconcile(using, seconds=AT_ONCE)
    except queues.QueueError as error:
        logger.warning("What was left behind cannot be looked for: Redis is away (%s).", error)
    except Exception:
        logger.exception("The reconciler has failed on %r; it tries again.", using)


def _turn(using: str) -> str:
    return f"reconciled:{using}"


class _OutOfTimeError(Exception):
    pass


class _Look:
    """One look at everything."""

    def __init__(self, using: str, batch_id: uuid.UUID | None, dry_run: bool, seconds: float | None) -> None:
        self.using = using
        self.dry_run = dry_run
        self.found: Counter[str] = Counter()
        self.before = timezone.now() - timedelta(seconds=settings.LOST_AFTER)
        self._ids = [pk for level in transitions.tree_of(using, batch_id) for pk in level] if batch_id else None
        self._seconds = seconds
        self._give_up_at: float | None = None

    def at_everything(self) -> bool:
        """False if the time was too short for all of it."""
        is_through = True
        checks = (self._broken_off, self._half_cancelled, self._lost, self._not_enqueued, self._open_books, self._gone)
        for check in checks:
            self._give_up_at = None if self._seconds is None else time.monotonic() + self._seconds
            try:
                check()
            except _OutOfTimeError:
                is_through = False
        return is_through

    def _batches(self) -> QuerySet[Batch]:
        rows = batches_of(self.using).order_by("pk")
        return rows if self._ids is None else rows.filter(pk__in=self._ids)

    def _jobs(self, status: JobStatus) -> QuerySet[BatchJob]:
        """Those with a function: a nested batch is looked at by itself."""
        rows = jobs_of(self.using).filter(status=status).exclude(func="")
        rows = rows.select_related("batch").defer("args", "kwargs", "result", "traceback")
        return rows if self._ids is None else rows.filter(batch__in=self._ids)

    def _mend(self, what: str, row: Batch | BatchJob, mend: Callable[[], object]) -> None:
        """Do it, unless this is a dry run, and count it; what fails does not stop the rest, if no server is away."""
        try:
            if not self.dry_run:
                mend()
        except outbox.AWAY:
            raise
        except Exception:
            logger.exception(
                "%s %s is %s, and could not be mended; the rest goes on.", type(row).__name__, row.pk, what
            )
            what = NOT_MENDED
        self.found[what] += 1

    def _check_time(self) -> None:
        if self._give_up_at is not None and time.monotonic() > self._give_up_at:
            raise _OutOfTimeError

    def _is_silent(self, name: str, seconds: float) -> bool:
        """Whether what cannot be asked directly has given no sign of life for so long, since we first looked."""
        if memory.silent_for(name) >= seconds:
            return True
        self.found[SUSPECTED] += 1
        return False

    # Batches

    def _broken_off(self) -> None:
        """Unsealed, and nobody writes on."""
        unsealed = self._batches().filter(finished_at=None, sealed=False, heartbeat_at__lt=self.before)
        for batch in unsealed.order_by(F("parent_job").desc(nulls_last=True)):  # what is nested before what is around
            name = f"{batch.pk}/{batch.run}"
            if memory.is_alive(batch.pk):
                memory.heard_of([name])
            elif self._is_silent(name, settings.LOST_AFTER / 3):
                self._mend(BROKEN_OFF, batch, partial(_end_broken_off, at_home(batch, self.using), self.using))
                if not self.dry_run:
                    memory.heard_of([name])
            self._check_time()

    def _half_cancelled(self) -> None:
        """Decided, and not swept to the end: who decided it has died, or a retry slipped past the sweep."""
        decided = Q(failed_at__lt=self.before) | Q(cancelled_at__lt=self.before)
        for batch in self._batches().filter(decided, finished_at=None).iterator():
            if not outbox.is_swept(self.using, batch.pk):
                self._mend(HALF_CANCELLED, batch, partial(outbox.sweep, self.using, batch.pk))
            self._check_time()

    def _open_books(self) -> None:
        recent = Q(finished_at__gt=timezone.now() - timedelta(days=1), finished_at__lt=self.before)
        for batch in self._batches().filter(recent, final_counts__isnull=True).iterator():
            self._mend(OPEN_BOOKS, batch, partial(outbox.close_books, self.using, batch.pk))
            self._check_time()

    # Jobs that run by their rows

    def _lost(self) -> None:
        rows = self._jobs(JobStatus.RUNNING).filter(started_at__lt=self.before).order_by("queue_name", "pk")
        for name, group in groupby(list(rows[:RUNNING_AT_ONCE]), key=attrgetter("queue_name")):
            if not _is_known(name):
                continue
            jobs = [at_home(job, self.using) for job in group]
            known = queues.whereabouts(name, [job.rq_job_id for job in jobs])
            unlisted = queues.unlisted(name, [id_ for id_, where in known.items() if where.status == "queued"])
            for job in jobs:
                where = known[job.rq_job_id]
                is_coming = where.status == "queued" and job.rq_job_id not in unlisted  # RQ brings it back
                if not is_coming and not self._lives(job, where):
                    self._mend(LOST, job, partial(_end_lost, job, where))
                self._check_time()

    def _lives(self, job: BatchJob, where: queues.Whereabouts) -> bool:
        if where.is_executing or (where.seen_at is not None and where.seen_at > self.before):
            return True
        if queues.is_synchronous(job.queue_name):
            limit = outbox.timeout_of(job)
            return limit == -1 or (job.started_at or timezone.now()) > self.before - timedelta(seconds=limit)
        # Without a status, Redis was emptied; a worker that lives says so before long
        return not where.status and not self._is_silent(job.rq_job_id, settings.LOST_AFTER)

    # Jobs that wait by their rows

    def _not_enqueued(self) -> None:
        here = Q() if self._ids is None else Q(batch__in=self._ids)
        if self._seconds is not None:  # the jobs of a synchronous queue would run in this very process
            here &= ~Q(queue_name__in=[name for name in queue_names() if queues.is_synchronous(name)])
        nowhere = jobs_of(self.using).filter(here, status__in=DUE, enqueued_at=None).exclude(func="")
        for name in nowhere.exclude(queue_name__in=queue_names()).order_by().values_list("queue_name").distinct():
            _is_known(*name)
        if self.dry_run:
            self.found += Counter({NOT_ENQUEUED: outbox.due(self.using).filter(here).count()})
        else:
            outbox.flush(self.using, here, after_each=self._note_enqueued)

    def _note_enqueued(self, number: int) -> None:
        self.found += Counter({NOT_ENQUEUED: number})
        self._check_time()

    def _gone(self) -> None:
        """Given to RQ a while ago, and not to be found where RQ would start it."""
        for chunk in self._leased():
            for name, group in groupby(sorted(chunk, key=attrgetter("queue_name")), key=attrgetter("queue_name")):
                # Who enqueued for a synchronous queue may be running that one by one; only the command takes it over
                if _is_known(name) and not (queues.is_synchronous(name) and self._seconds is not None):
                    self._look_for(name, list(group))

    def _leased(self) -> Iterator[list[BatchJob]]:
        """In chunks, the longest enqueued first; a look that is too short for all goes on where the last one ended."""
        for status in DUE:  # one after the other, by the index on both columns
            rows = self._jobs(status).filter(enqueued_at__lt=self.before).order_by("enqueued_at", "pk")
            place = f"looked_at:{self.using}:{status}"
            last = memory.remembered(place) if self._seconds is not None else ""
            # the keys alone at first: joined with their batches, PostgreSQL reads all of both for each chunk
            keys = rows.values_list("enqueued_at", "pk")
            while places := list(keys.filter(_after(last))[: settings.CHUNK_SIZE]):
                last = "{} {}".format(*places[-1])
                yield list(self._jobs(status).filter(pk__in=[pk for _, pk in places]).order_by("enqueued_at", "pk"))
                if self._seconds is not None:
                    memory.remember(place, last)
                self._check_time()
            if last and self._seconds is not None:
                memory.remember(place, "")

    def _look_for(self, name: str, jobs: list[BatchJob]) -> None:
        missing = _missing(name, jobs)
        popped = [job for job, where in missing.items() if where.status == "queued"]
        if popped:  # a worker may be about to start them
            time.sleep(SECOND_LOOK)
            still = _missing(name, popped)
            missing = {job: where for job, where in missing.items() if job not in popped or job in still}
        by_status = {
            CANCELLED: [job for job, where in missing.items() if where.status == "canceled"],
            OVERDUE: [job for job, where in missing.items() if where.status == "scheduled"],
        }
        special = [job for jobs in by_status.values() for job in jobs]
        by_status[GONE] = [job for job in missing if job not in special]
        for what in (OVERDUE, GONE):
            self._enqueue_again(what, by_status[what])
        for job in by_status[CANCELLED]:
            self._mend(CANCELLED, job, partial(_cancel, job, self.using))

    def _enqueue_again(self, what: str, jobs: list[BatchJob]) -> None:
        """All at once; one by one where one of them stops all."""
        try:
            if not self.dry_run:
                outbox.enqueue_again(self.using, jobs)
        except outbox.AWAY:
            raise
        except Exception:
            for job in jobs:
                self._mend(what, job, partial(outbox.enqueue_again, self.using, [job]))
        else:
            self.found += Counter({what: len(jobs)})


def _is_known(name: str) -> bool:
    if name not in queue_names():
        logger.warning("The queue %r is not configured any more: its jobs cannot be looked for.", name)
    return name in queue_names()


def _after(place: str) -> Q:
    """What comes after this row by ``enqueued_at`` and key, as ``_leased()`` wrote it down."""
    if not place:
        return Q()
    moment, _space, pk = place.rpartition(" ")
    enqueued_at = datetime.fromisoformat(moment)
    return Q(enqueued_at__gte=enqueued_at) & (Q(enqueued_at__gt=enqueued_at) | Q(pk__gt=int(pk)))


def _missing(name: str, jobs: list[BatchJob]) -> dict[BatchJob, queues.Whereabouts]:
    """Those of these jobs of one queue that RQ will never start by itself."""
    known = queues.whereabouts(name, [job.rq_job_id for job in jobs])
    ids = {status: [id_ for id_, where in known.items() if where.status == status] for status in queues.ALIVE}
    missing = queues.unlisted(name, ids["queued"]) | queues.unscheduled(name, ids["scheduled"])
    late = timezone.now() - timedelta(seconds=settings.LOST_AFTER)

    def is_missing(job: BatchJob, where: queues.Whereabouts) -> bool:
        if where.status == "started":
            return not where.is_executing
        is_overdue = where.status == "scheduled" and (job.scheduled_at is None or job.scheduled_at < late)
        return is_overdue or where.status not in queues.ALIVE or job.rq_job_id in missing

    return {job: known[job.rq_job_id] for job in jobs if is_missing(job, known[job.rq_job_id])}


def _cancel(job: BatchJob, using: str) -> None:
    message = "It was cancelled in RQ."
    change = partial(transitions.end, job, JobStatus.CANCELLED, only_from=DUE, error_message=message)
    outbox.carry_out(change, using)
    outbox.remove([job])


def _end_lost(job: BatchJob, where: queues.Whereabouts) -> None:
    name, rq_job_id = job.queue_name, job.rq_job_id
    report = settling.STOPPED if where.status == "stopped" else settling.LOST
    settling.settle(job, job.attempts, memory.stashed_outcome(name, rq_job_id) or report)
    if where.status in ("", *queues.ALIVE):  # RQ keeps the others for a while, to be looked at
        queues.remove(name, [rq_job_id])
    memory.discard_outcome(name, rq_job_id)
    memory.heard_of([rq_job_id])


def _end_broken_off(batch: Batch, using: str) -> None:
    """Nobody writes the rest: the batch is cancelled, so that it ends, and its callbacks run."""
    if batch.run > 1:
        retrying.end_broken_off(batch)
        return
    reason = f"Its dispatch was broken off after {batch.next_position} items: the process that wrote them has died."
    unsealed = batches_of(using).filter(pk=batch.pk, sealed=False, error="")
    repeated(partial(unsealed.update, error=storable(reason, settings.MAX_ERROR_LENGTH)), using)
    outbox.cancel_batch(using, batch.pk, reason)
    outbox.carry_out(partial(transitions.seal, batch), using)
