"""What is wrong with a row? Plain functions: no Django, no batches."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from zoneinfo import ZoneInfo

Row = Mapping[str, str]

# Airports without an ICAO code stand in the data under their IATA code with an underscore.
ICAO_CODE = re.compile(r"[A-Z0-9]{4}|_[A-Z0-9]{3}")
IATA_CODE = re.compile(r"[A-Z0-9]{3}")
COUNTRY_CODE = re.compile(r"[A-Z]{2}")


def row_problems(row: Row) -> Iterator[str]:
    """Yield what is wrong with this row, in words; nothing if it is fine."""
    if not ICAO_CODE.fullmatch(row["icao"]):
        yield f"ICAO code {row['icao']!r} is malformed"
    if row["iata"] and not IATA_CODE.fullmatch(row["iata"]):
        yield f"IATA code {row['iata']!r} is malformed"
    if not COUNTRY_CODE.fullmatch(row["country"]):
        yield f"country code {row['country']!r} is malformed"
    if not _in_range(row["lat"], 90):
        yield f"latitude {row['lat']!r} is not between -90 and 90"
    if not _in_range(row["lon"], 180):
        yield f"longitude {row['lon']!r} is not between -180 and 180"
    if not _is_time_zone(row["tz"]):
        yield f"time zone {row['tz']!r} is unknown"


def problems(rows: Iterable[Row]) -> list[str]:
    """Return what is wrong with these rows, each problem with the name of its airport."""
    return [f"{row['name'] or 'nameless'}: {problem}" for row in rows for problem in row_problems(row)]


def repeated_codes(rows: Iterable[Row]) -> list[str]:
    """Return which codes stand for more than one of these rows."""
    counts = Counter((kind, row[kind]) for row in rows for kind in ("icao", "iata") if row[kind])
    repeated = [(*code, times) for code, times in counts.items() if times > 1]
    return [f"{kind.upper()} code {code!r} is given {times} times" for kind, code, times in repeated]


def _in_range(text: str, limit: int) -> bool:
    try:
        return -limit <= float(text) <= limit
    except ValueError:
        return False


@cache
def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # unknown; a folder of the database; no path that could be one
        return False
    return True
