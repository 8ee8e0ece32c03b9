"""The rows of one rank: each leaf of each call under its canonical module and kind, before ranks are merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..dumps.records import Call, Leaf, RankDump
from .dialect import Dialect, Place, Rule, fill
from .fusion import Stats
from .quantity import POSITIONS, Group, Piece, Quantity
from .shapes import rows_and_columns, tokens_and_features

_UNKNOWN = Rule(target="")
_INTEGERS = ("torch.int", "torch.uint", "torch.bool", "torch.long")
LOCAL_ROOT = "decoder."


class Key(NamedTuple):
    """A row's place: canonical module, kind, and part of a fused whole."""

    module: str
    kind: str
    part: str


class Row(NamedTuple):
    """One rank's row, with the rule that placed it."""

    rule: Rule
    quantity: Quantity


class Shard(NamedTuple):
    """One rank's dump of one chunk of the model."""

    rank: int
    chunk: int
    dump: RankDump


class PlacedCall(NamedTuple):
    """A call with its place in the dialect."""

    call: Call
    place: Place


def placed_calls(dump: RankDump, dialect: Dialect, notes: list[str]) -> list[PlacedCall]:
    """The module forwards of a dump, the first call of each, without what the dialect ignores."""
    calls = [call for call in dump.calls if call.kind == "Module" and call.direction == "forward"]
    if any(call.call for call in calls):
        calls = _first_calls(calls, notes)
    templates: frozenset[str] = frozenset()
    if any(rule.beside for rules in dialect.rules.values() for rule in rules):
        templates = frozenset(dialect.normalise(call.module)[0] for call in calls)
    found = []
    for call in calls:
        place = dialect.place(call.module, call.cls, templates)
        if place is not None:
            found.append(PlacedCall(call, place))
    return found


def build_rows(
    dump: RankDump,
    placed: list[PlacedCall],
    dialect: Dialect,
    tokens: int,
    offset: Callable[[Call], int],
    seen: dict[str, Rule | None],
) -> dict[Key, Row]:
    """The rows of one rank by their canonical place.

    Args:
        dump: where the calls are from.
        placed: its calls.
        dialect: their names.
        tokens: tokens of the forward pass; 0 where unknown.
        offset: the global number of the first layer of a call's chunk.
        seen: every canonical module is entered here, with its rule.
    """
    rows: dict[Key, Row] = {}
    for call, place in placed:
        numbers = place.numbers
        if dialect.local_layers and numbers and "layers.#" in place.template:
            numbers = (numbers[0] + offset(call), *numbers[1:])
        rule = place.rule or _UNKNOWN
        module = fill(rule.target if place.rule else unknown_name(place.template), numbers)
        # A module that only lends its rows to others must not hide the rule of the module itself.
        if place.rule is None or module not in seen or not place.rule.uncounted:
            seen[module] = place.rule

        def add(kind: str, slot: str, leaf: Leaf, target: str = module, rule: Rule = rule) -> None:
            row = _row(Piece(dump, call, slot, leaf), kind, rule, tokens)  # noqa: B023 - used in this iteration only
            if row is not None:
                rows.setdefault(Key(target, kind, rule.part), row)

        take = "parameters" if place.parameters_only else rule.take
        if take == "all":
            leaf = next((leaf for leaf in call.inputs if leaf is not None), None)
            if leaf is not None:
                add("input", "input", leaf)
        if take in ("all", "output", "output+parameters"):
            leaf = next((leaf for leaf in call.outputs if leaf is not None), None)
            if leaf is not None:
                add("output", "output", leaf)
        if take in ("all", "parameters", "output+parameters"):
            for name, leaf in call.parameters.items():
                if f"parameters.{name}" not in rule.rows:
                    add(name, f"parameters.{name}", leaf)
        for slot, kind in rule.rows.items():
            leaf = _slot(call, slot)
            if leaf is not None:
                target, _, kind = kind.rpartition(":")
                add(kind, slot, leaf, fill(target, numbers) if target else module)
    return rows


def unknown_name(template: str) -> str:
    """The canonical path of a name that the dialect does not know: the name itself."""
    return template.removeprefix(LOCAL_ROOT) or "model"


def is_integer(dtype: str) -> bool:
    """Whether a dtype holds numbers that are not rounded: token ids, positions, masks."""
    return dtype.startswith(_INTEGERS)


def is_parameter(slot: str) -> bool:
    """Whether a slot is a parameter's."""
    return slot.startswith("parameters.")


def _row(piece: Piece, kind: str, rule: Rule, tokens: int) -> Row | None:
    leaf, parameter = piece.leaf, is_parameter(piece.slot)
    identity = kind == "@" + POSITIONS or (rule.target == "embed" and kind == "input")
    if is_integer(leaf.dtype) and not identity:
        return None  # indices and masks are no activations
    rows, columns = rows_and_columns(leaf.shape) if parameter else tokens_and_features(leaf.shape, tokens)
    numel = rows * columns
    stats = Stats(leaf.max, leaf.min, leaf.mean, leaf.norm, numel)
    gap = ""
    if not numel:
        gap = "no elements: the engine keeps this tensor elsewhere or in another form"
    elif leaf.max is None or leaf.min is None:
        gap = "Max and Min are null"
    elif not identity and (leaf.mean is None or leaf.norm is None):
        gap = "Mean and Norm are null: precision 'high' of mindstudio-probe 26.1 and later does not write them"
    if gap and numel and (leaf.crc is not None or leaf.file is not None):
        gap = ""  # bits or elements say more than statistics
    axis = 0 if parameter else 1
    if rule.split == "row" and parameter:
        axis = 1
    group = Group(rule.part, rule.order if kind in ("output", "weight", "bias") else "", (piece,), "one", axis)
    return Row(rule, Quantity(leaf.dtype, rows, columns, stats, leaf.crc, False, gap, (group,)))


def _slot(call: Call, slot: str) -> Leaf | None:
    where, _, name = slot.partition(".")
    if where == "kwargs":
        return call.kwargs.get(name)
    if where == "parameters":
        return call.parameters.get(name)
    leaves = call.inputs if where == "input" else call.outputs
    index = int(name)
    return leaves[index] if index < len(leaves) else None


def _first_calls(calls: list[Call], notes: list[str]) -> list[Call]:
    first: dict[tuple[int | None, str], Call] = {}
    for call in calls:
        key = (call.list_index, call.module)
        if key not in first or call.call < first[key].call:
            first[key] = call
    if len(first) < len(calls):
        notes.append(f"{len(calls) - len(first)} repeated calls of modules were left aside: the first of each counts")
    return list(first.values())
