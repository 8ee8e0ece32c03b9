"""Every trap of the list is proved: with the defect brought into this project's own source, the named tests fail.

Mutants whose tests need engines run by ``make mutants``, which takes long, and is no part of CI.
"""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NO_SOURCE, ROOT

from .model import Mutant, Trap, load_traps, text_of
from .page import PAGE, page

TRAPS = load_traps()
MUTANTS = [mutant for trap in TRAPS for mutant in trap.mutants]
#: What a copy of the checkout has: more than the package, because tests of other rooms import it.
COPIED = ("src", "tests", "overlays", "docs", "benchmarks", "demo", "requirements")
LEFT_OUT = ("__pycache__", "engines")
#: What happened in the copy of a name: a mutant's id, or the unchanged "base".
Outcome = Callable[[str], dict[str, Any]]


@cache
def functions(file: str) -> frozenset[str]:
    """The tests of a file, by their names in a node id."""
    found = set()
    for node in ast.parse(text_of(file)).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return frozenset(found)


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name in functions(file)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.id)
def test_every_trap_is_shown_or_has_a_reason(trap: Trap) -> None:
    assert trap.wrong
    assert trap.here
    assert bool(trap.mutants or trap.tests) != bool(trap.untested)
    for test in (*trap.tests, *(test for mutant in trap.mutants for test in mutant.tests)):
        assert exists(test), test


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_mutants_old_text_is_there_once(mutant: Mutant) -> None:
    assert text_of(mutant.file).count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert mutant.tests
    changed = text_of(mutant.file).replace(mutant.old, mutant.new)
    if mutant.file.endswith(".py"):
        ast.parse(changed)


def test_page_is_the_one_of_the_list() -> None:
    """``python -m tests.traps.page`` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page(TRAPS)


def run_all(mutants: list[Mutant], folder: Path, workers: int, marks: str) -> Outcome:
    """Run the tests of all mutants in copies below a folder, and of the unchanged copy first."""
    base = folder / "base"
    base.mkdir()
    with_engines = marks == "engines"
    left_out = shutil.ignore_patterns(*LEFT_OUT[: 1 if with_engines else None])
    for name in COPIED:
        shutil.copytree(ROOT / name, base / name, ignore=left_out)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy2(file, base / file.name)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    control = {"folder": str(base), "file": "", "tests": tests}
    jobs = [
        {"folder": str(folder / m.id), "file": m.file, "old": m.old, "new": m.new, "tests": m.tests} for m in mutants
    ]
    for batch in ([control], jobs):
        command = [sys.executable, str(Path(__file__).with_name("runner.py")), str(base), str(workers), marks]
        subprocess.run(command, input=json.dumps(batch), text=True, check=True, cwd=folder)
        shutil.rmtree(base / "tmp", ignore_errors=True)

    def outcome(name: str) -> dict[str, Any]:
        copy = folder / name
        result: dict[str, Any] = json.loads((copy / "outcome.json").read_text())
        return {**result, "output": (copy / "output.txt").read_text()[-4000:], "folder": str(copy)}

    return outcome


def check_unchanged(outcome: dict[str, Any]) -> None:
    failed = [test for test, word in outcome["tests"].items() if word == "failed"]
    assert outcome["tests"]
    assert not failed, outcome["output"]


def check_killed(mutant: Mutant, outcome: dict[str, Any], unchanged: dict[str, Any]) -> None:
    """The tests fail of the mutation: without it they pass."""
    assert {unchanged["tests"].get(test) for test in mutant.tests} == {"passed"}, unchanged["output"]
    assert outcome["package"].startswith(outcome["folder"])
    survived = [test for test in mutant.tests if outcome["tests"].get(test) != "failed"]
    assert not survived, outcome["output"]


def selected(request: pytest.FixtureRequest, name: str) -> list[Mutant]:
    """The mutants whose test of this name is to run."""
    items: list[Any] = request.session.items
    return [item.callspec.params["mutant"] for item in items if item.originalname == name]


@pytest.fixture(scope="module")
def fast(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    chosen = selected(request, "test_mutant_is_killed")
    return run_all(chosen, tmp_path_factory.mktemp("mutants"), 2, "not engines")


@pytest.fixture(scope="module")
def slow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    chosen = selected(request, "test_mutant_is_killed_by_real_engines")
    return run_all(chosen, tmp_path_factory.mktemp("mutants"), 1, "engines")


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if not mutant.engines], ids=lambda mutant: mutant.id)
def test_mutant_is_killed(mutant: Mutant, fast: Outcome) -> None:
    check_killed(mutant, fast(mutant.id), fast("base"))


def test_unchanged_copy_passes(fast: Outcome) -> None:
    """So that it is the mutation which the tests above fail of, and not the copy."""
    check_unchanged(fast("base"))


@pytest.mark.engines
@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.engines], ids=lambda mutant: mutant.id)
def test_mutant_is_killed_by_real_engines(mutant: Mutant, slow: Outcome) -> None:
    if any(slow("base")["tests"].get(test) == "skipped" for test in mutant.tests):
        pytest.skip(NO_SOURCE)
    check_killed(mutant, slow(mutant.id), slow("base"))


@pytest.mark.engines
def test_unchanged_copy_passes_with_real_engines(slow: Outcome) -> None:
    check_unchanged(slow("base"))
