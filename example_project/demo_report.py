"""What happened in an import, as a table."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from rich.table import Table

from django_job_batches.models import Batch, BatchJob

COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow"}


def family(root: Batch) -> Iterator[tuple[int, Batch]]:
    """Yield a batch and the batches nested in it, each with its depth."""
    yield from _family(root, 0)


def table(root: Batch) -> Table:
    """Return one line for each batch: its outcome, counters, duration, and the callbacks that ran."""
    result = Table(title="What happened")
    result.add_column("Batch")
    result.add_column("Outcome")
    for counter in ("Jobs", "Succeeded", "Failed", "Cancelled"):
        result.add_column(counter, justify="right")
    result.add_column("Duration", justify="right")
    result.add_column("Callbacks")
    for depth, batch in family(root):
        result.add_row(*_cells(depth, batch))
    return result


def reasons(root: Batch) -> Iterator[str]:
    """Yield the error of each job that failed, and why a batch was cancelled."""
    for _, batch in family(root):
        if batch.cancel_reason:
            yield f"{batch.name}: {batch.cancel_reason}"
        failed = BatchJob.objects.filter(batch=batch, status="failed").exclude(error_class="")
        for job in failed.order_by("position"):
            yield f"{batch.name}: {_short(job.func)}{tuple(job.args)} failed: {job.error_message}"


def callbacks(batch: Batch) -> Iterator[BatchJob]:
    """Yield the callbacks of a batch in the order in which they ended."""
    return BatchJob.objects.filter(batch=batch).exclude(role="item").order_by("finished_at", "pk").iterator()


def _family(batch: Batch, depth: int) -> Iterator[tuple[int, Batch]]:
    yield depth, batch
    for child in Batch.objects.filter(parent_job__batch=batch).order_by("parent_job__position"):
        yield from _family(child, depth + 1)


def _cells(depth: int, batch: Batch) -> Iterator[str]:
    yield "  " * depth + batch.name
    yield _coloured(batch.status)
    yield str(batch.total_jobs)
    yield str(batch.succeeded_jobs)
    yield str(batch.failed_jobs)
    yield str(batch.cancelled_jobs)
    yield _seconds(batch.duration)
    yield ", ".join(f"{job.role} {_short(job.func)}: {_coloured(job.status)}" for job in callbacks(batch))


def _seconds(duration: timedelta | None) -> str:
    return "" if duration is None else f"{duration.total_seconds():.1f} s"


def _coloured(status: Any) -> str:
    colour = COLOURS.get(str(status), "white")
    return f"[{colour}]{status}[/{colour}]"


def _short(path: str) -> str:
    return path.rpartition(".")[2]
