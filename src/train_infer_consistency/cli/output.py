"""What the verbs share in printing: plain tables, JSON, and colour on a terminal only."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# How often long work says how far it is where standard error is no terminal.
_SECONDS = 10.0
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


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Say on standard error how many of all are done: one line that changes on a terminal, else a line now and then.

    Args:
        what: is counted, ``pairs compared``.
    """
    terminal = sys.stderr.isatty()
    last = time.monotonic()
    shown = False

    def tell(done: int, total: int) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if terminal and (now - last > 0.1 or shown):
            shown = True
            sys.stderr.write(f"\r\033[Kconsistency: {done} of {total} {what}")
            sys.stderr.flush()
        elif not terminal and now - last > _SECONDS and done < total:
            last = now
            note(f"consistency: {done} of {total} {what}")

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
