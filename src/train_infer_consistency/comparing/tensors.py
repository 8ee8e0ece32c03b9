"""Tensor mode: a row's elements put together like its statistics, and how far two of them are apart. Needs numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EvidenceError
from .fusion import PARTS, concatenate, split_order
from .judge import DIFFERS, EQUAL, WITHIN, unit_of
from .quantity import Group, Module, Piece, Quantity

# How many mantissa bits each stored dtype keeps of a float32's 23.
_DROPPED_BITS = {"torch.bfloat16": 16, "torch.float16": 13}


@dataclass(frozen=True, slots=True)
class TensorErrors:
    """How far two tensors are apart.

    Attributes:
        relative: the norm of the difference over the larger norm: what the bound is about.
        cosine: of the two as vectors; None where one is all zeros.
        max_abs: the largest absolute difference.
        max_rel: the largest difference relative to the larger element, among elements above the dtype's noise.
        ulp: the largest distance in representable numbers of the coarser dtype.
        token: the row that differs most; None for a parameter.
        token_relative: that row's relative error.
        exact: whether all elements are equal.
    """

    relative: float
    cosine: float | None
    max_abs: float
    max_rel: float
    ulp: int
    token: int | None
    token_relative: float | None
    exact: bool


@dataclass(frozen=True)
class Layout:
    """What the order of a side's fused rows depends on: sizes of q, k and v on one rank, and of one head."""

    sizes: tuple[int, ...] = ()
    head: int = 0


def layout_of(core: Module | None) -> Layout:
    """Read the sizes of q, k, v and of a head off the attention core's inputs."""
    if core is None or not {"q", "k", "v"} <= core.rows.keys():
        return Layout()
    leaves = [core.rows[part].groups[0].pieces[0].leaf for part in ("q", "k", "v")]
    tokens = leaves[0].shape[0] if leaves[0].shape else 1
    sizes = tuple(leaf.numel // max(1, tokens * (leaf.shape[1] if _batched(leaf.shape) else 1)) for leaf in leaves)
    return Layout(sizes, leaves[0].shape[-1] if len(leaves[0].shape) > 2 else 0)


def _batched(shape: Sequence[int]) -> bool:
    return len(shape) == 4 or (len(shape) == 3 and shape[0] == 1)


def elements(quantity: Quantity, layout: Layout, other_sizes: tuple[int, ...] = ()) -> Any:
    """The row's elements, [tokens, features] or a parameter's own shape, parts in canonical order.

    Args:
        quantity: a row whose pieces have files.
        layout: sizes of this side's fused attention.
        other_sizes: sizes of all parts together where the other side has them apart.

    Raises:
        EvidenceError: a file is missing or damaged, or the order of a fused row is unknown.
    """
    parameter = quantity.parameter
    arrays = [_group(group, parameter, layout, other_sizes) for group in quantity.groups]
    axis = 0 if parameter else 1
    return concatenate(arrays, quantity.groups[0].axis if parameter and len(arrays) > 1 else axis)


def part_sizes(quantity: Quantity) -> tuple[int, ...]:
    """How large each part is where a row was made of parts; empty where it was dumped as one."""
    if len(quantity.groups) < 2:
        return ()
    parameter = quantity.parameter
    return tuple(sum(_width(piece, parameter) for piece in group.pieces) for group in quantity.groups)


def tensor_errors(one: Any, two: Any, dtypes: tuple[str, str], parameter: bool) -> TensorErrors:
    """How far two arrays of one shape are apart; computed in float64.

    Raises:
        EvidenceError: they hold numbers that are not finite.
    """
    import numpy as np

    exact = bool(np.array_equal(one, two))
    a, b = np.asarray(one, dtype=np.float64), np.asarray(two, dtype=np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise EvidenceError("the elements are not all finite")
    difference = np.abs(a - b)
    coarsest = max(dtypes, key=unit_of)
    norm_a, norm_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    scale = max(norm_a, norm_b)
    larger = np.maximum(np.abs(a), np.abs(b))
    # An element near zero has no relative error worth a number: leave out what is below the rounding of the largest.
    floor = float(larger.max(initial=0.0)) * unit_of(coarsest)
    above = larger > floor
    token: int | None = None
    token_relative: float | None = None
    if not parameter and difference.ndim == 2 and difference.size:
        by_token = np.sqrt((difference**2).sum(axis=1))
        sizes = np.maximum(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
        relative = np.divide(by_token, sizes, out=np.zeros_like(by_token), where=sizes > 0)
        token = int(relative.argmax())
        token_relative = float(relative[token])
    return TensorErrors(
        relative=float(np.linalg.norm(difference)) / scale if scale else 0.0,
        cosine=float((a * b).sum()) / (norm_a * norm_b) if norm_a and norm_b else None,
        max_abs=float(difference.max(initial=0.0)),
        max_rel=float((difference[above] / larger[above]).max(initial=0.0)),
        ulp=_ulp(a, b, coarsest),
        token=token,
        token_relative=token_relative,
        exact=exact,
    )


def judge_elements(errors: TensorErrors, *, bound: float, exact_needed: bool) -> tuple[str, float]:
    """The word by the elements, and the error in units of its bound.

    The norm of the difference averages over all tokens, so one bad token in a long prompt could hide in it: a token of
    its own may be off by no more than the extremes of statistics may.
    """
    if errors.exact:
        return EQUAL, 0.0
    if exact_needed or bound <= 0.0:
        return DIFFERS, math.inf
    worst = max(errors.relative / bound, (errors.token_relative or 0.0) / (2 * bound))
    return (WITHIN if worst <= 1.0 else DIFFERS), worst


def find_window(one: Any, two: Any) -> tuple[int, int] | None:
    """Where the shorter list of token ids stands in the longer one: (length of the shorter, start in the longer)."""
    short, long = (one, two) if len(one) <= len(two) else (two, one)
    for start in range(len(long) - len(short) + 1):
        if (long[start : start + len(short)] == short).all():
            return len(short), start
    return None


def _group(group: Group, parameter: bool, layout: Layout, other_sizes: tuple[int, ...]) -> Any:
    pieces = group.pieces[:1] if group.how == "one" else group.pieces
    arrays = [_array(piece, parameter) for piece in pieces]
    if group.how == "tokens":
        return concatenate(arrays, 0)
    if group.order and (len(arrays) > 1 or group.order == "grouped_qkv"):
        sizes = _sizes(group, arrays, layout, other_sizes)
        try:
            parts = [split_order(array, group.order, sizes, layout.head, group.axis) for array in arrays]
        except ValueError as error:
            raise EvidenceError(f"the order of {group.pieces[0].call.name} is unknown: {error}") from None
        return concatenate(
            [concatenate([rank[i] for rank in parts], group.axis) for i in range(len(sizes))], group.axis
        )
    return concatenate(arrays, group.axis if arrays[0].ndim > group.axis else 0)


def _sizes(group: Group, arrays: Sequence[Any], layout: Layout, other: tuple[int, ...]) -> tuple[int, ...]:
    width = arrays[0].shape[group.axis if arrays[0].ndim > group.axis else 0]
    if group.order == "gate_up":
        return (width // 2, width - width // 2)
    if len(layout.sizes) == len(PARTS[group.order]) and sum(layout.sizes) == width:
        return layout.sizes
    if len(other) == len(PARTS[group.order]) and sum(other) == width * len(arrays):
        return tuple(size // len(arrays) for size in other)
    raise EvidenceError(f"the sizes of q, k and v in {group.pieces[0].call.name} are unknown")


def _array(piece: Piece, parameter: bool) -> Any:
    array = piece.dump.tensor(piece.leaf).array
    if parameter:
        return array if array.ndim != 0 else array.reshape(1)
    shape = [side for side in array.shape if side != 1]
    rows = shape[0] if len(shape) > 1 else (1 if len(array.shape) > 1 and array.shape[-1] != 1 else array.size)
    return array.reshape(rows, -1)


def _width(piece: Piece, parameter: bool) -> int:
    shape = [side for side in piece.leaf.shape if side != 1]
    return piece.leaf.shape[0] if parameter else math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape)


def _ulp(a: Any, b: Any, dtype: str) -> int:
    """The largest distance in representable numbers of a dtype, zero included once."""
    import numpy as np

    if a.size == 0:
        return 0
    if dtype == "torch.float16":
        halves = [np.asarray(x, dtype=np.float16).view(np.int16).astype(np.int64) for x in (a, b)]
        ordered: list[Any] = [np.where(x < 0, -(x & 0x7FFF), x) for x in halves]
    else:
        words = [np.asarray(x, dtype=np.float32).view(np.int32).astype(np.int64) for x in (a, b)]
        ordered = [np.where(x < 0, -(x & 0x7FFFFFFF), x) >> _DROPPED_BITS.get(dtype, 0) for x in words]
    return int(np.abs(ordered[0] - ordered[1]).max())
