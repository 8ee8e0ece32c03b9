"""Tensor parallel ranks into one model: replicas checked against each other, shards put together row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from .dialect import Rule
from .fusion import combine
from .judge import unit_of
from .quantity import Merge, Quantity
from .rows import Key
from .shapes import count_words

# Which rows of a split module hold a share of the features on each rank; others are whole, or a share of the tokens.
_FEATURES = {
    "column": {"output", "weight", "bias"},
    "row": {"input", "weight"},
    "vocab": {"weight"},
    "vocab_output": {"output", "weight"},
    "heads": {"input", "output"},
    "core": {"q", "k", "v", "output"},
    "experts": {"w13", "w2"},
}
_PART_ORDER = ("q", "k", "v", "kv", "gate", "up")


def is_feature_share(rule: Rule, kind: str) -> bool:
    """Whether each tensor parallel rank holds a share of this row's features."""
    return kind in _FEATURES.get(rule.split, ())


def replica_groups(ranks: Sequence[dict[Key, Quantity]]) -> list[list[int]] | None:
    """Sort the ranks of one pipeline stage into data-parallel replicas, each a list of tensor parallel ranks.

    Ranks that hold the same weights, or where no weight was dumped the same shares of activations, are replicas.

    Returns:
        A list of replicas, each with the indices of its ranks in order; None where they do not come out even.
    """
    if len(ranks) == 1:
        return [[0]]
    prints: dict[tuple[object, ...], list[int]] = {}
    for index, rows in enumerate(ranks):
        shares = [(key, row) for key, row in rows.items() if is_feature_share(row.rule, key[1])]
        known = [item for item in shares if item[1].parameter and item[1].numel] or shares
        print_ = tuple((key, row.summary, row.crc) for key, row in sorted(known, key=lambda item: item[0]))
        prints.setdefault(print_, []).append(index)
    copies = {len(found) for found in prints.values()}
    if len(copies) != 1:
        return None
    return [[found[copy] for found in prints.values()] for copy in range(copies.pop())]


def merge_ranks(kind: str, ranks: Sequence[tuple[int, Quantity]], world: int, tokens: int) -> Quantity:
    """One row over the tensor parallel ranks of a stage; the rule is chosen for this row alone.

    Args:
        kind: the row's kind.
        ranks: (rank, row) of the ranks that have it.
        world: how many ranks the group has.
        tokens: tokens of the forward pass; 0 where unknown.
    """
    rows = [row for _, row in ranks]
    first = rows[0]
    if world == 1:
        return first
    if is_feature_share(first.rule, kind):
        if len(ranks) < world:
            return _gap(rows, f"only {len(ranks)} of {world} ranks have their share")
        if len({row.tokens for row in rows}) > 1 and not first.parameter:
            return _gap(rows, "the ranks have different numbers of tokens")
        return _whole(rows, "features")
    if first.parameter or not tokens or all(row.tokens == tokens for row in rows):
        return _replicated(ranks)
    if len(ranks) == world and sum(row.tokens for row in rows) == tokens:
        return _whole(rows, "tokens")
    if len({row.tokens for row in rows}) == 1 and (first.tokens == 1 or len(ranks) < world):
        return _replicated(ranks)
    return _gap(rows, count_words(tokens, sum(row.tokens for row in rows), world))


def merge_parts(parts: dict[str, Quantity]) -> Quantity:
    """A fused whole from its parts."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    whole = [parts[part] for part in _in_order(tuple(parts))]
    merged = _whole(whole, "parts")
    if not whole[0].parameter and len({quantity.tokens for quantity in whole}) > 1:
        merged.gap = "the parts have different numbers of tokens"
    return merged


def disagreement(rows: Sequence[tuple[str, Quantity]]) -> str:
    """Say how rows that must be the same differ; empty where they do not."""
    (name, first), *others = rows
    for other_name, other in others:
        if first.crc is not None and first.crc == other.crc:
            continue
        extremes = (first.stats.max, first.stats.min)
        scale = max((abs(value) for value in extremes if value is not None and math.isfinite(value)), default=0.0)
        for word, one, two in zip(("Max", "Min", "Mean", "Norm"), first.summary, other.summary, strict=False):
            if one == two or (one is not None and two is not None and math.isnan(one) and math.isnan(two)):
                continue
            size = abs(one or 0.0) if word == "Norm" else scale
            # Collectives may add in another order on each rank: one rounding, not more.
            if one is None or two is None or not abs(one - two) <= 4 * unit_of(first.dtype) * size:
                return f"{name} and {other_name} hold different values of one row ({word} {one} and {two})"
    return ""


def _replicated(ranks: Sequence[tuple[int, Quantity]]) -> Quantity:
    first = ranks[0][1]
    conflict = disagreement([(f"rank {rank}", row) for rank, row in ranks])
    if not conflict:
        return first
    size = (first.tokens, first.features)
    origin = Merge("one", tuple(row for _, row in ranks))
    found = Quantity(first.stats, size, first.dtype, None, first.parameter, first.gap, first.elements, origin)
    found.conflict = conflict
    return found


def _whole(rows: Sequence[Quantity], how: str) -> Quantity:
    first = rows[0]
    gap, conflict, dtype, elements, tokens, features, parts = "", "", first.dtype, True, 0, 0, []
    for row in rows:
        tokens += row.tokens
        features += row.features
        parts.append((row.summary, row.tokens * row.features))
        gap, conflict, elements = gap or row.gap, conflict or row.conflict, elements and row.elements
        if row.dtype != dtype:
            dtype = max(dtype, row.dtype, key=unit_of)
    size = (tokens, first.features) if how == "tokens" or not first.column_split else (first.tokens, features)
    stats = combine(parts)
    high, low, mean, norm = stats
    if not gap and (high is None or low is None or mean is None or norm is None):
        gap = "a part lacks a statistic"
    merged = Quantity(stats, size, dtype, None, first.parameter, gap, elements, Merge(how, tuple(rows)))
    merged.conflict = conflict
    return merged


def _gap(rows: Sequence[Quantity], why: str) -> Quantity:
    merged = _whole(rows, "features")
    merged.gap = why
    return merged


@lru_cache(maxsize=64)
def _in_order(parts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(parts, key=_part_key))


def _part_key(part: str) -> tuple[int, str]:
    return (_PART_ORDER.index(part) if part in _PART_ORDER else len(_PART_ORDER), part)
