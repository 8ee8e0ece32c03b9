"""slime's real Megatron actor over the real megatron-core, woven, on a CPU: v0.2.2 to v0.2.4, TP 1 and 2, PP 2.

slime is in no registry: SOURCE_slime names a clone with its tags. Each run is a process group of its own.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.run_slime import core_command
from tests.conftest import NO_SOURCE
from tests.engines.training import (
    DEMO,
    Dumps,
    backward_rows,
    calls,
    check_out,
    rows,
    run_group,
    weave_into,
    write_config,
)
from train_infer_consistency.capture.log import prompt_hash

pytestmark = [pytest.mark.engines, pytest.mark.download]

WORKER = Path(__file__).with_name("slime_worker.py")
VERSIONS = ("v0.2.2", "v0.2.3", "v0.2.4")
PROMPT, RESPONSES = 8, (3, 6)
ROUTING = {"use_routing_replay": True}
#: tensor and pipeline parallel size, switches (None: switched off), rollouts, arguments.
RUNS: dict[str, tuple[tuple[int, int], dict[str, str] | None, list[int], dict[str, Any]]] = {
    "off": ((1, 1), None, [0, 1], ROUTING),
    "off, the second rollout alone": ((1, 1), None, [1], ROUTING),
    "prompts": ((1, 1), {"PROMPTS_ONLY": "1"}, [0, 1], ROUTING),
    "whole": ((1, 1), {"PROMPTS_ONLY": "0"}, [0, 1], ROUTING),
    "prompts of two ranks": ((2, 1), {"PROMPTS_ONLY": "1", "CONSISTENCY_ROLLOUT_ID": "1"}, [0, 1], {}),
    "prompts of two stages": ((1, 2), {"PROMPTS_ONLY": "1"}, [0, 1], {}),
    "two stages, off, the second rollout alone": ((1, 2), None, [1], {}),
}


class Run:
    """One process group: the reports, the dumps, and what slime saved."""

    def __init__(self, folder: Path, world: int) -> None:
        self.folder = folder
        self.reports = [json.loads((folder / f"report{rank}.json").read_text()) for rank in range(world)]
        for report in self.reports:
            assert "traceback" not in report, report["traceback"]
        self.dumps = Dumps(folder / "dump")

    def rollout(self, number: int, rank: int = 0) -> dict[str, Any]:
        return dict(self.reports[rank]["rollouts"][str(number)])

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.dumps.lines() if line["rank"] == rank]

    def saved(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("saved*"))


Runs = Callable[[str, str], Run]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from demo.tiny_model import write_model

    return write_model(tmp_path_factory.mktemp("model"), attention_dropout=0.1, vocab_size=264)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("core")
    subprocess.run(core_command(folder), check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def start(model: Path, core: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str, str], Run]:
    """Start a run of a version in a clone, once."""

    @functools.cache
    def tree(clone: Path, version: str) -> Path:
        folder = tmp_path_factory.mktemp("slime")
        if not check_out(clone, version, "slime", folder):
            pytest.skip(NO_SOURCE)
        return weave_into(folder, "slime")

    @functools.cache
    def folder_of(clone: Path, version: str, name: str) -> Path:
        (tensor, pipeline), given, rollouts, args = RUNS[name]
        folder = tmp_path_factory.mktemp("run")
        plan = {
            "model": str(model),
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
            "report": str(folder / "report{rank}.json"),
            "save": str(folder / "saved-{rollout_id}-{rank}.pt"),
            "rollouts": rollouts,
            "args": args,
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        env = {}
        if given is not None:
            env = {"DUMP_ON": "1", "MSPROBE_CONFIG_PATH": str(write_config(folder)), **given}
        command = [str(WORKER), str(folder / "plan.json")]
        run_group(command, folder, [tree(clone, version), core, DEMO], tensor * pipeline, env, check=False)
        return folder

    @functools.cache
    def get(clone: Path, version: str, name: str) -> Run:
        folder = folder_of(clone, version, name)
        for rank in range(math.prod(RUNS[name][0])):
            assert (folder / f"report{rank}.json").is_file(), (folder / f"log{rank}").read_text(errors="replace")[
                -4000:
            ]
        return Run(folder, math.prod(RUNS[name][0]))

    return get


@pytest.fixture
def runs(source: Callable[[str], Path], start: Callable[[Path, str, str], Run]) -> Runs:
    return lambda version, name: start(source("slime"), version, name)


def check_prompt_dump(run: Run, rollout: int, rank: int, tensor: int) -> None:
    """One dump with both micro-batches, each a prompt, and its line."""
    tokens = run.rollout(rollout, rank)["tokens"]
    (line,) = [line for line in run.lines(rank) if line["dump"]]
    assert (line["step"], line["dump"]) == (0, f"old_log_prob/step0/rank{rank}")
    assert (line["prompt_only"], line["phase"], line["weights"]) == (True, "log_prob", "actor")
    assert (line["rollout_id"], line["request_ids"], line["num_requests"]) == (rollout, [], 2)
    assert [entry["sample_index"] for entry in line["requests"]] == [10 * rollout, 10 * rollout + 1]
    assert [entry["prompt_length"] for entry in line["requests"]] == [PROMPT, PROMPT]
    assert [entry["prompt_hash"] for entry in line["requests"]] == [prompt_hash(sample[:PROMPT]) for sample in tokens]
    assert (line["parallel"]["tp_rank"], line["parallel"]["tp_size"]) == (rank, tensor)
    data = run.dumps.data(line["dump"])
    assert [call["input_args"][0]["shape"] for call in calls(data, "embedding.word_embeddings")] == [[1, PROMPT]] * 2
    assert rows(data).count("decoder.layers.1.mlp.linear_fc2") == 2
    assert rows(data).count("output_layer") == 2
    assert not backward_rows(data)


@pytest.mark.parametrize("version", VERSIONS)
def test_prompts_of_the_first_rollout(version: str, runs: Runs) -> None:
    run = runs(version, "prompts")
    check_prompt_dump(run, 0, rank=0, tensor=1)
    assert run.dumps.folders() == ["old_log_prob/step0/rank0"]
    assert run.reports[0]["debugger"] == "SlimeSession"
    assert run.reports[0]["dump_path_prefix"] == str(run.dumps.root)


@pytest.mark.parametrize("version", VERSIONS)
def test_that_rollout_is_saved_and_not_trained_on_and_the_next_one_is(version: str, runs: Runs) -> None:
    run = runs(version, "prompts")
    first, second = run.rollout(0), run.rollout(1)
    assert first["before"] == first["after"] == second["before"]
    assert second["before"] != second["after"]
    assert run.saved() == ["saved-0-0.pt", "saved-1-0.pt"]
    # slime's timers run on as after any rollout, and the network is back in training mode.
    assert first["running"] == second["running"] == ["train_wait"]
    assert first["training"]
    assert second["training"]
    _, line = run.lines()
    assert (line["rollout_id"], line["step"], line["skipped"]) == (1, None, "not-prompt-only")


def test_the_next_rollout_trains_as_if_there_had_been_no_dump(runs: Runs) -> None:
    """Bit by bit: weights and generators."""
    dumped, control = runs("v0.2.2", "prompts"), runs("v0.2.2", "off, the second rollout alone")
    assert dumped.rollout(1)["after"] == control.rollout(1)["after"]
    assert dumped.reports[0]["random"] == control.reports[0]["random"]


@pytest.mark.parametrize("version", VERSIONS)
def test_routing_replay_neither_records_nor_replays_the_prompts(version: str, runs: Runs) -> None:
    run = runs(version, "prompts")
    assert run.rollout(0)["stages"] == ["fallthrough"] * 2
    assert run.rollout(0)["stage"] is None  # as it was
    # slime's own: two of the log-probs, two of the update.
    assert run.rollout(1)["stages"] == ["record"] * 2 + ["replay_backward"] * 2


def test_the_whole_pass_is_dumped_where_prompts_only_is_off(runs: Runs) -> None:
    """And training goes on with both rollouts, bit by bit as without a dump."""
    run, control = runs("v0.2.2", "whole"), runs("v0.2.2", "off")
    assert [line["dump"] for line in run.lines()] == [f"old_log_prob/step{step}/rank0" for step in (0, 1)]
    for line in run.lines():
        data = run.dumps.data(line["dump"])
        lengths = [call["input_args"][0]["shape"][-1] for call in calls(data, "embedding.word_embeddings")]
        assert lengths == [PROMPT + length for length in RESPONSES]
        assert [entry["response_length"] for entry in line["requests"]] == list(RESPONSES)
        assert not line["prompt_only"]
    for number in (0, 1):
        assert run.rollout(number)["after"] == control.rollout(number)["after"] != run.rollout(number)["before"]
    assert run.saved() == control.saved() == ["saved-0-0.pt", "saved-1-0.pt"]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_named_rollout_of_two_tensor_parallel_ranks(rank: int, runs: Runs) -> None:
    run = runs("v0.2.2", "prompts of two ranks")
    check_prompt_dump(run, 1, rank, tensor=2)
    assert run.dumps.folders() == [f"old_log_prob/step0/rank{number}" for number in (0, 1)]
    first, second = run.rollout(0, rank), run.rollout(1, rank)
    assert first["before"] != first["after"] == second["before"] == second["after"]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_of_two_pipeline_stages_dumps_its_own_layer(rank: int, runs: Runs) -> None:
    """What one process computes whole; dumps call a stage's first layer 0."""
    run, whole = runs("v0.2.2", "prompts of two stages"), runs("v0.2.2", "prompts")
    assert run.dumps.folders() == [f"old_log_prob/step0/rank{number}" for number in (0, 1)]
    (line,) = [line for line in run.lines(rank) if line["dump"]]
    assert (line["step"], line["dump"], line["prompt_only"]) == (0, f"old_log_prob/step0/rank{rank}", True)
    assert (line["parallel"]["pp_rank"], line["parallel"]["pp_size"]) == (rank, 2)
    (expected,) = [line for line in whole.lines() if line["dump"]]
    assert line["requests"] == expected["requests"]
    ours, theirs = run.dumps.data(line["dump"]), whole.dumps.data(expected["dump"])
    assert not backward_rows(ours)
    ends = {"embedding": [2, 0], "output_layer": [0, 2], "decoder.layers.0": [2, 2], "decoder.layers.1": [0, 0]}
    assert {name: rows(ours).count(name) for name in ends} == {name: counts[rank] for name, counts in ends.items()}
    for call, same in zip(calls(ours, "layers.0.mlp"), calls(theirs, f"layers.{rank}.mlp"), strict=True):
        assert call["output"][0]["Norm"] == pytest.approx(same["output"][0]["Norm"], rel=1e-5)


def test_two_pipeline_stages_train_on_as_if_there_had_been_no_dump(runs: Runs) -> None:
    dumped, control = (
        runs("v0.2.2", name) for name in ("prompts of two stages", "two stages, off, the second rollout alone")
    )
    for rank in (0, 1):
        assert dumped.rollout(1, rank)["before"] != dumped.rollout(1, rank)["after"]
        assert dumped.rollout(1, rank)["after"] == control.rollout(1, rank)["after"]
        assert dumped.reports[rank]["random"] == control.reports[rank]["random"]


def test_switched_off_loads_nothing(runs: Runs) -> None:
    run = runs("v0.2.2", "off")
    assert set(run.reports[0]["modules"].values()) == {None}
    assert run.reports[0]["debugger"] == "NoneType"
    assert not (run.folder / "dump").exists()
