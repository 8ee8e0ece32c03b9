"""``consistency overlay apply``, ``revert`` and ``status``: the edits over packages that are installed already."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .output import note, paint, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..overlay.model import Upstream
    from ..overlay.revert import Outcome


def add_verbs(verbs: Any) -> None:
    """Declare the three sub-verbs; ``verbs`` is what ``add_subparsers`` returned."""
    text = "lay the edits over an installed or editable package: all of a package's files or none"
    apply = verbs.add_parser("apply", help=text, description=text[0].upper() + text[1:] + ".")
    add_apply_arguments(apply)
    text = "put the originals back, byte for byte; refused where a file was changed since"
    revert = verbs.add_parser("revert", help=text, description=text[0].upper() + text[1:] + ".")
    add_revert_arguments(revert)
    text = "what each installed package is: absent, pristine, woven by which version, changed by someone else"
    status = verbs.add_parser("status", help=text, description=text[0].upper() + text[1:] + ".")
    add_status_arguments(status)
    for verb, work in ((apply, run_apply), (revert, run_revert), (status, run_status)):
        verb.set_defaults(work=work)


def add_apply_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``apply``."""
    _add_names(parser, "every upstream package that is installed; none is touched where one is refused")
    parser.add_argument(
        "--allow-unknown-base", action="store_true", help="weave files that no pin knows, and record it"
    )
    parser.add_argument(
        "--ray", action="store_true", help="on every node of the running Ray cluster: all nodes or none"
    )


def add_revert_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``revert``."""
    _add_names(parser, "every package that has an overlay")


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``status``."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="an upstream; all by default")
    _add_common(parser)


def _add_names(parser: argparse.ArgumentParser, every: str) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="an upstream, by the name of its overlay folder")
    parser.add_argument("--all", action="store_true", dest="every", help=every)
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--site", metavar="PATH", type=Path, help="a site-packages folder or a checkout; else this Python's"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_apply(options: argparse.Namespace) -> int:
    """Run ``apply``: 0 applied or applied before, 1 refused, 3 nothing there, 4 could not finish."""
    from ..overlay.apply import apply
    from ..overlay.lock import load_lock
    from ..overlay.reading import load_upstreams

    upstreams = load_upstreams()
    names = _names(options, upstreams)
    if options.ray:
        return _apply_on_nodes(options, names)
    outcomes = apply(upstreams, load_lock(), names, site=options.site, allow_unknown_base=options.allow_unknown_base)
    _print_outcomes(outcomes, options)
    return 0


def _apply_on_nodes(options: argparse.Namespace, names: list[str] | None) -> int:
    from ..overlay.ray_nodes import Request, apply_on_nodes, connect
    from ..overlay.reading import overlay_revision

    site = None if options.site is None else str(options.site)
    request = Request(names, site, options.allow_unknown_base, revision=overlay_revision())
    with connect() as cluster:
        answers = apply_on_nodes(cluster, request)
    if options.json:
        print_json({"nodes": [answer.to_json() for answer in answers]})
        return 0
    for answer in answers:
        print(f"{answer.node}:")
        for outcome in answer.value:
            print(f"  {outcome['upstream']} {outcome['version'] or ''} in {outcome['root']}: {outcome['action']}")
    said = dict.fromkeys(text for answer in answers for outcome in answer.value for text in outcome["notes"])
    for text in said:
        note(text)
    return 0


def run_revert(options: argparse.Namespace) -> int:
    """Run ``revert``: 0 reverted or nothing to revert, 1 refused, 3 nothing there, 4 could not finish."""
    from ..overlay.reading import load_upstreams
    from ..overlay.revert import revert

    upstreams = load_upstreams()
    outcomes = revert(upstreams, _names(options, upstreams), site=options.site)
    _print_outcomes(outcomes, options)
    if not outcomes and not options.json:
        print("no overlay is applied here")
    return 0


def run_status(options: argparse.Namespace) -> int:
    """Run ``status``: 0 all is well, 1 something is changed or interrupted, 3 nothing is there."""
    from ..overlay.locate import environment
    from ..overlay.lock import load_lock
    from ..overlay.reading import load_upstreams
    from ..overlay.status import exit_status, status, table

    upstreams = load_upstreams()
    names = _known(options.names, upstreams) if options.names else None
    rows = status(upstreams, load_lock(), environment(options.site), names)
    if options.json:
        print_json({"status": exit_status(rows), "upstreams": [row.to_json() for row in rows]})
    else:
        print(table(rows))
    return exit_status(rows)


def _names(options: argparse.Namespace, upstreams: dict[str, Upstream]) -> list[str] | None:
    if options.every == bool(options.names):
        raise UsageError("give the name of an upstream, or --all", f"known are {', '.join(upstreams)}")
    return None if options.every else _known(options.names, upstreams)


def _known(names: Sequence[str], upstreams: dict[str, Upstream]) -> list[str]:
    for name in names:
        if name not in upstreams:
            raise UsageError(f"unknown upstream '{name}'", f"use one of {', '.join(upstreams)}")
    return list(dict.fromkeys(names))


_WORDS = {
    "applied": ("woven by consistency.{}", "good"),
    "already": ("woven by consistency.{} already, and left as it is", "dim"),
    "reverted": ("reverted: every file is as it was", "good"),
    "rolled-back": ("an interrupted apply was undone: every file is as it was", "good"),
    "nothing": ("nothing to revert", "dim"),
}


def _print_outcomes(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    if options.json:
        print_json({"outcomes": [outcome.to_json() for outcome in outcomes]})
        return
    for outcome in outcomes:
        words, colour = _WORDS[outcome.action]
        pin = f" (pin {outcome.pin}, base {outcome.base})" if outcome.action == "applied" else ""
        print(f"{outcome.upstream} in {outcome.root}: {paint(words.format(outcome.revision), colour)}{pin}")
        for path in outcome.files:
            print(f"  {path}")
    for text in dict.fromkeys(text for outcome in outcomes for text in outcome.notes):
        note(text)
