"""The plan of a run: where it is found, and that one of another run is never taken for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.launch.plans import plan_into
from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.pairing.direct import given
from train_infer_consistency.pairing.plan import Plan, plan_of

from .runs import A, B, Run


def paired(root: Path, run_id: str | None = "t", trained: str = A) -> Run:
    """A run of one request, whose lines carry a run id or none."""
    run = Run(root)
    more: dict[str, Any] = {} if run_id is None else {"run_id": run_id}
    run.prefill(A, **more)
    run.train(trained, **more)
    return run


def beside(run: Run, run_id: str = "t") -> Path:
    """A plan whose file lies where its run.sh puts it: at the root of both sides."""
    root = run.inference.root.parent
    folder = root.parent / f"plan-{run_id}"
    plan_into(folder, scenario="verl-hybrid", run_id=run_id, dump_root=str(root))
    return Path(shutil.copy(folder / "plan.toml", root))


def find(run: Run, given: Path | None = None) -> Plan | None:
    return plan_of(given, [run.inference.root, run.training.root], run.pair())


def test_a_plan_beside_its_dumps_is_named(tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps")
    file = beside(run)
    plan = find(run)
    assert plan == Plan(str(file), str(tmp_path / "plan-t"), "verl-hybrid", "verl-0.8", "t", ("t",))
    assert plan is not None
    assert (plan.fits, plan.note) == (True, "")
    assert str(plan) == f"verl-hybrid, stack verl-0.8, run t, {tmp_path}/plan-t ({file})"


def test_no_plan_is_none(tmp_path: Path) -> None:
    assert find(paired(tmp_path / "dumps")) is None


@pytest.mark.parametrize("inner", ["", "generate", "generate/17/step0/rank0/dump.json"])
def test_it_is_found_from_the_root_and_from_every_folder_below(inner: str, tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps")
    file = beside(run)
    plan = plan_of(None, [tmp_path / "dumps" / inner], run.pair())
    assert plan is not None
    assert plan.file == str(file)


def test_the_nearest_one_counts_and_none_far_above(tmp_path: Path) -> None:
    run = paired(tmp_path / "a" / "b" / "c" / "d" / "e" / "dumps")
    plan_into(tmp_path / "far", scenario="slime", run_id="t")
    shutil.copy(tmp_path / "far" / "plan.toml", tmp_path / "a")
    assert find(run) is None
    shutil.copy(tmp_path / "far" / "plan.toml", tmp_path / "a" / "b")
    found = find(run)
    assert found is not None
    assert found.scenario == "slime"
    file = beside(run)
    found = find(run)
    assert found is not None
    assert found.file == str(file)


def test_a_plan_of_another_run_is_said_to_be_one(tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps", "mine")
    beside(run, "theirs")
    plan = find(run)
    assert plan is not None
    assert plan.fits is False
    assert plan.note == "NOT the plan of these dumps, which are of run mine"


def test_of_two_plans_the_one_of_the_logs_counts(tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps")
    for side, name in ((run.inference.root, "other"), (run.training.root, "t")):
        plan_into(tmp_path / name, scenario="verl-hybrid", run_id=name)
        shutil.copy(tmp_path / name / "plan.toml", side)
    plan = find(run)
    assert plan is not None
    assert (plan.run_id, plan.fits) == ("t", True)


def test_logs_without_a_run_id_leave_it_open(tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps", None)
    beside(run)
    plan = find(run)
    assert plan is not None
    assert plan.fits is None
    assert "no run id" in plan.note
    dump = tmp_path / "dumps" / "generate" / "17" / "step0"
    plan = plan_of(None, [dump], given(dump, dump))
    assert plan is not None
    assert plan.fits is None


@pytest.mark.parametrize(("planned", "fits"), [("t", True), ("other", False)])
def test_where_nothing_is_paired_all_lines_tell_the_run(planned: str, fits: bool, tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps", trained=B)
    assert run.pair().pairs == []
    beside(run, planned)
    plan = find(run)
    assert plan is not None
    assert plan.fits is fits


def test_a_side_of_another_run_is_no_part_of_the_plan(tmp_path: Path) -> None:
    run = Run(tmp_path / "dumps")
    run.prefill(A, run_id="t")
    run.train(B, run_id="u")
    beside(run)
    plan = find(run)
    assert plan is not None
    assert (plan.fits, plan.runs) == (False, ("t", "u"))


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps")
    beside(run).write_text("run_id = ")
    plan = find(run)
    assert plan is not None
    assert plan.fits is None
    assert "plan.toml is no valid TOML" in plan.note


def test_neither_a_pipe_nor_a_large_file_is_read(tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps")
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_text(f"scenario = '{'x' * 1_000_000}'\n")
    with pytest.raises(EvidenceError, match="pipe is no file"):
        find(run, pipe)
    with pytest.raises(EvidenceError, match="large is too large for a plan"):
        find(run, large)


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'\n", "scenario = 'slime'\nstack = 'x'\nrun_id = 3\n"])
def test_another_programs_file_of_that_name_is_none(text: str, tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps")
    file = beside(run)
    file.write_text(text)
    assert find(run) is None
    with pytest.raises(EvidenceError, match=r"--plan .*: this is no plan; name a plan's folder"):
        find(run, file)


def test_a_given_plan_is_the_plan(tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps")
    beside(run, "other")
    plan_into(tmp_path / "plan", scenario="slime", run_id="t")
    for path in (tmp_path / "plan", tmp_path / "plan" / "plan.toml"):
        plan = find(run, path)
        assert plan is not None
        assert (plan.scenario, plan.fits) == ("slime", True)
        assert str(plan) == f"slime, stack slime-0.2.2, run t, {tmp_path}/plan"


def test_a_given_plan_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    run = paired(tmp_path / "dumps")
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(EvidenceError, match="cannot be read"):
            find(run, path)
