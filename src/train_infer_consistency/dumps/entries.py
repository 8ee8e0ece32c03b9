"""One entry of a ``dump.json``, from its JSON text or its JSON value to a :class:`~.records.Call`.

A dump's most common entry, a module with one input and one output, is read by one regular expression, because a
mixture-of-experts model has tens of thousands of them; every other entry takes the JSON parser. Both give the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from .records import Call, Direction, Leaf

# A number by its characters: what they do not make up to one float() refuses, but for a point with no digit behind it.
_NUMBER = r"(-?(?!0[0-9])[0-9]{1,150}+(?!\.[^0-9])[0-9.e+-]{0,150}|null|NaN|-?Infinity)"
_TEXT = r'"[^"\\\x00-\x1f]*"'
_NAME = r'"([^"\\\x00-\x1f]*)"'


def _leaf_pattern(indent: int) -> str:
    line = "\n" + " " * indent
    inner = line + " "
    stats = ("," + inner).join(f'"{name}": {_NUMBER}' for name in ("Max", "Min", "Mean", "Norm"))
    shape = r"\[[0-9, \n]*\]"
    return (
        rf'{{{inner}"type": "torch\.Tensor",{inner}"dtype": ({_TEXT},{inner}"shape": {shape}),{inner}{stats},'
        rf'{inner}"requires_grad": (?:true|false){line}}}'
    )


# msprobe writes with indent=1. The numbers below are that indentation: entry 2, section 3, argument 4, field 5.
COMMON = re.compile(
    r'\n  "(Module\.(?:([0-9]{1,9})\.)?([^"\\\x00-\x1f]+)\.([^."\\\x00-\x1f]*)\.forward\.([0-9]{1,9}))": '
    rf'{{\n   "input_args": \[\n    ({_leaf_pattern(4)})\n   \],\n   "input_kwargs": {{}},'
    rf'\n   "output": \[\n    ({_leaf_pattern(4)})\n   \],'
    rf'\n   "parameters": (?:{{}}|{{\n    {_NAME}: {_leaf_pattern(4)}\n   }})\n  }}(?=[,\n])'
)


# Named tuples' constructors without the frame of a Python function: half of the time.
_make_call: Callable[..., Call] = tuple.__new__
_make_leaf: Callable[..., Leaf] = tuple.__new__
_NOTHING: dict[str, Leaf] = {}
_KEPT = 1 << 12
# The groups of COMMON: of the entry, and of a leaf its dtype with shape and its four numbers.
_ENTRY, _INPUT, _OUTPUT, _PARAMETER = (1, 2, 3, 4, 5, 6, 12, 18), *(tuple(range(n, n + 5)) for n in (7, 13, 19))


class EntryReader:
    """Makes calls of entries, shares equal dtypes and shapes between them, and collects what it could not read.

    Attributes:
        problems: what could not be read, a line each.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._faults: list[str] = []
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._texts: dict[str, str] = {}
        self._leaves: dict[str, Leaf] = {}
        self._tuples: dict[tuple[int, ...], tuple[int, ...]] = {}

    def common(self, match: re.Match[str], order: int) -> Call | None:
        """The call of an entry that :data:`COMMON` matched; None where only the other way can read it.

        Args:
            match: with the groups name, list index, module, class, call, the input and its 5 fields, the output and its
                5, the parameter's name and its 5 fields.
            order: the entry's position.
        """
        group = match.group
        name, list_index, module, cls, call, taken, given, parameter = group(*_ENTRY)
        leaves = self._leaves
        first = leaves.get(taken) or self._keep(taken, group(*_INPUT))
        last = leaves.get(given) or self._keep(given, group(*_OUTPUT))
        parameters = _NOTHING
        if parameter is not None:
            leaf = self._quick_leaf(group(*_PARAMETER))
            if leaf is None:
                return None
            parameters = {self._texts.setdefault(parameter, parameter): leaf}
        if first is None or last is None:
            return None
        return _make_call(
            Call,
            (
                name,
                module,
                None if list_index is None else int(list_index),
                self._texts.setdefault(cls, cls),
                int(call),
                "forward",
                "Module",
                (first,),
                _NOTHING,
                (last,),
                parameters,
                order,
            ),
        )

    def decoded(self, name: str, value: Any, order: int) -> Call | None:
        """The call of an entry that the JSON parser read with :meth:`pairs`; None for what is no entry."""
        faults, self._faults = self._faults, []
        self.problems += [f"{_shown(name)}: {fault}" for fault in faults]
        key = _split(name)
        if key is None or type(value) is not dict or not name.isprintable():
            self.problems.append(f"{_shown(name)}: no module or API entry as msprobe writes it")
            return None
        module, list_index, cls, call, direction, kind = key
        kwargs: dict[str, Leaf] = {}
        parameters: dict[str, Leaf] = {}
        inputs: list[Leaf | None] = []
        outputs: list[Leaf | None] = []
        if direction == "parameters_grad":
            _name_leaves(value, "", parameters)
        else:
            forward = direction == "forward"
            self._flatten(value.get("input_args" if forward else "input"), inputs)
            keywords = value.get("input_kwargs")
            self._flatten(keywords, inputs)
            _name_leaves(keywords, "", kwargs)
            self._flatten(value.get("output"), outputs)
            _name_leaves(value.get("parameters"), "", parameters)
            if ("input_args" if forward else "input") not in value or "output" not in value:
                self.problems.append(f"{_shown(name)}: inputs or outputs are missing")
        cls = self._texts.setdefault(cls, cls)
        return Call(
            name,
            module,
            list_index,
            cls,
            call,
            direction,
            kind,
            tuple(inputs),
            kwargs,
            tuple(outputs),
            parameters,
            order,
        )

    def pairs(self, pairs: list[tuple[str, Any]]) -> Any:
        """The JSON parser's ``object_pairs_hook``: a tensor's object becomes a leaf, any other a dict."""
        made = dict(pairs)
        if len(made) != len(pairs):
            self._faults.append("a field is there twice")
        if "dtype" not in made or "shape" not in made:
            return made
        dtype, shape = made["dtype"], made["shape"]
        if type(dtype) is not str or type(shape) is not list:
            self._faults.append("a tensor without dtype and shape")
            return None
        if not all(type(size) is int and 0 <= size < 10**18 for size in shape):
            self._faults.append("a tensor's shape is no list of sizes")
            return None
        key = tuple(shape)
        return Leaf(
            self._texts.setdefault(dtype, dtype),
            self._tuples.setdefault(key, key),
            self._statistic(made, "Max"),
            self._statistic(made, "Min"),
            self._statistic(made, "Mean"),
            self._statistic(made, "Norm"),
            self._word(made, "md5"),
            self._word(made, "data_name"),
        )

    def forget(self) -> None:
        """Drop what :meth:`pairs` found wrong in a text that turned out to go on."""
        self._faults.clear()

    def _statistic(self, made: dict[str, Any], name: str) -> float | None:
        value = made.get(name)
        if value is None:
            return None
        # A bool tensor's Max is true or false.
        if isinstance(value, int | float):
            try:
                return float(value)
            except OverflowError:
                pass
        self._faults.append(f"a tensor's {name} is no number")
        return None

    def _word(self, made: dict[str, Any], name: str) -> str | None:
        value = made.get(name)
        if value is None or (type(value) is str and value):
            return value
        self._faults.append(f"a tensor's {name} is no text")
        return None

    def _keep(self, text: str, fields: tuple[str, ...]) -> Leaf | None:
        """The leaf of an activation, kept by its text: what one module puts out the next one takes in."""
        leaf = self._quick_leaf(fields)
        if leaf is not None:
            if len(self._leaves) > _KEPT:
                self._leaves.clear()
            self._leaves[text] = leaf
        return leaf

    def _quick_leaf(self, fields: tuple[str, ...]) -> Leaf | None:
        """The leaf of its five fields; None where only the other way can read it."""
        kind, high, low, mean, norm = fields
        known = self._kinds.get(kind) or self._quick_kind(kind)
        if known is None:
            return None
        try:
            return _make_leaf(Leaf, (*known, float(high), float(low), float(mean), float(norm), None, None))
        except ValueError:  # null, or no number at all
            pass
        try:
            return Leaf(*known, _number(high), _number(low), _number(mean), _number(norm))
        except ValueError:
            return None

    def _quick_kind(self, text: str) -> tuple[str, tuple[int, ...]] | None:
        """The dtype and shape of their text; None where only the other way can read it."""
        dtype, _, rest = text[1:].partition('"')
        words = [word.strip() for word in rest[rest.index("[") + 1 : -1].split(",")]
        if not all(word.isdigit() and len(word) <= 18 and (word[0] != "0" or word == "0") for word in words):
            return None  # a missing comma, or a number that JSON does not know
        shape = tuple(map(int, words))
        known = self._texts.setdefault(dtype, dtype), self._tuples.setdefault(shape, shape)
        self._kinds[text] = known
        return known

    def _flatten(self, value: Any, into: list[Leaf | None]) -> None:
        """Append the leaves of nested lists and dicts in order, and None for everything else."""
        kind = type(value)
        if kind is Leaf or value is None:
            into.append(value)
        elif kind is list:
            for item in value:
                self._flatten(item, into)
        elif kind is dict and not _is_scalar(value):
            for item in value.values():
                self._flatten(item, into)
        else:
            into.append(None)


def _name_leaves(value: Any, name: str, into: dict[str, Leaf]) -> None:
    """Collect the leaves of a nested value under dotted names."""
    kind = type(value)
    if kind is Leaf:
        into[name] = value
    elif kind is dict and not _is_scalar(value):
        for key, item in value.items():
            _name_leaves(item, f"{name}.{key}" if name else key, into)
    elif kind is list:
        for index, item in enumerate(value):
            # Gradients are lists of one; their names are the parameters'.
            _name_leaves(item, name if len(value) == 1 and name else f"{name}.{index}", into)


def _is_scalar(value: dict[str, Any]) -> bool:
    """Whether a dict describes one value that is no tensor: ``{"type": "bool", "value": true}``."""
    return type(value.get("type")) is str


def _split(name: str) -> tuple[str, int | None, str, int, Direction, str] | None:
    """Take a key apart: (module, list index, class, call, direction, kind); None for what msprobe never writes."""
    parts = name.split(".")
    last = parts[-1]
    if last in ("forward", "backward") and len(parts) >= 4 and _is_index(parts[-2]):
        words = ".".join(parts[1:-2])
        return words, None, words, int(parts[-2]), cast("Direction", last), parts[0]
    if last == "parameters_grad":  # up to 8.3 without a number
        parts.append("0")
    if len(parts) < 4 or not _is_index(parts[-1]) or parts[-2] not in ("forward", "backward", "parameters_grad"):
        return None
    dotted, list_index = parts[1:-3], None
    if len(dotted) > 1 and _is_index(dotted[0]):
        list_index = int(dotted.pop(0))
    return ".".join(dotted), list_index, parts[-3], int(parts[-1]), cast("Direction", parts[-2]), parts[0]


def _number(text: str) -> float | None:
    return None if text == "null" else float(text)


def _is_index(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10


def _shown(name: str) -> str:
    name = name if name.isprintable() else ascii(name)
    return name if len(name) <= 120 else f"{name[:100]}..."
