"""``consistency doctor``: what is woven by what here or on every node of a Ray cluster, and what is wrong."""

from __future__ import annotations

import argparse
from pathlib import Path

from .output import paint, print_json

_COLOURS = {"wrong": "bad", "warning": "warn", "waived": "dim", "not checked": "warn", "note": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--site", metavar="PATH", type=Path, help="a site-packages folder or a checkout; else this Python's"
    )
    parser.add_argument("--ray", action="store_true", help="every node of the running Ray cluster")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the verb: 0 all is well, 1 something is wrong, 3 there is nothing to look at."""
    from ..overlay.doctor import examine, lines
    from ..overlay.lock import load_lock
    from ..overlay.reading import load_upstreams

    if options.ray:
        return _run_on_nodes(options)
    report = examine(load_upstreams(), load_lock(), options.site)
    if options.json:
        print_json(report.to_json())
    else:
        _print_lines(lines(report))
    return report.status


def _run_on_nodes(options: argparse.Namespace) -> int:
    from ..overlay.ray_nodes import connect, examine_nodes

    with connect() as cluster:
        survey = examine_nodes(cluster, None if options.site is None else str(options.site))
    if options.json:
        print_json(survey.to_json())
        return survey.status
    for answer in survey.answers:
        print(f"{answer.node}:" if answer.error is None else f"{answer.node}: {paint(answer.error, 'bad')}")
        if answer.error is None:
            _print_lines(answer.value["lines"])
    for difference in survey.differences:
        print(paint(f"wrong: {difference}", "bad"))
    return survey.status


def _print_lines(text: list[str]) -> None:
    for line in text:
        level = line.split(":", 1)[0]
        print(paint(line, _COLOURS[level]) if level in _COLOURS else line)
