"""A dialect: how one engine names its modules, read from a TOML file (docs/comparison.md describes the keys)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError

SPLITS = {"", "column", "row", "vocab", "vocab_output", "heads", "core", "experts"}
ORDERS = {"", "qkv", "gate_up", "grouped_qkv"}
TAKES = {"all", "output", "parameters", "output+parameters", "none"}
_KEYS = {"name", "is", "class", "beside", "part", "split", "order", "take", "rows", "uncounted", "absorbs"}
_HEADER = {
    "name", "title", "verified", "extends", "layers", "parallel", "drop", "roots", "heads", "parameters_only",
    "ignore_segments", "ignore_classes", "skipped_last", "detect", "module",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """What one module name stands for; the fields are the keys of a ``[[module]]``."""

    target: str
    cls: str = "*"
    beside: str = ""
    part: str = ""
    split: str = ""
    order: str = ""
    take: str = "all"
    rows: Mapping[str, str] = field(default_factory=dict)
    uncounted: str = ""
    absorbs: tuple[str, ...] = ()


class Slot(NamedTuple):
    """A leaf of a call that a rule names itself.

    Attributes:
        name: as in the dialect, ``output.1``.
        where: ``input``, ``output``, ``kwargs`` or ``parameters``.
        key: the index or name there.
        module: the canonical path it belongs to, split at the numbers; empty for the rule's own.
        kind: the row's kind.
    """

    name: str
    where: str
    key: str
    module: tuple[str, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the calls of one template and class.

    Attributes:
        rule: of the dialect, or one that takes everything for a name it does not know.
        known: whether the dialect knows the name.
        template: the canonical path with ``#`` for numbers.
        pieces: the same, split at the numbers.
        layered: whether the first number is a layer.
        take: which leaves count.
        slots: leaves with a place of their own.
    """

    rule: Rule
    known: bool
    template: str
    pieces: tuple[str, ...]
    layered: bool
    take: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Dialect:
    """One engine's names."""

    name: str
    title: str
    verified: str
    local_layers: bool
    replicas: bool
    drop: frozenset[str]
    roots: tuple[str, ...]
    heads: Mapping[str, str]
    parameters_only: frozenset[str]
    ignore_segments: frozenset[str]
    ignore_classes: frozenset[str]
    skipped_last: str
    detect_names: frozenset[str]
    detect_classes: frozenset[str]
    rules: Mapping[str, tuple[Rule, ...]]
    depth: int
    prefixes: tuple[tuple[str, Rule], ...]
    _plans: dict[tuple[str, str, bool], Plan | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def conditional(self) -> bool:
        """Whether a rule asks what else is in the dump."""
        return any(rule.beside for rules in self.rules.values() for rule in rules)

    def plan(self, template: str, cls: str, templates: frozenset[str] = frozenset()) -> Plan | None:
        """What to do with a module; None for one that is to be ignored.

        Args:
            template: its dotted path as dumped, with ``#`` for numbers.
            cls: its class.
            templates: the normalised templates of the whole dump, for rules that say ``beside``.
        """
        key = (template, cls, bool(templates))
        if key in self._plans:
            return self._plans[key]
        plan, lasting = self._plan(template, cls, templates)
        if lasting:
            self._plans[key] = plan
        return plan

    def normalise(self, template: str) -> tuple[str, bool]:
        """Drop wrappers and root: (the name that rules know, whether only its parameters count)."""
        segments = [segment for segment in template.split(".") if segment not in self.drop]
        only = not self.parameters_only.isdisjoint(segments)
        if only:
            segments = [segment for segment in segments if segment not in self.parameters_only]
        name = ".".join(segments)
        if name in self.heads:
            return self.heads[name], only
        for root in self.roots:
            if name.startswith(root):
                return name[len(root) :], only
            if name == root[:-1]:
                return "", only
        return name, only

    def _plan(self, template: str, cls: str, templates: frozenset[str]) -> tuple[Plan | None, bool]:
        if cls in self.ignore_classes:
            return None, True
        name, only = self.normalise(template)
        if not self.ignore_segments.isdisjoint(name.split(".")):
            return None, True
        candidates = self.rules.get(name, ())
        lasting = not any(rule.beside for rule in candidates)
        for rule in candidates:
            if (not rule.beside or rule.beside in templates) and fnmatchcase(cls, rule.cls):
                return self._of(rule, rule.target, name, only), lasting
        for prefix, rule in self.prefixes:
            if name.startswith(prefix):
                return self._of(rule, rule.target, name, only), True
        unknown = name.removeprefix("decoder.") or "model"  # Megatron's layers without their outer name
        return self._of(None, unknown, name, only), True

    def _of(self, rule: Rule | None, target: str, name: str, only: bool) -> Plan:
        taken = rule or Rule(target="")
        slots = []
        for slot, place in taken.rows.items():
            where, _, key = slot.partition(".")
            module, _, kind = place.rpartition(":")
            slots.append(Slot(slot, where, key, tuple(module.split("#")) if module else (), kind))
        layered = self.local_layers and "layers.#" in name
        take = "parameters" if only else taken.take
        return Plan(taken, rule is not None, target, tuple(target.split("#")), layered, take, tuple(slots))


def fill(pieces: tuple[str, ...], numbers: tuple[int, ...]) -> str:
    """Put numbers between the pieces of a template, in order; numbers that it has no place for are left out."""
    if len(pieces) == 1:
        return pieces[0]
    if len(pieces) == 2:
        return f"{pieces[0]}{numbers[0]}{pieces[1]}" if numbers else "#".join(pieces)
    if len(pieces) == 3 and len(numbers) == 2:
        return f"{pieces[0]}{numbers[0]}{pieces[1]}{numbers[1]}{pieces[2]}"
    texts = [str(number) for number in numbers[: len(pieces) - 1]]
    texts += ["#"] * (len(pieces) - 1 - len(texts))
    return "".join(piece + text for piece, text in zip(pieces, [*texts, ""], strict=True))


def load(path: Path) -> Dialect:
    """Read a dialect of the user.

    Raises:
        UsageError: it cannot be read, is no TOML, or has a key or a value that means nothing.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--dialect {path} cannot be read: {error}", "docs/comparison.md has an example") from None
    try:
        return _build(data, str(path))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--dialect {path} has a value of a wrong kind: {error}") from None


@lru_cache(maxsize=1)
def shipped() -> tuple[Dialect, ...]:
    """The dialects that come with the package, sorted by name."""
    return tuple(_build(data, name) for name, data in sorted(_shipped_data().items()))


def choose(
    modules: Iterable[tuple[str, str]], own: tuple[Dialect, ...] = (), known: tuple[Dialect, ...] | None = None
) -> Dialect:
    """The dialect that fits a dump's modules best; the user's own win a tie, and an unknown model gets HF's.

    Args:
        modules: (template, class) of the dump's modules.
        own: dialects given by the user.
        known: the others; None: those that are shipped.
    """
    seen = set(modules)
    templates, classes = {template for template, _ in seen}, {cls for _, cls in seen}

    def fit(dialect: Dialect) -> int:
        names = {dialect.normalise(template)[0] for template in templates}
        return 3 * len(names & dialect.detect_names) + 2 * len(classes & dialect.detect_classes)

    others = shipped() if known is None else known
    # The first of the best: the user's own, then those that build on no other.
    chosen = max([*own, *sorted(others, key=lambda dialect: dialect.depth)], key=fit)
    return chosen if fit(chosen) else next(item for item in shipped() if item.name == "hf")


@lru_cache(maxsize=1)
def _shipped_data() -> dict[str, dict[str, Any]]:
    found = {}
    for path in (Path(__file__).parent / "dialects").glob("*.toml"):
        found[path.stem] = tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def _build(data: dict[str, Any], where: str) -> Dialect:
    data = _inherit(data, where)
    rules: dict[str, list[Rule]] = {}
    prefixes: list[tuple[str, Rule]] = []
    for entry in data.get("module", []):
        rule = _rule(entry, where)
        for name in _expand(str(entry["name"])):
            if name.endswith("*"):
                prefixes.append((name[:-1], rule))
            else:
                rules.setdefault(name, []).append(rule)
    for found in rules.values():  # a rule with a condition is asked before one without
        found.sort(key=lambda rule: (not rule.beside, rule.cls == "*"))
    detect = data.get("detect", {})
    heads = {head: head.rsplit(".", 1)[-1] for head in data.get("heads", [])}
    return Dialect(
        name=str(data.get("name", Path(where).stem)),
        title=str(data.get("title", data.get("name", where))),
        verified=str(data.get("verified", "")),
        local_layers=data.get("layers", "global") == "local",
        replicas=data.get("parallel", "tensor") == "replicas",
        drop=frozenset(data.get("drop", [])),
        roots=tuple(sorted(data.get("roots", []), key=len, reverse=True)),
        heads=heads,
        parameters_only=frozenset(data.get("parameters_only", [])),
        ignore_segments=frozenset(data.get("ignore_segments", [])),
        ignore_classes=frozenset(data.get("ignore_classes", [])),
        skipped_last=str(data.get("skipped_last", "")),
        detect_names=frozenset(detect.get("names", [])),
        detect_classes=frozenset(detect.get("classes", [])),
        rules={name: tuple(found) for name, found in rules.items()},
        depth=int(data.get("depth", 0)),
        prefixes=tuple(sorted(prefixes, key=lambda item: -len(item[0]))),
    )


def _inherit(data: dict[str, Any], where: str) -> dict[str, Any]:
    unknown = data.keys() - _HEADER
    if unknown:
        raise UsageError(f"dialect {where}: unknown key {min(unknown)!r}", f"the keys are {', '.join(sorted(_HEADER))}")
    base_name = data.get("extends")
    if base_name is None:
        return data
    if base_name not in _shipped_data():
        raise UsageError(f"dialect {where} extends {base_name!r}, which is not shipped")
    base = _inherit(_shipped_data()[base_name], base_name)
    own = data.get("module", [])
    mine = {(entry.get("name"), entry.get("class", "*"), entry.get("beside", "")) for entry in own}
    kept = [
        entry
        for entry in base.get("module", [])
        if (entry["name"], entry.get("class", "*"), entry.get("beside", "")) not in mine
    ]
    # What makes the base fit makes this one fit, too; it wins by what is its own.
    bases, more = base.get("detect", {}), data.get("detect", {})
    detect = {key: [*bases.get(key, []), *more.get(key, [])] for key in ("names", "classes")}
    depth = base.get("depth", 0) + 1
    return {**base, **data, "module": [*own, *kept], "detect": detect, "depth": depth}


def _rule(entry: dict[str, Any], where: str) -> Rule:
    name = entry.get("name")
    if not isinstance(name, str) or not isinstance(entry.get("is"), str):
        raise UsageError(f"dialect {where}: a [[module]] needs the strings 'name' and 'is'")
    unknown = entry.keys() - _KEYS
    if unknown:
        raise UsageError(f"dialect {where}: [[module]] {name}: unknown key {min(unknown)!r}")
    rule = Rule(
        target=entry["is"],
        cls=entry.get("class", "*"),
        beside=entry.get("beside", ""),
        part=entry.get("part", ""),
        split=entry.get("split", ""),
        order=entry.get("order", ""),
        take=entry.get("take", "all"),
        rows=dict(entry.get("rows", {})),
        uncounted=entry.get("uncounted", ""),
        absorbs=tuple(entry.get("absorbs", [])),
    )
    for value, allowed, key in (
        (rule.split, SPLITS, "split"),
        (rule.order, ORDERS, "order"),
        (rule.take, TAKES, "take"),
    ):
        if value not in allowed:
            raise UsageError(f"dialect {where}: [[module]] {name}: {key} = {value!r} means nothing")
    return rule


def _expand(name: str) -> Iterator[str]:
    """``a{,s}.b`` is ``a.b`` and ``as.b``."""
    found = re.search(r"\{([^}]*)\}", name)
    if found is None:
        yield name
        return
    for choice in found[1].split(","):
        yield from _expand(name[: found.start()] + choice + name[found.end() :])
