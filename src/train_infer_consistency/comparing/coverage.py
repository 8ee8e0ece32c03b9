"""What has no partner by construction, and what is missing for no such reason."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase

from .judge import NOT_COMPARED
from .names import template_of
from .quantity import HIDDEN, Quantity, Side
from .record import PairResult

_ENDS = ("embed", "final_norm")


def partnerless(name: str, have: Side, lacking: Side) -> str:
    """Why a module that only one side has is not expected on the other; empty where it is.

    Args:
        name: its canonical path.
        have: the side that has it.
        lacking: the side that has not.
    """
    module = have.modules[name]
    if module.rule is not None and module.rule.uncounted:
        return module.rule.uncounted
    template = module.template
    for rule in _absorbing(lacking):
        if any(fnmatchcase(template, pattern) for pattern in rule[1]):
            return f"the {lacking.label} side has it inside {rule[0]}"
    return ""


def holes(result: PairResult, inference: Side, training: Side) -> list[str]:
    """Rows that a side lacks in some layers, though it has them in others and the other side has them here.

    A missing entry, an unreadable number: damage looks like this, and what is missing may be what differs. Coverage
    alone would let a single module pass.
    """
    found = []
    for own, other in ((inference, training), (training, inference)):
        lacking = []
        for entry in result.modules:
            if entry.whole:
                continue
            theirs = other.modules.get(entry.module)
            if theirs is None or not entry.counted or entry.module in own.excused:
                continue
            mine = own.modules.get(entry.module)
            rows = {} if mine is None else mine.rows
            lacking += [
                (theirs, kind)
                for kind, row in theirs.rows.items()
                if not row.gap and not kind.startswith(HIDDEN) and kind != "v" and not _usable(rows.get(kind))
            ]
        if lacking:
            have = {
                (module.template, kind)
                for module in own.modules.values()
                for kind, row in module.rows.items()
                if not row.gap
            }
            found += [
                f"the {own.label} side lacks {module.name} {kind}, which its other layers have"
                for module, kind in lacking
                if (module.template, kind) in have
            ]
        found += [
            f"the {own.label} side lacks {name} {kind}"
            for name, kind in (("embed", "output"), ("final_norm", "output"))
            if _has(other, name, kind) and not _has(own, name, kind)
        ]
    return found + _lost_from_both(inference, training) + _uncompared(result)


def _lost_from_both(inference: Side, training: Side) -> list[str]:
    """Modules that one layer lacks on both sides, though it has nothing that the layers with them have not.

    A layer of another kind, such as the first dense ones of a mixture of experts, has modules of its own.
    """
    layers: dict[int, set[str]] = {}
    for module in {**training.modules, **inference.modules}.values():
        if module.template.startswith("layers.#") and not (module.rule and module.rule.uncounted):
            layers.setdefault(module.numbers[0], set()).add(module.template)
    counts = Counter(template for have in layers.values() for template in have)
    rare = {template for template, count in counts.items() if count == len(layers) - 1}
    return [
        f"both sides lack {template.replace('#', str(layer), 1)}, which the other layers have"
        for layer, have in sorted(layers.items())
        for template in sorted(rare - have)
        if any(have < other and template in other for other in layers.values())
    ]


def _uncompared(result: PairResult) -> list[str]:
    """Rows that both sides have and that were compared in other layers, but not here."""
    lost = [
        (entry.module, row)
        for entry in result.modules
        if not entry.whole and entry.counted and entry.module != "lm_head"
        for row in entry.rows
        if row.word == NOT_COMPARED and _usable(row.inference) and _usable(row.training)
    ]
    if not lost:
        return []
    compared = {
        (template_of(entry.module), row.kind)
        for entry in result.modules
        for row in entry.rows
        if row.word != NOT_COMPARED and entry.module not in _ENDS
    }
    return [
        f"{module} {row.kind} was not compared: {row.reason}"
        for module, row in lost
        # What no layer can be compared in is a matter of layout, and of the coverage.
        if module in _ENDS or (template_of(module), row.kind) in compared
    ]


def _usable(row: Quantity | None) -> bool:
    return row is not None and not row.gap


def _has(side: Side, name: str, kind: str) -> bool:
    module = side.modules.get(name)
    return module is not None and _usable(module.rows.get(kind))


def _absorbing(side: Side) -> list[tuple[str, tuple[str, ...]]]:
    seen: dict[str, tuple[str, tuple[str, ...]]] = {}
    for module in side.modules.values():
        if module.rule is not None and module.rule.absorbs:
            seen.setdefault(module.rule.target, (module.rule.target, module.rule.absorbs))
    return list(seen.values())
