"""One screen: verdict, first difference and where its numbers are from, coverage, pairs, and a profile by layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ..comparing.judge import DIFFERS, EQUAL, NOT_COMPARED, WITHIN
from ..comparing.quantity import Quantity, Side
from ..comparing.record import Comparison, Difference, ModuleResult, PairResult
from ..pairing.plan import Plan
from .profile import MISSING, PARTNERLESS, Point, curve, state_of

# paint(text, "good" | "bad" | "warn" | "dim"): colours a text where there is a terminal.
Paint = Callable[[str, str], str]
VERDICT_COLOURS = {"consistent": "good", "different": "bad", "insufficient": "warn"}
_WORD_COLOURS = {DIFFERS: "bad", NOT_COMPARED: "warn", MISSING: "warn", PARTNERLESS: "dim"}
# Below this share of its bound an error is called small in the profile.
_SMALL = 0.1
_PER_LINE = 64
_REASONS, _LISTED, _NOTES, _PIECES = 4, 6, 4, 2
_MARGIN = " " * 10


def render(comparison: Comparison, paint: Paint, *, verbose: bool = False) -> str:
    """The screen as text.

    Args:
        comparison: what was found.
        paint: how to colour.
        verbose: list every module, note and unused step, which is no single screen any more.
    """
    lines = [f"{paint(comparison.verdict, VERDICT_COLOURS[comparison.verdict])}: {comparison.reason}"]
    lines += _plan(comparison.plan, paint)
    pair = comparison.worst
    if pair is not None:
        lines += _sides(comparison, pair)
        lines += _difference(pair.first_difference)
        lines += _coverage(pair, paint, verbose)
    lines += _pairs(comparison, verbose)
    if pair is not None:
        lines += _profile(curve(pair), paint)
        if verbose:
            lines += [_module(module, pair, paint) for module in pair.modules]
        lines += _notes(pair, paint, verbose)
    return "\n".join(lines)


def _plan(plan: Plan | None, paint: Paint) -> Iterator[str]:
    if plan is None:
        return
    if plan.run_id:
        yield _line("plan", str(plan))
    if plan.note:
        yield paint(_line("" if plan.run_id else "plan", plan.note), "warn")


def _sides(comparison: Comparison, pair: PairResult) -> Iterator[str]:
    if pair.request_id is not None:
        more = f" (1 of {len(comparison.pairs)} pairs)" if len(comparison.pairs) > 1 else ""
        yield _line("request", f"{pair.request_id}{more}")
    for side in (pair.inference, pair.training):
        if side is not None:
            yield _line(side.label, _side(side))
    if pair.inference is not None:
        yield _line("tokens", pair.identity)


def _side(side: Side) -> str:
    ranks = f" and {len(side.dumps) - 1} more" if len(side.dumps) > 1 else ""
    parallel = f", tensor parallel {side.parallel}" if side.parallel > 1 else ""
    return f"{side.dialect.title}, {side.layers} layers, {side.tokens} tokens{parallel}, {side.dumps[0].path}{ranks}"


def _difference(difference: Difference | None) -> Iterator[str]:
    """The first difference: figures of both sides, and the file and entry of each."""
    if difference is None:
        return
    row = difference.row
    alone = "" if row.side == "both" else f", the {row.side} side alone"
    yield _line("first", f"{difference.module} {row.kind}, by {row.evidence or 'what the ranks hold'}{alone}")
    names = ("max", "min", "mean", "norm")
    yield _MARGIN + f"{'':<10}{'dtype':<10}" + "".join(f"{name:>15}" for name in names)
    for label, quantity in (("inference", row.inference), ("training", row.training)):
        if quantity is not None:
            figures = "".join(f"{_figure(value):>15}" for value in quantity.summary)
            yield f"{_MARGIN}{label:<10}{quantity.dtype.removeprefix('torch.'):<10}{figures}"
    if row.errors is not None:
        yield f"{_MARGIN}{'rel. error':<20}" + "".join(f"{_error(value):>15}" for value in row.errors)
    if row.tensor is not None:
        cosine = "" if row.tensor.cosine is None else f", cosine {row.tensor.cosine:.6f}"
        token = "" if row.tensor.token is None else f", most at token {row.tensor.token}"
        yield (
            f"{_MARGIN}relative error {row.tensor.relative:.2g} (bound {row.bound:.2g}){cosine}, "
            f"largest {row.tensor.max_abs:.2g}, {row.tensor.ulp} ULP{token}"
        )
    for label, quantity in (("inference", row.inference), ("training", row.training)):
        yield from _sources(label, quantity)


def _sources(label: str, quantity: Quantity | None) -> Iterator[str]:
    if quantity is None:
        return
    pieces = quantity.pieces
    for piece in pieces[:_PIECES]:
        yield f"{_MARGIN}{label} from {piece.dump.path}"
        yield f"{_MARGIN}  {piece.call.name} {piece.slot}"
        label = " " * len(label)
    if len(pieces) > _PIECES:
        yield f"{_MARGIN}  and {len(pieces) - _PIECES} more"
    if quantity.derived:
        yield f"{_MARGIN}  rebuilt from {quantity.derived}"


def _coverage(pair: PairResult, paint: Paint, verbose: bool) -> Iterator[str]:
    counted = [module for module in pair.modules if module.counted]
    compared = len(counted) - pair.count(NOT_COMPARED)
    words = ", ".join(f"{pair.count(word)} {word}" for word in (EQUAL, WITHIN, DIFFERS) if pair.count(word))
    text = f"{pair.coverage:.3f}: {compared} of {len(counted)} modules" + (f" ({words})" if words else "")
    aside = len(pair.modules) - len(counted)
    yield _line("coverage", text + (f"; {aside} more not comparable by construction" if aside else ""))
    lacking = [module for module in counted if module.word == NOT_COMPARED]
    shown = lacking if verbose else lacking[:_LISTED]
    for module in shown:
        yield _MARGIN + paint(f"not compared: {module.module}: {module.reason}", "warn")
    if len(lacking) > len(shown):
        yield f"{_MARGIN}and {len(lacking) - len(shown)} more; -v shows all"


def _pairs(comparison: Comparison, verbose: bool) -> Iterator[str]:
    verdicts = Counter(pair.verdict for pair in comparison.pairs)
    words = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    unused = len(comparison.rejected)
    compared = f"{len(comparison.pairs)} compared" + (f" ({words})" if words else "")
    yield _line("pairs", f"{compared}; {unused} steps not used, plain decodes aside")
    for side in ("inference", "training"):
        counts = Counter(
            (str(step.get("text", "")), str(step.get("reason", "")))
            for step in comparison.rejected
            if step.get("side") == side
        )
        shown = counts.most_common(None if verbose else _REASONS)
        for (text, reason), count in shown:
            yield f"{_MARGIN}{side}: {count} x {text} [{reason}]"
        if len(counts) > len(shown):
            yield f"{_MARGIN}{side}: {sum(counts.values()) - sum(count for _, count in shown)} x other reasons"
    if verbose:
        for step in comparison.rejected:
            detail = f": {step['detail']}" if step.get("detail") else ""
            where = f"{step.get('process')} step {step.get('step')}"
            yield f"{_MARGIN}{where}: {step.get('text')}{detail}, {step.get('place')}"


def _profile(points: list[Point], paint: Paint) -> Iterator[str]:
    """A character a layer, and the errors of a few layers: how the error grows with depth."""
    layers = [point for point in points if point.column.isdecimal()]
    if not layers:
        return
    yield _line("layers", "= equal  . below a tenth of its bound  : within it  ! differs  ? not compared")
    for start in range(0, len(layers), _PER_LINE):
        part = layers[start : start + _PER_LINE]
        marks = "".join(paint(mark, "bad") if (mark := _mark(point)) == "!" else mark for point in part)
        yield f"{_MARGIN}{part[0].column:>4} {marks} {part[-1].column}"
    seen = [point for point in layers if point.worst is not None and point.worst.error is not None]
    if not seen:
        return
    count = min(len(seen), 5)
    chosen = [seen[round(index * (len(seen) - 1) / max(1, count - 1))] for index in range(count)]
    yield (
        _MARGIN
        + "error by layer: "
        + ", ".join(f"{point.column} {_error(point.worst.error)}" for point in chosen if point.worst is not None)
    )
    worst = max(seen, key=lambda point: point.worst.worst if point.worst is not None else 0.0).worst
    if worst is not None and worst.error:
        share = f", {worst.worst:.2g} of its bound" if worst.bound else ""
        yield f"{_MARGIN}largest: {worst.module} {worst.kind} {_error(worst.error)}{share}"


def _mark(point: Point) -> str:
    if point.word == DIFFERS:
        return "!"
    if point.worst is None:
        return "?"
    if point.worst.word == EQUAL:
        return "="
    return "." if point.worst.worst < _SMALL else ":"


def _module(module: ModuleResult, pair: PairResult, paint: Paint) -> str:
    state = state_of(module, pair)
    worst = max((row.worst for row in module.rows), default=0.0)
    share = f"{worst:.2g} of its bound" if module.rows else ""
    text = f"{module.module:<40} {state:<16} {share:<20} {module.reason}".rstrip()
    return paint(text, _WORD_COLOURS[state]) if state in _WORD_COLOURS else text


def _notes(pair: PairResult, paint: Paint, verbose: bool) -> Iterator[str]:
    problems = [problem for side in (pair.inference, pair.training) if side is not None for problem in side.problems]
    notes = [*problems, *pair.notes]
    shown = notes if verbose else notes[:_NOTES]
    for note in shown:
        yield paint(_line("note", note), "warn" if note in problems else "dim")
    if len(notes) > len(shown):
        yield _line("note", f"and {len(notes) - len(shown)} more; -v shows all")


def _line(label: str, text: str) -> str:
    return f"{label:<10}{text}"


def _figure(value: float | None) -> str:
    return "not available" if value is None else f"{value:.7g}"


def _error(value: float | None) -> str:
    return "not available" if value is None else f"{value:.2g}"
