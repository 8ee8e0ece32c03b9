"""What the HTML page shows, as one JSON object: the records of a comparison with files numbered, and its curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from .. import __version__
from ..comparing.judge import DIFFERS, EQUAL, NOT_COMPARED, WITHIN
from ..comparing.quantity import HIDDEN, Piece, Quantity
from ..comparing.record import Comparison, ModuleResult, PairResult, RowResult, side_json
from .files import number
from .profile import MISSING, PARTNERLESS, VIEWS, Cell, curve, heat_map, state_of

# A page with more rows opens slowly. The pair that speaks for the whole is always in it, others while they fit.
MOST_ROWS = 100_000
MOST_STEPS = 20_000

_Place = list[Any]


class Files:
    """Numbers for dump files, so that a path is in the page once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.listed: list[dict[str, Any]] = []

    def place(self, piece: Piece) -> _Place:
        """[number of the file, entry, slot]."""
        path = str(piece.dump.path)
        if path not in self.numbers:
            self.numbers[path] = len(self.listed)
            self.listed.append({"path": path, "step": piece.dump.step, "rank": piece.dump.rank})
        return [self.numbers[path], piece.call.name, piece.slot]


def payload(comparison: Comparison, language: str | None, most_rows: int = MOST_ROWS) -> dict[str, Any]:
    """Everything that the page shows.

    Args:
        comparison: what was found.
        language: ``en`` or ``zh``; None leaves it to the browser.
        most_rows: how many rows of modules are in the page before pairs are given without them.
    """
    files = Files()
    worst = comparison.worst_index
    order = sorted(range(len(comparison.pairs)), key=lambda index: index != worst)
    pairs: dict[int, dict[str, Any]] = {}
    room = most_rows
    for index in order:
        pair = comparison.whole(index)
        rows = sum(max(1, len(module.rows)) for module in pair.modules)
        whole = index == worst or rows <= room
        room -= rows if whole else 0
        pairs[index] = _pair(pair, files, whole)
    return {
        "version": __version__,
        "language": language,
        "verdict": comparison.verdict,
        "reason": comparison.reason,
        "coverage": comparison.coverage,
        "plan": None if comparison.plan is None else comparison.plan.to_json(),
        "main": order[0] if order else None,
        "pairs": [pairs[index] for index in range(len(comparison.pairs))],
        "rejected": _rejected(comparison),
        "files": files.listed,
    }


def _pair(pair: PairResult, files: Files, whole: bool) -> dict[str, Any]:
    difference = pair.first_difference
    counts = Counter(state_of(module, pair) if module.counted else PARTNERLESS for module in pair.modules)
    found: dict[str, Any] = {
        "request_id": pair.request_id,
        "verdict": pair.verdict,
        "reason": pair.reason,
        "coverage": pair.coverage,
        "identity": pair.identity,
        "notes": pair.notes,
        "counts": {word: counts[word] for word in (EQUAL, WITHIN, DIFFERS, NOT_COMPARED, MISSING, PARTNERLESS)},
        "first_difference": None,
        "modules": None,
    }
    if difference is not None:
        found["first_difference"] = {"module": difference.module, **_row(difference.row, files)}
    for label, side in (("inference", pair.inference), ("training", pair.training)):
        found[label] = None if side is None else {"title": side.dialect.title, **side_json(side)}
    if whole:
        found["modules"] = [_module(module, pair, files) for module in pair.modules]
        found["curve"] = [[point.column, number(point.output), _cell(point.worst), point.word] for point in curve(pair)]
        found["heat"] = {view: _heat(pair, view) for view in VIEWS}
    return found


def _heat(pair: PairResult, view: str) -> dict[str, Any]:
    heat = heat_map(pair, view)
    cells = [[_cell(heat.cells.get((row, column))) for column in heat.columns] for row in heat.rows]
    return {"rows": heat.rows, "columns": heat.columns, "cells": cells}


def _cell(cell: Cell | None) -> list[Any] | None:
    """[word, error in units of its bound, error, bound, module, kind]."""
    if cell is None:
        return None
    return [cell.word, number(cell.worst), number(cell.error), cell.bound, cell.module, cell.kind]


def _module(module: ModuleResult, pair: PairResult, files: Files) -> dict[str, Any]:
    found: dict[str, Any] = {
        "module": module.module,
        "word": state_of(module, pair),
        "reason": module.reason,
        "counted": module.counted,
        "rows": [_row(row, files) for row in module.rows],
    }
    if not module.rows:
        found |= _only(module, pair, files)
    return found


def _only(module: ModuleResult, pair: PairResult, files: Files) -> dict[str, Any]:
    """Which side a module without compared rows is on alone (None: both), and where it was dumped."""
    sides, rows = [], []
    for side in (pair.inference, pair.training):
        if side is not None and module.module in side.modules:
            own = side.modules[module.module].rows
            sides.append(side.label)
            rows += [row for kind, row in own.items() if not kind.startswith(HIDDEN)] or list(own.values())
    return {"on": sides[0] if len(sides) == 1 else None, "places": _places(rows, files)}


def _places(rows: Iterable[Quantity], files: Files) -> list[_Place]:
    places = [files.place(piece) for row in rows for piece in row.pieces]
    return [list(place) for place in dict.fromkeys(map(tuple, places))]


def _row(row: RowResult, files: Files) -> dict[str, Any]:
    tensor = None
    if row.tensor is not None:
        names = ("relative", "cosine", "max_abs", "max_rel", "ulp", "token", "token_relative")
        tensor = {name: number(getattr(row.tensor, name)) for name in names}
    return {
        "kind": row.kind,
        "word": row.word,
        "reason": row.reason,
        "evidence": row.evidence,
        "parameter": row.parameter,
        "side": row.side,
        "bound": number(row.bound),
        "worst": number(row.worst),
        "errors": None if row.errors is None else [number(value) for value in row.errors],
        "tensor": tensor,
        "inference": _figures(row.inference, files),
        "training": _figures(row.training, files),
    }


def _figures(quantity: Quantity | None, files: Files) -> dict[str, Any] | None:
    if quantity is None:
        return None
    return {
        "dtype": quantity.dtype,
        "tokens": quantity.tokens,
        "features": quantity.features,
        "stats": [number(value) for value in quantity.summary],
        "crc": quantity.crc,
        "merged": quantity.merged,
        "derived": quantity.derived,
        "places": [files.place(piece) for piece in quantity.pieces],
    }


def _rejected(comparison: Comparison) -> dict[str, Any]:
    """How many steps were not used for which reason, and the steps themselves while they fit."""
    counts = Counter((step.get("side"), step.get("reason"), step.get("text")) for step in comparison.rejected)
    names = ("side", "process", "step", "reason", "text", "detail", "request_id", "place")
    return {
        "counts": [[side, reason, text, count] for (side, reason, text), count in counts.most_common()],
        "steps": [[step.get(name) for name in names] for step in comparison.rejected[:MOST_STEPS]],
        "left_out": max(0, len(comparison.rejected) - MOST_STEPS),
    }
