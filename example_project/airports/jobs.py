"""What the workers run. A job can run more than once, so each of these may."""

from itertools import chain

from django.db import connection
from django.db.models import F

from django_job_batches import GiveUp, current_batch, current_job
from example_project.airports import staging
from example_project.airports.models import Airport, AirportImport
from example_project.airports.validation import Row, problems, repeated_codes

SHOWN_PROBLEMS = 5


def validate_rows(import_id: int, part: int) -> None:
    """Look at each row of one part; a wrong one fails the job, and trying again would not help."""
    _give_up_on(problems(staging.read_part(import_id, part)))


def validate_codes(import_id: int, part_count: int) -> None:
    """No code may stand for two airports, in whichever parts they are."""
    parts = (staging.read_part(import_id, part) for part in range(part_count))
    _give_up_on(repeated_codes(chain.from_iterable(parts)))


def ask_flaky_service(import_id: int) -> None:
    """A check that depends on somebody else's service, which answers at the third attempt only."""
    job = current_job()
    if job is not None and job.attempts < 3:
        message = f"The service did not answer (attempt {job.attempts})."
        raise ConnectionError(message)


def import_rows(import_id: int, part: int) -> int:
    """Insert or update the airports of one part; return how many they are."""
    airports = [_airport(import_id, row) for row in staging.read_part(import_id, part)]
    with_target = connection.features.supports_update_conflicts_with_target
    Airport.objects.bulk_create(
        airports,
        update_conflicts=True,
        update_fields=[field.name for field in Airport._meta.concrete_fields if not field.primary_key],
        unique_fields=["icao"] if with_target else None,
    )
    return len(airports)


def clean_up(import_id: int) -> None:
    """Whatever became of the import: remove its files, and note how it ended."""
    staging.remove(import_id)
    batch = current_batch()
    outcome = batch.status if batch else ""
    AirportImport.objects.filter(pk=import_id).update(outcome=outcome, clean_ups=F("clean_ups") + 1)


def _give_up_on(found: list[str]) -> None:
    if not found:
        return
    shown = "; ".join(found[:SHOWN_PROBLEMS])
    more = f"; and {len(found) - SHOWN_PROBLEMS} more" if len(found) > SHOWN_PROBLEMS else ""
    raise GiveUp(f"{len(found)} problems: {shown}{more}")


def _airport(import_id: int, row: Row) -> Airport:
    return Airport(
        icao=row["icao"],
        iata=row["iata"],
        name=row["name"],
        city=row["city"],
        country=row["country"],
        latitude=float(row["lat"]),
        longitude=float(row["lon"]),
        elevation=float(row["elevation"]),
        time_zone=row["tz"],
        last_import_id=import_id,
    )
