"""Shapes of different layouts as one: [1, T, H], [T, 1, H], [T, H] and [T, heads, size] are T tokens of H features."""

from __future__ import annotations

import math
from collections.abc import Sequence


def tokens_and_features(shape: Sequence[int], tokens: int) -> tuple[int, int]:
    """Read an activation's shape as (tokens, features).

    Args:
        shape: as dumped.
        tokens: how many tokens the forward pass had; 0 where nothing says.
    """
    total = math.prod(shape)
    sides = [side for side in shape if side != 1]
    if not total:
        return 0, 0
    if tokens == 1 or not sides:
        return 1, total
    if len(sides) > 1 and sides[0] != tokens and sides[0] * sides[1] == tokens:
        return tokens, total // tokens  # a batch of several sequences
    if len(sides) == 1 and len(shape) > 1 and sides[0] != tokens and tokens:
        return 1, total  # one row: the last token's logits, or a shard of one token
    return sides[0], total // sides[0]


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    """Read a parameter's shape as (rows, everything else)."""
    if not shape:
        return 1, 1
    return shape[0], math.prod(shape[1:])


def count_words(tokens: int, rows: int, parallel: int) -> str:
    """Say why a row of one side has another number of rows than the forward pass has tokens."""
    if parallel > 1 and rows == -(-tokens // parallel) * parallel:
        return f"{rows} rows for {tokens} tokens: padded to a multiple of tensor parallel size {parallel}"
    if rows == 1:
        return "the last row only"
    return f"{rows} rows for {tokens} tokens"
