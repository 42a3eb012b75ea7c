"""What the measured jobs do."""

from __future__ import annotations

from django.db import connection


def nothing(number: int = 0) -> None:
    pass


def one_query(number: int = 0) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()
