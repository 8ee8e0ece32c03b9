"""Does an environment fit a stack: is every pin of it there, which pin is it by its digests, and do the versions agree?

It is asked before an overlay is laid and after: pristine files and files woven by this revision both fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import PathDistribution

from ..errors import UsageError
from .facts import Compared, compare_facts, facts_said
from .finding import Finding
from .lock import Stack
from .status import UpstreamStatus


def check_names(stack: Stack, without: Collection[str]) -> None:
    """Stop where an upstream is to be left out that the stack does not have.

    Raises:
        UsageError: naming those that it has.
    """
    for name in without:
        if name not in stack.pins:
            mend = f"use one of {', '.join(stack.pins)}"
            raise UsageError(f"--without {name}: stack {stack.name} has no such upstream", mend)


def fit(
    stack: Stack,
    rows: Sequence[UpstreamStatus],
    installed: Mapping[str, PathDistribution],
    without: Collection[str] = (),
) -> tuple[list[Finding], list[Compared]]:
    """Judge an environment by a stack.

    Args:
        stack: the stack.
        rows: the status of every upstream that is there.
        installed: the distributions by their normal names.
        without: upstreams of the stack that are not to be there yet.

    Returns:
        The findings, and every version fact beside what is installed; no fact where nothing could be compared.
    """
    there = {row.upstream: row for row in rows}
    pins = {name: version for name, version in stack.pins.items() if name not in without}
    findings = [*_of_pins(stack, pins, there)]
    try:
        compared = compare_facts(stack, installed)
    except ImportError:
        what = f"packaging is not installed, so no version of stack {stack.name} can be compared"
        findings.append(Finding("missing", "packaging", what, "pip install packaging, where that is harmless"))
        return findings, []
    return [*findings, *facts_said(compared, stack)], compared


def _of_pins(stack: Stack, pins: Mapping[str, str], there: Mapping[str, UpstreamStatus]) -> Iterator[Finding]:
    woven = [name for name in pins if name in there and there[name].state == "woven"]
    for name, version in pins.items():
        row = there.get(name)
        if row is None:
            what = f"not here: stack {stack.name} has {name} {version}"
            yield Finding("missing", name, what, f"install {name} {version}, or give --site where it is")
        elif row.state in ("pristine", "woven") and row.pin not in (version, *stack.in_place.get(name, ())):
            is_one = f"its files are those of {row.pin}" if row.pin else "its files are those of no pinned version"
            mend = f"install {name} {version}, or take the stack that has this one"
            yield Finding("wrong", name, f"{is_one}, stack {stack.name} has {version}", mend)
        elif row.state == "pristine" and woven:
            what = f"not woven, while {', '.join(woven)} {'is' if len(woven) == 1 else 'are'}"
            yield Finding("wrong", name, what, f"consistency overlay apply {name}")
        elif row.state == "pristine":
            yield Finding("note", name, "fits, and is not woven yet", f"consistency overlay apply {name}")
