"""``consistency pairs``: what it prints, as a table and as JSON, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.launch.plans import plan_into
from tests.pairing.runs import A, B, Run, dump
from train_infer_consistency.cli.main import main
from train_infer_consistency.pairing.model import Reason

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``consistency pairs ...``: (status, standard output, standard error)."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        status = main(["pairs", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


def test_a_real_run_as_a_table(call: Call, dumps: Path) -> None:
    folder = dumps / "loop" / "fully_async_qwen3_fsdp2_ids"
    status, out, err = call(folder / "generate_sequence", folder / "update_actor")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["request", "inference", "step", "training", "step", "tokens", "note"]
    assert lines[1].split() == ["9ec3d28571fa45a38184e9fca6e8dd21", "30379", "rank0", "0", "29850", "rank0", "2", "32"]
    assert lines[3:] == [
        "2 pairs",
        "inference: 34 steps",
        "       30  decode [decode]",
        "        2  several requests in one forward [several-requests]",
        "        2  used [used]",
        "training: 8 steps",
        "        6  several requests in one forward [several-requests]",
        "        2  used [used]",
    ]


def test_every_rejected_step_with_v(call: Call, dumps: Path) -> None:
    folder = dumps / "loop" / "hybrid_qwen2_fsdp1"
    _, out, _ = call(folder / "generate_sequence", folder / "update_actor", "-v")
    rows = [line for line in out.splitlines() if line.startswith(("inference  ", "training  "))]
    assert len(rows) == 16 + 3
    assert sum("  decode  " in row for row in rows) == 15
    assert "4 requests, 1 of them decoding" in out
    assert "update_actor_log.jsonl:3" in out


def test_json(call: Call, dumps: Path) -> None:
    folder = dumps / "loop" / "hybrid_qwen2_fsdp1"
    status, out, _ = call(folder / "generate_sequence", folder / "update_actor", "--json")
    made = json.loads(out)
    assert status == 0
    assert made["inference"] == {"decode": 15, "several-requests": 1, "used": 1}
    assert made["training"] == {"several-requests": 3, "used": 1}
    assert made["problems"] == []
    assert "steps" not in made
    (found,) = made["pairs"]
    assert found["request_id"] == "9d00aecc412c44ed86258f0272194bef"
    assert found["joined_by"] == "request-id"
    (part,) = found["inference"]["dumps"]
    assert (part["rank"], part["step"]) == (0, 0)
    assert (Path(part["path"]) / "dump.json").is_file()
    _, out, _ = call(folder / "generate_sequence", folder / "update_actor", "--json", "-v")
    steps = json.loads(out)["steps"]
    assert len(steps) == 17 + 4
    assert {"side", "process", "step", "used", "reason", "detail", "request_id", "place"} == set(steps[0])


def test_no_pair_is_status_3(call: Call, dumps: Path) -> None:
    folder = dumps / "loop" / "fully_async_qwen3_fsdp2"
    status, out, _ = call(folder / "generate_sequence", folder / "update_actor")
    assert status == 3
    assert "0 pairs" in out
    assert "no request id and no prompt hash [no-request-id]" in out
    status, out, _ = call(folder / "generate_sequence", folder / "update_actor", "--json")
    assert (status, json.loads(out)["pairs"]) == (3, [])


def test_steps_and_dumps_are_paired_directly(call: Call, dumps: Path) -> None:
    step = dumps / "lookalike" / "vllm_fp32_stat" / "step0"
    status, out, _ = call(step, dumps / "megatron" / "core0121_tp2_n12_sp" / "step0")
    assert status == 0
    assert "11 tokens on the inference side, 12 on the training side" in out
    status, out, err = call(step, dumps / "megatron")
    assert (status, out) == (2, "")
    assert "is a whole tree" in err
    status, _, err = call(step, step, "--map", "0:0")
    assert status == 2
    assert "are for whole trees" in err


def test_more_hosts_a_map_and_the_sliced_request(call: Call, tmp_path: Path) -> None:
    one, two = Run(tmp_path / "host1"), Run(tmp_path / "host2")
    one.prefill(A)
    two.train(A, rank=8)
    two.forward([{"request_id": name, "type": "new", "tokens": 11} for name in (A + "b", B)], step=1, pid=18)
    dump(two.inference.root / "18" / "step1" / "rank0", 11)
    one.train(B, step=1)
    hosts = [one.inference.root, one.training.root, "--generate", two.inference.root, "--train", two.training.root]
    status, out, _ = call(*hosts)
    assert (status, out.count(A)) == (0, 1)
    _, out, _ = call(*hosts, "--request", B)
    assert "2 pairs" in out
    status, out, _ = call(*hosts, "--map", "0:0")
    assert (status, "0 pairs" in out) == (3, True)
    status, out, _ = call(*hosts, "--map", "0:8")
    assert (status, "1 pair\n" in out) == (0, True)
    status, _, err = call(*hosts, "--map", "0")
    assert status == 2
    assert err.startswith("consistency: '--map 0' is not INFERENCE:TRAINING; write --map 4:0")


def test_the_other_sides_folder_below_is_not_searched_twice(call: Call, tmp_path: Path) -> None:
    dump(tmp_path / "generate" / "step0" / "rank4")
    dump(tmp_path / "old_log_prob" / "step0" / "rank0")
    status, out, _ = call(tmp_path / "generate", tmp_path)
    assert (status, "1 pair\n" in out) == (0, True)
    assert "training: 1 step\n" in out


def test_damaged_logs_are_said_on_standard_error(call: Call, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.prefill(A)
    run.train(A)
    log = run.inference.root / "17" / "dispatch_log.jsonl"
    log.write_text(log.read_text() + '{"source"')
    status, out, err = call(run.inference.root, run.training.root)
    assert status == 0
    assert "1 pair\n" in out
    assert err == f"consistency: {log}:2: the last line ends too early\n"


def test_a_path_that_is_not_there(call: Call, tmp_path: Path) -> None:
    status, out, err = call(tmp_path, tmp_path / "nowhere")
    assert (status, out) == (3, "")
    assert err == f"consistency: {tmp_path / 'nowhere'} does not exist\n"
    status, out, _ = call(tmp_path, tmp_path / "nowhere", "--json")
    assert json.loads(out)["status"] == 3


def test_many_pairs_are_cut_without_v(call: Call, tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in range(25):
        run.prefill(f"{step:032x}", step=step)
        run.train(f"{step:032x}", step=step)
    _, out, _ = call(run.inference.root, run.training.root)
    assert "... and 5 more; -v shows all\n25 pairs\n" in out
    _, out, _ = call(run.inference.root, run.training.root, "-v")
    assert out.count("rank0") == 50


def test_the_reference_names_every_reason() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in text] == []


def test_the_plan_of_the_run_is_named(call: Call, tmp_path: Path) -> None:
    run = Run(tmp_path / "dumps")
    run.prefill(A, run_id="t")
    run.train(A, run_id="t")
    sides = run.inference.root, run.training.root
    assert json.loads(call(*sides, "--json")[1])["plan"] is None
    for run_id, note in (("t", ""), ("u", "NOT the plan of these dumps, which are of run t")):
        plan_into(tmp_path / run_id, scenario="verl-hybrid", run_id=run_id)
        status, out, err = call(*sides, "--plan", tmp_path / run_id)
        assert status == 0
        assert out.splitlines()[-1] == f"plan: verl-hybrid, stack verl-0.8, run {run_id}, {tmp_path}/{run_id}"
        assert err == (f"consistency: {note}\n" if note else "")
        named = json.loads(call(*sides, "--plan", tmp_path / run_id, "--json")[1])["plan"]
        assert (named["run_id"], named["fits"], named["note"]) == (run_id, not note, note)
    status, _, err = call(*sides, "--plan", tmp_path / "none")
    assert status == 3
    assert "--plan" in err
