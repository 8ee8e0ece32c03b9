"""``consistency doctor``: what is woven by what here or on every node of a Ray cluster, and what is wrong."""

from __future__ import annotations

import argparse
from pathlib import Path

from .output import paint, print_json

_COLOURS = {"wrong": "bad", "missing": "bad", "warning": "warn", "waived": "dim", "not checked": "warn", "note": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--site", metavar="PATH", type=Path, help="a site-packages folder or a checkout; else this Python's"
    )
    parser.add_argument("--stack", metavar="NAME", help="does the environment fit this stack of VERSIONS.lock")
    parser.add_argument(
        "--without",
        metavar="UPSTREAM",
        action="append",
        default=[],
        help="with --stack: an upstream that is brought later (may be repeated)",
    )
    parser.add_argument("--ray", action="store_true", help="every node of the running Ray cluster")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Run the verb: 0 all is well, 1 something is wrong, 3 nothing is there to look at, or a part of the stack is not.

    Raises:
        UsageError: options that do not go together, an unknown stack or upstream.
    """
    from ..errors import UsageError
    from ..overlay.doctor import examine, lines
    from ..overlay.lock import load_lock
    from ..overlay.reading import load_upstreams

    if options.without and not options.stack:
        raise UsageError("--without needs --stack", "name the stack that the environment is to fit")
    if options.ray and options.stack:
        raise UsageError("--stack looks at one environment, not at --ray's nodes", "leave one of them out")
    if options.ray:
        return _run_on_nodes(options)
    lock = load_lock()
    stack = None if options.stack is None else lock.stack(options.stack)
    report = examine(load_upstreams(), lock, options.site, stack, options.without)
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
