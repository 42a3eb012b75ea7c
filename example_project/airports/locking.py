"""Validations that get into each other's way: each counts its check of the same two countries.

On PostgreSQL and MariaDB two of ``check_countries`` deadlock. They are ``atomic=True``, so the one that the database
throws out runs again in place, and takes effect once. SQLite knows no row locks and so no deadlock; there,
``check_in_long_transaction`` keeps the whole database locked for longer than others wait. What meets this is the
bookkeeping of ``check_meanwhile``, which is repeated; the job is not.
"""

import time

import django_rq
from django.db import connection, transaction
from django.db.models import F

from django_job_batches import GiveUp, job_of
from django_job_batches.items import JobDescription
from example_project.airports.models import CountryCheck

COUNTRIES = ("AQ", "BR")
MEET_WITHIN = 10  # seconds
LONG = 3.5  # seconds; the demo has SQLite wait for 2


def locking_jobs(import_id: int) -> list[JobDescription]:
    """Return two jobs that cannot both go through at the first attempt."""
    CountryCheck.objects.bulk_create(
        CountryCheck(airport_import_id=import_id, country=country) for country in COUNTRIES
    )
    if connection.vendor == "sqlite":
        return [job_of(check_in_long_transaction, import_id), job_of(check_meanwhile, import_id)]
    orders = (COUNTRIES, COUNTRIES[::-1])
    return [job_of(check_countries, import_id, *order).options(atomic=True) for order in orders]


def check_countries(import_id: int, first: str, second: str) -> None:
    """Lock two rows one after the other; another job has locked the second one, and wants the first."""
    checks = CountryCheck.objects.select_for_update().filter(airport_import=import_id)
    checks.get(country=first)
    _meet(import_id, "checked")
    checks.get(country=second)
    _count_check(import_id)


def check_in_long_transaction(import_id: int) -> None:
    """Keep the database locked while the other job ends."""
    _meet(import_id, "checked")
    with transaction.atomic():
        _count_check(import_id)
        _meet(import_id, "locked")
        time.sleep(LONG)


def check_meanwhile(import_id: int) -> None:
    """End while the database is locked."""
    _count_check(import_id)
    _meet(import_id, "checked")
    _meet(import_id, "locked")


def bodies_run(import_id: int) -> int:
    """How often one of these functions has been run in this import, to its first meeting at least."""
    return int(django_rq.get_connection("default").get(_key(import_id, "checked")) or 0)


def _count_check(import_id: int) -> None:
    CountryCheck.objects.filter(airport_import=import_id).update(checks=F("checks") + 1)


def _meet(import_id: int, place: str) -> None:
    """Wait until two jobs have come this far, by a counter in Redis. Who comes later goes on at once."""
    redis, key = django_rq.get_connection("default"), _key(import_id, place)
    redis.incr(key)
    redis.expire(key, 600)
    give_up_at = time.monotonic() + MEET_WITHIN
    while int(redis.get(key) or 0) < 2:
        if time.monotonic() > give_up_at:
            raise GiveUp(f"No other job came within {MEET_WITHIN} seconds; two workers are needed.")
        time.sleep(0.02)


def _key(import_id: int, place: str) -> str:
    return f"airports:{import_id}:{place}"
