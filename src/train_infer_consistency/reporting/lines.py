"""JSON Lines, one module a line, and CSV, one row (input, output or parameter) a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from ..comparing.names import layer_of
from ..comparing.quantity import Quantity
from ..comparing.record import Comparison, ModuleResult, PairResult, RowResult
from .files import compact, number
from .profile import error_of

_STATS = ("max", "min", "mean", "norm")
_TENSOR = ("relative", "cosine", "max_abs", "max_rel", "ulp", "token", "token_relative", "exact")
HEADER = (
    "pair", "request_id", "module", "layer", "counted", "module_word", "module_reason", "kind", "word", "reason",
    "evidence", "parameter", "side", "error", "bound", "of_bound", *(f"error_{name}" for name in _STATS),
    *(f"tensor_{name}" for name in _TENSOR),
    *(f"{side}_{name}" for side in ("inference", "training")
      for name in ("dtype", "tokens", "features", *_STATS, "crc", "file", "step", "rank", "entry", "slot")),
)  # fmt: skip
# A spreadsheet takes what begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def json_lines(comparison: Comparison) -> Iterator[str]:
    """One line of strict JSON per module of every pair: ``pair`` (0, 1 ...), ``request_id``, the module's record."""
    for index, pair in enumerate(comparison.wholes()):
        for module in pair.modules:
            yield compact({"pair": index, "request_id": pair.request_id, **module.to_json()}) + "\n"


def csv_lines(comparison: Comparison) -> Iterator[str]:
    """A header, and one line per row of every module; a module that was not compared has one line without figures."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(HEADER)
    for index, pair in enumerate(comparison.wholes()):
        for module in pair.modules:
            rows: list[RowResult | None] = [*module.rows] or [None]
            for row in rows:
                writer.writerow([_safe(value) for value in _cells(index, pair, module, row)])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _cells(index: int, pair: PairResult, module: ModuleResult, row: RowResult | None) -> list[Any]:
    cells: list[Any] = [index, pair.request_id, module.module, layer_of(module.module), module.counted]
    cells += [module.word, module.reason]
    if row is None:
        return cells + [None] * (len(HEADER) - len(cells))
    cells += [row.kind, row.word, row.reason, row.evidence, row.parameter, row.side, error_of(row)]
    cells += [row.bound, row.worst, *(row.errors or [None] * len(_STATS))]
    cells += [None if row.tensor is None else getattr(row.tensor, name) for name in _TENSOR]
    for quantity in (row.inference, row.training):
        cells += _side(quantity)
    return cells


def _side(quantity: Quantity | None) -> list[Any]:
    if quantity is None:
        return [None] * 13
    pieces = quantity.pieces
    places = [
        [str(piece.dump.path) for piece in pieces],
        [str(piece.dump.step) for piece in pieces],
        [str(piece.dump.rank) for piece in pieces],
        [piece.call.name for piece in pieces],
        [piece.slot for piece in pieces],
    ]
    figures = [quantity.dtype, quantity.tokens, quantity.features, *quantity.summary, quantity.crc]
    return figures + [" + ".join(values) for values in places]


def _safe(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return value
