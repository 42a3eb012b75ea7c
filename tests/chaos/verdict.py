"""What must be true when everything has ended: by the rows, and by the record that the jobs have written themselves."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from django.db import connection

from django_job_batches.models import Batch, BatchJob, JobStatus, Role
from tests.invariants import assert_all_ended
from tests.models import Effect
from tests.processes import Record

MAX_SHOWN = 20


@dataclass
class Verdict:
    violations: list[str] = field(default_factory=list)
    repeated: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    batches: int = 0
    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def say(self, violation: str) -> None:
        self.violations.append(violation)


def judge(record: Path, open_connections: int) -> Verdict:
    """Check everything; `open_connections`: what other processes have left open in the database."""
    verdict = Verdict(jobs=BatchJob.objects.exclude(func="").count(), batches=Batch.objects.count())
    verdict.outcomes.update(Batch.objects.values_list("status", flat=True))
    if open_connections:
        verdict.say(f"{open_connections} connections are open")
    try:
        assert_all_ended(in_order=False)
    except AssertionError as error:
        verdict.say(f"rows and Redis: {_explained(error)}")
    _check_executions(verdict, Record(record).lines())
    _check_effects(verdict)
    return verdict


def _explained(error: AssertionError) -> str:
    """Which assertion has failed, with the values around it: pytest is not here to tell."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    line = traceback.extract_tb(error.__traceback__)[-1].line
    values = ", ".join(f"{name}={value!r:.300}" for name, value in frame.f_locals.items())
    return f"{line}: {error} ({values})"


def _check_executions(verdict: Verdict, lines: list[str]) -> None:
    begun: Counter[tuple[int, int]] = Counter()
    ended: Counter[tuple[int, int]] = Counter()
    for line in lines:
        word, pk, _run, attempt = line.split()
        (begun if word == "begin" else ended)[int(pk), int(attempt)] += 1
    verdict.executions = begun.total()
    attempts: dict[int, set[int]] = {}
    for pk, attempt in begun:
        attempts.setdefault(pk, set()).add(attempt)
    for job in BatchJob.objects.exclude(func="").select_related("batch").defer("traceback").iterator(2000):
        _check_job(verdict, job, begun, ended, attempts.get(job.pk, set()))


def _check_job(
    verdict: Verdict,
    job: BatchJob,
    begun: Counter[tuple[int, int]],
    ended: Counter[tuple[int, int]],
    attempts: set[int],
) -> None:
    is_atomic = job.options.get("atomic", False)
    doubles = [attempt for attempt in attempts if begun[job.pk, attempt] > 1]
    if doubles and not is_atomic:
        verdict.say(f"job {job.pk}: one attempt was executed twice: {doubles}")
    if any(attempt > job.attempts for attempt in attempts):
        verdict.say(f"job {job.pk}: executed in attempts {sorted(attempts)}, but {job.attempts} were claimed")
    if job.status == JobStatus.SUCCEEDED and not ended[job.pk, job.attempts]:
        verdict.say(f"job {job.pk}: succeeded in attempt {job.attempts}, which did not come to its end")
    if job.role != Role.ITEM and not job.options.get("retries") and job.func.rpartition(".")[2] != "boom":
        _check_callback(verdict, job, attempts)
    if len(attempts) > 1 or doubles:
        verdict.repeated[_why_again(job, bool(doubles)) or "for no reason"] += 1
        if not _why_again(job, bool(doubles)):
            verdict.say(f"job {job.pk}: executed in attempts {sorted(attempts)} for no reason")


def _check_callback(verdict: Verdict, job: BatchJob, attempts: set[int]) -> None:
    """Released once in a run, and claimed once for it. Whether it had to be is checked by `assert_all_ended()`."""
    if len(attempts) > _runs_of(job):
        verdict.say(f"callback {job.pk} of role {job.role}: {len(attempts)} attempts in {job.batch.run} runs")


def _runs_of(job: BatchJob) -> int:
    """How often it may have been released: once per run of its batch, and of those around it."""
    return job.batch.run


def _why_again(job: BatchJob, in_place: bool) -> str:
    if in_place:
        return "an atomic job, run again in place or after its connection was lost"
    if job.run > 1 or job.batch.run > 1:
        return "its batch was retried"
    if job.options.get("retries"):
        return "it had retries"
    if job.losses and job.options.get("atomic"):
        return "it was lost, and is atomic"
    if job.losses and job.options.get("on_lost") == "retry":
        return 'it was lost, and has on_lost="retry"'
    if job.role != Role.ITEM and job.func.endswith("boom"):
        return "the callback was retried"
    return ""


def _check_effects(verdict: Verdict) -> None:
    """An atomic job has left its effect once if it has succeeded, and none otherwise."""
    effects = Counter(Effect.objects.values_list("name", flat=True))
    for name, number in effects.items():
        if name.startswith("left open"):
            verdict.say(f"a transaction that was left open has been committed: {name}")
        elif number > 1:
            verdict.say(f"{number} effects of one success: {name}")
    per_job = Counter(int(name.split()[1]) for name in effects if name.startswith("job"))
    for job in BatchJob.objects.filter(func="tests.chaos.bodies.effect").only("pk", "status", "run", "batch_id"):
        if job.status == JobStatus.SUCCEEDED and not per_job[job.pk]:
            verdict.say(f"job {job.pk} has succeeded without its effect")
        if job.status != JobStatus.SUCCEEDED and effects[f"job {job.pk} {job.run}"]:
            verdict.say(f"job {job.pk} is {job.status}, and has left an effect in run {job.run}")


def open_connections() -> int:
    """Of other processes, to this database."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        elif connection.vendor == "mysql":
            cursor.execute(
                "SELECT count(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = DATABASE()"
            )
        else:
            return 0
        return int(cursor.fetchone()[0])
