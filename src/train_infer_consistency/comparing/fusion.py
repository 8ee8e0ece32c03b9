"""The algebra of fused and sharded rows: statistics of a whole from those of its parts, and the order of its elements.

Maximum, minimum, size-weighted mean and the root of the summed squares are exact, whatever the order of the elements,
so q, k, v give qkv (also Megatron's, which is grouped by key-value head) and shards give the whole. Only elements, not
statistics, need the orders below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

PARTS = {"qkv": ("q", "k", "v"), "grouped_qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


class Stats(NamedTuple):
    """The four statistics of a tensor; None is "not available", NaN is NaN."""

    max: float | None
    min: float | None
    mean: float | None
    norm: float | None


# Its constructor without the frame of a Python function: half of the time.
_make_stats: Callable[..., Stats] = tuple.__new__
# The same, also as a slice of something longer.
Four = tuple[float | None, float | None, float | None, float | None]


def combine(parts: Sequence[tuple[Four, int]]) -> Stats:
    """The statistics of the tensor that the parts, each with its number of elements, make up together.

    A statistic that one part lacks is lacking in the whole; a NaN in a part is one in the whole.
    """
    high, low, total, squares, numel, check = -math.inf, math.inf, 0.0, 0.0, 0, 0.0
    for part, size in parts:
        top, bottom, mean, norm = part
        if top is None or bottom is None or mean is None or norm is None:
            return _combine_carefully(parts)
        high = max(high, top)
        low = min(low, bottom)
        check += top - bottom  # a NaN loses every comparison, but not a sum
        total += mean * size
        squares += norm * norm
        numel += size
    whole = _make_stats(Stats, (high, low, total / numel if numel else None, math.sqrt(squares)))
    return whole if math.isfinite(check + total + squares) else _combine_carefully(parts)


def _combine_carefully(parts: Sequence[tuple[Four, int]]) -> Stats:
    """The same where something is missing or not finite."""
    numel = sum(size for _, size in parts)
    high = _known([part[0] for part, _ in parts], max)
    low = _known([part[1] for part, _ in parts], min)
    means = [None if part[2] is None else part[2] * size for part, size in parts]
    total = _known(means, math.fsum)
    norm = _known([part[3] for part, _ in parts], lambda values: math.hypot(*values))
    return Stats(high, low, None if total is None or not numel else total / numel, norm)


def _known(values: Sequence[float | None], put_together: Callable[[list[float]], float]) -> float | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    if any(map(math.isnan, known)) or (math.inf in known and -math.inf in known and put_together is math.fsum):
        return math.nan
    return put_together(known)


def split_order(array: Any, order: str, sizes: Sequence[int], head: int, axis: int) -> list[Any]:
    """Take one rank's fused tensor apart into its parts.

    Args:
        array: the elements of one rank.
        order: ``qkv`` or ``gate_up``: one part after the other. ``grouped_qkv``: for each key-value head its query
            heads, its key, its value (Megatron-Core's ``linear_qkv``).
        sizes: how many of ``axis`` each part has on this rank.
        head: the size of one head; used by ``grouped_qkv`` only.
        axis: 1 for an output's features, 0 for a weight's rows.

    Raises:
        ValueError: the sizes do not make up the array.
    """
    if sum(sizes) != array.shape[axis]:
        raise ValueError(f"parts of {list(sizes)} do not make up {array.shape[axis]}")
    if order != "grouped_qkv":
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        return [_slice(array, end - size, end, axis) for size, end in zip(sizes, ends, strict=True)]
    query, key, value = sizes
    if head <= 0 or key % head or value % head or query % key or key != value:
        raise ValueError(f"q, k, v of {list(sizes)} have no heads of {head}")
    groups = key // head
    block = array.shape[axis] // groups
    width = query // groups
    pieces = [_slice(array, group * block, (group + 1) * block, axis) for group in range(groups)]
    bounds = [(0, width), (width, width + head), (width + head, block)]
    return [concatenate([_slice(piece, low, high, axis) for piece in pieces], axis) for low, high in bounds]


def concatenate(arrays: Sequence[Any], axis: int) -> Any:
    """Join numpy arrays; one array is returned as it is."""
    if len(arrays) == 1:
        return arrays[0]
    import numpy as np

    return np.concatenate(arrays, axis=axis)


def _slice(array: Any, low: int, high: int, axis: int) -> Any:
    return array[low:high] if axis == 0 else array[:, low:high]
