"""The fields of a log line, each of the kind that it has to be, and a line's JSON."""

from __future__ import annotations

import json
from typing import Any

from .steps import Origin


class UnfitError(Exception):
    """A field is not what it should be."""


def origin_of(record: dict[str, Any]) -> Origin:
    """The process that a line tells of.

    Raises:
        UnfitError: a field of it is of a wrong kind.
    """
    parallel = record.get("parallel")
    return Origin(
        pid=count_of(record, "pid"),
        rank=count_of(record, "rank"),
        engine=text_of(record, "engine"),
        host=text_of(record, "host"),
        replica=text_of(record, "replica"),
        run_id=text_of(record, "run_id"),
        msprobe=text_of(record, "msprobe"),
        parallel=parallel if type(parallel) is dict else {},
    )


_decode = json.JSONDecoder().raw_decode


def parse(raw: bytes) -> Any:
    """Parse a line; faster than json.loads, which looks for other encodings first.

    Raises:
        ValueError: it is no JSON, or no UTF-8.
    """
    text = raw.decode().strip()
    value, end = _decode(text)
    if end != len(text):
        raise ValueError("something follows")
    return value


def request_id_of(value: Any) -> str | None:
    """An id; the documented training logger writes a missing one as the text ``None``.

    Raises:
        UnfitError: it is no text that can be printed.
    """
    if type(value) is int:
        return str(value)
    if type(value) is not str or value in ("", "None", "null"):
        return None
    if not value.isprintable():
        raise UnfitError("a request id is no text")
    return value


def count_of(record: dict[str, Any], name: str) -> int | None:
    """A number from 0 on; None where it is missing or null.

    Raises:
        UnfitError: it is something else.
    """
    value = record.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise UnfitError(f"{name!r} is no count")
    return value


def text_of(record: dict[str, Any], name: str) -> str | None:
    """A text that can be printed; None where it is missing or null.

    Raises:
        UnfitError: it is something else.
    """
    value = record.get(name)
    if value is None or (type(value) is str and value.isprintable()):
        return value
    raise UnfitError(f"{name!r} is no text")
