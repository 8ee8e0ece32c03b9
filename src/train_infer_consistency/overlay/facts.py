"""Compare the version facts of a stack with what is installed.

What is installed is read from metadata: a version, and for a fact that is a git commit what ``direct_url.json`` or the
editable checkout's ``.git`` tells. What cannot be judged is said by name and never counts as agreement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from .cann import cann_version
from .finding import Finding
from .locate import normal_name
from .lock import Fact, Stack

Verdict = Literal["agrees", "waived", "differs", "missing", "not checked"]


@dataclass(frozen=True)
class Compared:
    """One fact beside what is installed.

    Attributes:
        fact, wanted: its name and the stack's value.
        distribution: whose version was asked; None for CANN and for what nothing tells.
        installed: the installed version or commit, as far as it is known.
        why: the reason for ``waived`` and ``not checked``.
    """

    fact: str
    wanted: str
    distribution: str | None
    installed: str | None
    verdict: Verdict
    optional: bool = False
    why: str = ""


def compare_facts(stack: Stack, installed: Mapping[str, PathDistribution]) -> list[Compared]:
    """Compare every fact of a stack.

    Args:
        stack: the stack.
        installed: the distributions of the environment by their normal names.

    Raises:
        ImportError: ``packaging`` is not installed, and a version was to be compared.
    """
    return [_compare(fact, installed) for fact in stack.facts]


def _compare(fact: Fact, installed: Mapping[str, PathDistribution]) -> Compared:
    def found(have: str | None, verdict: Verdict, why: str = "") -> Compared:
        return Compared(fact.name, fact.value, fact.distribution, have, verdict, fact.optional, why)

    if fact.match == "cann":
        have = cann_version()
        return found(have, *_judge(fact, have)) if have else found(None, "not checked", "no CANN version file is here")
    if fact.distribution is None:
        return found(None, "not checked", "no installed package tells")
    distribution = installed.get(normal_name(fact.distribution))
    if distribution is None:
        return found(None, "missing")
    if fact.match == "commit":
        commit = commit_of(distribution)
        if commit is None:
            why = f"{distribution.version} is installed, and nothing tells its commit"
            return found(None, "not checked", why)
        return found(commit, "agrees" if commit.startswith(fact.value) else "differs")
    return found(distribution.version, *_judge(fact, distribution.version))


def wanted(fact: Fact) -> str:
    """The PEP 440 specifier that a version has to satisfy; not for ``commit``."""
    return fact.match if fact.match not in ("", "cann") else f"=={fact.value}"


def _judge(fact: Fact, have: str) -> tuple[Verdict, str]:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        version = Version(have)
    except InvalidVersion:
        return "not checked", f"{have} is no version that can be compared"
    if SpecifierSet(wanted(fact)).contains(version, prereleases=True):
        return "agrees", ""
    if any(SpecifierSet(also).contains(version, prereleases=True) for also in fact.also):
        return "waived", fact.why
    return "differs", ""


def commit_of(distribution: PathDistribution) -> str | None:
    """The git commit that a distribution was installed from, or that its editable checkout has now; None if unknown."""
    try:
        text = distribution.read_text("direct_url.json")
        if text is None:  # an older editable install has its metadata in the checkout itself
            return _head(Path(str(distribution.locate_file(""))))
        origin = json.loads(text)
        if "vcs_info" in origin:
            return str(origin["vcs_info"]["commit_id"])
        url = urlsplit(origin["url"])
        return _head(Path(unquote(url.path))) if url.scheme == "file" and origin["dir_info"]["editable"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _head(checkout: Path) -> str | None:
    git = checkout / ".git"
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref: "):
        return head
    ref = head.removeprefix("ref: ")
    if (git / ref).is_file():
        return (git / ref).read_text(encoding="utf-8").strip()
    packed = (git / "packed-refs").read_text(encoding="utf-8")
    match = re.search(rf"^([0-9a-f]{{40,64}}) {re.escape(ref)}$", packed, re.MULTILINE)
    return match[1] if match else None


def facts_said(compared: Iterable[Compared], stack: Stack) -> Iterator[Finding]:
    """Say what does not simply agree, with the mend."""
    untold = []
    for one in compared:
        subject = one.distribution or one.fact
        wanted = f"stack {stack.name} has {one.fact} {one.wanted}"
        if one.verdict == "differs":
            mend = "install the stack's version, or take the stack that has this one"
            yield Finding("wrong", subject, f"installed is {one.installed}, {wanted}", mend)
        elif one.verdict == "missing" and one.optional:
            yield Finding("note", subject, f"not installed, and not every run needs it: {wanted}")
        elif one.verdict == "missing":
            yield Finding("missing", subject, f"not installed: {wanted}", f"install {one.distribution}")
        elif one.verdict == "waived":
            yield Finding("waived", subject, f"installed is {one.installed}, {wanted} (waived: {one.why})")
        elif one.verdict == "not checked" and (one.distribution or one.installed or one.fact == "CANN"):
            yield Finding("not checked", subject, f"{wanted}: {one.why}")
        elif one.verdict == "not checked":
            untold.append(one.fact)
    if untold:
        yield Finding("not checked", stack.name, f"{', '.join(untold)}: no installed package tells")
