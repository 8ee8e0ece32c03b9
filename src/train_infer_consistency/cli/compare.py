"""``consistency compare``: do the two engines agree, and if not, which module differs first, and by how much?"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .output import note, paint, print_json, progress
from .pairs import add_sides, find_pairs, find_plan, sides_of

if TYPE_CHECKING:
    from ..comparing.compare import Options
    from ..comparing.record import Comparison
    from ..pairing.model import Pairing


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
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path,
        help="write report.html, one self-contained page, and modules.jsonl there (needs the extra 'analysis')",
    )  # fmt: skip
    parser.add_argument("--lang", choices=("en", "zh"), help="the page's language (else the browser's)")
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write every input, output and parameter as a line")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write JUnit XML for CI, a test case per module")
    parser.add_argument(
        "--msprobe-view", metavar="DIR", type=Path,
        help="write both sides under one set of names there, for msprobe graph_visualize",
    )  # fmt: skip
    parser.add_argument(
        "--ray", action="store_true",
        help="compare each pair on the node of the running Ray cluster where it lies; folders as the nodes name them",
    )  # fmt: skip
    add_ship(parser)
    parser.add_argument(
        "--workers", metavar="N", type=_count,
        help="compare N pairs at a time (else as many as there are CPUs, where the pairs are worth it)",
    )  # fmt: skip
    parser.add_argument("-v", "--verbose", action="store_true", help="every module, and every step that is not used")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/comparison.schema.json)")


def add_ship(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that goes with ``--ray``."""
    parser.add_argument(
        "--ship", action="store_true", help="with --ray: send this package to nodes that have none, or another version"
    )


def check_ship(options: argparse.Namespace) -> None:
    """Refuse ``--ship`` alone.

    Raises:
        UsageError: there is no cluster to send anything to.
    """
    if options.ship and not options.ray:
        from ..errors import UsageError

        raise UsageError("--ship is for --ray", "add --ray, or leave it out")


def tell_node(text: str) -> None:
    """Say what a node lacks, on standard error."""
    note(f"consistency: {text}")


def run(options: argparse.Namespace) -> int:
    """Run the verb: 0 consistent, 1 different, 3 not enough evidence."""
    from ..comparing.compare import Options
    from ..comparing.dialect import load
    from ..comparing.judge import read_bounds
    from ..dumps.reader import paused_collector
    from ..reporting import terminal

    check_ship(options)
    wanted = {"page": options.output, "csv": options.csv, "junit": options.junit, "view": options.msprobe_view}
    if any(wanted.values()):
        from ..reporting.write import check

        check(**wanted)
    how = Options(
        dialects=tuple(load(path) for path in options.dialect),
        min_coverage=options.min_coverage,
        bitwise=options.bitwise,
        patterns=() if options.bounds is None else read_bounds(options.bounds),
    )
    with paused_collector(), ExitStack() as stack:
        every = any(wanted.values())
        if options.ray:
            comparison = _compare_on_nodes(stack, how, options, every=every)
        else:
            pairing = find_pairs(options)
            plan = find_plan(options, pairing)
            comparison = replace(_compare(stack, pairing, how, options, every=every), plan=plan)
        if not options.json:
            print(terminal.render(comparison, paint, verbose=options.verbose))
        if any(wanted.values()):
            from ..reporting.write import write

            for written in write(comparison, language=options.lang, **wanted):
                note(f"consistency: wrote {written}")
        if options.json:
            print_json(comparison.to_json())
    return comparison.status


def _compare(
    stack: ExitStack, pairing: Pairing, how: Options, options: argparse.Namespace, *, every: bool
) -> Comparison:
    """Compare one pair here, several beside each other."""
    if len(pairing.pairs) < 2:
        from ..comparing.pairs import compare

        return compare(pairing, how, options.noise)
    from ..comparing.many import How, compare_many, workers_for
    from ..comparing.stored import Store
    from ..comparing.workers import in_processes

    workers = min(options.workers or workers_for(pairing.pairs), len(pairing.pairs))
    with progress("pairs compared") as tell:
        return compare_many(
            pairing,
            How(how, options.noise, every),
            stack.enter_context(Store()),
            runner=in_processes(workers) if workers > 1 else None,
            progress=tell,
        )


def _compare_on_nodes(stack: ExitStack, how: Options, options: argparse.Namespace, *, every: bool) -> Comparison:
    """Bring the logs, pair them here, and have each pair compared where its data lies."""
    import tempfile

    from ..comparing.many import How, compare_many
    from ..comparing.stored import Store
    from ..errors import UsageError
    from ..hosts.compare import on_nodes
    from ..hosts.copying import bring_logs
    from ..hosts.nodes import on_cluster
    from ..hosts.sources import Together, labelled
    from ..pairing.mapping import RankMap

    if options.noise is not None:
        raise UsageError("--noise is for dumps on this machine", "leave out --ray, or collect the dumps first")
    generate, train = ([str(path) for path in paths] for paths in sides_of(options))
    found = stack.enter_context(on_cluster(generate, train, tell_node, ship=options.ship))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="consistency-")))
    sources = labelled(found)
    bring_logs(sources, folder)
    together = Together(sources, folder)
    pairing = together.pairing(RankMap.parse(options.map) if options.map else None, options.request)
    plan = find_plan(options, pairing)
    with progress("pairs compared") as tell:
        comparison = compare_many(
            pairing,
            How(how, None, every),
            stack.enter_context(Store()),
            runner=on_nodes(together, options.workers),
            progress=tell,
        )
    return replace(comparison, plan=plan)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of 1 or more")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share of 0 to 1")
    return value
