"""verl 0.8.0's real trainer and FSDP workers on a CPU, woven: what is dumped, and that training does not notice.

Each run is a process of its own (verl_fsdp_worker.py), because msprobe's debugger and the switches are one per process;
the scenarios of a run follow one another in it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NO_SOURCE
from tests.engines.training import (
    DEMO,
    Dumps,
    backward_rows,
    calls,
    check_out,
    copy_package,
    rows,
    run_group,
    tokens_seen,
    unpack,
    weave_into,
    write_config,
)
from train_infer_consistency.capture.log import prompt_hash

pytestmark = [pytest.mark.engines, pytest.mark.download]

WORKER = Path(__file__).with_name("verl_fsdp_worker.py")
PROMPTS, RESPONSES = (5, 5, 8, 8), (3, 6, 1, 4)
FLOAT32 = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
COMMON = (
    "trainer.device=cpu",
    "trainer.logger=[console]",
    "trainer.val_before_train=False",
    "trainer.balance_batch=False",
    "trainer.resume_mode=disable",
    "trainer.total_epochs=1",
    "algorithm.adv_estimator=grpo",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    f"+actor_rollout_ref.actor.fsdp_config.mixed_precision={FLOAT32}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.actor.optim.lr=0.01",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.name=vllm",
)
REFERENCE = (
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.ref.use_torch_compile=False",
    "actor_rollout_ref.ref.fsdp_config.model_dtype=fp32",
    f"+actor_rollout_ref.ref.fsdp_config.mixed_precision={FLOAT32}",
)
CRITIC = (
    "algorithm.adv_estimator=gae",
    "critic.model.path=${actor_rollout_ref.model.path}",
    "critic.model.use_remove_padding=True",
    "critic.model.enable_gradient_checkpointing=False",
    "+critic.model.override_config.attn_implementation=eager",
    "critic.ppo_mini_batch_size=1",
    "critic.ppo_micro_batch_size_per_gpu=1",
    "critic.fsdp.model_dtype=fp32",
    f"+critic.fsdp.mixed_precision={FLOAT32}",
)
LORA = (
    *REFERENCE,
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.model.lora_alpha=8",
    "actor_rollout_ref.model.target_modules=all-linear",
)
PAIRS = (
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
)
LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs=True"
#: strategy, Hydra's overrides, training steps.
SCENARIOS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "grpo fsdp": ("fsdp", (), 2),
    "grpo fsdp2": ("fsdp2", (), 2),
    "gae": ("fsdp2", CRITIC, 1),
    "reinforce++ with kl": (
        "fsdp",
        ("algorithm.adv_estimator=reinforce_plus_plus", "algorithm.use_kl_in_reward=True", *REFERENCE),
        1,
    ),
    "rollout log-probs": ("fsdp2", (LOG_PROBS,), 1),
    "bypass": ("fsdp", (LOG_PROBS, "algorithm.rollout_correction.bypass_mode=True"), 1),
    "two a micro-batch": ("fsdp", PAIRS, 1),
    "two a micro-batch, padded": ("fsdp2", (*PAIRS, "actor_rollout_ref.model.use_remove_padding=False"), 1),
    "lora": ("fsdp2", LORA, 1),
    "reference": ("fsdp2", ("actor_rollout_ref.actor.use_kl_loss=True", *REFERENCE), 1),
    "lora fsdp": ("fsdp", LORA, 1),
}
SUM_PI_SQUARED = "actor_rollout_ref.actor.calculate_sum_pi_squared=True"
#: verl 0.8.0's other estimators, with what those ask for that need more than a reward: a greedy answer to each prompt
#: (remax, from the trainer's own combined rollout), several rewards, sums of squared probabilities from the actor.
ESTIMATORS: dict[str, tuple[str, ...]] = {
    "grpo_vectorized": (),
    "grpo_passk": (),
    "reinforce_plus_plus_baseline": (),
    "rloo": (),
    "rloo_vectorized": (),
    "opo": (),
    "gpg": (),
    "remax": (),
    "gdpo": ("+algorithm.gdpo_reward_keys=[form,sense]",),
    "optimal_token_baseline": (SUM_PI_SQUARED, LOG_PROBS, "algorithm.rollout_correction.rollout_is=token"),
    "tir_optimal_token_baseline": (SUM_PI_SQUARED,),
}
SCENARIOS |= {name: ("fsdp2", (f"algorithm.adv_estimator={name}", *more), 1) for name, more in ESTIMATORS.items()}
FAILING = "made to fail"
ADDED = tuple(name for name in SCENARIOS if name not in ("reference", "lora fsdp"))
#: Which scenarios each run goes through, and its switches; None: verl as it is.
RUNS: dict[str, tuple[tuple[str, ...], dict[str, str] | None]] = {
    "upstream": (("grpo fsdp", "gae"), None),
    "off": (ADDED, {"DUMP_ON": "0", "PROMPTS_ONLY": "1"}),
    "prompts": (ADDED, {"PROMPTS_ONLY": "1"}),
    "prompts and update": (
        ("grpo fsdp", "grpo fsdp2", FAILING),
        {"PROMPTS_ONLY": "1", "DUMP_PHASE": "update_actor", "CONSISTENCY_KEEP_ENDS": "1"},
    ),
    "update": (("grpo fsdp",), {"DUMP_PHASE": "update_actor"}),
    "all": (("grpo fsdp", "gae", "reference"), {"DUMP_PHASE": "all"}),
    "log_prob": (("grpo fsdp", "lora"), {}),
    "adapter and update": (("lora", "lora fsdp"), {"DUMP_PHASE": "all"}),
}


class Run:
    """One process: its report, its dumps, and the log's lines of each scenario."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names = folder, names
        self.report = json.loads((folder / "report0.json").read_text())
        self.dumps = Dumps(folder / "dump")

    def scenario(self, name: str) -> dict[str, Any]:
        made: dict[str, Any] = self.report["scenarios"][name]
        assert "traceback" not in made, made["traceback"]
        return made

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The request ids' first digits are the scenario's number."""
        number = f"{self.names.index(name):04x}"
        return [line for line in self.dumps.lines() if line["request_ids"][0].startswith(number)]


def plan(folder: Path, model: Path, names: tuple[str, ...]) -> Path:
    scenarios = []
    for name in names:
        strategy, overrides, steps = SCENARIOS.get(name, ("fsdp2", (), 1))
        chosen = [*COMMON, f"actor_rollout_ref.actor.strategy={strategy}", f"critic.strategy={strategy}", *overrides]
        scenarios.append({"name": name, "overrides": chosen, "steps": steps, "fails": name == FAILING})
    content = {"model": str(model), "report": str(folder / "report{rank}.json"), "scenarios": scenarios}
    path = folder / "plan.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With dropout in the attention: an update then depends on the state of the generators."""
    from demo.tiny_model import write_model

    return write_model(tmp_path_factory.mktemp("model"), attention_dropout=0.1)


@pytest.fixture(scope="module")
def trees(release: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """What comes first on the module path: verl as released, or woven, with the woven msprobe for the ends."""
    wheel = release("verl", "0.8.0")
    bare = unpack(wheel, "verl", tmp_path_factory.mktemp("bare"))
    woven = weave_into(unpack(wheel, "verl", tmp_path_factory.mktemp("woven")), "verl")
    found = importlib.util.find_spec("msprobe")
    assert found is not None
    assert found.origin is not None
    ends = copy_package(Path(found.origin).parent, tmp_path_factory.mktemp("ends"))
    return {"bare": [bare, DEMO], "woven": [woven, DEMO], "ends": [weave_into(ends, "mindstudio-probe"), woven, DEMO]}


@pytest.fixture(scope="module")
def runs(trees: dict[str, list[Path]], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    @functools.cache
    def folder_of(name: str) -> Path:
        folder = tmp_path_factory.mktemp("run")
        names, given = RUNS[name]
        env = {"VERL_USE_EXTERNAL_MODULES": "verl_cpu"}
        if given is not None:
            env |= {"DUMP_ON": "1", "MSPROBE_CONFIG_PATH": str(write_config(folder)), **given}
        kind = "bare" if given is None else "ends" if "CONSISTENCY_KEEP_ENDS" in given else "woven"
        # A run that fails has no report, which says so once for each of its tests.
        with contextlib.suppress(subprocess.TimeoutExpired):
            run_group([str(WORKER), str(plan(folder, model, names))], folder, trees[kind], 1, env, check=False)
        return folder

    @functools.cache
    def get(name: str) -> Run:
        folder = folder_of(name)
        assert (folder / "report0.json").is_file(), (folder / "log0").read_text(errors="replace")[-4000:]
        return Run(folder, RUNS[name][0])

    return get


def trained(scenario: dict[str, Any]) -> dict[str, Any]:
    """What training left: all metrics, weights of the actor and of the others, and the generators."""
    assert scenario["before"] != scenario["after"]
    return {key: scenario[key] for key in ("before", "after", "others", "random", "metrics")}


def check_trained_alike(dumped: Run, control: Run, name: str) -> None:
    """The same batches and random numbers. msprobe's backward hooks change the order in which gradients are summed."""
    import torch

    got, wanted = (trained(run.scenario(name)) for run in (dumped, control))
    assert (got["before"], got["random"]) == (wanted["before"], wanted["random"])
    for ours, theirs in zip(got["metrics"], wanted["metrics"], strict=True):
        expected = {key: pytest.approx(float(value), rel=1e-3, abs=1e-4) for key, value in theirs.items()}
        assert {key: float(value) for key, value in ours.items()} == expected
    parts = [torch.load(run.folder / f"weights{run.names.index(name)}.pt") for run in (dumped, control)]
    after, undisturbed = (torch.cat([part.flatten() for part in each]) for each in parts)
    # A step of Adam is as large as the learning rate, 1e-2, whatever the gradient.
    assert float((after - undisturbed).abs().max()) < 1e-3
    assert float((after - undisturbed).norm() / undisturbed.norm()) < 1e-4


def first_scenario(request_id: str) -> str:
    """The same sample's id in the first scenario: all draw the same tokens."""
    return f"0000{request_id[4:]}"


def by_kind(lines: list[dict[str, Any]]) -> Counter[tuple[str, str | None]]:
    return Counter((line["phase"], line["skipped"]) for line in lines)


# --- switched off ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS["upstream"][0])
def test_switched_off_is_upstream(name: str, runs: Callable[[str], Run]) -> None:
    """Bit by bit: metrics, weights, and the state that all generators end in."""
    assert trained(runs("off").scenario(name)) == trained(runs("upstream").scenario(name))


def test_switched_off_leaves_nothing_and_loads_nothing(runs: Callable[[str], Run]) -> None:
    run = runs("off")
    assert run.report["modules"]["train_infer_consistency"] is None
    assert run.report["modules"]["msprobe"] is None
    assert not (run.folder / "dump").exists()


# --- the added pass -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS["prompts"][0])
def test_training_does_not_notice_the_added_pass(name: str, runs: Callable[[str], Run]) -> None:
    """Against a run without a dump: all metrics, weights and generators, bit by bit."""
    dumped = runs("prompts").scenario(name)
    assert trained(dumped) == trained(runs("off").scenario(name))
    assert not [value for row in dumped["metrics"] for value in row.values() if value == "nan"]
    assert len(dumped["passes"]) == len(dumped["metrics"]) >= 1
    for around in dumped["passes"]:  # batch, generators and weights around the pass itself
        assert around["before"] == around["after"]


def test_no_estimator_of_the_release_is_left_out(trees: dict[str, list[Path]]) -> None:
    tree = ast.parse((trees["bare"][0] / "verl" / "trainer" / "ppo" / "core_algos.py").read_text())
    (known,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AdvantageEstimator")
    values = {item.value.value for item in known.body if isinstance(item, ast.Assign)}  # type: ignore[attr-defined]
    configured = [override for _, overrides, _ in SCENARIOS.values() for override in (*COMMON, *overrides)]
    assert values == {name.partition("=")[2] for name in configured if name.startswith("algorithm.adv_estimator=")}


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("remax", set()),
        ("gdpo", {"gdpo/form/mean", "gdpo/sense/mean"}),
        ("optimal_token_baseline", {"variance_proxy/expected_w", "rollout_corr/rollout_is_mean"}),
        ("tir_optimal_token_baseline", {"variance_proxy/expected_w"}),
    ],
)
def test_an_estimator_has_what_it_asks_for(name: str, metrics: set[str], runs: Callable[[str], Run]) -> None:
    """And each leads to an update of its own: all draw the same tokens."""
    (row,) = runs("prompts").scenario(name)["metrics"]
    assert metrics <= set(row)
    updates = [runs("prompts").scenario(estimator)["metrics"][0]["actor/pg_loss"] for estimator in ESTIMATORS]
    assert updates.count(row["actor/pg_loss"]) == 1


@pytest.mark.parametrize("name", RUNS["prompts"][0])
def test_prompts_alone_are_dumped_with_their_request_ids(name: str, runs: Callable[[str], Run]) -> None:
    run = runs("prompts")
    scenario, size, steps = run.scenario(name), 2 if name.startswith("two") else 1, SCENARIOS[name][2]
    lines = [line for line in run.lines(name) if line["skipped"] is None]
    assert [request_id for line in lines for request_id in line["request_ids"]] == list(scenario["asked"])
    assert len(lines) == steps * 4 // size
    for line in lines:
        prompts = [scenario["asked"][request_id] for request_id in line["request_ids"]]
        assert line["phase"] == "log_prob"
        assert line["prompt_only"]
        assert line["dump"] == f"step{line['step']}/rank0"
        assert [entry["prompt_hash"] for entry in line["requests"]] == [prompt_hash(prompt) for prompt in prompts]
        assert [entry["prompt_length"] for entry in line["requests"]] == [len(prompt) for prompt in prompts]
        assert [entry["response_length"] for entry in line["requests"]] == [0] * size
        versions = [line["weight_version"]] * 2
        assert [entry["rollout_weight_versions"] for entry in line["requests"]] == [versions] * size
        data = run.dumps.data(line["dump"])
        width = sum(map(len, prompts)) if line["use_remove_padding"] else size * max(map(len, prompts))
        assert tokens_seen(data, "embed_tokens") == width
        assert not backward_rows(data)
    assert [line["trainer_step"] for line in lines] == [step for step in range(1, steps + 1) for _ in lines[::steps]]
    assert [line["weight_version"] for line in lines] == [line["trainer_step"] - 1 for line in lines]


@pytest.mark.parametrize("name", RUNS["prompts"][0])
def test_every_other_forward_of_the_actor_has_a_line_and_no_dump(name: str, runs: Callable[[str], Run]) -> None:
    """Neither the critic nor a reference engine has any line; LoRA's reference pass is one of the actor's engine."""
    count = SCENARIOS[name][2] * 4 // (2 if name.startswith("two") else 1)
    passes = {"bypass": 0, "lora": 2}.get(name, 1)
    expected = {
        ("log_prob", None): count,
        ("log_prob", "not-prompt-only"): passes * count,
        ("update_actor", "phase"): count,
    }
    lines = runs("prompts").lines(name)
    assert by_kind(lines) == Counter(expected)
    assert all(line["step"] is line["dump"] is None for line in lines if line["skipped"])


def test_steps_are_counted_through_and_no_dump_is_without_a_line(runs: Callable[[str], Run]) -> None:
    dumps = runs("prompts").dumps
    lines = [line for line in dumps.lines() if line["skipped"] is None]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert dumps.folders() == sorted(line["dump"] for line in lines)
    assert {path.name for path in dumps.root.iterdir()} == {
        ".consistency",
        str(lines[0]["pid"]),
        *(f"step{line['step']}" for line in lines),
    }


@pytest.mark.parametrize("name", ["grpo fsdp", "grpo fsdp2"])
def test_rows_of_the_dump(name: str, runs: Callable[[str], Run]) -> None:
    """All modules of the network but the two that msprobe leaves out under verl."""
    dumps = runs("prompts").dumps
    layer: tuple[str, ...] = ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    layer += (
        "self_attn.o_proj",
        "self_attn",
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.act_fn",
        "mlp.up_proj",
        "mlp.down_proj",
    )
    layer += ("mlp", "")
    expected = ["model.embed_tokens", "model.rotary_emb"]
    expected += [f"model.layers.{number}.{module}".rstrip(".") for number in (0, 1) for module in layer]
    # FSDP1's wrapper is the module that is left out there; FSDP2 has none, and the model itself is left out.
    expected += ["model.norm", "model"] if name == "grpo fsdp" else ["model.norm"]
    for line in runs("prompts").lines(name):
        if line["dump"]:
            assert rows(dumps.data(line["dump"])) == expected


@pytest.mark.parametrize("name", ["grpo fsdp", "grpo fsdp2"])
def test_dumped_values_are_those_of_transformers_alone(name: str, runs: Callable[[str], Run]) -> None:
    run = runs("prompts")
    lines = [line for line in run.lines(name) if line["dump"] and line["trainer_step"] == 1]
    assert len(lines) == 4
    for line in lines:
        (request_id,) = line["request_ids"]
        plain = run.report["plain"][first_scenario(request_id)]["norm"]
        (call,) = calls(run.dumps.data(line["dump"]), "model.norm")
        for statistic, value in plain.items():
            assert call["output"][0][statistic] == pytest.approx(value, rel=1e-5)


# --- the training update too ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grpo fsdp", "grpo fsdp2"])
def test_update_is_dumped_beside_the_prompts_and_is_not_changed(name: str, runs: Callable[[str], Run]) -> None:
    run = runs("prompts and update")
    check_trained_alike(run, runs("off"), name)
    lines = run.lines(name)
    assert by_kind(lines) == Counter(
        {("log_prob", None): 8, ("log_prob", "not-prompt-only"): 8, ("update_actor", None): 8}
    )
    for line in lines:
        if line["phase"] == "update_actor":
            data = run.dumps.data(line["dump"])
            entry = line["requests"][0]
            assert not line["prompt_only"]
            assert line["backward"]
            assert tokens_seen(data, "embed_tokens") == entry["prompt_length"] + entry["response_length"]
            assert entry["response_length"] > 0
            assert len(backward_rows(data)) > 20


@pytest.mark.parametrize("name", ["grpo fsdp", "grpo fsdp2"])
def test_logits_are_dumped_where_the_ends_are_kept(name: str, runs: Callable[[str], Run]) -> None:
    run = runs("prompts and update")
    assert Path(run.report["modules"]["msprobe"]).parent.parent.name.startswith("ends")
    for line in run.lines(name):
        if line["dump"]:
            data = run.dumps.data(line["dump"])
            (call,) = calls(data, "lm_head")
            entry = line["requests"][0]
            assert call["output"][0]["shape"] == [1, entry["prompt_length"] + entry["response_length"], 259]
            assert not [key for key in backward_rows(data) if ".lm_head." in key and ".backward." in key]
            if line["prompt_only"] and line["trainer_step"] == 1:
                plain = run.report["plain"][first_scenario(line["request_ids"][0])]["logits"]
                for statistic, value in plain.items():
                    assert call["output"][0][statistic] == pytest.approx(value, rel=1e-5)
    assert "lm_head" not in rows(runs("prompts").dumps.data("step0/rank0"))


def test_a_forward_that_fails_is_invalid_and_the_next_one_is_whole(runs: Callable[[str], Run]) -> None:
    run = runs("prompts and update")
    assert run.scenario(FAILING)["error"] == "made to fail"
    failed, *lines = run.lines(FAILING)
    dumped = [line for line in lines if line["dump"]]
    assert failed["invalid"]
    assert failed["step"] is None
    assert failed["skipped"] == "failed"
    assert failed["dump"] == f"step{failed['failed_step']}/invalid-rank0-0"
    assert dumped[0]["step"] == failed["failed_step"]
    assert not [line for line in lines if line.get("invalid")]
    assert [line["step"] for line in dumped] == list(range(dumped[0]["step"], dumped[0]["step"] + len(dumped)))
    whole, broken = (run.dumps.data(line["dump"]) for line in (dumped[0], failed))
    assert rows(whole) == rows(run.dumps.data(run.lines("grpo fsdp2")[0]["dump"]))
    assert "model.norm" in rows(broken)  # it looks complete
    assert tokens_seen(whole, "embed_tokens") == 5


# --- upstream's own forwards ----------------------------------------------------------------------------------


def check_whole_sequences(run: Run, lines: list[dict[str, Any]]) -> None:
    for line in lines:
        if line["dump"]:
            data, entry = run.dumps.data(line["dump"]), line["requests"][0]
            assert not line["prompt_only"]
            assert tokens_seen(data, "embed_tokens") == entry["prompt_length"] + entry["response_length"]
            assert bool(backward_rows(data)) == line["backward"] == (line["phase"] == "update_actor")


def test_update_alone(runs: Callable[[str], Run]) -> None:
    run = runs("update")
    lines = run.lines("grpo fsdp")
    assert by_kind(lines) == Counter({("log_prob", "phase"): 8, ("update_actor", None): 8})
    check_whole_sequences(run, lines)


@pytest.mark.parametrize("name", RUNS["all"][0])
def test_all_phases(name: str, runs: Callable[[str], Run]) -> None:
    """The actor's own forwards as they are; critic and reference engine have no line."""
    run = runs("all")
    count = 4 * SCENARIOS[name][2]
    assert by_kind(run.lines(name)) == Counter({("log_prob", None): count, ("update_actor", None): count})
    check_whole_sequences(run, run.lines(name))
    assert [entry["response_length"] for line in run.lines(name)[:4] for entry in line["requests"]] == list(RESPONSES)


def test_training_goes_on_alike_whatever_is_dumped_of_it(runs: Callable[[str], Run]) -> None:
    """All phases against the forwards alone, which no backward hook reaches; both runs have the documented seed."""
    check_trained_alike(runs("all"), runs("log_prob"), "grpo fsdp")


def test_log_probs_alone_and_not_the_reference_pass_of_lora(runs: Callable[[str], Run]) -> None:
    run = runs("log_prob")
    lines = run.lines("lora")
    assert by_kind(lines) == Counter(
        {("log_prob", None): 4, ("log_prob", "reference"): 4, ("update_actor", "phase"): 4}
    )
    check_whole_sequences(run, lines)
    assert any("lora_A" in row for row in rows(run.dumps.data(lines[0]["dump"])))


def test_an_adapters_update_is_refused_under_fsdp2_and_dumped_under_fsdp1(runs: Callable[[str], Run]) -> None:
    run = runs("adapter and update")
    assert "LoRA under FSDP2 ends in a segmentation fault" in run.report["scenarios"]["lora"]["traceback"]
    assert run.lines("lora") == []
    lines = run.lines("lora fsdp")
    assert by_kind(lines) == Counter({("log_prob", None): 4, ("log_prob", "reference"): 4, ("update_actor", None): 4})
    check_whole_sequences(run, lines)


def test_seed_of_a_run_that_dumps_upstreams_own_forwards(runs: Callable[[str], Run]) -> None:
    """Both runs seed everything with the documented seed when the session opens, so they agree with each other."""
    assert trained(runs("all").scenario("grpo fsdp")) == trained(runs("update").scenario("grpo fsdp"))


# --- the commit that the published procedure names -------------------------------------------------------------


def test_commit_b7dabd83(source: Callable[[str], Path], model: Path, tmp_path: Path) -> None:
    """As with the release; without use_remove_padding it would mask every prompt token, so that is refused."""
    tree, run = tmp_path / "verl", tmp_path / "run"
    tree.mkdir()
    run.mkdir()
    if not check_out(source("verl"), "b7dabd83ac7cf3bed84b06e9e29ae67e8542ee73", "verl", tree):
        pytest.skip(NO_SOURCE)
    weave_into(tree, "verl")
    names = ("grpo fsdp", "two a micro-batch, padded")
    env = {"VERL_USE_EXTERNAL_MODULES": "verl_cpu", "PROMPTS_ONLY": "1", "DUMP_ON": "1"}
    env["MSPROBE_CONFIG_PATH"] = str(write_config(run))
    run_group([str(WORKER), str(plan(run, model, names))], run, [tree, DEMO], 1, env)
    made = Run(run, names)
    scenario = made.scenario("grpo fsdp")
    lines = made.lines("grpo fsdp")
    dumped = [line for line in lines if line["dump"]]
    assert by_kind(lines) == Counter(
        {("log_prob", None): 8, ("log_prob", "not-prompt-only"): 8, ("update_actor", "phase"): 8}
    )
    assert [line["request_ids"] for line in dumped] == [[request_id] for request_id in scenario["asked"]]
    assert [tokens_seen(made.dumps.data(line["dump"]), "embed_tokens") for line in dumped] == list(PROMPTS) * 2
    assert (
        "CaptureError: train-infer-consistency: without use_remove_padding this verl masks every prompt token"
        in (made.report["scenarios"][names[1]]["traceback"])
    )
    assert made.lines(names[1]) == []
