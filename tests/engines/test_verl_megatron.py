"""verl 0.8.0's real Megatron engine over the real megatron-core, woven, on a CPU: tensor and pipeline parallel.

The worker is the one of test_verl_fsdp.py, with verl's other engine; each run is a process group of its own.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.training import (
    DEMO,
    Dumps,
    backward_rows,
    calls,
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
TRANSFORMER = (
    "use_cpu_initialization=True",
    "masked_softmax_fusion=False",
    "bias_activation_fusion=False",
    "bias_dropout_fusion=False",
    "apply_rope_fusion=False",
    "gradient_accumulation_fusion=False",
    "persist_layer_norm=False",
)
COMMON = (
    "model_engine=megatron",
    "trainer.device=cpu",
    "trainer.logger=[console]",
    "trainer.val_before_train=False",
    "trainer.balance_batch=False",
    "trainer.resume_mode=disable",
    "trainer.total_epochs=1",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.use_remove_padding=True",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.actor.optim.lr=0.01",
    "actor_rollout_ref.actor.optim.total_training_steps=10",
    "actor_rollout_ref.actor.megatron.dtype=float32",
    # megatron-core 0.12's distributed optimizer asks for Transformer Engine's version.
    "actor_rollout_ref.actor.megatron.use_distributed_optimizer=False",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.name=vllm",
    *(f"+actor_rollout_ref.actor.megatron.override_transformer_config.{field}" for field in TRANSFORMER),
)
LAYER = (
    "input_layernorm",
    "self_attention.linear_qkv",
    "self_attention.core_attention",
    "self_attention.linear_proj",
    "self_attention",
    "pre_mlp_layernorm",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
    "mlp",
    "",
)
CHUNKS = (
    "actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size=2",
    # The interleaved schedule takes as many micro-batches at once as there are stages.
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
)
#: tensor and pipeline parallel sizes, and the switches; None: switched off.
RUNS: dict[str, tuple[int, int, dict[str, str] | None]] = {
    "off": (1, 1, None),
    "tp1": (1, 1, {"PROMPTS_ONLY": "1"}),
    "tp2": (2, 1, {"PROMPTS_ONLY": "1"}),
    "pp2": (1, 2, {"DUMP_PHASE": "all"}),
    "vpp2": (1, 2, {"PROMPTS_ONLY": "1"}),
}


class Run:
    """One process group: the report of each rank, its dumps, and the log's lines of each rank."""

    def __init__(self, folder: Path, world: int) -> None:
        self.reports = [json.loads((folder / f"report{rank}.json").read_text()) for rank in range(world)]
        self.dumps = Dumps(folder / "dump")

    def scenario(self, rank: int = 0, name: str = "grpo") -> dict[str, Any]:
        made: dict[str, Any] = self.reports[rank]["scenarios"][name]
        assert "traceback" not in made, made["traceback"]
        return made

    def lines(self, rank: int = 0, number: int = 0) -> list[dict[str, Any]]:
        """The request ids' first digits are the scenario's number."""
        lines = [line for line in self.dumps.lines() if line["rank"] == rank]
        return [line for line in lines if line["request_ids"][0].startswith(f"{number:04x}")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """``models(layers)``, with a vocabulary that two ranks can share, and dropout, which needs the generators."""
    from demo.tiny_model import write_model

    @functools.cache
    def get(layers: int) -> Path:
        folder = tmp_path_factory.mktemp("model")
        return write_model(folder, attention_dropout=0.1, vocab_size=264, num_hidden_layers=layers)

    return get


@pytest.fixture(scope="module")
def tree(release: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weave_into(unpack(release("verl", "0.8.0"), "verl", tmp_path_factory.mktemp("woven")), "verl")


@pytest.fixture(scope="module")
def runs(tree: Path, models: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    @functools.cache
    def folder_of(name: str) -> Path:
        folder = tmp_path_factory.mktemp("run")
        tensor, pipeline, given = RUNS[name]
        sizes = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
        overrides = [*COMMON, *(f"actor_rollout_ref.actor.megatron.{key}={size}" for key, size in sizes.items())]
        overrides += CHUNKS if name == "vpp2" else ()
        model = models(4 if name == "vpp2" else 2)
        scenarios = [{"name": "grpo", "overrides": overrides, "steps": 1, "fails": False}]
        if name == "tp1":
            scenarios.append({"name": "fails", "overrides": overrides, "steps": 1, "fails": True})
        plan = {"model": str(model), "report": str(folder / "report{rank}.json"), "scenarios": scenarios}
        (folder / "plan.json").write_text(json.dumps(plan))
        env = {"VERL_USE_EXTERNAL_MODULES": "verl_cpu,megatron_cpu"}
        if given is not None:
            env |= {"DUMP_ON": "1", "MSPROBE_CONFIG_PATH": str(write_config(folder)), **given}
        command = [str(WORKER), str(folder / "plan.json")]
        run_group(command, folder, [tree, DEMO], tensor * pipeline, env, check=False)
        return folder

    @functools.cache
    def get(name: str) -> Run:
        folder, world = folder_of(name), RUNS[name][0] * RUNS[name][1]
        for rank in range(world):
            log = (folder / f"log{rank}").read_text(errors="replace")
            assert (folder / f"report{rank}.json").is_file(), log[-4000:]
        return Run(folder, world)

    return get


def by_kind(lines: list[dict[str, Any]]) -> Counter[tuple[str, str | None]]:
    return Counter((line["phase"], line["skipped"]) for line in lines)


def expected_rows(layers: int, first: bool, last: bool, cut_last_layer: bool) -> list[str]:
    found = ["embedding.word_embeddings", "embedding"] if first else []
    found += [f"decoder.layers.{number}.{module}".rstrip(".") for number in range(layers) for module in LAYER]
    if cut_last_layer:  # msprobe leaves out the last module, which is a layer's where the stage has no output layer
        found.remove(f"decoder.layers.{layers - 1}.mlp.linear_fc2")
    return [*found, *(["decoder.final_layernorm"] if last else []), "decoder"]


def known(data: dict[str, Any]) -> list[str]:
    """A dump's rows without what does nothing."""
    idle = ("dropout", "cross_att", "_bda", "rotary_pos_emb", "q_layernorm", "k_layernorm", "scale_mask_softmax")
    return [row for row in rows(data) if not any(name in row for name in idle)]


def test_switched_off_loads_nothing_and_trains(runs: Callable[[str], Run]) -> None:
    (report,) = runs("off").reports
    assert report["modules"]["train_infer_consistency"] is None
    assert report["modules"]["msprobe"] is None
    scenario = runs("off").scenario()
    assert scenario["before"] != scenario["after"]


def test_training_does_not_notice_the_added_pass(runs: Callable[[str], Run]) -> None:
    dumped, control = runs("tp1").scenario(), runs("off").scenario()
    assert len(dumped.pop("passes")) == 1
    assert control.pop("passes") == []
    assert dumped == control
    (around,) = runs("tp1").reports[0]["scenarios"]["fails"]["passes"][-1:]
    assert around["before"] == around["after"]


@pytest.mark.parametrize(("name", "rank"), [("tp1", 0), ("tp2", 0), ("tp2", 1)])
def test_prompts_alone_are_dumped_by_every_rank(name: str, rank: int, runs: Callable[[str], Run]) -> None:
    run = runs(name)
    tensor = RUNS[name][0]
    lines, asked = run.lines(rank), run.scenario(rank)["asked"]
    assert by_kind(lines) == Counter(
        {("log_prob", None): 4, ("log_prob", "not-prompt-only"): 4, ("update_actor", "phase"): 4}
    )
    dumped = [line for line in lines if line["dump"]]
    assert [line["request_ids"] for line in dumped] == [[request_id] for request_id in asked]
    for step, line in enumerate(dumped):
        (entry,) = line["requests"]
        prompt = asked[line["request_ids"][0]]
        assert (line["step"], line["dump"], line["prompt_only"]) == (step, f"step{step}/rank{rank}", True)
        assert (entry["prompt_length"], entry["response_length"]) == (len(prompt), 0)
        assert entry["prompt_hash"] == prompt_hash(prompt)
        assert (line["virtual_chunk"], line["virtual_chunks"], line["first_layer"]) == (0, 1, 0)
        # mbridge splits sequences wherever tensor parallelism is on.
        assert line["sequence_parallel"] is (tensor > 1)
        assert (line["parallel"]["tp_rank"], line["parallel"]["tp_size"]) == (rank, tensor)
        data = run.dumps.data(line["dump"])
        # The padding to a multiple of the tensor-parallel size shows nowhere but here.
        assert tokens_seen(data, "embedding.word_embeddings") == math.ceil(len(prompt) / tensor) * tensor
        assert known(data) == expected_rows(2, first=True, last=True, cut_last_layer=False)
        assert not backward_rows(data)


def test_dumped_values_are_those_of_transformers_alone(runs: Callable[[str], Run]) -> None:
    for name in ("tp1", "tp2"):
        run = runs(name)
        for line in run.lines():
            (entry,) = line["requests"]
            if not line["dump"] or entry["prompt_length"] % RUNS[name][0]:
                continue
            plain = run.reports[0]["plain"][line["request_ids"][0]]["norm"]
            parts = []
            for rank in range(RUNS[name][0]):
                data = run.dumps.data(f"step{line['step']}/rank{rank}")
                (call,) = calls(data, "decoder.final_layernorm")
                parts.append(call["output"][0])
            assert max(part["Max"] for part in parts) == pytest.approx(plain["Max"], rel=1e-5)
            assert min(part["Min"] for part in parts) == pytest.approx(plain["Min"], rel=1e-5)
            assert math.hypot(*(part["Norm"] for part in parts)) == pytest.approx(plain["Norm"], rel=1e-5)


def test_training_with_two_ranks_is_the_same_before_its_first_update(runs: Callable[[str], Run]) -> None:
    one, two = (runs(name).scenario()["metrics"][0] for name in ("off", "tp2"))
    assert float(two["actor/entropy"]) == pytest.approx(float(one["actor/entropy"]), rel=1e-5)
    assert runs("tp2").scenario(0)["metrics"] == runs("tp2").scenario(1)["metrics"]


@pytest.mark.parametrize("rank", [0, 1])
def test_all_phases_of_a_pipeline(rank: int, runs: Callable[[str], Run]) -> None:
    """Each stage dumps its own layer of every micro-batch; dumps call it 0, the line says which it is."""
    run = runs("pp2")
    lines = run.lines(rank)
    assert by_kind(lines) == Counter({("log_prob", None): 4, ("update_actor", None): 4})
    assert [line["dump"] for line in lines] == [f"step{step}/rank{rank}" for step in range(8)]
    assert [line["request_ids"] for line in lines] == [[request_id] for request_id in run.scenario(rank)["asked"]] * 2
    expected = expected_rows(1, first=rank == 0, last=rank == 1, cut_last_layer=rank == 0)
    for line, length, response in zip(lines, PROMPTS * 2, RESPONSES * 2, strict=True):
        (entry,) = line["requests"]
        data = run.dumps.data(line["dump"])
        assert (entry["prompt_length"], entry["response_length"]) == (length, response)
        assert (line["parallel"]["pp_rank"], line["parallel"]["pp_size"]) == (rank, 2)
        assert (line["virtual_chunk"], line["virtual_chunks"], line["first_layer"]) == (0, 1, rank)
        assert not line["backward"]
        assert known(data) == expected
        # The backward is the schedule's, outside of the forward that the session lies around.
        assert not [key for key in data if ".backward." in key]
        if rank == 0:
            assert tokens_seen(data, "embedding.word_embeddings") == length + response


@pytest.mark.parametrize("rank", [0, 1])
def test_virtual_chunks_of_a_pipeline(rank: int, runs: Callable[[str], Run]) -> None:
    """Layers 0 and 2 are the first stage's, 1 and 3 the second's: a dump and a line for each chunk of a micro-batch."""
    run = runs("vpp2")
    dumped = [line for line in run.lines(rank) if line["dump"]]
    assert [line["dump"] for line in dumped] == [f"step{step}/rank{rank}" for step in range(8)]
    asked = run.scenario(rank)["asked"]
    assert Counter(line["request_ids"][0] for line in dumped) == dict.fromkeys(asked, 2)
    for line in run.lines(rank):
        chunk = line["virtual_chunk"]
        assert (line["virtual_chunks"], line["first_layer"]) == (2, 2 * chunk + rank)
    for line in dumped:
        chunk, data = line["virtual_chunk"], known(run.dumps.data(line["dump"]))
        assert ("embedding" in data) == (rank == chunk == 0)
        assert ("decoder.final_layernorm" in data) == (rank == chunk == 1)
        assert [row for row in data if row.endswith(".mlp")] == ["decoder.layers.0.mlp"]
    (around,) = run.scenario(rank)["passes"]
    assert around["before"] == around["after"]


def test_the_session_ends_with_the_forward(runs: Callable[[str], Run]) -> None:
    """What fails behind the forward, in the engine's postprocessing, finds the dump closed, and it stays valid."""
    run = runs("tp1")
    assert run.scenario(0, "fails")["error"] == "made to fail"
    lines = run.lines(0, 1)
    assert by_kind(lines) == Counter(
        {("log_prob", None): 5, ("log_prob", "not-prompt-only"): 4, ("update_actor", "phase"): 4}
    )
    assert not [line for line in lines if "invalid" in line]
    first, again = (run.dumps.data(line["dump"]) for line in lines[:2])
    assert known(first) == known(again)
