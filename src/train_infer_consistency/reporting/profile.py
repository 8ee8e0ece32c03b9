"""A pair's modules along the depth of the model: an error curve by layer, and a map of layers x modules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..comparing.judge import DIFFERS, EQUAL, NOT_COMPARED, WITHIN
from ..comparing.names import layer_of, sort_key, split_numbers, template_of
from ..comparing.record import ModuleResult, PairResult, RowResult

# Which rows a map shows; "all" is the worst of them.
VIEWS = ("all", "output", "input", "parameter")
OUTSIDE = "(outside the layers)"
OWN_OUTPUT = "(layer output)"
MISSING, PARTNERLESS = "missing", "partnerless"
# From harmless to bad; what could not be compared says less than what was, and never hides a difference.
SEVERITY = {PARTNERLESS: 0, NOT_COMPARED: 1, MISSING: 2, EQUAL: 3, WITHIN: 4, DIFFERS: 5}


class Cell(NamedTuple):
    """One module, or several experts, in one layer.

    Attributes:
        word: equal, within rounding, differs, not compared, missing (on one side only), partnerless (by construction).
        worst: the largest error in units of its bound; 0 where nothing was compared.
        error: the largest relative error; None where nothing was compared.
        bound: the bound of that error.
        module: the canonical path of the worst.
        kind: its row; empty where it has none.
    """

    word: str
    worst: float
    error: float | None
    bound: float
    module: str
    kind: str


@dataclass(frozen=True)
class HeatMap:
    """Cells by (row, column).

    Attributes:
        rows: module names without their layer, in the order of a forward pass.
        columns: ``embed``, the layers' numbers, ``final_norm``, ``lm_head``: what there is.
        cells: what is known of each place; a place without a cell has no module.
    """

    rows: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)


class Point(NamedTuple):
    """One layer, or one module outside the layers, of the error curve.

    Attributes:
        column: as in :class:`HeatMap`.
        output: relative error of the layer's own output, the residual stream; None where it was not compared.
        worst: the activation whose error is largest in units of its bound; None where none was compared.
        word: the worst word of the layer's counted modules.
    """

    column: str
    output: float | None
    worst: Cell | None
    word: str


def error_of(row: RowResult) -> float | None:
    """One relative error of a row: of its elements, else the largest of its statistics; None if not compared."""
    if row.tensor is not None:
        return row.tensor.relative
    if row.errors is not None:
        if None not in row.errors:
            return max(row.errors)  # type: ignore[type-var]
        return max((value for value in row.errors if value is not None), default=None)
    return 0.0 if row.word == EQUAL else None


def column_of(module: str) -> str:
    """The column of a canonical path: the number of its layer, or the path itself."""
    layer = layer_of(module)
    return module if layer is None else str(layer)


def row_of(module: str) -> str:
    """The row of a canonical path: the path without its layer; experts share a row."""
    layer = layer_of(module)
    if layer is None:
        return OUTSIDE
    return template_of(module).removeprefix("layers.#").lstrip(".") or OWN_OUTPUT


def state_of(module: ModuleResult, pair: PairResult) -> str:
    """The word of a module, with the reasons for having no figures told apart."""
    if module.word != NOT_COMPARED:
        return module.word
    if not module.counted:
        return PARTNERLESS
    return NOT_COMPARED if on_both(module, pair) else MISSING


def on_both(module: ModuleResult, pair: PairResult) -> bool:
    """Whether both sides have a module, be it with nothing that can be compared."""
    return all(side is not None and module.module in side.modules for side in (pair.inference, pair.training))


def heat_map(pair: PairResult, view: str = "all") -> HeatMap:
    """The map of a pair.

    Args:
        pair: with its modules.
        view: one of :data:`VIEWS`.
    """
    found = HeatMap()
    for module in pair.modules:
        cell = _cell(module, _rows(module, view), pair)
        if cell is None:
            continue
        key = (row_of(module.module), column_of(module.module))
        if key not in found.cells or _rank(cell) > _rank(found.cells[key]):
            found.cells[key] = cell
    rows = {row_of(module.module): _order(module.module) for module in pair.modules}
    found.rows.extend(sorted({row for row, _ in found.cells}, key=lambda row: rows[row]))
    found.columns.extend(in_order({column for _, column in found.cells}))
    return found


def in_order(columns: Iterable[str]) -> list[str]:
    """Columns in the order of a forward pass."""
    return sorted(columns, key=lambda name: sort_key(*split_numbers(f"layers.{name}" if name.isdecimal() else name)))


def curve(pair: PairResult) -> list[Point]:
    """The error curve of a pair: one point per column that has a module that counts."""
    by_column: dict[str, list[ModuleResult]] = {}
    for module in pair.modules:
        if module.counted:
            by_column.setdefault(column_of(module.module), []).append(module)
    points = []
    for column in in_order(by_column):
        modules = by_column[column]
        seen = [(row, m) for m in modules for row in m.rows if not row.parameter and row.word in SEEN]
        worst = _worst(seen)
        names = (column, f"layers.{column}")
        own = next((m for m in modules if m.module in names), None)
        outputs = [error_of(row) for row in own.rows if row.kind == "output"] if own is not None else []
        word = max({state_of(module, pair) for module in modules}, key=SEVERITY.__getitem__)
        points.append(Point(column, outputs[0] if outputs else None, worst, word))
    return points


SEEN = (EQUAL, WITHIN, DIFFERS)


def _rows(module: ModuleResult, view: str) -> list[RowResult]:
    if view == "all":
        return module.rows
    if view == "parameter":
        return [row for row in module.rows if row.parameter]
    inputs = ("input", "q", "k", "v")
    return [row for row in _activations(module) if (row.kind in inputs) == (view == "input")]


def _activations(module: ModuleResult) -> list[RowResult]:
    return [row for row in module.rows if not row.parameter]


def _cell(module: ModuleResult, rows: list[RowResult], pair: PairResult) -> Cell | None:
    """The worst row of a module; None where it has no row of this view."""
    if not module.rows:
        return Cell(state_of(module, pair), 0.0, None, 0.0, module.module, "")
    compared = [row for row in rows if row.word in SEEN]
    if not compared:
        return Cell(NOT_COMPARED, 0.0, None, 0.0, module.module, rows[0].kind) if rows else None
    worst = max(compared, key=lambda row: (SEVERITY[row.word], row.worst, error_of(row) or 0.0))
    return _cell_of(worst, module)


def _cell_of(row: RowResult, module: ModuleResult) -> Cell:
    return Cell(row.word, row.worst, error_of(row), row.bound, module.module, row.kind)


def _worst(seen: list[tuple[RowResult, ModuleResult]]) -> Cell | None:
    """The first of the worst rows; the error itself, which takes its time, only decides among equals."""
    if not seen:
        return None
    ranks = [_row_rank(row) for row, _ in seen]
    top = max(ranks)
    return _cell_of(*max((item for item, rank in zip(seen, ranks, strict=True) if rank == top), key=_error))


def _error(item: tuple[RowResult, ModuleResult]) -> float:
    return error_of(item[0]) or 0.0


def _row_rank(row: RowResult) -> tuple[int, float]:
    return SEVERITY[row.word], math.inf if math.isnan(row.worst) else row.worst


def _rank(cell: Cell) -> tuple[int, float, float]:
    worst = math.inf if math.isnan(cell.worst) else cell.worst
    return (SEVERITY[cell.word], worst, cell.error or 0.0)


def _order(name: str) -> tuple[int, int, str]:
    """Rows in the order of a forward pass; what is outside the layers on top."""
    key = sort_key(*split_numbers(name))
    return (0, 0, "") if key[0] != 1 else (1, key[2], key[4])
