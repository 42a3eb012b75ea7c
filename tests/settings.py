"""Settings of the tests, and of the workers that they start, which import this module too.

Environment variables:

- TEST_DATABASE: `sqlite` (if not given), `postgresql` or `mariadb`. See `tests/services.py` for its address.
- TEST_DATABASE_NAME: the name of the database, `django_job_batches_test` if not given; give each of several
  runs at once a name of its own. The second database has the same name with `_other` at its end.
- TEST_ISOLATION: the isolation level of PostgreSQL and MariaDB, `read committed` if not given.
- TEST_REDIS_SOCKET: the socket of Redis. If not given, one in a temporary folder: the tests start their own.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.services import DATABASES as KNOWN_DATABASES
from tests.services import address, mysql_driver

TEST_DATABASE = os.environ.get("TEST_DATABASE") or "sqlite"
DATABASE_NAME = os.environ.get("TEST_DATABASE_NAME") or "django_job_batches_test"
ISOLATION = os.environ.get("TEST_ISOLATION") or "read committed"
TEMPORARY = Path(tempfile.gettempdir())
REDIS_SOCKET = os.environ.setdefault("TEST_REDIS_SOCKET", str(TEMPORARY / f"rq-{os.getpid()}" / "redis.sock"))

if TEST_DATABASE not in KNOWN_DATABASES:
    raise ValueError(f"TEST_DATABASE={TEST_DATABASE!r} is none of {', '.join(KNOWN_DATABASES)}.")


def _sqlite(name: str) -> dict[str, Any]:
    folder = TEMPORARY / DATABASE_NAME
    folder.mkdir(exist_ok=True)
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(folder / f"{name}.sqlite3"),
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def _postgresql(name: str) -> dict[str, Any]:
    from psycopg import IsolationLevel

    level = IsolationLevel[ISOLATION.upper().replace(" ", "_")]
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "OPTIONS": {"isolation_level": level},
        **address("postgresql"),
    }


def _mariadb(name: str) -> dict[str, Any]:
    mysql_driver()
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": name,
        "OPTIONS": {"isolation_level": ISOLATION, "charset": "utf8mb4"},
        "TEST": {"CHARSET": "utf8mb4"},
        **address("mariadb"),
    }


def _database(name: str) -> dict[str, Any]:
    """The test database bears the very name of the database, so that workers meet the tests in it."""
    database = {"sqlite": _sqlite, "postgresql": _postgresql, "mariadb": _mariadb}[TEST_DATABASE](name)
    database["TEST"] = {**database.get("TEST", {}), "NAME": database["NAME"]}
    return database


DATABASES = {"default": _database(DATABASE_NAME), "other": _database(f"{DATABASE_NAME}_other")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

_REDIS = {"UNIX_SOCKET_PATH": REDIS_SOCKET, "DB": 0}
RQ_QUEUES = {
    "default": {**_REDIS},
    "high": {**_REDIS},
    "low": {**_REDIS},
    "sync": {**_REDIS, "ASYNC": False},
}
JOB_BATCHES: dict[str, Any] = {}

SECRET_KEY = "used by the tests alone"
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_rq",
    "django_job_batches",
    "tests",
]
if importlib.util.find_spec("django_tasks"):
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {
        "rq": {"level": "WARNING"},
        "django_job_batches": {"handlers": ["console"], "level": "INFO"},
    },
}
