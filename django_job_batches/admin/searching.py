"""What an operator types into a search box, when it is the id of something."""

from __future__ import annotations

import re
import uuid

RQ_JOB_ID = re.compile(r"(?P<batch>[0-9a-f]{32})-(?P<job>\d+)-\d+", re.ASCII | re.IGNORECASE)


def job_id(term: str) -> int | None:
    """The key of the job that ``term`` names, by that key itself or by the id of one of its RQ jobs."""
    match = RQ_JOB_ID.fullmatch(term.strip())
    number = match["job"] if match else term.strip()
    is_number = number.isascii() and number.isdigit()
    return int(number) if is_number and len(number) < 20 else None


def batch_id(term: str) -> uuid.UUID | None:
    """The key of a batch, if ``term`` is one."""
    try:
        return uuid.UUID(term.strip())
    except ValueError:
        return None
