"""The table of docs/comparison.md beside ``msprobe compare``: its words on this project's verdicts are what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.msprobe_table import CASES, find, ours, reordered, scaled

from ..conftest import ROOT

DOCUMENTED = {
    cells[1].strip(): cells[3].strip()
    for line in (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8").splitlines()
    if len(cells := line.split("|")) == 5 and "rc " in cells[2]
}


def said(dumps: Path, train: Path, infer: Path) -> str:
    return ours(train, infer).replace(f"{dumps}/", "")


@pytest.mark.parametrize(("name", "train", "infer"), [case[:3] for case in CASES], ids=[case[0] for case in CASES])
def test_real_inputs(dumps: Path, name: str, train: str, infer: str) -> None:
    assert said(dumps, find(dumps.parent, train), find(dumps.parent, infer)) == DOCUMENTED[name]


def test_planted_inputs(dumps: Path, tmp_path: Path) -> None:
    plain, vllm = (find(dumps.parent, f"lookalike/{name}_fp32_stat") for name in ("verl_fsdp1", "vllm"))
    assert said(dumps, scaled(plain, tmp_path / "scaled"), plain) == DOCUMENTED["every activation times 1.09"]
    swapped = reordered(plain, tmp_path / "reordered")
    assert said(dumps, swapped, vllm) == DOCUMENTED["two entries swapped in the file"]


def test_every_row_is_one_of_these() -> None:
    assert len(DOCUMENTED) == len(CASES) + 2
