"""Ranks into one model: pipeline stages in line, replicas checked against each other, shards put together row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from .dialect import Rule
from .fusion import combine
from .judge import UNIT
from .quantity import Group, Quantity
from .rows import Key, Row, is_parameter
from .shapes import count_words

# Which rows of a split module hold a share of the features on each rank; all others are whole, or a share of the tokens.
_FEATURES = {
    "column": {"output", "weight", "bias"},
    "row": {"input", "weight"},
    "vocab": {"weight"},
    "vocab_output": {"output", "weight"},
    "heads": {"input", "output"},
    "core": {"q", "k", "v", "output"},
    "experts": {"w13", "w2"},
}


def is_feature_share(rule: Rule, kind: str) -> bool:
    """Whether each tensor parallel rank holds a share of this row's features."""
    return kind in _FEATURES.get(rule.split, ())


def replica_groups(ranks: Sequence[dict[Key, Row]]) -> list[list[int]] | None:
    """Sort the ranks of one pipeline stage into data-parallel replicas, each a list of tensor parallel ranks.

    Ranks that hold the same weights, or where no weight was dumped the same shares of activations, are replicas.

    Returns:
        A list of replicas, each with the indices of its ranks in order; None where they do not come out even.
    """
    if len(ranks) == 1:
        return [[0]]
    prints: dict[tuple[object, ...], list[int]] = {}
    for index, rows in enumerate(ranks):
        shares = [(key, row) for key, row in rows.items() if is_feature_share(row.rule, key.kind)]
        weights = [item for item in shares if is_parameter(item[1].quantity.groups[0].pieces[0].slot)]
        known = [item for item in weights if item[1].quantity.stats.numel] or shares
        print_ = tuple((key, row.quantity.stats, row.quantity.crc) for key, row in sorted(known, key=lambda item: item[0]))
        prints.setdefault(print_, []).append(index)
    copies = {len(found) for found in prints.values()}
    if len(copies) != 1:
        return None
    return [[found[copy] for found in prints.values()] for copy in range(copies.pop())]


def merge_ranks(key: Key, ranks: Sequence[tuple[int, Row]], world: int, tokens: int) -> Quantity:
    """One row over the tensor parallel ranks of a stage; the rule is chosen for this row alone.

    Args:
        key: the row's place.
        ranks: (rank, row) of the ranks that have it.
        world: how many ranks the group has.
        tokens: tokens of the forward pass; 0 where unknown.
    """
    rows = [row.quantity for _, row in ranks]
    first = rows[0]
    if world == 1:
        return first
    rule = ranks[0][1].rule
    if is_feature_share(rule, key.kind):
        if len(ranks) < world:
            return _gap(rows, f"only {len(ranks)} of {world} ranks have their share")
        if len({row.tokens for row in rows}) > 1 and not is_parameter(first.groups[0].pieces[0].slot):
            return _gap(rows, "the ranks have different numbers of tokens")
        return _whole(rows, "features")
    if is_parameter(first.groups[0].pieces[0].slot) or not tokens or all(row.tokens == tokens for row in rows):
        return _replicated(ranks)
    if len(ranks) == world and sum(row.tokens for row in rows) == tokens:
        return _whole(rows, "tokens")
    if len({row.tokens for row in rows}) == 1 and (first.tokens == 1 or len(ranks) < world):
        return _replicated(ranks)
    return _gap(rows, count_words(tokens, sum(row.tokens for row in rows), world))


def merge_parts(parts: Sequence[tuple[str, Quantity]], kind: str) -> Quantity:
    """A fused whole from its parts; all parts of one input are the same tensor."""
    parts = sorted(parts, key=lambda item: _part_order(item[0]))
    whole = [quantity for _, quantity in parts]
    if len(parts) == 1 or kind == "input":
        return whole[0]
    merged = _whole(whole, "parts")
    merged.groups = tuple(group for quantity in whole for group in quantity.groups)
    if len({quantity.tokens for quantity in whole}) > 1 and not is_parameter(whole[0].groups[0].pieces[0].slot):
        merged.gap = "the parts have different numbers of tokens"
    return merged


def disagreement(rows: Sequence[tuple[str, Quantity]]) -> str:
    """Say how rows that must be the same differ; empty where they do not."""
    (name, first), *others = rows
    for other_name, other in others:
        if first.crc is not None and first.crc == other.crc:
            continue
        scale = max((abs(value) for value in first.stats[:2] if value is not None and math.isfinite(value)), default=0.0)
        for word, one, two in zip(("Max", "Min", "Mean", "Norm"), first.stats, other.stats, strict=False):
            if one == two or (one is not None and two is not None and math.isnan(one) and math.isnan(two)):
                continue
            size = abs(one or 0.0) if word == "Norm" else scale
            # Collectives may add in another order on each rank: one rounding, not more.
            if one is None or two is None or not abs(one - two) <= 4 * UNIT.get(first.dtype, UNIT["torch.float32"]) * size:
                return f"{name} and {other_name} hold different values of one row ({word} {one} and {two})"
    return ""


def stages_of(firsts: Sequence[bool], ranks: Sequence[int]) -> list[list[int]] | None:
    """Ranks of a model with local layer numbers, in pipeline stages: Megatron numbers ranks stage by stage.

    Args:
        firsts: whether each rank has the embedding.
        ranks: their numbers, ascending.

    Returns:
        Indices by stage; None where the ranks that are there cannot be whole stages.
    """
    size = sum(firsts)
    if not size or len(ranks) % size or list(firsts[:size]) != [True] * size:
        return None
    return [list(range(start, start + size)) for start in range(0, len(ranks), size)]


def _replicated(ranks: Sequence[tuple[int, Row]]) -> Quantity:
    first = ranks[0][1].quantity
    conflict = disagreement([(f"rank {rank}", row.quantity) for rank, row in ranks])
    if conflict:
        pieces = tuple(row.quantity.groups[0].pieces[0] for _, row in ranks)
        groups = (first.groups[0]._replace(pieces=pieces),)
        first = Quantity(first.dtype, first.tokens, first.features, first.stats, None, False, first.gap, groups, conflict)
    return first


def _whole(rows: Sequence[Quantity], how: str) -> Quantity:
    first = rows[0]
    stats = combine([row.stats for row in rows])
    parameter = is_parameter(first.groups[0].pieces[0].slot)
    axis = first.groups[0].axis
    if how == "tokens" or (parameter and axis == 0):
        tokens, features = sum(row.tokens for row in rows), first.features
    else:
        tokens, features = first.tokens, sum(row.features for row in rows)
    pieces = tuple(piece for row in rows for piece in row.groups[0].pieces)
    group = Group(first.groups[0].part, first.groups[0].order, pieces, how, axis)
    gap = next((row.gap for row in rows if row.gap), "")
    if not gap and any(value is None for value in stats[:2]):
        gap = "Max and Min are null"
    if not gap and (stats.mean is None or stats.norm is None):
        gap = "Mean and Norm of a part are null"
    conflict = next((row.conflict for row in rows if row.conflict), "")
    dtypes = [dtype for dtype, _ in groupby(sorted({row.dtype for row in rows}, key=lambda name: UNIT.get(name, 0)))]
    return Quantity(dtypes[-1], tokens, features, stats, None, True, gap, (group,), conflict)


def _gap(rows: Sequence[Quantity], why: str) -> Quantity:
    merged = _whole(rows, "features")
    merged.gap = why
    return merged


def _part_order(part: str) -> tuple[int, str]:
    order = ("q", "k", "v", "kv", "gate", "up")
    return (order.index(part) if part in order else len(order), part)
