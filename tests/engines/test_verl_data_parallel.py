"""verl 0.8.0's real trainer over two data parallel FSDP ranks on a CPU, woven: rows, folders and logs of both.

The worker and its scenarios are those of test_verl_fsdp.py; a run is a group of two processes.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines import test_verl_fsdp as single
from tests.engines.training import DEMO, Dumps, backward_rows, run_group, tokens_seen, unpack, weave_into, write_config
from train_infer_consistency.capture.log import prompt_hash

pytestmark = [pytest.mark.engines, pytest.mark.download]

NAMES = ("grpo fsdp", "grpo fsdp2")
RANKS = (0, 1)
STEPS = 2
RUNS: dict[str, dict[str, str]] = {
    "off": {"DUMP_ON": "0"},
    "prompts": {"DUMP_ON": "1", "PROMPTS_ONLY": "1"},
    "all": {"DUMP_ON": "1", "DUMP_PHASE": "all"},
}


class Run:
    """One process group: the report of each rank, its dumps, and the lines of each rank's log."""

    def __init__(self, folder: Path) -> None:
        self.reports = [json.loads((folder / f"report{rank}.json").read_text()) for rank in RANKS]
        self.dumps = Dumps(folder / "dump")

    def scenario(self, name: str, rank: int) -> dict[str, Any]:
        made: dict[str, Any] = self.reports[rank]["scenarios"][name]
        assert "traceback" not in made, made["traceback"]
        return made

    def lines(self, name: str, rank: int) -> list[dict[str, Any]]:
        number = f"{NAMES.index(name):04x}"
        lines = [line for line in self.dumps.lines() if line["rank"] == rank]
        return [line for line in lines if line["request_ids"][0].startswith(number)]


@pytest.fixture(scope="module")
def runs(release: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    from demo.tiny_model import write_model

    tree = weave_into(unpack(release("verl", "0.8.0"), "verl", tmp_path_factory.mktemp("woven")), "verl")
    model = write_model(tmp_path_factory.mktemp("model"), attention_dropout=0.1)

    @functools.cache
    def get(name: str) -> Run:
        folder = tmp_path_factory.mktemp("run")
        env = {"VERL_USE_EXTERNAL_MODULES": "verl_cpu", "MSPROBE_CONFIG_PATH": str(write_config(folder)), **RUNS[name]}
        command = [str(single.WORKER), str(single.plan(folder, model, NAMES))]
        run_group(command, folder, [tree, DEMO], len(RANKS), env)
        return Run(folder)

    return get


def own_rows(asked: dict[str, Any], rank: int) -> list[str]:
    """The request ids of a rank's half of each step's batch of four."""
    return [name for number, name in enumerate(asked) if number % 4 // 2 == rank]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_training_does_not_notice_the_added_pass(name: str, rank: int, runs: Callable[[str], Run]) -> None:
    dumped, control = (single.trained(runs(run).scenario(name, rank)) for run in ("prompts", "off"))
    assert dumped == control
    assert len(dumped["metrics"]) == STEPS


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_each_rank_dumps_and_logs_its_own_rows(name: str, rank: int, runs: Callable[[str], Run]) -> None:
    run = runs("prompts")
    asked = run.scenario(name, rank)["asked"]
    lines = run.lines(name, rank)
    assert single.by_kind(lines) == Counter(
        {("log_prob", None): 4, ("log_prob", "not-prompt-only"): 4, ("update_actor", "phase"): 4}
    )
    dumped = [line for line in lines if line["dump"]]
    assert [line["request_ids"] for line in dumped] == [[name] for name in own_rows(asked, rank)]
    for line in dumped:
        (entry,), (request_id,) = line["requests"], line["request_ids"]
        assert line["dump"] == f"step{line['step']}/rank{rank}"
        assert line["parallel"]["world_size"] == len(RANKS)
        assert entry["prompt_hash"] == prompt_hash(asked[request_id])
        assert entry["rollout_weight_versions"] == [line["weight_version"]] * 2
        assert tokens_seen(run.dumps.data(line["dump"]), "embed_tokens") == len(asked[request_id])


@pytest.mark.parametrize("kind", ["prompts", "all"])
def test_ranks_count_alike_and_no_dump_is_without_a_line(kind: str, runs: Callable[[str], Run]) -> None:
    run = runs(kind)
    lines = [[line for name in NAMES for line in run.lines(name, rank) if line["dump"]] for rank in RANKS]
    for own in lines:
        assert [line["step"] for line in own] == list(range(len(own)))
    assert len(lines[0]) == len(lines[1])
    assert run.dumps.folders() == sorted(line["dump"] for own in lines for line in own)
    assert len({line["pid"] for own in lines for line in own}) == len(RANKS)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_all_phases_of_each_rank(name: str, rank: int, runs: Callable[[str], Run]) -> None:
    run = runs("all")
    lines = run.lines(name, rank)
    assert single.by_kind(lines) == Counter({("log_prob", None): 4, ("update_actor", None): 4})
    assert {line["request_ids"][0] for line in lines} == set(own_rows(run.scenario(name, rank)["asked"], rank))
    for line in lines:
        data, (entry,) = run.dumps.data(line["dump"]), line["requests"]
        assert tokens_seen(data, "embed_tokens") == entry["prompt_length"] + entry["response_length"]
        assert bool(backward_rows(data)) == (line["phase"] == "update_actor")
