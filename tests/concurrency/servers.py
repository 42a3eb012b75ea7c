"""How many deadlocks a server has counted, by its own statistics."""

from __future__ import annotations

import re

from django.db import connection

from tests.processes import wait_until


def deadlocks() -> int:
    """So many until now: of this database on PostgreSQL (once no other connection is left, since each tells what it
    saw at its end), of the whole server on MariaDB; SQLite has none."""
    if connection.vendor == "sqlite":
        return 0
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            wait_until(_is_alone, message="the other connections have ended, and have told what they saw")
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            return int(cursor.fetchone()[0])
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
        row = cursor.fetchone()
        if row is None:  # Oracle's MySQL
            cursor.execute("SELECT NAME, COUNT FROM information_schema.INNODB_METRICS WHERE NAME = 'lock_deadlocks'")
            row = cursor.fetchone()
        return int(row[1])


def _is_alone() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return cursor.fetchone() == (0,)


def latest_deadlock() -> str:
    """What the server tells about the last one; "" if that was in another database than this."""
    if connection.vendor != "mysql":
        return "see the log of the server"
    with connection.cursor() as cursor:
        cursor.execute("SHOW ENGINE INNODB STATUS")
        text = str(cursor.fetchone()[2])
    match = re.search(r"LATEST DETECTED DEADLOCK\n(.*?)\n-+\nTRANSACTIONS", text, re.S)
    name = str(connection.settings_dict["NAME"])
    return match[1] if match and f"`{name}`." in match[1] else ""
