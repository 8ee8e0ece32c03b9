"""Two sides into a verdict: identity of the tokens, positions and parameters, then the first module that differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..dumps.reader import paused_collector
from ..errors import EvidenceError
from .coverage import holes, partnerless
from .dialect import Dialect
from .identity import identify, other_tokens, positions_differ
from .judge import DIFFERS, EQUAL, NOT_COMPARED, Bounds
from .names import depth_of, in_order, sort_key
from .quantity import HIDDEN, Module, Side
from .record import (
    CONSISTENT,
    DIFFERENT,
    INSUFFICIENT,
    Comparison,
    Difference,
    ModuleResult,
    PairResult,
    RowResult,
    worst_word,
)
from .row import LAST_ROW, Context, compare_row
from .rows import Shard
from .side import build_side
from .tensors import Layout, layout_of


@dataclass(frozen=True)
class Options:
    """How to compare.

    Attributes:
        dialects: the user's own.
        min_coverage: below it nothing is called consistent.
        bitwise: whether only exact equality passes.
        patterns: bounds of the user's file.
        noise: measured errors by (module, kind).
    """

    dialects: tuple[Dialect, ...] = ()
    min_coverage: float = 0.9
    bitwise: bool = False
    patterns: tuple[tuple[str, str, float], ...] = ()
    noise: Mapping[tuple[str, str], float] = field(default_factory=dict)


def compare_shards(
    inference: Sequence[Shard],
    training: Sequence[Shard],
    options: Options,
    *,
    request_id: str | None = None,
    joined_by: str = "",
) -> PairResult:
    """Compare one prompt's dumps of both sides.

    Args:
        inference: the ranks (and chunks) of the inference side.
        training: the ranks (and chunks) of the training side.
        options: how to compare.
        request_id: what paired them, for the report.
        joined_by: how they were paired: ``request id``, ``prompt hash``; empty where a person named two folders.
    """
    with paused_collector():
        try:
            one = build_side("inference", inference, options.dialects)
            two = build_side("training", training, options.dialects)
        except EvidenceError as error:
            return PairResult(request_id, INSUFFICIENT, str(error))
        return compare_sides(one, two, options, request_id=request_id, joined_by=joined_by)


def compare_sides(
    inference: Side, training: Side, options: Options, *, request_id: str | None = None, joined_by: str = ""
) -> PairResult:
    """Compare two sides that were put together; see :func:`compare_shards`."""
    result = PairResult(request_id, INSUFFICIENT, "", inference=inference, training=training)
    result.notes = [f"{side.label}: {note}" for side in (inference, training) for note in side.notes]
    for side in (inference, training):
        if not side.dialect.verified:
            result.notes.append(f"{side.label}: module names of {side.dialect.title} are not verified")
    identity = identify(inference, training, joined_by)
    result.identity = identity.how or "different"
    refusal = inference.refusal or training.refusal or identity.refusal
    if refusal:
        result.reason = f"not comparable: {refusal}"
        return result
    bounds = Bounds(options.patterns, options.noise, options.bitwise, _prevailing(inference, training))
    layouts = (_layouts(inference), _layouts(training))
    context = Context(inference, training, bounds, identity.window, layouts)
    result.modules = _compare_modules(context)
    counted = [module for module in result.modules if module.counted]
    compared = sum(module.word != NOT_COMPARED for module in counted)
    result.coverage = compared / len(counted) if counted else 0.0
    _note_logits(result)
    tables = [
        side.modules["embed"].rows.get("output") if "embed" in side.modules else None for side in (inference, training)
    ]
    if other_tokens(identity, tables[0], tables[1]):
        result.reason = "not comparable: the embedding's outputs are lookups of different tokens (or of another table)"
        result.identity = "different"
        return result
    result.first_difference = _first_difference(inference, training, result)
    _decide(result, options, holes(result, inference, training))
    return result


def summarise(pairs: Sequence[PairResult], rejected: Iterable[Mapping[str, Any]] = ()) -> Comparison:
    """The verdict over all pairs: one that differs decides; one that could not be judged forbids "consistent"."""
    rejected = list(rejected)
    if not pairs:
        return Comparison(INSUFFICIENT, "nothing could be paired", 0.0, [], rejected)
    coverage = min(pair.coverage for pair in pairs)
    for verdict in (DIFFERENT, INSUFFICIENT):
        found = [pair for pair in pairs if pair.verdict == verdict]
        if found:
            first = found[0] if verdict == DIFFERENT else min(found, key=lambda pair: pair.coverage)
            where = f"{first.request_id}: " if first.request_id and len(pairs) > 1 else ""
            more = f" ({len(found)} of {len(pairs)} pairs)" if len(pairs) > 1 else ""
            return Comparison(verdict, f"{where}{first.reason}{more}", coverage, list(pairs), rejected)
    reason = pairs[0].reason if len(pairs) == 1 else f"all {len(pairs)} pairs agree"
    return Comparison(CONSISTENT, reason, coverage, list(pairs), rejected)


def measure_noise(reference: Side, sides: Sequence[Side]) -> dict[tuple[str, str], float]:
    """The error of each row between a third run and the side of the same engine: the measured floor of rounding.

    Raises:
        EvidenceError: neither side is of the third run's engine, or it saw other tokens.
    """
    for side in sides:
        if side.dialect.name == reference.dialect.name:
            break
    else:
        raise EvidenceError(
            f"--noise is a dump of {reference.dialect.title}, and neither side is",
            "give a dump of the same prompt by one of the two engines, in fp32 or once more",
        )
    identity = identify(side, reference, "")
    if identity.refusal:
        raise EvidenceError(f"--noise is of another prompt: {identity.refusal}")
    context = Context(side, reference, Bounds(), identity.window, (_layouts(side), _layouts(reference)))
    noise = {}
    for module in _compare_modules(context):
        for row in module.rows:
            if row.errors is not None and not row.parameter:
                errors = row.errors
                extremes = max(errors.max or 0.0, errors.min or 0.0) / 2
                noise[module.module, row.kind] = max(errors.norm or 0.0, errors.mean or 0.0, extremes)
            elif row.tensor is not None and not row.parameter:
                noise[module.module, row.kind] = row.tensor.relative
    return noise


def _prevailing(inference: Side, training: Side) -> tuple[str, str] | None:
    """The dtypes of most outputs on the two sides."""
    counts = Counter(
        (row.dtype, other.rows["output"].dtype)
        for name, module in inference.modules.items()
        if (row := module.rows.get("output")) is not None
        and (other := training.modules.get(name)) is not None
        and "output" in other.rows
    )
    return max(counts.items(), key=lambda item: (item[1], item[0]))[0] if counts else None


def _layouts(side: Side) -> dict[str, Layout]:
    return {name.removesuffix(".core"): layout_of(m) for name, m in side.modules.items() if name.endswith(".attn.core")}


def _compare_modules(context: Context) -> list[ModuleResult]:
    one, two = context.inference.modules, context.training.modules
    found = []
    for module in sorted({**two, **one}.values(), key=lambda module: sort_key(module.template, module.numbers)):
        name = module.name
        a, b = one.get(name), two.get(name)
        if a is not None and b is not None:
            found.append(_compare_module(name, a, b, context))
            continue
        have, lacking = (context.inference, context.training) if b is None else (context.training, context.inference)
        why = partnerless(name, have, lacking)
        reason = why or f"only the {have.label} side has it"
        if not why and module.rule is None:
            reason += f" (a name that the dialect {have.dialect.name} does not know)"
        found.append(ModuleResult(name, NOT_COMPARED, reason, counted=not why))
    return found


def _compare_module(name: str, one: Module, two: Module, context: Context) -> ModuleResult:
    mine, theirs = one.rows, two.rows
    kinds = _common_kinds(tuple(mine), tuple(theirs))
    depth = depth_of(one.template, one.numbers, max(context.inference.layers, context.training.layers))
    rows = [compare_row(name, kind, depth, mine[kind], theirs[kind], context) for kind in kinds]
    word = worst_word(rows)
    reason = (one.rule.uncounted if one.rule else "") or (two.rule.uncounted if two.rule else "")
    counted = not reason
    if word == EQUAL and len(kinds) == len(mine) == len(theirs):
        return ModuleResult(name, word, reason, counted, rows, whole=True)
    if word == NOT_COMPARED and counted:
        reason = next((row.reason for row in rows if row.reason and row.kind == "output"), "")
        reason = reason or next((row.reason for row in rows if row.reason), "the two sides have no row in common")
        # Whatever was collected, statistics could not compare these.
        counted = (name, reason) != ("lm_head", LAST_ROW)
    whole = mine.keys() == theirs.keys() and not any(row.word == NOT_COMPARED for row in rows)
    return ModuleResult(name, word, reason, counted, rows, whole)


@lru_cache(maxsize=1024)
def _common_kinds(mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """The rows that can be compared, in their order."""
    return in_order([kind for kind in mine if kind in theirs and kind[0] not in HIDDEN])


def _first_difference(inference: Side, training: Side, result: PairResult) -> Difference | None:
    """Positions, then parameters, then the forward pass: what comes first explains what comes after."""
    shifted = positions_differ(inference, training)
    if shifted is not None:
        name, one, two = shifted
        reason = f"positions {one.stats.min:g} to {one.stats.max:g} against {two.stats.min:g} to {two.stats.max:g}"
        row = RowResult("positions", DIFFERS, reason, "statistics", inference=one, training=two)
        return Difference(name, row, result.request_id)
    different = [(m, row) for m in result.modules for row in m.rows if row.word == DIFFERS]
    for wanted in (True, False):
        for module, row in different:
            if row.parameter is wanted:
                return Difference(module.module, row, result.request_id)
    return None


def _note_logits(result: PairResult) -> None:
    head = next((module for module in result.modules if module.module == "lm_head"), None)
    if head is None:
        result.notes.append("logits not compared: neither side has lm_head")
    elif not any(row.kind == "output" and row.word != NOT_COMPARED for row in head.rows):
        output = next((row.reason for row in head.rows if row.kind == "output"), "") or head.reason
        why = f": {LAST_ROW}; dump tensors to compare it" if output == LAST_ROW else f" not compared: {output}"
        result.notes.append(f"logits{why}")


def _decide(result: PairResult, options: Options, gaps: list[str]) -> None:
    difference = result.first_difference
    if difference is not None:
        result.verdict, result.reason = DIFFERENT, describe(difference)
        return
    problems = [p for side in (result.inference, result.training) if side is not None for p in side.problems]
    if not any(module.word != NOT_COMPARED for module in result.modules if module.counted):
        why = next(
            (module.reason for module in result.modules if module.counted and module.rows), "no module in common"
        )
        result.reason = f"nothing could be compared: {why}"
    elif problems:
        result.reason = problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
    elif result.coverage < options.min_coverage:
        missing = next(m for m in result.modules if m.counted and m.word == NOT_COMPARED)
        result.reason = (
            f"coverage {result.coverage:.3f} is below {options.min_coverage:g}; the first that is missing is "
            f"{missing.module}: {missing.reason}"
        )
    elif gaps:
        result.reason = gaps[0] + (f" (and {len(gaps) - 1} more)" if len(gaps) > 1 else "")
    else:
        equal = result.count("equal")
        total = sum(module.counted for module in result.modules)
        result.verdict = CONSISTENT
        result.reason = f"{equal} of {total} modules equal, {result.count('within rounding')} within rounding"


def describe(difference: Difference) -> str:
    """One sentence about a difference."""
    row = difference.row
    what = {"input": "input", "output": "output", "positions": "positions"}.get(row.kind, f"parameter {row.kind}")
    if not row.parameter and row.kind not in ("input", "output", "positions"):
        what = row.kind
    if row.tensor is not None:
        token = f", most at token {row.tensor.token}" if row.tensor.token is not None else ""
        figures = f"relative error {row.tensor.relative:.2g}{token}, bound {row.bound:.2g}"
    elif row.errors is not None:
        name, value = max(((k, v) for k, v in row.errors._asdict().items() if v is not None), key=lambda item: item[1])
        figures = f"relative error of {name} {value:.2g}, bound {row.bound:.2g}"
    else:
        figures = row.reason
    return f"{difference.module}: {what} differs ({figures})"
