"""``consistency compare``: verdict, exit status, one screen, one JSON object by its schema, and every option."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.launch.plans import plan_into
from train_infer_consistency.cli.main import main

from ..comparing.cases import Data, changed, dump_of, find, leaves, scale, step0
from ..conftest import ROOT

SCHEMA = json.loads((ROOT / "docs" / "comparison.schema.json").read_text())


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["compare", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status, out, _ = run(capsys, *arguments, "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    jsonschema.validate(found, SCHEMA)
    return status, found


def off(data: Data) -> None:
    for leaf in leaves(find(data, "layers.1._fsdp_wrapped_module.mlp.down_proj")["output"]):
        scale(leaf, 1.09)


@pytest.fixture
def differing(dumps: Path, tmp_path: Path) -> tuple[Path, Path]:
    look = dumps / "lookalike"
    theirs = changed(dump_of(look / "verl_fsdp1_fp32_stat"), tmp_path / "train" / "step0" / "rank0", off)
    return dump_of(look / "vllm_fp32_stat"), theirs


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("what", ["dump.json", "rank", "step"])
def test_dumps_ranks_and_steps_are_compared_directly(
    dumps: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    ours, theirs = (dump_of(dumps / "lookalike" / name) for name in ("vllm_fp32_stat", "verl_fsdp2_fp32_stat"))
    if what != "dump.json":
        ours, theirs = ours.parent, theirs.parent
    if what == "step":
        ours, theirs = ours.parent, theirs.parent
    status, found = as_json(capsys, ours, theirs)
    assert (status, found["verdict"], found["coverage"], found["first_difference"]) == (0, "consistent", 1.0, None)
    assert [module["module"] for module in found["modules"]][:2] == ["embed", "layers.0.input_norm"]
    assert len(found["pairs"]["used"]) == 1


def test_a_difference_has_its_figures_and_their_places(
    differing: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = as_json(capsys, *differing)
    assert (status, found["verdict"]) == (1, "different")
    first = found["first_difference"]
    assert (first["module"], first["kind"], first["word"]) == ("layers.1.mlp.down", "output", "differs")
    assert first["errors"]["norm"] == pytest.approx(0.09 / 1.09, rel=1e-6)
    assert first["training"]["norm"] == pytest.approx(1.09 * first["inference"]["norm"], rel=1e-6)
    (source,) = first["training"]["sources"]
    assert source["file"] == str(differing[1])
    assert source["entry"].endswith("mlp.down_proj.Linear.forward.0")
    assert (source["step"], source["rank"], source["slot"]) == (0, 0, "output")


def test_one_screen(differing: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *differing)
    assert status == 1
    assert out.startswith("different: layers.1.mlp.down: output differs")
    assert "logits not compared" in out
    assert len(out.splitlines()) <= 40
    _, verbose, _ = run(capsys, *differing, "-v")
    assert len(verbose) > len(out)


def test_a_whole_run_is_paired_first(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dumps / "loop" / "fully_async_qwen3_fsdp2_ids"
    status, found = as_json(capsys, folder / "generate_sequence", folder / "update_actor")
    assert (status, found["verdict"]) == (0, "consistent")
    assert [pair["request_id"] is not None for pair in found["pairs"]["used"]] == [True, True]
    assert {step["reason"] for step in found["pairs"]["rejected"]} >= {"several-requests"}
    assert found["modules_of"] in {pair["request_id"] for pair in found["pairs"]["used"]}


def test_pairs_in_processes_beside_each_other(dumps: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = dumps / "loop" / "fully_async_qwen3_fsdp2_ids"
    sides = folder / "generate_sequence", folder / "update_actor"
    wanted = run(capsys, *sides, "--workers", 1, "--csv", tmp_path / "1.csv")
    assert run(capsys, *sides, "--workers", 2, "--csv", tmp_path / "2.csv")[:2] == wanted[:2]
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()
    assert run(capsys, *sides, "--json", "--workers", 2)[1] == run(capsys, *sides, "--json")[1]


def test_nothing_paired_says_why_for_every_step(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dumps / "loop" / "fully_async_qwen3_fsdp2"
    status, found = as_json(capsys, folder / "generate_sequence", folder / "update_actor")
    assert (status, found["verdict"], found["modules"], found["coverage"]) == (3, "insufficient", [], 0.0)
    status, out, _ = run(capsys, folder / "generate_sequence", folder / "update_actor")
    assert status == 3
    assert "no request id and no prompt hash" in out


@pytest.mark.parametrize("name", ["killed_before_stop", "verl_fsdp1_leftpad5_stat", "vllm_packed_7p11_stat"])
def test_what_cannot_be_compared_is_status_3(dumps: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    look = dumps / "lookalike"
    status, found = as_json(capsys, dump_of(look / "vllm_fp32_stat"), dump_of(look / name))
    assert (status, found["verdict"], found["first_difference"]) == (3, "insufficient", None)


def test_options(dumps: Path, differing: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bounds = tmp_path / "bounds.toml"
    bounds.write_text('[[bound]]\nmodule = "layers.1.mlp.down"\nrelative = 0.1\n')
    assert run(capsys, *differing, "--bounds", bounds)[0] == 0
    assert run(capsys, *differing, "--bounds", bounds, "--bitwise")[0] == 1
    noise = dump_of(dumps / "lookalike" / "verl_fsdp1_bf16_stat")
    assert run(capsys, *differing, "--noise", noise)[0] == 1
    stages = dumps / "megatron"
    pair = step0(stages / "hf_n11"), step0(stages / "verl_pp2_n11")
    assert run(capsys, *pair)[0] == 0
    assert run(capsys, *pair, "--min-coverage", "0.95")[0] == 3


@pytest.mark.parametrize(
    "wrong",
    [
        ["--min-coverage", "2"],
        ["--bounds", "missing.toml"],
        ["--dialect", "missing.toml"],
        ["--map", "0:0"],
        ["--workers", "0"],
        ["--noise"],
    ],
)
def test_a_wrong_command_line_is_status_2(
    differing: tuple[Path, Path], capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    status, out, err = run(capsys, *differing, *wrong)
    assert (status, out) == (2, "")
    assert "consistency" in err


def test_a_missing_path_is_status_3(dumps: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = run(capsys, tmp_path / "none", dumps / "loop")
    assert status == 3
    assert "does not exist" in err


def test_a_tree_beside_a_dump_is_a_wrong_command_line(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, dump_of(dumps / "lookalike" / "vllm_fp32_stat"), dumps / "loop")[0] == 2


@pytest.fixture
def planned(dumps: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A real run whose logs carry run id t, and its plan beside its dumps."""
    root = tmp_path / "dumps"
    shutil.copytree(dumps / "loop" / "fully_async_qwen3_fsdp2_ids", root)
    for log in root.rglob("*_log.jsonl"):
        lines = [{**json.loads(line), "run_id": "t"} for line in log.read_text().splitlines()]
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan_into(tmp_path / "plan", scenario="verl-fully-async", run_id="t")
    shutil.copy(tmp_path / "plan" / "plan.toml", root)
    return root / "generate_sequence", root / "update_actor"


def test_every_report_names_the_plan(
    planned: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    status, text, _ = run(capsys, *planned, "-o", out, "--junit", tmp_path / "junit.xml")
    assert status == 0
    told = f"verl-fully-async, stack verl-0.8, run t, {tmp_path}/plan ({tmp_path}/dumps/plan.toml)"
    assert text.splitlines()[1] == f"plan      {told}"
    assert '<property name="plan.run_id" value="t"/>' in (tmp_path / "junit.xml").read_text()
    status, found = as_json(capsys, *planned, "--workers", 2)
    assert found["plan"] == {
        "file": f"{tmp_path}/dumps/plan.toml",
        "folder": f"{tmp_path}/plan",
        "scenario": "verl-fully-async",
        "stack": "verl-0.8",
        "run_id": "t",
        "logs_run_ids": ["t"],
        "fits": True,
        "note": "",
    }


def test_a_plan_of_another_run_is_never_taken_in_silence(
    planned: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_into(tmp_path / "other", scenario="slime", run_id="u")
    status, text, _ = run(capsys, *planned, "--plan", tmp_path / "other")
    assert status == 0
    assert text.splitlines()[1:3] == [
        f"plan      slime, stack slime-0.2.2, run u, {tmp_path}/other",
        "          NOT the plan of these dumps, which are of run t",
    ]
    (tmp_path / "dumps" / "plan.toml").write_text("=")
    _, text, _ = run(capsys, *planned)
    assert text.splitlines()[1].startswith(f"plan      {tmp_path}/dumps/plan.toml is no valid TOML")
    status, text, err = run(capsys, *planned, "--plan", tmp_path / "none")
    assert (status, text) == (3, "")
    assert "name a plan's folder" in err
