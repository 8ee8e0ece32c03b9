"""The word for one row: equal, within rounding, differs, or not compared; and the bounds behind it.

docs/comparison.md has the reasoning. In short: a result is rounded to its dtype's unit ``u`` once an operation, errors
of independent roundings add as the square root of their number, so the bound is ``factor * u * sqrt(1 + depth)`` and
never above ``CAP``: a drift of that size is none of rounding.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from .fusion import Four

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
# torch adds squares on a CPU one after the other in 8 lanes of fp32 (AVX2), in another order for each cut of a matrix:
# a random walk of that many roundings. 131,072 elements, whole against q, k and v: 4.6e-6 measured, 7.6e-6 allowed.
NORM_LANES = 8
NOISE_FACTOR = 3.0


class Errors(NamedTuple):
    """Relative errors of the four statistics, each by its own scale; None is "not available"."""

    max: float | None
    min: float | None
    mean: float | None
    norm: float | None


# Its constructor without the frame of a Python function: half of the time.
_make_errors: Callable[..., Errors] = tuple.__new__
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
        if self.patterns:
            for pattern, kinds, given in reversed(self.patterns):
                if fnmatchcase(module, pattern) and fnmatchcase(kind, kinds):
                    return given
        bound = default_bound(one, two, depth, self.prevailing if depth else None)
        if not self.noise:
            return bound
        return min(CAP, max(bound, NOISE_FACTOR * self.noise[module, kind])) if (module, kind) in self.noise else bound

    def given(self, module: str, kind: str) -> bool:
        """Whether the user gave a bound for a row."""
        return bool(self.patterns) and any(
            fnmatchcase(module, pattern) and fnmatchcase(kind, kinds) for pattern, kinds, _ in self.patterns
        )


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


@lru_cache(maxsize=1024)
def norm_rounding(numel: int) -> float:
    """What the order of a norm's own sum explains, as a relative error; a bound of 0 (``--bitwise``) leaves it out."""
    return min(CAP, UNIT["torch.float32"] * math.sqrt(numel / NORM_LANES))


def known(stats: Four) -> bool:
    """Whether every statistic is there, and a finite number."""
    high, low, mean, norm = stats
    if high is None or low is None or mean is None or norm is None:
        return False
    return math.isfinite(high - low + mean + norm) or all(map(math.isfinite, (high, low, mean, norm)))


def finite(stats: Four) -> bool:
    """Whether every statistic that is there is a finite number."""
    return all(value is None or math.isfinite(value) for value in stats)


def errors_of(one: Four, two: Four, numel: int) -> Errors:
    """Relative errors: extremes by the largest magnitude, the mean by the root mean square, the norm by itself.

    The mean is set against the root mean square because it is a small difference of large sums: by itself it would be
    off by any factor from rounding alone.
    """
    (high, low, mean, norm), (high2, low2, mean2, norm2) = one, two
    if (
        high is None or low is None or mean is None or norm is None
        or high2 is None or low2 is None or mean2 is None or norm2 is None
    ):  # fmt: skip
        errors = errors_of(_zeros_for_none(one), _zeros_for_none(two), numel)
        known = [None not in pair for pair in zip(one, two, strict=True)]
        return Errors(*[error if there else None for error, there in zip(errors, known, strict=True)])
    magnitude = max(abs(high), abs(low), abs(high2), abs(low2))
    length = max(norm, norm2)
    rms = length / math.sqrt(numel) if numel else 0.0
    return _make_errors(
        Errors,
        (
            0.0 if high == high2 else _relative(high, high2, magnitude),
            0.0 if low == low2 else _relative(low, low2, magnitude),
            0.0 if mean == mean2 else _relative(mean, mean2, max(rms, abs(mean), abs(mean2))),
            0.0 if norm == norm2 else _relative(norm, norm2, length),
        ),
    )


def _zeros_for_none(stats: Four) -> Four:
    high, low, mean, norm = stats
    return high or 0.0, low or 0.0, mean or 0.0, norm or 0.0


def judge_statistics(
    one: Four, two: Four, numel: int, *, bound: float, exact_extremes: bool
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
    if one == two:
        return EQUAL, NO_ERROR, 0.0
    errors = errors_of(one, two, numel)
    high, low, mean, norm = errors
    extremes, mean, norm = max(high or 0.0, low or 0.0), mean or 0.0, norm or 0.0
    limit = 0.0 if exact_extremes else EXTREME * bound
    summed = max(bound, RESOLUTION)
    squares = max(summed, norm_rounding(numel)) if bound else summed
    worst = max(extremes / limit if limit else math.inf if extremes else 0.0, mean / summed, norm / squares)
    # Extremes are elements; mean and norm are sums, whose own rounding is no difference.
    equal = not extremes and mean <= RESOLUTION and norm <= RESOLUTION
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


def _relative(one: float, two: float, scale: float) -> float:
    return abs(one - two) / scale if scale else math.inf
