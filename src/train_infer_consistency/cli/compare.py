"""``consistency compare``: do the two engines agree, and if not, which module differs first, and by how much?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .output import paint, print_json, table
from .pairs import add_sides, find_pairs

if TYPE_CHECKING:
    from ..comparing.record import Comparison, PairResult

_COLOURS = {"consistent": "good", "different": "bad", "insufficient": "warn"}
_LISTED = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_sides(parser)
    parser.add_argument(
        "--dialect", metavar="FILE", type=Path, action="append", default=[],
        help="a TOML file that says how an engine names its modules; may be given twice",
    )  # fmt: skip
    parser.add_argument(
        "--noise", metavar="DIR", type=Path,
        help="a third dump of the same prompt by one of the engines (fp32, or once more): the measured rounding",
    )  # fmt: skip
    parser.add_argument("--bitwise", action="store_true", help="only exact equality passes")
    parser.add_argument("--bounds", metavar="FILE", type=Path, help="bounds by module pattern, a TOML file")
    parser.add_argument(
        "--min-coverage", metavar="SHARE", type=_share, default=0.9,
        help="below this share of compared modules nothing is called consistent (0.9)",
    )  # fmt: skip
    parser.add_argument("-v", "--verbose", action="store_true", help="every module")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/comparison.schema.json)")


def run(options: argparse.Namespace) -> int:
    """Run the verb: 0 consistent, 1 different, 3 not enough evidence."""
    from ..comparing.compare import Options
    from ..comparing.dialect import load
    from ..comparing.judge import read_bounds
    from ..comparing.pairs import compare
    from ..dumps.reader import paused_collector

    how = Options(
        dialects=tuple(load(path) for path in options.dialect),
        min_coverage=options.min_coverage,
        bitwise=options.bitwise,
        patterns=() if options.bounds is None else read_bounds(options.bounds),
    )
    with paused_collector():
        comparison = compare(find_pairs(options), how, options.noise)
        if options.json:
            print_json(comparison.to_json())
        else:
            _print(comparison, options.verbose)
    return comparison.status


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share of 0 to 1")
    return value


def _print(comparison: Comparison, verbose: bool) -> None:
    print(f"{paint(comparison.verdict, _COLOURS[comparison.verdict])}: {comparison.reason}")
    used, unused = len(comparison.pairs), len(comparison.rejected)
    print(
        f"coverage {comparison.coverage:.3f}; {used} pair{'' if used == 1 else 's'} compared, {unused} steps not used"
    )
    pair = comparison.worst
    if pair is None:
        _print_rejected(comparison)
        return
    if pair.request_id is not None:
        print(f"request {pair.request_id}, tokens: {pair.identity}")
    for side in (pair.inference, pair.training):
        if side is not None:
            files = f"{side.dumps[0].path}" + (f" and {len(side.dumps) - 1} more" if len(side.dumps) > 1 else "")
            print(f"{side.label}: {side.dialect.title}, {side.layers} layers, {side.tokens} tokens, {files}")
    for note in pair.notes:
        print(paint(f"note: {note}", "dim"))
    _print_difference(pair)
    _print_modules(pair, verbose)


def _print_difference(pair: PairResult) -> None:
    if pair.first_difference is None:
        return
    row = pair.first_difference.row
    rows = []
    for label, quantity in (("inference", row.inference), ("training", row.training)):
        if quantity is not None:
            values = [f"{value:.7g}" if value is not None else "-" for value in quantity.summary]
            source = quantity.pieces[0]
            rows.append((label, quantity.dtype.removeprefix("torch."), *values, source.call.name))
    print(f"first difference: {pair.first_difference.module} {row.kind}")
    print(table(("side", "dtype", "max", "min", "mean", "norm", "entry"), rows))


def _print_modules(pair: PairResult, verbose: bool) -> None:
    shown = [m for m in pair.modules if verbose or (m.counted and m.word in ("differs", "not compared"))]
    listed = shown if verbose else shown[:_LISTED]
    if listed:
        rows = [(m.module, m.word, f"{max((row.worst for row in m.rows), default=0.0):.2g}", m.reason) for m in listed]
        print(table(("module", "word", "of its bound", ""), rows))
    if len(shown) > len(listed):
        print(f"... and {len(shown) - len(listed)} more; -v shows all")


def _print_rejected(comparison: Comparison) -> None:
    counts: dict[tuple[str, str], int] = {}
    for step in comparison.rejected:
        key = (str(step["side"]), str(step["text"]))
        counts[key] = counts.get(key, 0) + 1
    for (side, text), count in sorted(counts.items()):
        print(f"  {side}: {count} steps: {text}")
