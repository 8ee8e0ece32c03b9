"""A dialect: how one engine names its modules, read from a TOML file (docs/comparison.md describes the keys)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
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


class Place(NamedTuple):
    """Where a module belongs: its rule (None: a name the dialect does not know) and the numbers in its path."""

    template: str
    rule: Rule | None
    numbers: tuple[int, ...]
    parameters_only: bool = False


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
    prefixes: tuple[tuple[str, Rule], ...]
    _places: dict[tuple[str, str], Place | None] = field(default_factory=dict, repr=False, compare=False)

    def place(self, path: str, cls: str, templates: frozenset[str] = frozenset()) -> Place | None:
        """The place of a module; None for one that is to be ignored.

        Args:
            path: the dotted path as dumped.
            cls: its class.
            templates: the paths of the whole dump with ``#`` for numbers, for rules that say ``beside``.
        """
        key = (path, cls)
        found = self._places.get(key, self)
        if found is not self:
            return found  # type: ignore[return-value]
        place, ambiguous = self._find(path, cls, templates)
        if not ambiguous:
            self._places[key] = place
        return place

    def normalise(self, path: str) -> tuple[str, tuple[int, ...], bool]:
        """Drop wrappers and root, and take the numbers out: (template, numbers, only parameters count)."""
        drop = self.drop
        segments = [segment for segment in path.split(".") if segment not in drop]
        only = not self.parameters_only.isdisjoint(segments)
        if only:
            segments = [segment for segment in segments if segment not in self.parameters_only]
        numbers = []
        for index, segment in enumerate(segments):
            if segment.isdecimal():
                numbers.append(int(segment))
                segments[index] = "#"
        template = ".".join(segments)
        if template in self.heads:
            return self.heads[template], tuple(numbers), only
        for root in self.roots:
            if template.startswith(root):
                return template[len(root) :], tuple(numbers), only
            if template == root[:-1]:
                return "", tuple(numbers), only
        return template, tuple(numbers), only

    def _find(self, path: str, cls: str, templates: frozenset[str]) -> tuple[Place | None, bool]:
        if cls in self.ignore_classes:
            return None, False
        template, numbers, only = self.normalise(path)
        if self.ignore_segments and not self.ignore_segments.isdisjoint(template.split(".")):
            return None, False
        candidates = self.rules.get(template, ())
        ambiguous = any(rule.beside for rule in candidates)
        for rule in candidates:
            if (not rule.beside or rule.beside in templates) and fnmatchcase(cls, rule.cls):
                return Place(template, rule, numbers, only), ambiguous
        for prefix, rule in self.prefixes:
            if template.startswith(prefix):
                return Place(template, rule, numbers, only), False
        return Place(template, None, numbers, only), False


def fill(template: str, numbers: tuple[int, ...]) -> str:
    """Put numbers into the ``#`` of a template, in order; numbers that it has no place for are left out."""
    for number in numbers:
        template = template.replace("#", str(number), 1)
    return template


def load(path: Path) -> Dialect:
    """Read a dialect of the user.

    Raises:
        UsageError: it cannot be read, is no TOML, or has a key or a value that means nothing.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--dialect {path} cannot be read: {error}", "docs/comparison.md has an example") from None
    return _build(data, str(path))


@lru_cache(maxsize=1)
def shipped() -> tuple[Dialect, ...]:
    """The dialects that come with the package, sorted by name."""
    return tuple(_build(data, name) for name, data in sorted(_shipped_data().items()))


def choose(
    modules: Iterable[tuple[str, str]], own: tuple[Dialect, ...] = (), known: tuple[Dialect, ...] | None = None
) -> Dialect:
    """The dialect that fits a dump's modules best; the user's own win a tie, and an unknown model gets HF's.

    Args:
        modules: (path, class) of the dump's modules; numbers may repeat, each template counts once.
        own: dialects given by the user.
        known: the others; None: those that are shipped.
    """
    seen = {(re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "#", path), cls) for path, cls in modules}
    best: tuple[float, int] | None = None
    chosen = None
    for order, dialect in enumerate((*own, *(shipped() if known is None else known))):
        names = {dialect.normalise(path.replace("#", "0"))[0] for path, _ in seen}
        score = 3 * len(names & dialect.detect_names) + 2 * len({cls for _, cls in seen} & dialect.detect_classes)
        rank = (score, -order)
        if best is None or rank > best:
            best, chosen = rank, dialect
    assert chosen is not None and best is not None
    return chosen if best[0] else next(item for item in shipped() if item.name == "hf")


@lru_cache(maxsize=1)
def _shipped_data() -> dict[str, dict[str, Any]]:
    found = {}
    for item in files(__package__).joinpath("dialects").iterdir():
        if item.name.endswith(".toml"):
            found[item.name.removesuffix(".toml")] = tomllib.loads(item.read_text(encoding="utf-8"))
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
    return {**base, **data, "module": [*own, *kept]}


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
    for value, allowed, key in ((rule.split, SPLITS, "split"), (rule.order, ORDERS, "order"), (rule.take, TAKES, "take")):
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
