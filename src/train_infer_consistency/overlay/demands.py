"""What installed distributions require of one another, and which contradictions are waived (needs ``packaging``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PathDistribution

from .finding import Finding
from .locate import normal_name
from .lock import Waiver
from .requirements import contradicts

# A demand as a waiver writes it: "torch==2.9.0 (vllm-ascend 0.18.0)".
_DEMAND = re.compile(r"(\S+) \((\S+)")


def requirements_said(
    asking: Iterable[str],
    installed: Mapping[str, PathDistribution],
    waivers: Sequence[Waiver],
    accepted: Mapping[str, str],
) -> Iterator[Finding]:
    """Compare what the distributions of the stack require of one another and of what else is installed.

    Args:
        asking: the distributions of the upstreams that are there.
        installed: every distribution by its normal name.
        waivers: the contradictions that are accepted.
        accepted: by package the reason why a stack accepts the installed version, though it is not its own.
    """
    stack = {normal_name(name) for name in asking} & installed.keys()
    # vLLM belongs to every stack of vllm-ascend, whether or not it has overlays of its own here.
    stack |= {"vllm", "torch-npu", "triton-ascend"} & installed.keys()
    if not stack:
        return
    try:
        demands = _demands({name: installed[name] for name in sorted(stack)})
    except ImportError:
        what = f"the requirements of {', '.join(sorted(stack))}: packaging is not installed"
        yield Finding("not checked", "requirements", what, "pip install packaging, where that is harmless")
        return
    for package, asked in demands.items():
        have = installed[package].version if package in installed else None
        for finding in _judge(package, asked, have):
            waiver = next((waiver for waiver in waivers if _waives(waiver, package, asked, have)), None)
            why = accepted.get(package) if waiver is None else f"{waiver.wins} wins, because {waiver.why}"
            if why is None:
                yield finding
            else:
                yield replace(finding, level="waived", what=f"{finding.what} (waived: {why})", mend=None)


@dataclass(frozen=True)
class _Asked:
    """What one installed distribution requires of a package."""

    by: str
    requirement: str


def _demands(stack: Mapping[str, PathDistribution]) -> dict[str, list[_Asked]]:
    """Return the requirements of the stack by package, those whose marker does not hold here left out.

    Raises:
        ImportError: ``packaging`` is not installed.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    demands: dict[str, list[_Asked]] = {}
    for name, distribution in stack.items():
        for line in distribution.metadata.get_all("Requires-Dist") or []:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            plain = f"{requirement.name}{requirement.specifier}"
            by = f"{name} {distribution.version}"
            demands.setdefault(normal_name(requirement.name), []).append(_Asked(by, plain))
    return demands


def _judge(package: str, asked: Sequence[_Asked], have: str | None) -> Iterator[Finding]:
    if len(asked) > 1 and contradicts([item.requirement for item in asked]):
        said = " against ".join(f"{item.requirement} ({item.by})" for item in asked)
        what = f"{said}: no version satisfies all of them; installed is {have or 'none'}"
        yield Finding("wrong", package, what, "install one stack's wheels together")
        return
    if have is not None and not _is_version(have):
        said = ", ".join(f"{item.requirement} ({item.by})" for item in asked)
        yield Finding("not checked", package, f"{said}: {have} is installed, and is no version that can be compared")
        return
    for item in asked:
        if have is not None and not _satisfies(have, item.requirement):
            mend = f"install a {package} that fits, or a {item.by.split()[0]} that takes this one"
            yield Finding("wrong", package, f"{item.by} requires {item.requirement}, installed is {have}", mend)


def _is_version(text: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _satisfies(version: str, requirement: str) -> bool:
    from packaging.requirements import Requirement

    # packaging before 26 raises for what is no version.
    return _is_version(version) and Requirement(requirement).specifier.contains(version, prereleases=True)


def _waives(waiver: Waiver, package: str, asked: Sequence[_Asked], have: str | None) -> bool:
    """Tell whether a waiver covers what was found: it names the losing demands, and the winning one is satisfied.

    Where the package is not installed, those lose that contradict the winner. A demand is the same whatever version of
    its distribution makes it.
    """
    if normal_name(waiver.package) != package:
        return False
    wins = _DEMAND.match(waiver.wins)
    if wins is None or (have is not None and not _satisfies(have, wins[1])):
        return False
    named = {(match[1], normal_name(match[2])) for demand in waiver.demands if (match := _DEMAND.match(demand))}
    if have is None:
        losing = [item for item in asked if contradicts([item.requirement, wins[1]])]
    else:
        losing = [item for item in asked if not _satisfies(have, item.requirement)]
    return all((item.requirement, item.by.split()[0]) in named for item in losing)
