"""The word for one row: equal, within rounding, differs, or not compared; and the bounds behind it.

docs/comparison.md has the reasoning. In short: a result is rounded to its dtype's unit ``u`` once an operation, errors
of independent roundings add as the square root of their number, so the bound is ``factor * u * sqrt(1 + depth)`` and
never above ``CAP``: a drift of that size is none of rounding.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from .fusion import Figures

EQUAL, WITHIN, DIFFERS, NOT_COMPARED = "equal", "within rounding", "differs", "not compared"

# Half the distance from 1 to the next number: the largest relative error of one rounding.
UNIT = {
    "torch.float64": 2.0**-53,
    "torch.float32": 2.0**-24,
    "torch.float16": 2.0**-11,
    "torch.bfloat16": 2.0**-8,
    "torch.float8_e4m3fn": 2.0**-4,
    "torch.float8_e5m2": 2.0**-3,
}
# Half-precision products are summed in fp32, so only the result is rounded; fp32 products are summed in fp32 itself, in
# an order that differs between engines, which costs about the square root of the length of the sum (thousands).
FACTOR = {"torch.float64": 64.0, "torch.float32": 64.0}
HALF_FACTOR = 2.0
CAP = 0.05
# The largest and smallest element are single elements: their error is not averaged as the norm's is.
EXTREME = 2.0
# Mean and norm are sums in fp32: their order (a fused row's, a slice's) costs a few of its roundings and no more.
RESOLUTION = 4 * UNIT["torch.float32"]
NOISE_FACTOR = 3.0


class Errors(NamedTuple):
    """Relative errors of the four statistics, each by its own scale; None is "not available"."""

    max: float | None
    min: float | None
    mean: float | None
    norm: float | None


NO_ERROR = Errors(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Bounds:
    """The bounds of one run.

    Attributes:
        patterns: (module pattern, kind pattern, bound) of the user's file; the last that fits counts.
        noise: the measured error of rows by (module, kind); raises a bound, never beyond ``CAP``.
        bitwise: whether only exact equality passes.
        prevailing: the dtypes of most activations of both sides: a module of its own in a coarser one is no rounding.
    """

    patterns: tuple[tuple[str, str, float], ...] = ()
    noise: Mapping[tuple[str, str], float] = field(default_factory=dict)
    bitwise: bool = False
    prevailing: tuple[str, str] | None = None

    def of(self, module: str, kind: str, depth: int, one: str, two: str) -> float:
        """The bound of one row, as a relative error.

        Args:
            module: its canonical module.
            kind: its kind.
            depth: how many layers of rounding lie behind it; 0 for a parameter.
            one: its dtype on one side.
            two: its dtype on the other.
        """
        if self.bitwise:
            return 0.0
        for pattern, kinds, given in reversed(self.patterns):
            if fnmatchcase(module, pattern) and fnmatchcase(kind, kinds):
                return given
        bound = default_bound(one, two, depth, self.prevailing if depth else None)
        if not self.noise:
            return bound
        return min(CAP, max(bound, NOISE_FACTOR * self.noise[module, kind])) if (module, kind) in self.noise else bound

    def given(self, module: str, kind: str) -> bool:
        """Whether the user gave a bound for a row."""
        return any(fnmatchcase(module, pattern) and fnmatchcase(kind, kinds) for pattern, kinds, _ in self.patterns)


def unit_of(dtype: str) -> float:
    """The unit of a dtype; one that is not known is held to fp32's, the strictest in use."""
    return UNIT.get(dtype, UNIT["torch.float32"])


@lru_cache(maxsize=4096)
def default_bound(one: str, two: str, depth: int, prevailing: tuple[str, str] | None = None) -> float:
    """What rounding explains between two dtypes, that many layers into a model.

    Args:
        one: the dtype on one side.
        two: the dtype on the other.
        depth: how many layers of rounding lie behind.
        prevailing: the dtypes of most activations; a row in a coarser one is held to these.
    """
    coarsest = max(one, two, key=unit_of)
    if prevailing is not None:
        coarsest = min(coarsest, max(prevailing, key=unit_of), key=unit_of)
    factor = FACTOR.get(coarsest, HALF_FACTOR if coarsest in UNIT else FACTOR["torch.float32"])
    return min(CAP, factor * unit_of(coarsest) * math.sqrt(1 + depth))


def finite(stats: Figures) -> bool:
    """Whether every statistic that is there is a finite number."""
    if stats.max is None or stats.min is None or stats.mean is None or stats.norm is None:
        known = (stats.max, stats.min, stats.mean, stats.norm)
        return all(value is None or math.isfinite(value) for value in known)
    return math.isfinite(stats.max - stats.min + stats.mean + stats.norm)


def errors_of(one: Figures, two: Figures, numel: int) -> Errors:
    """Relative errors: extremes by the largest magnitude, the mean by the root mean square, the norm by itself.

    The mean is set against the root mean square because it is a small difference of large sums: by itself it would be
    off by any factor from rounding alone.
    """
    magnitude = max(abs(one.max or 0.0), abs(one.min or 0.0), abs(two.max or 0.0), abs(two.min or 0.0))
    norm = max(one.norm or 0.0, two.norm or 0.0)
    rms = norm / math.sqrt(numel) if numel else 0.0
    return Errors(
        _relative(one.max, two.max, magnitude),
        _relative(one.min, two.min, magnitude),
        _relative(one.mean, two.mean, max(rms, abs(one.mean or 0.0), abs(two.mean or 0.0))),
        _relative(one.norm, two.norm, norm),
    )


def judge_statistics(
    one: Figures, two: Figures, numel: int, *, bound: float, exact_extremes: bool
) -> tuple[str, Errors, float]:
    """The word by statistics alone.

    Args:
        one: a side's statistics, whole.
        two: the other's.
        numel: how many elements both have.
        bound: the relative error that rounding explains.
        exact_extremes: a parameter of one dtype: its extremes are elements, and nothing was computed, so they are equal
            or the parameter is another.

    Returns:
        The word, the errors, and the largest error in units of its bound.
    """
    if one.max == two.max and one.min == two.min and one.mean == two.mean and one.norm == two.norm:
        return EQUAL, NO_ERROR, 0.0
    errors = errors_of(one, two, numel)
    sums = max(bound, RESOLUTION)
    extremes = 0.0 if exact_extremes else EXTREME * bound
    worst, equal = 0.0, True
    for error, limit, same in zip(
        errors, (extremes, extremes, sums, sums), (0.0, 0.0, RESOLUTION, RESOLUTION), strict=True
    ):
        if error:
            equal = equal and error <= same
            worst = max(worst, error / limit if limit else math.inf)
    return EQUAL if equal else WITHIN if worst <= 1.0 else DIFFERS, errors, worst


def read_bounds(path: Path) -> tuple[tuple[str, str, float], ...]:
    """Read a bounds file: ``[[bound]]`` with ``module``, optionally ``kind``, and ``relative``.

    Raises:
        UsageError: it cannot be read, or an entry means nothing.
    """
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--bounds {path} cannot be read: {error}", "docs/comparison.md has an example") from None
    found = []
    entries = data.get("bound", [])
    for entry in entries if isinstance(entries, list) else [{}]:
        module, kind, relative = entry.get("module"), entry.get("kind", "*"), entry.get("relative")
        good = isinstance(module, str) and isinstance(kind, str) and isinstance(relative, int | float)
        if not good or entry.keys() - {"module", "kind", "relative"} or not 0 <= relative < math.inf:
            raise UsageError(f"--bounds {path}: {entry} means nothing", "a [[bound]] has module, kind and relative")
        found.append((module, kind, float(relative)))
    if not found or data.keys() - {"bound"}:
        raise UsageError(f"--bounds {path} has no [[bound]], or something else beside them")
    return tuple(found)


def _relative(one: float | None, two: float | None, scale: float) -> float | None:
    if one is None or two is None:
        return None
    if one == two:
        return 0.0
    return abs(one - two) / scale if scale else math.inf
