"""Judge whether demands on one package can hold together (needs ``packaging``; nothing else here does).

Containers often lack ``packaging``: then :func:`contradicts` answers None, "not checked", which is no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .lock import Demand, Stack, Waiver


@dataclass(frozen=True)
class Contradiction:
    """Demands on one package that no version satisfies together; ``waiver`` where the lock accepts it."""

    package: str
    demands: tuple[Demand, ...]
    waiver: Waiver | None

    def __str__(self) -> str:
        return f"{self.package}: " + " against ".join(f"{d.requires} ({d.by})" for d in self.demands)


def contradicts(requirements: Sequence[str]) -> bool | None:
    """Tell whether no version can satisfy all requirements on one package.

    The candidates are the versions named in the requirements, their releases and what follows each closely, which
    is enough for ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=`` and ``~=`` on versions of up to four numbers.

    Args:
        requirements: PEP 508 requirements of the same package.

    Returns:
        None where ``packaging`` is not installed or a requirement cannot be read.
    """
    try:
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.version import InvalidVersion, Version
    except ImportError:
        return None
    try:
        specifiers = [Requirement(requirement).specifier for requirement in requirements]
    except InvalidRequirement:
        return None
    candidates = ["0"]
    for named in (item.version for specifier in specifiers for item in specifier):
        plain = named.removesuffix(".*")
        public, final = plain.split("+")[0], re.split("[^0-9.]", plain)[0].rstrip(".")
        candidates += [plain, public, f"{public}.post1", final, f"{final}.1", f"{final}.0.0.0.1"]
    for candidate in candidates:
        try:
            version = Version(candidate)
        except InvalidVersion:
            continue
        if all(specifier.contains(version, prereleases=True) for specifier in specifiers):
            return False
    return True


def is_specifier(text: str) -> bool | None:
    """Tell whether a text is a PEP 440 specifier; None where ``packaging`` is not installed."""
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
    except ImportError:
        return None
    try:
        return bool(SpecifierSet(text))
    except InvalidSpecifier:
        return False


def judge(stack: Stack) -> tuple[list[Contradiction], bool]:
    """Return a stack's contradictions, each with its waiver, and whether they could be judged at all."""
    by_package: dict[str, list[Demand]] = {}
    for demand in stack.demands:
        by_package.setdefault(demand.package, []).append(demand)
    found, checked = [], True
    for package, demands in by_package.items():
        verdict = contradicts([demand.requires for demand in demands])
        checked = checked and verdict is not None
        if verdict:
            waiver = next((waiver for waiver in stack.waivers if waiver.package == package), None)
            found.append(
                Contradiction(package, tuple(demands), waiver if waiver and _covers(waiver, demands) else None)
            )
    return found, checked


def idle_waivers(stack: Stack) -> list[str]:
    """Return the packages whose waiver accepts no contradiction of the stack; empty where nothing can be judged."""
    found, checked = judge(stack)
    needed = {contradiction.package for contradiction in found if contradiction.waiver}
    return [waiver.package for waiver in stack.waivers if waiver.package not in needed] if checked else []


def _covers(waiver: Waiver, demands: Sequence[Demand]) -> bool:
    """Tell whether a waiver is about these demands: a demand that it does not name must agree with the winner."""
    by_name = {f"{demand.requires} ({demand.by})": demand.requires for demand in demands}
    if waiver.wins not in waiver.demands or not set(waiver.demands) <= set(by_name):
        return False
    others = [requires for name, requires in by_name.items() if name not in waiver.demands]
    return contradicts([by_name[waiver.wins], *others]) is False
