"""verl 0.8.0's real fully asynchronous trainer over its FSDP2 worker, woven: training does not notice the added pass.

`make demo-fully-async` has the whole of it with Ray, where what a step trains on depends on the clock; here a run with
a dump can be held against one without. Weights are sent after every second step.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.engines.test_verl_fsdp import COMMON
from tests.engines.training import DEMO, Dumps, run_group, tokens_seen, unpack, weave_into, write_config
from train_infer_consistency.capture.log import prompt_hash

pytestmark = [pytest.mark.engines, pytest.mark.download]

WORKER = Path(__file__).with_name("verl_async_worker.py")
STEPS = 3
ASYNC = (
    "actor_rollout_ref.hybrid_engine=False",
    "actor_rollout_ref.actor.strategy=fsdp2",
    # Made and not used: weights go nowhere here.
    "actor_rollout_ref.rollout.checkpoint_engine.backend=zmq",
    "+actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=verl_cpu.sync",
    "async_training.require_batches=2",
    "async_training.trigger_parameter_sync_step=2",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
)
#: In bypass mode, verl's default here, no log-prob pass of its own is run.
SCENARIOS = {"bypass": (), "recomputed": ("algorithm.rollout_correction.bypass_mode=False",)}


class Run:
    """One process: its report and its dumps."""

    def __init__(self, folder: Path) -> None:
        self.report = json.loads((folder / "report.json").read_text())
        self.dumps = Dumps(folder / "dump")

    def scenario(self, name: str) -> dict[str, Any]:
        made: dict[str, Any] = self.report[name]
        assert "traceback" not in made, made["traceback"]
        return made

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The request ids' first digits are the scenario's number."""
        number = f"{list(SCENARIOS).index(name):04x}"
        return [line for line in self.dumps.lines() if line["request_ids"][0].startswith(number)]


@pytest.fixture(scope="module")
def runs(release: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """``runs(DUMP_ON)``; with dropout in the attention, so that an update depends on the state of the generators."""
    from demo.tiny_model import write_model

    tree = weave_into(unpack(release("verl", "0.8.0"), "verl", tmp_path_factory.mktemp("woven")), "verl")
    model = write_model(tmp_path_factory.mktemp("model"), attention_dropout=0.1)

    @functools.cache
    def get(switch: str) -> Run:
        folder = tmp_path_factory.mktemp("run")
        scenarios = [
            {"name": name, "overrides": [*COMMON, *ASYNC, *more], "steps": STEPS} for name, more in SCENARIOS.items()
        ]
        plan = {"model": str(model), "report": str(folder / "report.json"), "scenarios": scenarios}
        (folder / "plan.json").write_text(json.dumps(plan))
        env = {"VERL_USE_EXTERNAL_MODULES": "verl_cpu", "DUMP_ON": switch, "PROMPTS_ONLY": "1"}
        env["MSPROBE_CONFIG_PATH"] = str(write_config(folder))
        run_group([str(WORKER), str(folder / "plan.json")], folder, [tree, DEMO, ROOT], 1, env)
        return Run(folder)

    return get


@pytest.mark.parametrize("name", SCENARIOS)
def test_training_does_not_notice_the_added_pass(name: str, runs: Callable[[str], Run]) -> None:
    """Against a run without a dump: all metrics, weights and generators, bit by bit."""
    dumped, control = dict(runs("1").scenario(name)), dict(runs("0").scenario(name))
    passes = dumped.pop("passes")
    assert control.pop("passes") == []
    assert dumped == control
    assert dumped["before"] != dumped["after"]
    assert any("actor/grad_norm" in row for row in dumped["metrics"])
    assert not [value for row in dumped["metrics"] for value in row.values() if value == "nan"]
    assert len(passes) == STEPS
    for around in passes:  # batch, generators and weights around the pass itself
        assert around["before"] == around["after"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_prompts_are_dumped_with_the_weights_that_the_rollout_had(name: str, runs: Callable[[str], Run]) -> None:
    """Also in the second step after a sync, whose own weights the rollout has not yet."""
    run = runs("1")
    lines, asked = run.lines(name), run.scenario(name)["asked"]
    count = len(asked)
    assert by_kind(lines) == Counter(
        {("log_prob", None): count, ("update_actor", "phase"): count}
        | ({("log_prob", "not-prompt-only"): count} if name == "recomputed" else {})
    )
    dumped = [line for line in lines if line["dump"]]
    assert [line["request_ids"] for line in dumped] == [[request_id] for request_id in asked]
    for line in dumped:
        (entry,) = line["requests"]
        prompt = asked[entry["request_id"]]
        assert (entry["prompt_hash"], entry["response_length"]) == (prompt_hash(prompt), 0)
        assert entry["rollout_weight_versions"] == [line["weight_version"]] * 2
        assert tokens_seen(run.dumps.data(line["dump"]), "embed_tokens") == len(prompt)
    assert [(line["trainer_step"], line["weight_version"]) for line in dumped[::4]] == [(1, 0), (2, 0), (3, 1)]
    weights = [embedding(run, line) for line in dumped[::4]]
    assert weights[0] == weights[1] != weights[2]


def by_kind(lines: list[dict[str, Any]]) -> Counter[tuple[str, str | None]]:
    return Counter((line["phase"], line["skipped"]) for line in lines)


def embedding(run: Run, line: dict[str, Any]) -> dict[str, Any]:
    """The statistics of a weight that was dumped."""
    data = run.dumps.data(line["dump"])
    (call,) = (record for key, record in data.items() if "layers.0.input_layernorm." in key and ".forward." in key)
    return dict(call["parameters"]["weight"])
