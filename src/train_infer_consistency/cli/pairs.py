"""``consistency pairs``: which inference and which training step are the same forward, and why others are not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import note, paint, print_json, table

if TYPE_CHECKING:
    from ..pairing.model import Pair, Pairing, Side
    from ..pairing.plan import Plan

_MOST_PAIRS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_sides(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="every pair, and every step that is not used")
    parser.add_argument("--json", action="store_true", help="print one JSON object; with -v every step is in it")


def add_sides(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say what is paired with what."""
    parser.add_argument(
        "generate", metavar="GENERATE_DIR", type=Path, help="the rollout's dump_path, or one dump of it"
    )
    parser.add_argument("train", metavar="TRAIN_DIR", type=Path, help="the trainer's dump_path, or one dump of it")
    parser.add_argument(
        "--generate", dest="more_generate", metavar="DIR", type=Path, action="append", default=[],
        help="a further folder of the rollout, from another host",
    )  # fmt: skip
    parser.add_argument(
        "--train", dest="more_train", metavar="DIR", type=Path, action="append", default=[],
        help="a further folder of the trainer, from another host",
    )  # fmt: skip
    parser.add_argument(
        "--map", metavar="I:T", action="append", default=[],
        help="inference rank I holds the same model as training rank T; I+J:T+U for shards",
    )  # fmt: skip
    parser.add_argument(
        "--plan", metavar="DIR", type=Path,
        help="the run's plan: its folder or plan.toml; else the plan.toml beside the dumps, where run.sh puts it",
    )  # fmt: skip
    parser.add_argument(
        "--request", metavar="ID", help="the request_id in msprobe's configuration, if it sliced to one"
    )


def sides_of(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """The folders of the rollout and of the trainer."""
    return [options.generate, *options.more_generate], [options.train, *options.more_train]


def find_plan(options: argparse.Namespace, pairing: Pairing) -> Plan | None:
    """The plan of the run that was paired.

    Raises:
        EvidenceError: what ``--plan`` names is none.
    """
    from ..pairing.plan import plan_of

    generate, train = sides_of(options)
    return plan_of(options.plan, [*generate, *train], pairing)


def find_pairs(options: argparse.Namespace) -> Pairing:
    """The pairing that the arguments of :func:`add_sides` ask for.

    Raises:
        EvidenceError: a path does not exist or holds nothing of the kind.
        UsageError: a map that is none, or a tree beside a single dump.
    """
    from ..errors import UsageError
    from ..pairing.direct import given, is_direct

    generate, train = sides_of(options)
    if is_direct(options.generate, options.train):
        if options.map or options.request or len(generate) + len(train) > 2:
            raise UsageError("--map, --request, --generate and --train are for whole trees", "leave them out")
        return given(options.generate, options.train)
    from ..dumps.tree import scan
    from ..pairing.join import pair
    from ..pairing.mapping import RankMap

    mapping = RankMap.parse(options.map) if options.map else None
    return pair(
        scan(*generate, without=[path for path in train if path not in generate]),
        scan(*train, without=[path for path in generate if path not in train]),
        mapping=mapping,
        sliced=options.request,
    )


def run(options: argparse.Namespace) -> int:
    """Run the verb: 0 there are pairs, 3 there are none."""
    pairing = find_pairs(options)
    plan = find_plan(options, pairing)
    if options.json:
        print_json({**to_json(pairing, options.verbose), "plan": None if plan is None else plan.to_json()})
    else:
        _print(pairing, options.verbose)
        if plan is not None:
            print(f"plan: {plan}" if plan.run_id else "plan: not read")
            if plan.note:
                note(paint(f"consistency: {plan.note}", "warn"))
    return 0 if pairing.pairs else 3


def to_json(pairing: Pairing, verbose: bool) -> dict[str, Any]:
    """The JSON object: ``pairs``, for each side counts by reason (and with ``verbose`` every step), ``problems``."""
    made: dict[str, Any] = {"pairs": [_pair(found) for found in pairing.pairs]}
    for side in ("inference", "training"):
        made[side] = {reason.value: count for reason, count in sorted(pairing.counts(side).items(), key=str)}
    if verbose:
        made["steps"] = [
            {**verdict.to_json(), "used": verdict.used}
            for side in ("inference", "training")
            for verdict in pairing.steps(side)
        ]
    made["problems"] = pairing.problems
    return made


def _pair(found: Pair) -> dict[str, Any]:
    return {
        "request_id": found.request_id,
        "prompt_hash": found.prompt_hash,
        "joined_by": found.joined,
        "inference": _side(found.inference),
        "training": _side(found.training),
        "replicas": [_side(side) for side in found.replicas],
        "notes": list(found.notes),
    }


def _side(side: Side) -> dict[str, Any]:
    dumps = [{"rank": part.rank, "step": part.step, "path": str(part.path)} for part in side.parts]
    return {
        "process": side.process,
        "step": side.step,
        "tokens": side.tokens.count,
        "sliced": side.sliced,
        "dumps": dumps,
    }


def _print(pairing: Pairing, verbose: bool) -> None:
    if pairing.pairs:
        shown = pairing.pairs if verbose else pairing.pairs[:_MOST_PAIRS]
        rows = [
            (
                found.request_id or found.prompt_hash or f"({found.joined})",
                found.inference.process,
                _number(found.inference.step),
                found.training.process,
                _number(found.training.step),
                _number(found.inference.tokens.count),
                "; ".join([*found.notes, *_replicas(found)]),
            )
            for found in shown
        ]
        header = ("request", "inference", "step", "training", "step", "tokens", "note")
        print(table(header, rows))
        if len(shown) < len(pairing.pairs):
            print(f"... and {len(pairing.pairs) - len(shown)} more; -v shows all")
    count = len(pairing.pairs)
    print(paint(f"{count} pair{'' if count == 1 else 's'}", "good" if count else "bad"))
    _print_counts(pairing)
    if verbose:
        _print_steps(pairing)
    for problem in pairing.problems:
        note(paint(f"consistency: {problem}", "warn"))


def _print_counts(pairing: Pairing) -> None:
    for side in ("inference", "training"):
        counts = pairing.counts(side)
        total = sum(counts.values())
        print(f"{side}: {total} step{'' if total == 1 else 's'}")
        for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0].value)):
            print(f"  {count:>7}  {reason.text} [{reason.value}]")


def _print_steps(pairing: Pairing) -> None:
    rows = [
        (
            verdict.side,
            verdict.process,
            _number(verdict.step),
            verdict.reason.value,
            verdict.detail,
            verdict.request_id or "",
            verdict.place,
        )
        for side in ("inference", "training")
        for verdict in pairing.steps(side)
        if not verdict.used
    ]
    if rows:
        print(table(("side", "process", "step", "not used", "because", "request", "place"), rows))


def _replicas(found: Pair) -> list[str]:
    count = len(found.replicas)
    return (
        [f"{count} more training ranks saw this prompt" if count > 1 else "1 more training rank saw it"]
        if count
        else []
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
