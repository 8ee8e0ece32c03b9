"""The algebra of fused and sharded rows: statistics of a whole from those of its parts, and the order of its elements.

Maximum, minimum, size-weighted mean and the root of the summed squares are exact, whatever the order of the elements,
so q, k, v give qkv (also Megatron's, which is grouped by key-value head) and shards give the whole. Only elements, not
statistics, need the orders below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

PARTS = {"qkv": ("q", "k", "v"), "grouped_qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


class Stats(NamedTuple):
    """The four statistics of a tensor and its number of elements; None is "not available", NaN is NaN."""

    max: float | None
    min: float | None
    mean: float | None
    norm: float | None
    numel: int


def combine(parts: Iterable[Stats]) -> Stats:
    """The statistics of the tensor that the parts make up together.

    A statistic that one part lacks is lacking in the whole; a NaN in a part is one in the whole.
    """
    parts = list(parts)
    numel = sum(part.numel for part in parts)
    return Stats(
        _extreme([part.max for part in parts], max),
        _extreme([part.min for part in parts], min),
        _mean(parts, numel),
        _norm([part.norm for part in parts]),
        numel,
    )


def _extreme(values: Sequence[float | None], choose: Any) -> float | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return math.nan if any(map(math.isnan, known)) else float(choose(known))


def _mean(parts: Sequence[Stats], numel: int) -> float | None:
    if not numel or any(part.mean is None for part in parts):
        return None
    return math.fsum(part.mean * part.numel for part in parts if part.mean is not None) / numel if _finite(parts) else math.nan


def _finite(parts: Sequence[Stats]) -> bool:
    return all(part.mean is not None and math.isfinite(part.mean) for part in parts)


def _norm(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return math.nan if any(map(math.isnan, known)) else math.hypot(*known)


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
    import numpy

    return numpy.concatenate(arrays, axis=axis)


def _slice(array: Any, low: int, high: int, axis: int) -> Any:
    return array[low:high] if axis == 0 else array[:, low:high]
