"""Dump folders that msprobe's own viewer can match: canonical names, one shape for both sides, fused parts together.

``msprobe graph_visualize`` matches modules by name alone, and two engines share hardly any. Both sides are written
again under one set of names, as the comparison has put them together; pair N is step N-1. A layer mapping for the
original dumps is written beside them, for what has one partner module there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..comparing.judge import unit_of
from ..comparing.names import layer_of, sort_key, split_numbers
from ..comparing.quantity import HIDDEN, Module, Quantity, Side
from ..comparing.record import Comparison, ModuleResult, PairResult, RowResult
from ..errors import EvidenceError, UsageError
from .files import write_text

FOLDERS = {"inference": "generate", "training": "train"}
MAPPING = "layer_mapping.yaml"
# What msprobe takes for a path; it refuses every other character with a message of its own.
_PATH = re.compile(r"[a-zA-Z0-9_.:/-]+")
_CLASSES = {"layers": "Layer", "experts": "Expert"}


def write_view(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the folders and the mapping.

    Args:
        comparison: what was found.
        folder: gets ``generate``, ``train`` and ``layer_mapping.yaml``.

    Returns:
        The two folders and the mapping.

    Raises:
        UsageError: msprobe would refuse the path.
        EvidenceError: no pair has two sides that could be read.
    """
    check_path(folder)
    written = False
    mapping = LayerMapping()
    for index, pair in enumerate(comparison.wholes()):
        if not pair.modules:
            continue
        written = True
        mapping.add(pair)
        for label, files in view(pair).items():
            for name, content in files.items():
                text = json.dumps(content, indent=1, ensure_ascii=False)
                write_text(folder / FOLDERS[label] / f"step{index}" / "rank0" / name, [text])
    if not written:
        raise EvidenceError(f"--msprobe-view {folder}: no pair could be compared module by module: {comparison.reason}")
    write_text(folder / MAPPING, mapping.lines())
    return [*(folder / name for name in FOLDERS.values()), folder / MAPPING]


def check_path(folder: Path) -> None:
    """Refuse a path that msprobe refuses.

    Raises:
        UsageError: it has other characters than letters, digits and ``_ . : / -``.
    """
    if not _PATH.fullmatch(str(folder.resolve())):
        raise UsageError(
            f"--msprobe-view {folder}: msprobe refuses paths with other characters than letters, digits and _.:/-",
            "name another folder",
        )


def view(pair: PairResult) -> dict[str, dict[str, Any]]:
    """Both sides of a pair as ``dump.json``, ``construct.json`` and ``stack.json``."""
    sides = {side.label: side for side in (pair.inference, pair.training) if side is not None}
    results = {module.module: module for module in pair.modules}
    shared = _containers(set.intersection(*(_with_ancestors(side.modules) for side in sides.values())))
    return {label: _files(side, results, shared) for label, side in sides.items()}


class LayerMapping:
    """A layer mapping from the original names of the inference side to those of the training side (``-lm``)."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._ambiguous: set[str] = set()

    def add(self, pair: PairResult) -> None:
        """Take in what one pair says."""
        if pair.inference is None or pair.training is None:
            return
        here: dict[str, str] = {}
        for name in sorted(pair.inference.modules.keys() & pair.training.modules.keys()):
            one, two = (_original(side.modules[name]) for side in (pair.inference, pair.training))
            if one and two:
                self._ambiguous |= {one} if here.setdefault(one, two) != two else set()
        self._found |= here

    def lines(self) -> Iterator[str]:
        """The file."""
        yield "# For the original dumps: msprobe graph_visualize -tp GENERATE -gp TRAIN -lm this file\n"
        yield "TopLayer:\n"
        for one, two in self._found.items():
            if one not in self._ambiguous:
                yield f"  {json.dumps(one)}: {json.dumps(two)}\n"


def entry_of(name: str) -> str:
    """msprobe's key of a canonical module: ``Module.layers.3.attn.qkv.Qkv.forward.0``."""
    words = [part for part in name.split(".") if not part.isdecimal()]
    kind = _CLASSES.get(words[-1], "".join(part.capitalize() for part in words[-1].split("_"))) if words else "Part"
    return f"Module.{name}.{kind}.forward.0"


def _original(module: Module) -> str | None:
    """The one dotted path that a module had in its dump; None where it was put together from several."""
    names = {
        piece.call.name.rsplit(".", 3)[0].removeprefix("Module.")
        for kind, row in module.rows.items()
        if kind not in ("q", "k", "v")  # lent by the attention core
        for piece in row.pieces
        if not row.derived and not kind.startswith("@")
    }
    return names.pop() if len(names) == 1 else None


def _files(side: Side, results: dict[str, ModuleResult], shared: set[str]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    stack: dict[str, Any] = {}
    names = sorted(side.modules.keys() | shared, key=lambda name: (_tree_key(name), name))
    known = set(names)
    construct = {entry_of(name): _parent(name, known) for name in names}
    for name in names:
        key = entry_of(name)
        module = side.modules.get(name)
        result = results.get(name)
        rows = _rows(side, module, result)
        if rows:
            data[key] = _entry(rows)
        lines = [line for kind, row, _ in rows for line in _origin(kind, row)]
        if result is not None:
            lines.append(f"consistency: {result.word}{f', {result.reason}' if result.reason else ''}")
            lines += [f"consistency: {row.kind}: {row.word}, {row.reason}" for row in result.rows if row.reason]
        stack[str(len(stack))] = [[key], lines or ["not dumped: a place for what is below it"]]
    head = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None, "data": data}
    return {"dump.json": head, "construct.json": construct, "stack.json": stack}


_Row = tuple[str, Quantity, str]


def _rows(side: Side, module: Module | None, result: ModuleResult | None) -> list[_Row]:
    """(kind, row, dtype to write) of a module: where both sides have it, what was compared and nothing else."""
    if module is None:
        return []
    if result is None or not result.rows:
        return [(kind, row, row.dtype) for kind, row in module.rows.items() if not kind.startswith(HIDDEN)]
    found = []
    for row in result.rows:
        own = row.inference if side.label == "inference" else row.training
        if row.evidence and own is not None:
            found.append((row.kind, own, _dtype(row)))
    return found


def _dtype(row: RowResult) -> str:
    """One dtype for both sides, the coarser: msprobe calls every row of two dtypes an error."""
    dtypes = [quantity.dtype for quantity in (row.inference, row.training) if quantity is not None]
    return max(dtypes, key=unit_of)


def _entry(rows: list[_Row]) -> dict[str, Any]:
    entry: dict[str, Any] = {"input_args": [], "input_kwargs": {}, "output": []}
    parameters: dict[str, Any] = {}
    for kind, row, dtype in rows:
        leaf = _leaf(row, dtype)
        if row.parameter:
            parameters[kind] = leaf
        elif kind in ("input", "output"):
            entry["input_args" if kind == "input" else "output"].append(leaf)
        else:
            entry["input_kwargs"][kind] = leaf
    return {**entry, "parameters": parameters} if parameters else entry


def _leaf(row: Quantity, dtype: str) -> dict[str, Any]:
    shape = [row.tokens] if row.parameter and row.features == 1 else [row.tokens, row.features]
    high, low, mean, norm = row.summary
    leaf = {"type": "torch.Tensor", "dtype": dtype, "shape": shape, "Max": high, "Min": low, "Mean": mean, "Norm": norm}
    # The two sides differ in it for no reason of the model's: a rollout never trains.
    return {**leaf, "requires_grad": False}


def _origin(kind: str, row: Quantity) -> Iterator[str]:
    how = ", put together" if len(row.pieces) > 1 else f", rebuilt from {row.derived}" if row.derived else ""
    for piece in row.pieces:
        tensor = f"{piece.leaf.dtype} {list(piece.leaf.shape)}"
        yield f"{kind}: {piece.dump.path}, {piece.call.name}, {piece.slot}, {tensor}{how}"


def _with_ancestors(names: Iterable[str]) -> set[str]:
    found = set()
    for name in names:
        parts = name.split(".")
        found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return found


def _containers(names: set[str]) -> set[str]:
    """What has something below it on both sides, without lists: ``layers.3``, ``layers.3.attn``, not ``layers``."""
    above = {name.rpartition(".")[0] for name in names}
    return {name for name in above & names if layer_of(name) is not None}


def _parent(name: str, known: set[str]) -> str | None:
    while name := name.rpartition(".")[0]:
        if name in known:
            return entry_of(name)
    return None


def _tree_key(name: str) -> tuple[int, int, int, tuple[int, ...]]:
    """In the order of a forward pass, a container before what it contains."""
    key = sort_key(*split_numbers(name))
    template, numbers = split_numbers(name)
    if template == "layers.#":
        return (1, numbers[0], -1, ())
    return (key[0], key[1], key[2] * 2 - (100 if template in ("layers.#.attn", "layers.#.mlp") else 0), key[3])
