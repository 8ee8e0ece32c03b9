"""Compare one row of both sides: bits where there are any, elements where there are files, else statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import EvidenceError
from .judge import DIFFERS, EQUAL, NOT_COMPARED, WITHIN, Bounds, finite, judge_statistics, known
from .quantity import Quantity, Side
from .record import RowResult
from .shapes import count_words
from .tensors import Layout, elements, judge_elements, part_sizes, tensor_errors

#: Statistics of one row and of all rows say nothing about each other; tensors are compared in that row.
LAST_ROW = "last row only, not comparable"


@dataclass(frozen=True)
class Window:
    """Which rows of a side's activations are the prompt: all, or a part of a padded pass.

    Attributes:
        tokens: of the prompt.
        inference: its first row on the inference side.
        training: its first row on the training side.
    """

    tokens: int
    inference: int = 0
    training: int = 0


@dataclass(frozen=True)
class Context:
    """What a pair's rows share."""

    inference: Side
    training: Side
    bounds: Bounds
    window: Window | None
    layouts: tuple[dict[str, Layout], dict[str, Layout]]


def compare_row(module: str, kind: str, depth: int, one: Quantity, two: Quantity, context: Context) -> RowResult:
    """The word for one row and all figures behind it.

    Args:
        module: its canonical module.
        kind: its kind.
        depth: how many layers of rounding lie behind it.
        one: the inference side's.
        two: the training side's.
        context: of the pair.
    """
    parameter = one.parameter
    result = RowResult(kind, NOT_COMPARED, "", "", parameter, 0.0, 0.0, None, None, "both", one, two)
    if one.conflict or two.conflict:
        result.side = (context.inference if one.conflict else context.training).label
        result.word, result.reason = DIFFERS, one.conflict or two.conflict
        return result
    if one.gap or two.gap:
        result.side = (context.inference if one.gap else context.training).label
        result.reason = f"{result.side}: {one.gap or two.gap}"
        return result
    result.bound = context.bounds.of(module, kind, 0 if parameter else depth, one.dtype, two.dtype)
    if one.crc is not None and two.crc is not None and _same_bits_possible(one, two):
        if one.crc == two.crc:
            result.word, result.evidence = EQUAL, "crc"
            return result
        if context.bounds.bitwise:
            result.word, result.evidence, result.reason = DIFFERS, "crc", "the CRCs differ"
            return result
    if one.elements and two.elements:
        return _by_elements(module, result, one, two, context)
    result.reason = _shape_gap(kind, one, two, context)
    if not result.reason:
        _by_statistics(module, result, one, two, context.bounds)
    return result


def _same_bits_possible(one: Quantity, two: Quantity) -> bool:
    orders = {quantity.groups[0].order for quantity in (one, two)}
    same_order = "grouped_qkv" not in orders or len(orders) == 1
    return one.dtype == two.dtype and one.numel == two.numel and same_order


def _by_statistics(module: str, result: RowResult, one: Quantity, two: Quantity, bounds: Bounds) -> None:
    first, second = one.summary, two.summary
    if not (known(first) and known(second)):
        if finite(first) and finite(second):
            result.reason = "the bits differ, and the statistics are null"
        else:
            _say_which_is_not_finite(result, finite(first), finite(second))
        return
    if bounds.bitwise and (one.dtype != two.dtype or (_rounded(one) or _rounded(two))):
        result.reason = "bits of different dtypes, or of rounded parts, say nothing by statistics"
        result.word = DIFFERS if one.dtype != two.dtype else NOT_COMPARED
        return
    result.evidence = "statistics"
    result.word, result.errors, result.worst = judge_statistics(
        first,
        second,
        one.numel,
        bound=result.bound,
        exact_extremes=result.parameter and one.dtype == two.dtype and not bounds.given(module, result.kind),
    )
    if result.word == WITHIN and not result.worst and one.crc != two.crc:
        result.reason = "the statistics are equal, the bits are not"


def _by_elements(module: str, result: RowResult, one: Quantity, two: Quantity, context: Context) -> RowResult:
    if not (finite(one.summary) and finite(two.summary)):
        _say_which_is_not_finite(result, finite(one.summary), finite(two.summary))
        return result
    try:
        arrays = [
            elements(quantity, layouts.get(module.rpartition(".")[0], Layout()), part_sizes(other))
            for quantity, layouts, other in ((one, context.layouts[0], two), (two, context.layouts[1], one))
        ]
        if not result.parameter:
            arrays = _cut(arrays, result, context)
        if arrays[0].shape != arrays[1].shape:
            arrays = _cut_vocabulary(module, arrays, result)
        if result.reason:
            return result
        result.tensor = tensor_errors(arrays[0], arrays[1], (one.dtype, two.dtype), result.parameter)
    except EvidenceError as error:
        result.reason = str(error)
        return result
    given = context.bounds.given(module, result.kind)
    exact = context.bounds.bitwise or (result.parameter and one.dtype == two.dtype and not given)
    result.word, result.worst = judge_elements(result.tensor, bound=result.bound, exact_needed=exact)
    result.evidence = "tensors"
    return result


def _cut(arrays: list[Any], result: RowResult, context: Context) -> list[Any]:
    """Cut both to the rows of the prompt; the last row alone where one side has no more."""
    window = context.window
    if window is not None:
        starts = (window.inference, window.training)
        arrays = [
            array[start : start + window.tokens] if len(array) >= start + window.tokens else array
            for array, start in zip(arrays, starts, strict=True)
        ]
    one, two = arrays
    if len(one) == 1 < len(two):
        result.side = "both"
        return [one, two[-1:]]
    if len(one) != len(two):
        result.reason = f"{len(one)} rows against {len(two)}"
    return arrays


def _cut_vocabulary(module: str, arrays: list[Any], result: RowResult) -> list[Any]:
    """A vocabulary that one engine pads: its own rows (or logits) are the first ones."""
    if result.reason:
        return arrays
    one, two = arrays
    axis = 0 if result.parameter else 1
    others = [size for index, size in enumerate(one.shape) if index != axis]
    if (
        module in ("embed", "lm_head")
        and one.ndim == two.ndim
        and others == [size for index, size in enumerate(two.shape) if index != axis]
    ):
        size = min(one.shape[axis], two.shape[axis])
        return [array[:size] if axis == 0 else array[:, :size] for array in arrays]
    result.reason = f"shapes {list(one.shape)} and {list(two.shape)} are not of one layout"
    return arrays


def _rounded(row: Quantity) -> bool:
    """Whether a row was put together from parts whose statistics had been rounded to a half-precision dtype."""
    return row.merged and row.dtype not in ("torch.float32", "torch.float64")


def _say_which_is_not_finite(result: RowResult, one: bool, two: bool) -> None:
    result.reason = "non-finite"
    if one != two:
        result.word, result.evidence = DIFFERS, "statistics"
        result.side = "inference" if two else "training"
        result.reason = f"NaN or infinity on the {result.side} side only"


def _shape_gap(kind: str, one: Quantity, two: Quantity, context: Context) -> str:
    """Why two wholes are of different shapes; empty where they are of one."""
    if (one.tokens, one.features) == (two.tokens, two.features):
        return _padding(one, two, context)
    parameter = one.parameter
    if one.numel == two.numel and (parameter or kind in ("q", "k", "v")):
        return ""
    if not parameter and one.tokens != two.tokens:
        if one.tokens == 1:
            return LAST_ROW
        for side, quantity in ((context.inference, one), (context.training, two)):
            if side.tokens and quantity.tokens != side.tokens:
                return f"{side.label}: {count_words(side.tokens, quantity.tokens, side.parallel)}"
        return f"{one.tokens} tokens against {two.tokens}"
    return (
        f"{one.tokens} x {one.features} against {two.tokens} x {two.features}: "
        "padded, or heads that several ranks hold a copy of"
    )


def _padding(one: Quantity, two: Quantity, context: Context) -> str:
    """Statistics over a padded pass say nothing about the prompt, even where both have as many rows."""
    if context.window is None or one.parameter:
        return ""
    same = context.window.tokens in (one.tokens, two.tokens) and one.tokens == two.tokens
    return "" if same else "padding rows cannot be cut out of statistics"
