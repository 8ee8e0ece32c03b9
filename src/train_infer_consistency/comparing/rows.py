"""The rows of one rank: each leaf of each call under its canonical module and kind, before ranks are merged."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from ..dumps.records import Call, Leaf, RankDump
from .dialect import Dialect, Plan, Rule, fill
from .names import split_numbers, template_of
from .quantity import POSITIONS, Module, Quantity
from .shapes import rows_and_columns, tokens_and_features

_INTEGERS = ("torch.int", "torch.uint", "torch.bool", "torch.long")
_WITH_OUTPUT = ("all", "output", "output+parameters")
_WITH_PARAMETERS = ("all", "parameters", "output+parameters")
_IDENTITY = "@" + POSITIONS
_LENT = Rule(target="")

NO_ELEMENTS = "no elements: the engine keeps this tensor elsewhere or in another form"
NO_EXTREMES = "Max and Min are null"
NO_SUMS = "Mean and Norm are null: precision 'high' of mindstudio-probe 26.1 and later does not write them"

# A row's place: canonical module, kind, and part of a fused whole.
Key = tuple[str, str, str]


class Shard(NamedTuple):
    """One rank's dump of one chunk of the model.

    Attributes:
        rank: its number.
        chunk: of a virtual pipeline, 0 for the first.
        dump: what was dumped.
        first_layer: the global number of its first layer; None where the log does not say.
    """

    rank: int
    chunk: int
    dump: RankDump
    first_layer: int | None = None


class PlacedCall(NamedTuple):
    """A call, what to do with it, and the numbers in its path."""

    call: Call
    plan: Plan
    numbers: tuple[int, ...]


class NamedCall(NamedTuple):
    """A call with the numbers taken out of its path."""

    call: Call
    template: str
    numbers: tuple[int, ...]


# Their constructors without the frame of a Python function: a mixture of experts has tens of thousands of each.
_make_named: Callable[..., NamedCall] = tuple.__new__
_make_placed: Callable[..., PlacedCall] = tuple.__new__


def named_calls(dump: RankDump) -> list[NamedCall]:
    """The module forwards of a dump."""
    return [
        _make_named(NamedCall, (call, *split_numbers(call.module)))
        for call in dump.calls
        if call.direction == "forward" and call.kind == "Module"
    ]


def place_calls(calls: list[NamedCall], dialect: Dialect, notes: list[str]) -> list[PlacedCall]:
    """The calls with their plans, the first call of each module, without what the dialect ignores."""
    templates: frozenset[str] = frozenset()
    if dialect.conditional:
        templates = frozenset(dialect.normalise(template)[0] for template in {call.template for call in calls})
    found = []
    repeated = False
    for call, template, numbers in calls:
        plan = dialect.plan(template, call.cls, templates)
        if plan is not None:
            found.append(_make_placed(PlacedCall, (call, plan, numbers)))
            repeated = repeated or call.call != 0
    return _first_calls(found, notes) if repeated else found


def build_rows(
    dump: RankDump,
    placed: list[PlacedCall],
    tokens: int,
    offset: Callable[[Call], int],
    modules: dict[str, Module],
) -> dict[Key, Quantity]:
    """The rows of one rank by their canonical place.

    Args:
        dump: where the calls are from.
        placed: its calls.
        tokens: tokens of the forward pass; 0 where unknown.
        offset: the global number of the first layer of a call's chunk.
        modules: every canonical module is entered here.
    """
    rows: dict[Key, Quantity] = {}
    activations, parameters = _Shapes(tokens), _Shapes(None)
    for call, plan, numbers in placed:
        if plan.layered:
            numbers = (numbers[0] + offset(call), *numbers[1:])  # noqa: PLW2901 - local numbers are of no more use
        name, rule = fill(plan.pieces, numbers), plan.rule
        known = modules.get(name)
        # A module that only lends its rows to others must not hide the rule of the module itself.
        if known is None or (known.rule is not None and known.rule.uncounted and not rule.uncounted):
            modules[name] = Module(name, plan.template, numbers, rule if plan.known else None)
        for target, kind, slot, parameter, leaf in _leaves(call, plan):
            integer = _is_integer(leaf.dtype)
            if integer and kind != _IDENTITY and not (kind == "input" and rule.target == "embed"):
                continue  # indices and masks are no activations
            # All parts of a fused module have the same input.
            key = (fill(target, numbers) if target else name, kind, "" if kind == "input" else rule.part)
            if key in rows:
                continue
            size = (parameters if parameter else activations)[leaf.shape]
            dtype, _, high, low, mean, norm, crc, file = leaf
            whole = size[0] and high is not None and low is not None and mean is not None and norm is not None
            gap = "" if whole else _gap(leaf, size, integer)
            # A row lent to another module, such as the weight of a norm fused into the next product, is not split.
            origin = (dump, call, slot, _LENT if target else rule, kind)
            rows[key] = Quantity(leaf, size, dtype, crc, parameter, gap, file is not None, origin)
            if target and key[0] not in modules:
                modules[key[0]] = Module(key[0], template_of(key[0]), numbers, _LENT)
    return rows


@lru_cache(maxsize=64)
def _is_integer(dtype: str) -> bool:
    return dtype.startswith(_INTEGERS)


class _Shapes(dict[tuple[int, ...], tuple[int, int]]):
    """A model has few shapes: what one says is worked out once."""

    def __init__(self, tokens: int | None) -> None:
        self._tokens = tokens

    def __missing__(self, shape: tuple[int, ...]) -> tuple[int, int]:
        tokens = self._tokens
        self[shape] = size = rows_and_columns(shape) if tokens is None else tokens_and_features(shape, tokens)
        return size


def _leaves(call: Call, plan: Plan) -> list[tuple[tuple[str, ...], str, str, bool, Leaf]]:
    """The leaves of a call that count: (pieces of another module or (), kind, slot, whether a parameter, leaf)."""
    found: list[tuple[tuple[str, ...], str, str, bool, Leaf]] = []
    take = plan.take
    if take == "all" and (leaf := _first(call.inputs)) is not None:
        found.append(((), "input", "input", False, leaf))
    if take in _WITH_OUTPUT and (leaf := _first(call.outputs)) is not None:
        found.append(((), "output", "output", False, leaf))
    if take in _WITH_PARAMETERS:
        taken = plan.rule.rows
        for name, leaf in call.parameters.items():
            slot = f"parameters.{name}"
            if slot not in taken:
                found.append(((), name, slot, True, leaf))
    for slot_name, where, key, module, kind in plan.slots:
        if where in ("input", "output"):
            leaves = call.inputs if where == "input" else call.outputs
            lent = leaves[int(key)] if int(key) < len(leaves) else None
        else:
            lent = (call.kwargs if where == "kwargs" else call.parameters).get(key)
        if lent is not None:
            found.append((module, kind, slot_name, where == "parameters", lent))
    return found


def _first(leaves: tuple[Leaf | None, ...]) -> Leaf | None:
    for leaf in leaves:
        if leaf is not None:
            return leaf
    return None


def _gap(leaf: Leaf, size: tuple[int, int], integer: bool) -> str:
    if not size[0] * size[1]:
        return NO_ELEMENTS
    if leaf.crc is not None or leaf.file is not None:
        return ""  # bits or elements say more than statistics
    if leaf.max is None or leaf.min is None:
        return NO_EXTREMES
    return "" if integer or (leaf.mean is not None and leaf.norm is not None) else NO_SUMS


def _first_calls(placed: list[PlacedCall], notes: list[str]) -> list[PlacedCall]:
    first: dict[tuple[int | None, str], PlacedCall] = {}
    repeated = 0
    for item in placed:
        call = item.call
        key = (call.list_index, call.module)
        if key in first:
            # Engines share one rotary module over all layers: that is no second forward.
            repeated += not item.plan.rule.uncounted
        if key not in first or call.call < first[key].call.call:
            first[key] = item
    if repeated:
        notes.append(f"{repeated} repeated calls of modules were left aside: the first of each counts")
    return list(first.values())
