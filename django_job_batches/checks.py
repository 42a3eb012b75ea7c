"""System checks: misconfigurations that would lose work or confuse. They read settings and connect to nothing.

docs/checks.md lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections, router
from django.utils.module_loading import import_string

from django_job_batches.conf import SETTING_NAMES, queue_names, settings

TAG = "job_batches"
SQLITE_TIMEOUT = 20
"""Seconds that a connection to SQLite should wait for its turn to write, at least."""
SERIALIZERS = ("json", "pickle")
"""What RQ knows by a short name."""
DEFAULT_SERIALIZERS = (None, "", "pickle", "rq.serializers.DefaultSerializer", "rq.serializers.PickleSerializer")
"""What `rqworker` uses when it is not told otherwise."""


@register(TAG)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Keys, types and values of ``settings.JOB_BATCHES``."""
    given = getattr(django_settings, "JOB_BATCHES", {})
    if not isinstance(given, Mapping):
        return [_error(1, f"JOB_BATCHES is {given!r:.200}, not a dict.", 'Write JOB_BATCHES = {"QUEUE": "default"}.')]
    wrong = [*_unknown_keys(given), *_wrong_values(given)]
    return wrong or list(_short_lives())


@register(TAG)
def check_queues(**kwargs: Any) -> list[CheckMessage]:
    """``RQ_QUEUES`` and what else RQ is told by the project."""
    messages: list[CheckMessage] = []
    if not apps.is_installed("django_rq"):
        hint = 'Add "django_rq" to INSTALLED_APPS: its rqworker command is what runs the jobs.'
        messages.append(_error(4, "django_rq is not installed.", hint))
    queues = getattr(django_settings, "RQ_QUEUES", None)
    if not queues or not isinstance(queues, Mapping) or not all(isinstance(q, Mapping) for q in queues.values()):
        hint = 'Write RQ_QUEUES = {"default": {"URL": "redis://localhost:6379/0"}}.'
        return [*messages, _error(5, "RQ_QUEUES is missing, empty, or not a dict of dicts.", hint)]
    messages += [*_unknown_queues(), *_job_class()]
    for name, queue in queues.items():
        messages += [*_serializer(name, queue), *_is_async(name, queue)]
    return messages


@register(TAG)
def check_databases(**kwargs: Any) -> list[CheckMessage]:
    """The databases that batches can be in, and the times that are written there."""
    messages: list[CheckMessage] = []
    for alias in connections:
        if router.allow_migrate(alias, "django_job_batches", model_name="batch"):
            messages += _database(alias, connections.settings[alias], connections[alias].vendor)
    if not django_settings.USE_TZ:
        hint = "Set USE_TZ = True."
        what = "USE_TZ is False: durations and retry intervals are wrong by an hour when clocks change, and run_after"
        messages.append(_warning(8, f"{what} takes a timedelta only.", hint))
    return messages


def _error(number: int, message: str, hint: str) -> CheckMessage:
    return Error(message, hint=hint, id=f"django_job_batches.E{number:03}")


def _warning(number: int, message: str, hint: str) -> CheckMessage:
    return Warning(message, hint=hint, id=f"django_job_batches.W{number:03}")


# JOB_BATCHES


def _whole(least: int, most: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _seconds(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def _time_limit(value: Any) -> bool:
    return value is None or value == -1 or _whole(1)(value)


def _lifetime(value: Any) -> bool:
    return _whole(-1)(value) and value != 0


def _name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


LIFETIME = (
    "whole seconds, at least 1, or -1 to keep them for ever; with 0, RQ forgets a job at once, and what became of it "
    "can no longer be told from a job that was lost"
)
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "QUEUE": (_name, "the name of a queue"),
    "CALLBACK_QUEUE": (lambda value: value is None or _name(value), "the name of a queue, or None"),
    "TIMEOUT": (_time_limit, "whole seconds, at least 1, or -1 for no limit, or None for the queue's"),
    "ON_LOST": (lambda value: value in ("fail", "retry"), '"fail" or "retry"'),
    "DEADLOCK_RETRIES": (_whole(0), "a whole number, 0 or more"),
    "DEADLOCK_BACKOFF": (_seconds, "seconds, 0 or more"),
    "SETTLE_FOR": (_seconds, "seconds, 0 or more"),
    "RECONCILE_EVERY": (_seconds, "seconds, 0 or more"),
    "LOST_AFTER": (lambda value: _seconds(value) and value > 0, "seconds, more than 0"),
    "RESULT_TTL": (_lifetime, LIFETIME),
    "FAILURE_TTL": (_lifetime, LIFETIME),
    "CHUNK_SIZE": (_whole(1, 10_000), "a whole number from 1 to 10,000"),
    "MAX_LANES": (_whole(1, 1_000), "a whole number from 1 to 1,000"),
    "MAX_ERROR_LENGTH": (_whole(1), "a whole number of characters, 1 or more"),
    "MAX_ARGUMENTS": (_whole(1), "a whole number of bytes, 1 or more"),
}


def _unknown_keys(given: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    for key in given:
        if key not in SETTING_NAMES:
            close = get_close_matches(str(key).upper(), SETTING_NAMES, 1, cutoff=0.5)
            known = f"The settings are {', '.join(sorted(SETTING_NAMES))}."
            hint = f"Did you mean {close[0]!r}? {known}" if close else known
            yield _error(2, f"JOB_BATCHES has the unknown key {key!r}, which has no effect.", hint)


def _wrong_values(given: Mapping[Any, Any]) -> Iterator[CheckMessage]:
    for key, (is_right, expected) in RULES.items():
        if key in given and not is_right(given[key]):
            yield _error(3, f"JOB_BATCHES[{key!r}] is {given[key]!r:.200}.", f"It has to be {expected}.")


def _short_lives() -> Iterator[CheckMessage]:
    for key in ("RESULT_TTL", "FAILURE_TTL"):
        seconds = getattr(settings, key)
        least = 2 * max(settings.RECONCILE_EVERY, settings.LOST_AFTER)
        if seconds == -1:
            hint = "Give it a number of seconds; the database keeps what became of each job."
            yield _warning(1, f"JOB_BATCHES[{key!r}] is -1: Redis keeps every job for ever, and grows.", hint)
        elif seconds < least:
            message = f"JOB_BATCHES[{key!r}] is {seconds}: RQ forgets jobs before anybody has looked after lost ones."
            hint = f"Give it at least {least:g} seconds, twice the larger of RECONCILE_EVERY and LOST_AFTER."
            yield _warning(2, message, hint)


# RQ


def _unknown_queues() -> Iterator[CheckMessage]:
    if not isinstance(getattr(django_settings, "JOB_BATCHES", {}), Mapping):
        return
    for key in ("QUEUE", "CALLBACK_QUEUE"):
        name = getattr(settings, key)
        if isinstance(name, str) and name not in queue_names():
            close = get_close_matches(name, queue_names(), 1)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            hint += f"Add it to RQ_QUEUES, or name one of these: {', '.join(sorted(queue_names()))}."
            yield _error(6, f"JOB_BATCHES[{key!r}] is {name!r}, a queue that RQ_QUEUES does not have.", hint)


def _serializer(name: str, queue: Mapping[str, Any]) -> Iterator[CheckMessage]:
    value = queue.get("SERIALIZER")
    if value in DEFAULT_SERIALIZERS:
        return
    if not _is_serializer(value):
        hint = 'Leave it out, or give "json" or the dotted path of a class that has dumps() and loads().'
        yield _error(7, f"RQ_QUEUES[{name!r}] has the SERIALIZER {value!r}, which cannot be used.", hint)
        return
    message = f"RQ_QUEUES[{name!r}] has a SERIALIZER of its own; a worker that is not told so fails each of its jobs."
    hint = f"Start its workers with `rqworker --serializer {value if isinstance(value, str) else 'PATH'}`."
    yield _warning(3, message, hint)


def _is_serializer(value: Any) -> bool:
    if isinstance(value, str) and value not in SERIALIZERS:
        try:
            value = import_string(value)
        except ImportError:
            return False
    return value in SERIALIZERS or (callable(getattr(value, "dumps", None)) and callable(getattr(value, "loads", None)))


def _is_async(name: str, queue: Mapping[str, Any]) -> Iterator[CheckMessage]:
    value = queue.get("ASYNC", True)
    if not isinstance(value, bool):
        hint = "Write True or False; any string, and so what an environment variable holds, counts as True."
        yield _error(8, f"RQ_QUEUES[{name!r}] has ASYNC {value!r}.", hint)
    elif value is False:
        message = f"RQ_QUEUES[{name!r}] has ASYNC False: jobs run in the process that dispatches them, which waits."
        hint = "Leave ASYNC out in production; in the settings of tests, add this check to SILENCED_SYSTEM_CHECKS."
        yield _warning(4, message, hint)


def _job_class() -> Iterator[CheckMessage]:
    value = (getattr(django_settings, "RQ", None) or {}).get("JOB_CLASS")
    path = value if isinstance(value, str) else getattr(value, "__module__", "")
    if path.startswith("django_tasks_rq"):
        hint = (
            "Leave JOB_CLASS out of RQ, and give django-tasks-rq a queue and workers (rqworker --job-class) of its own."
        )
        yield _error(9, f"RQ['JOB_CLASS'] is {value!r}, which refuses to run anything but Tasks.", hint)


# Databases


def _database(alias: str, options: Mapping[str, Any], vendor: str) -> Iterator[CheckMessage]:
    if options.get("AUTOCOMMIT") is False:
        hint = "Leave AUTOCOMMIT out, and use transaction.atomic() where you want a transaction."
        yield _error(10, f"DATABASES[{alias!r}] has AUTOCOMMIT False: single statements are never committed.", hint)
    details = options.get("OPTIONS") or {}
    if vendor == "sqlite":
        yield from _sqlite(alias, str(options.get("NAME", "")), details)
    charset = details.get("charset", "utf8mb4")
    if vendor == "mysql" and charset != "utf8mb4":
        message = (
            f"DATABASES[{alias!r}] has the charset {charset!r}: arguments and error messages with emoji are refused."
        )
        yield _warning(7, message, 'Set OPTIONS["charset"] to "utf8mb4", and convert the tables to it.')


def _sqlite(alias: str, name: str, details: Mapping[str, Any]) -> Iterator[CheckMessage]:
    if name == ":memory:" or "mode=memory" in name:
        hint = "Give it a file, as in NAME = BASE_DIR / 'db.sqlite3'."
        yield _warning(
            9, f"DATABASES[{alias!r}] is in memory, where workers, being other processes, see nothing.", hint
        )
    elif not details.get("timeout") or details["timeout"] < SQLITE_TIMEOUT:
        message = f"DATABASES[{alias!r}] waits less than {SQLITE_TIMEOUT} seconds for its turn to write"
        hint = f'Set OPTIONS["timeout"] to {SQLITE_TIMEOUT} or more, and PRAGMA journal_mode=WAL by "init_command".'
        yield _warning(5, f'{message}: several workers at once meet "database is locked".', hint)
    if str(details.get("transaction_mode") or "").upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        message = f"DATABASES[{alias!r}] begins transactions without the lock to write"
        hint = 'Set OPTIONS["transaction_mode"] to "IMMEDIATE".'
        yield _warning(6, f'{message}: one that reads first meets "database is locked" without waiting.', hint)
