"""``consistency plan``: write everything that a collection run needs, from a handful of answers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..launch import stacks
from ..launch.plan import Plan, make_plan, write_plan
from ..launch.planning.answers import ENGINES, make_answers, read_answers
from ..launch.planning.text import cards, cost_lines
from ..launch.run import SCENARIOS
from ..launch.words import LANGUAGES, language_of
from .output import print_json

_ANSWERS = (
    "model", "world_size", "tp", "pp", "cp", "prompt_length", "per_node", "engine", "dump_root", "tensors", "md5",
    "dp_attention", "allow_dp_attention", "run_id", "stack",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("scenario", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument(
        "--stack", metavar="NAME", help=f"{', '.join(stacks.STACKS)}, or pins: slime=0.2.4,sglang=0.5.9"
    )
    parser.add_argument("--answers", metavar="FILE", type=Path, help="a TOML file with the answers, or a plan.toml")
    parser.add_argument("--model", metavar="PATH", help="the model, as the engines take it")
    parser.add_argument("--world-size", metavar="N", type=int, help="processes (cards) of the training side")
    parser.add_argument("--dump-root", metavar="DIR", help="both sides dump below it: an absolute path of the target")
    for name, text in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context")):
        parser.add_argument(f"--{name}", metavar="N", type=int, help=f"{text} parallel size; default: 1")
    parser.add_argument("--prompt-length", metavar="N", type=int, help="the longest prompt, in tokens; default: 1024")
    parser.add_argument("--per-node", metavar="N", type=int, help="cards of a node; default: 8")
    parser.add_argument(
        "--engine",
        "--strategy",
        metavar="NAME",
        help=f"verl's training engine: {', '.join(ENGINES)}; default: fsdp2, whose weights are dumped",
    )
    parser.add_argument("--tensors", action="store_true", default=None, help="dump whole tensors, not statistics")
    parser.add_argument(
        "--md5", action="store_true", default=None, help="a checksum of each tensor beside its statistics"
    )
    parser.add_argument(
        "--dp-attention", action="store_true", default=None, help="SGLang with DP attention; refused with the reason"
    )
    parser.add_argument(
        "--allow-dp-attention",
        action="store_true",
        default=None,
        help="with it, --dp-attention is planned: compare attention alone",
    )
    parser.add_argument("--run-id", metavar="NAME", help="names the run; default: a new name")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="the plan's folder; default: SCENARIO-plan")
    parser.add_argument("--lang", choices=LANGUAGES, help="language of comments and README; default: the locale's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the verb: 0 the plan is written.

    Raises:
        UsageError: an answer is missing, or no run can come of them; nothing is written then.
        EvidenceError: the file of answers cannot be read.
        UnfinishedError: the folder cannot be written.
    """
    given: dict[str, Any] = read_answers(options.answers) if options.answers else {}
    if given.get("scenario", options.scenario) != options.scenario:
        raise UsageError(f"{options.answers} is for {given['scenario']}, not {options.scenario}", "name that scenario")
    given["scenario"] = options.scenario
    given.update({name: getattr(options, name) for name in _ANSWERS if getattr(options, name) is not None})
    language = options.lang or language_of(dict(os.environ))
    output = options.output or Path(f"{options.scenario}-plan")
    plan = make_plan(make_answers(given), output, language)
    write_plan(plan)
    if options.json:
        print_json(to_json(plan))
    else:
        print("\n".join(_lines(plan, output, language)))
    return 0


def to_json(plan: Plan) -> dict[str, Any]:
    """The JSON object."""
    return {
        "folder": plan.folder,
        "run_id": plan.answers.run_id,
        "scenario": plan.answers.scenario,
        "stack": plan.answers.stack,
        "versions": plan.answers.versions,
        "cards": cards(plan.answers),
        "files": sorted(plan.files),
        "warnings": plan.warnings,
        "costs": plan.costs.to_json(),
    }


def _lines(plan: Plan, output: Path, language: str) -> list[str]:
    zh = language == "zh"
    taken = cards(plan.answers)
    start = f"先检查：consistency check {output}" if zh else f"look first: consistency check {output}"
    found = [
        f"{output}: {', '.join(sorted(plan.files))}",
        (f"需要 {taken} 张卡" if zh else f"takes {taken} card{'' if taken == 1 else 's'}"),
    ]
    found += [f"{'注意' if zh else 'note'}: {one}" for one in plan.warnings]
    return [*found, *cost_lines(plan.costs, language), start]
