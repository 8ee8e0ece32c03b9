"""One thing that ``consistency doctor`` has to say, and what kinds of them there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["wrong", "missing", "warning", "waived", "not checked", "note"]
#: In the order in which they are printed. ``wrong`` makes the verb end with 1, ``missing`` with 3, no other does.
LEVELS: tuple[Level, ...] = ("wrong", "missing", "warning", "waived", "not checked", "note")


@dataclass(frozen=True)
class Finding:
    """One thing worth saying.

    ``subject`` is the upstream or package it is about, ``mend`` what to do, where something can be done.
    """

    level: Level
    subject: str
    what: str
    mend: str | None = None
