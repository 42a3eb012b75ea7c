"""What may be an argument of a job: JSON that every supported database stores and gives back unchanged."""

from __future__ import annotations

import json
import math
from typing import Any

from django_job_batches.conf import settings

MAX_DEPTH = 25
"""Levels of lists and objects; MariaDB's JSON_VALID refuses more than 32."""


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """``value`` as plain JSON types: a tuple becomes a list, a subclass of ``str`` a ``str``.

    Raises ``TypeError`` for whatever JSON cannot say, and ``ValueError`` for what nests too deeply, both naming
    ``where``.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return text(value, where)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _number(value, where)
    if depth >= MAX_DEPTH:
        raise ValueError(f"{where} nests more than {MAX_DEPTH} levels deep; pass a key to where the data is stored.")
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {_key(key, where): plain(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    raise TypeError(f"{where} is {_kind(value)}, which JSON cannot hold; {_instead(value)}.")


def text(value: str, where: str) -> str:
    """``value`` as a plain ``str``; ``TypeError``, naming ``where``, for text that a database would refuse."""
    if "\0" in value:
        raise TypeError(f"{where} holds a NUL character, which PostgreSQL cannot store; remove it.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"{where} holds half of a surrogate pair, which is not valid text; remove it.") from error
    return str.__str__(value) if type(value) is not str else value


def arguments(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of one call of ``path``, checked; ``ValueError`` when they exceed ``MAX_ARGUMENTS`` bytes."""
    plain_args = [plain(value, f"argument {number} of {path}") for number, value in enumerate(args, 1)]
    plain_kwargs = {name: plain(value, f"argument {name!r} of {path}") for name, value in kwargs.items()}
    if plain_args or plain_kwargs:
        check_size((plain_args, plain_kwargs), f"the arguments of {path}")
    return plain_args, plain_kwargs


def check_size(value: Any, what: str) -> None:
    """``ValueError`` when ``value`` takes more than ``MAX_ARGUMENTS`` bytes as JSON."""
    try:
        size = len(json.dumps(value, ensure_ascii=False).encode())
    except ValueError as error:  # an integer of thousands of digits
        raise ValueError(f"{what} cannot be written as JSON: {error}.") from error
    if size > settings.MAX_ARGUMENTS:
        raise ValueError(
            f"{what} take {size:,} bytes of JSON, more than JOB_BATCHES['MAX_ARGUMENTS'] = "
            f"{settings.MAX_ARGUMENTS:,}; store the data and pass its key."
        )


def _number(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise TypeError(f"{where} is {value}, which JSON cannot hold; pass None or a string.")
    return float(value)


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where} has the key {key!r}, and JSON knows only strings as keys; pass str(key).")
    return text(key, f"the key {key!r} in {where}")


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if not isinstance(value, type) else f"the class {value.__name__}"


def _instead(value: Any) -> str:
    if hasattr(value, "pk"):
        return "pass its primary key"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "pass text, or a key to where the bytes are stored"
    if isinstance(value, (set, frozenset)) or hasattr(value, "__next__"):
        return "pass a list"
    return "pass its primary key, or a string or number that the job can turn back"
