"""What the tests need besides Python: the databases' servers and a browser; where they are, and whether they answer.

A database is named as in TEST_DATABASE: `sqlite`, `postgresql` or `mariadb` (which stands for MySQL too).
The browser's name is `chromium`, whichever of its kin is found.
"""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from typing import Any

DATABASES = ("sqlite", "postgresql", "mariadb")
SERVICES = (*DATABASES, "chromium")

# Per database: the prefix of its environment variables, then the usual port and user.
_SERVERS = {"postgresql": ("POSTGRES", "5432", "postgres"), "mariadb": ("MYSQL", "3306", "root")}

HOW_TO_GET = {
    "postgresql": "`apt install postgresql` (Debian, Ubuntu), or set POSTGRES_HOST, _PORT, _USER, _PASSWORD.",
    "mariadb": "`apt install mariadb-server` (Debian, Ubuntu), or set MYSQL_HOST, _PORT, _USER, _PASSWORD.",
    "chromium": "`apt install chromium` (Debian), or set CHROMIUM to the path of a Chromium or Chrome.",
}


def are_required() -> bool:
    """Whether it is a failure that one of them is not there."""
    return os.environ.get("REQUIRE_SERVICES") == "1"


def find_chromium() -> str:
    """The path of the browser that CHROMIUM names, or of one on the PATH; nothing ("") if there is none."""
    return next((path for name in _chromiums() if (path := shutil.which(name))), "")


def _chromiums() -> tuple[str, ...]:
    named = os.environ.get("CHROMIUM")
    return (named,) if named else ("chromium", "chromium-browser", "google-chrome")


def address(database: str) -> dict[str, str]:
    """HOST, PORT, USER and PASSWORD of a database server, from the environment or as is usual."""
    prefix, port, user = _SERVERS[database]
    usual = {"HOST": "127.0.0.1", "PORT": port, "USER": user, "PASSWORD": ""}
    return {key: os.environ.get(f"{prefix}_{key}") or value for key, value in usual.items()}


def mysql_driver() -> Any:
    """MySQLdb if it is installed, else PyMySQL in its place, with a version that Django accepts."""
    try:
        return import_module("MySQLdb")
    except ImportError:
        pymysql: Any = import_module("pymysql")
        pymysql.version_info = max(pymysql.version_info, (2, 2, 8, "final", 0))
        pymysql.install_as_MySQLdb()
        return pymysql


def why_unreachable(service: str) -> str:
    """Return what is in the way of a connection to this database, or of the browser; nothing ("") if it is there."""
    if service == "chromium":
        return "" if find_chromium() else f"there is no {' or '.join(_chromiums())}."
    try:
        _connect(service)
    except Exception as error:
        return f"{type(error).__name__}: {error}".strip().replace("\n", " ")
    return ""


def _connect(database: str) -> None:
    if database == "sqlite":
        return
    server = address(database)
    where = {
        "host": server["HOST"],
        "port": int(server["PORT"]),
        "user": server["USER"],
        "connect_timeout": 5,
    }
    if database == "postgresql":
        psycopg = import_module("psycopg")
        psycopg.connect(**where, password=server["PASSWORD"], dbname="postgres").close()
    else:
        mysql_driver().connect(**where, password=server["PASSWORD"]).close()
