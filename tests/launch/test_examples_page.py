"""The page of the upstreams' public examples is written from a check of their scripts: tried on a small tree."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT

FINE = "actor_rollout_ref.rollout.enforce_eager=True trainer.balance_batch=False"


@pytest.fixture
def page() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "build" / "rules_on_examples.py"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Four runs, of which three break V101, and two scripts that start none."""
    scripts = {
        "examples/b/eager.sh": f"python3 -m verl.trainer.main_ppo {FINE}\n",
        "examples/a/graphs.sh": "python3 -m verl.trainer.main_ppo trainer.balance_batch=False\n",
        "examples/a/unknown.sh": "source ./gone.sh\npython3 -m verl.trainer.main_ppo trainer.balance_batch=$BALANCE\n",
        "verl/experimental/x/run.sh": "python3 -m verl.trainer.main_ppo a=1\n",
        "scripts/tool.sh": "echo a\n",
        "scripts/other.sh": "if true\n",
        "tests/run.sh": "python3 -m verl.trainer.main_ppo a=1\n",
    }
    for name, text in scripts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_section(page: dict[str, Any], tree: Path) -> None:
    lines = page["section"]("verl 0.8.0", "verl-0.8", tree).splitlines()
    assert lines[0] == "## verl 0.8.0"
    assert lines[2].startswith("4 scripts that start a run: 4 with status 1. Found in at least three of four of them")
    assert "V101 (3)" in lines[2]
    assert "V205 (1)" not in lines[2]
    assert "\n".join(lines[4:6]) == page["HEAD"]
    rows = {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[6:10])}
    assert list(rows) == [
        "examples/a/graphs.sh",
        "examples/a/unknown.sh",
        "examples/b/eager.sh",
        "verl/experimental/x/run.sh",
    ]
    assert rows["examples/b/eager.sh"][1] == "V101"
    assert [cells[2:] for cells in rows.values()] == [["–", "–"], ["1", "1"], ["–", "–"], ["–", "–"]]
    assert lines[11:] == [
        "2 start no run that is known here, and are named as not read, in scripts (2).",
    ]


def test_the_page_is_the_scripts(page: dict[str, Any]) -> None:
    written = page["PAGE"].read_text(encoding="utf-8")
    assert written.startswith(page["WRITTEN"] + "\n## ")
    assert written.count(page["HEAD"]) == written.count("\n## ")


def test_a_tree_without_scripts_writes_no_page(page: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no scripts in examples, scripts, verl/experimental"):
        page["section"]("verl", "verl-0.8", tmp_path)
