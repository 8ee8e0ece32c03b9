"""``consistency collect``: logs and chosen steps of a run whose dumps lie on many hosts, brought into one folder."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compare import add_ship, check_ship, tell_node
from .output import note, print_json, progress, table

if TYPE_CHECKING:
    from ..hosts.collect import Choice, Plan
    from ..hosts.sources import Source

_STEPS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="the new folder; gets generate/ and train/"
    )
    parser.add_argument(
        "--generate", metavar="SRC", nargs="+", action="extend", required=True,
        help="the rollout's folders: mounted, or with --ray on the nodes ($VARIABLES are theirs)",
    )  # fmt: skip
    parser.add_argument(
        "--train", metavar="SRC", nargs="+", action="extend", required=True, help="the trainer's folders, likewise"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--request", metavar="ID", help="this request's steps alone")
    which.add_argument(
        "--steps", metavar="N,N-M", type=_steps, help="only pairs with these steps; 'all' for every dump there is"
    )
    parser.add_argument(
        "--map", metavar="I:T", action="append", default=[],
        help="inference rank I holds the same model as training rank T, as for compare",
    )  # fmt: skip
    parser.add_argument(
        "--ray",
        action="store_true",
        help="collect from all nodes of the running Ray cluster, as the nodes name folders",
    )
    add_ship(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be copied, and copy nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the verb: 0 collected, 3 nothing could be paired (the logs alone are collected then)."""
    from ..hosts.collect import Choice, workplace
    from ..hosts.sources import labelled
    from ..pairing.mapping import RankMap

    check_ship(options)
    everything = options.steps == "all"
    steps = options.steps if isinstance(options.steps, frozenset) else None
    choice = Choice(options.request, steps, everything, RankMap.parse(options.map) if options.map else None)
    part = workplace(options.output)
    with _found(options) as found:
        sources = labelled(found)
        return _dry(sources, choice, options) if options.dry_run else _collect(sources, choice, part, options)


@contextmanager
def _found(options: argparse.Namespace) -> Iterator[Any]:
    if options.ray:
        from ..hosts.nodes import on_cluster

        with on_cluster(options.generate, options.train, tell_node, ship=options.ship) as found:
            yield found
    else:
        from ..hosts.sources import here

        yield here(map(Path, options.generate), map(Path, options.train))


def _dry(sources: list[Source], choice: Choice, options: argparse.Namespace) -> int:
    from ..hosts.collect import plan

    with tempfile.TemporaryDirectory(prefix="consistency-") as folder:
        return _say(plan(sources, Path(folder), choice), options, done=False)


def _collect(sources: list[Source], choice: Choice, part: Path, options: argparse.Namespace) -> int:
    from ..errors import ConsistencyError, UnfinishedError
    from ..hosts.collect import carry_out, plan
    from ..hosts.copying import failed, held

    try:
        with held(part):
            planned = plan(sources, part, choice)
            with progress("MB copied") as tell:
                carry_out(
                    planned, part, options.output, choice, lambda done, total: tell(done // 10**6, total // 10**6)
                )
    except KeyboardInterrupt:
        raise failed(UnfinishedError("interrupted", "run it again to go on"), part) from None
    except ConsistencyError as error:
        raise failed(error, part) from None
    return _say(planned, options, done=True)


def _say(planned: Plan, options: argparse.Namespace, *, done: bool) -> int:
    from ..hosts.collect import megabytes

    logs = sum(log["bytes"] for log in planned.logs)
    copied, every = planned.folders
    status = 0 if planned.chosen or options.steps == "all" else 3
    if options.json:
        print_json(
            {
                "output": str(options.output),
                "dry_run": not done,
                "pairs": len(planned.chosen),
                "logs": len(planned.logs),
                "folders": copied,
                "folders_left_out": every - copied,
                "files": len(planned.items) + len(planned.logs),
                "bytes": planned.size + logs,
                "sources": [
                    {"side": s.found.side, "host": s.found.host.name, "folder": str(s.root), "to": s.to.as_posix()}
                    for s in planned.together.sources
                ],
            }
        )
        return status
    rows = [
        (s.found.side, s.found.survey.host or s.found.host.name, str(s.root), s.to.as_posix())
        for s in planned.together.sources
    ]
    print(table(("side", "host", "folder", "to"), rows))
    count = len(planned.chosen)
    print(f"{count} pair{'' if count == 1 else 's'}: {copied} of {every} rank folders, {len(planned.items)} files, "
          f"{megabytes(planned.size)}; {len(planned.logs)} logs, {megabytes(logs)}")  # fmt: skip
    if done:
        print(f"consistency compare {options.output / 'generate'} {options.output / 'train'}")
    else:
        print("nothing was copied: leave out --dry-run to do it")
    if status:
        note(
            "consistency: nothing could be paired, so no dump was chosen; consistency pairs on the two folders says why"
        )
    return status


def _steps(text: str) -> frozenset[int] | str:
    if text == "all":
        return text
    found: set[int] = set()
    for word in text.split(","):
        match = _STEPS.fullmatch(word.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{text} is not 'all' and no list like 3,5-9")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)
