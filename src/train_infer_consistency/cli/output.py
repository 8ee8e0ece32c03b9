"""What the verbs share in printing: plain tables, JSON, and colour on a terminal only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_COLOURS = {"good": "32", "bad": "31", "warn": "33", "dim": "2"}


def paint(text: str, colour: str) -> str:
    """Colour a text where standard output is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as aligned columns below a header; no cell is cut."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def print_json(value: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def note(text: str) -> None:
    """Print a line for the person at the terminal, on standard error."""
    print(text, file=sys.stderr, flush=True)
