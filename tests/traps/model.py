"""The list of traps: what the published procedures and their upstreams get wrong, and what here must notice it.

``traps.toml`` has one entry for each. A trap with mutants is proved by them: each is a small change of this project's
own source that brings the defect in, with the tests that must fail then.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

LIST = Path(__file__).with_name("traps.toml")


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and the tests that must fail with it.

    Attributes:
        id: the trap's id and a number.
        file: which file, from the root of the checkout.
        old: what stands there, exactly once.
        new: what the mutant has in its place.
        tests: node ids; of a parametrised test, at least one case must fail.
        engines: whether these tests need torch and real engines.
    """

    id: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    engines: bool = False


@dataclass(frozen=True)
class Trap:
    """One defect.

    Attributes:
        id: its name.
        upstream: the section of the list it belongs to.
        wrong: what goes wrong.
        here: what happens here instead.
        mutants: its proofs.
        tests: tests of other rooms that hold what ``here`` says, without a mutant.
        untested: why no test can show it; empty where something does.
    """

    id: str
    upstream: str
    wrong: str
    here: str
    mutants: tuple[Mutant, ...]
    tests: tuple[str, ...]
    untested: str


def load_traps() -> list[Trap]:
    """All traps, in the order of the list."""
    content = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [_trap(name, entry) for name, entry in content.items()]


def _trap(name: str, entry: dict[str, Any]) -> Trap:
    mutants = [
        Mutant(f"{name}-{number}", **{**mutant, "tests": tuple(mutant["tests"])})
        for number, mutant in enumerate(entry.pop("mutant", []), 1)
    ]
    words = {"tests": (), "untested": "", **entry}
    return Trap(name, **{**words, "mutants": tuple(mutants), "tests": tuple(words["tests"])})


def text_of(file: str) -> str:
    """The text of a file of this checkout."""
    return (ROOT / file).read_text(encoding="utf-8")
