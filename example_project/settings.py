"""Settings of the example project; environment variables choose the database and Redis.

``DEMO_DATABASE``
    ``sqlite`` (the default), ``postgresql`` or ``mariadb``. The servers are found by ``POSTGRES_HOST``,
    ``_PORT``, ``_USER``, ``_PASSWORD`` and ``MYSQL_HOST``, ``_PORT``, ``_USER``, ``_PASSWORD``.
``DEMO_DATABASE_NAME``
    The database on that server, ``django_job_batches_demo`` if not given.
``DEMO_VAR``
    The folder of the SQLite file, the log files and the staged data, ``example_project/var`` if not given.
``DEMO_REDIS_SOCKET``
    The Unix socket of Redis; without it Redis is ``REDIS_URL``, or the one on this machine.
``DEMO_SQLITE_TIMEOUT``
    Seconds to wait for SQLite's lock, 20 if not given. The demo's ``--deadlock`` has the workers lose patience sooner.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BASE_DIR = Path(__file__).resolve().parent
VAR_DIR = Path(os.environ.get("DEMO_VAR") or BASE_DIR / "var").resolve()
VAR_DIR.mkdir(parents=True, exist_ok=True)
STAGING_DIR = VAR_DIR / "staging"

DEBUG = True
SECRET_KEY = os.environ.get("DEMO_SECRET_KEY", "good enough for a demo on one's own machine")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "example_project.urls"
LOGIN_REDIRECT_URL = "admin:index"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True
LANGUAGES = [("en", "English")]
TIME_ZONE = "UTC"

INSTALLED_APPS = [
    "admin_interface",
    "colorfield",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_rq",
    "django_job_batches",
    "example_project.airports",
]
# What django-admin-interface asks for: its pop-ups are frames.
X_FRAME_OPTIONS = "SAMEORIGIN"
SILENCED_SYSTEM_CHECKS = ["security.W019"]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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
            ],
        },
    },
]


def _sqlite() -> dict[str, Any]:
    """One writer at a time: begin as a writer, wait for one's turn, and let readers read meanwhile (WAL)."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": VAR_DIR / "db.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": float(os.environ.get("DEMO_SQLITE_TIMEOUT") or 20),
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }


def _server(engine: str, prefix: str, port: int, user: str) -> dict[str, Any]:
    return {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": os.environ.get("DEMO_DATABASE_NAME", "django_job_batches_demo"),
        "HOST": os.environ.get(f"{prefix}_HOST", "127.0.0.1"),
        "PORT": os.environ.get(f"{prefix}_PORT", str(port)),
        "USER": os.environ.get(f"{prefix}_USER", user),
        "PASSWORD": os.environ.get(f"{prefix}_PASSWORD", ""),
    }


def _mysql_driver() -> None:
    """PyMySQL stands in for mysqlclient where that is not installed, with a version that Django accepts."""
    if find_spec("MySQLdb") is None:
        pymysql = import_module("pymysql")
        pymysql.version_info = max(pymysql.version_info, (2, 2, 8, "final", 0))  # type: ignore[attr-defined]
        pymysql.install_as_MySQLdb()


def _database(kind: str) -> dict[str, Any]:
    if kind == "postgresql":
        return _server("postgresql", "POSTGRES", 5432, "postgres")
    if kind in ("mariadb", "mysql"):
        _mysql_driver()
        return {**_server("mysql", "MYSQL", 3306, "root"), "OPTIONS": {"charset": "utf8mb4"}}
    if kind == "sqlite":
        return _sqlite()
    message = f"DEMO_DATABASE={kind!r} is none of sqlite, postgresql, mariadb."
    raise ValueError(message)


DATABASES = {"default": _database(os.environ.get("DEMO_DATABASE", "sqlite"))}


def _redis() -> dict[str, Any]:
    if socket := os.environ.get("DEMO_REDIS_SOCKET"):
        return {"UNIX_SOCKET_PATH": socket, "DB": 0}
    return {"URL": os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")}


RQ_QUEUES = {"default": {**_redis(), "DEFAULT_TIMEOUT": 60}}
