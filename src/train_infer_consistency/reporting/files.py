"""Write a whole file or none: a reader never meets a half-written report."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_text(path: Path, pieces: Iterable[str]) -> None:
    """Write text in UTF-8 beside its place, then put it there; folders above are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp's own mode would shut out the colleague the report is for
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def number(value: float | None) -> float | str | None:
    """A number as JSON can hold it: NaN and infinities become the words that msprobe's own files use."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def compact(value: Any) -> str:
    """One line of strict JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
