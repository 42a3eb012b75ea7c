"""The rows of an import on their way: one CSV file for each part, removed by the clean-up.

The workers read these files, so they have to share a disk with the web server. In a larger project they would
lie in a bucket, or in a table.
"""

import csv
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import airportsdata
from django.conf import settings

from example_project.airports.validation import Row

PART_SIZE = 1_000
COLUMNS = ("icao", "iata", "name", "city", "country", "lat", "lon", "elevation", "tz")

# What --broken does to the data: the number of a row, and what it gets instead of the truth.
BREAKAGES = {
    10: {"tz": "Mars/Olympus_Mons"},
    20: {"lat": "123.4"},
    30: {"icao": "no code"},
    40: {"lon": "somewhere"},
    5_000: {"icao": "00AA"},
}


def airports(*, broken: bool = False) -> Iterator[Row]:
    """Yield all airports of the ``airportsdata`` package; if ``broken``, some with wrong values."""
    for number, airport in enumerate(airportsdata.load("ICAO").values()):
        row = {column: str(airport[column]) for column in COLUMNS}  # type: ignore[literal-required]
        yield row | BREAKAGES.get(number, {}) if broken else row


def stage(import_id: int, rows: Iterable[Row]) -> tuple[int, int]:
    """Write the rows to files of ``PART_SIZE`` rows each; return the number of rows and of parts."""
    folder = _folder(import_id)
    folder.mkdir(parents=True)
    rows, row_count, part_count = iter(rows), 0, 0
    while part := list(islice(rows, PART_SIZE)):
        with _file(import_id, part_count).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(part)
        row_count, part_count = row_count + len(part), part_count + 1
    return row_count, part_count


def read_part(import_id: int, part: int) -> list[Row]:
    """Return the rows of one part; ``FileNotFoundError`` after the clean-up."""
    try:
        with _file(import_id, part).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError as error:
        message = f"The files of import {import_id} were cleaned up; start a new one instead of a retry."
        raise FileNotFoundError(message) from error


def is_staged(import_id: int) -> bool:
    """Whether the files of this import are there."""
    return _folder(import_id).exists()


def remove(import_id: int) -> None:
    """Remove the files of this import, if there are any."""
    shutil.rmtree(_folder(import_id), ignore_errors=True)


def _folder(import_id: int) -> Path:
    return Path(settings.STAGING_DIR) / str(import_id)


def _file(import_id: int, part: int) -> Path:
    return _folder(import_id) / f"{part:03}.csv"
