"""Plans before the upstreams that would read them: verl's Hydra configuration, SGLang's and slime's parsers, msprobe.

Megatron's own parser (megatron.training) is in no wheel: its flags are what slime's parsers leave over.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NO_SOURCE, ROOT
from tests.engines.training import check_out, unpack
from tests.launch.plans import KINDS, arguments, plan_into

pytestmark = [pytest.mark.engines, pytest.mark.download]

WORKER = Path(__file__).with_name("plan_worker.py")
STAND_INS = ROOT / "demo" / "sglang_cpu" / "site"
MEGATRON = [
    *("--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "1", "--context-parallel-size", "1"),
    "--no-gradient-accumulation-fusion",
]
#: What slime imports of packages that no parser needs: a logger, and the router's class, whose one flag is a plan's.
ROUTER = """
class RouterArgs:
    @staticmethod
    def add_cli_args(parser, **named):
        parser.add_argument("--router-policy")
"""


def read(
    reader: str, words: Mapping[str, Sequence[str]], folder: Path, *paths: Path, **env: str
) -> dict[str, dict[str, Any]]:
    """What a reader made of word lists, in a process of its own."""
    (folder / "words.json").write_text(json.dumps(words))
    report = folder / "report.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **env}
    command = [sys.executable, str(WORKER), reader, str(folder / "words.json"), str(report)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(report.read_text())
    for name, one in found.items():
        assert "error" not in one, f"{name}: {one['error']}"
    return found


def words_of(kind: str, folder: Path, *own: str, **given: Any) -> list[str]:
    """The words that a kind of plan starts its upstream with."""
    place = folder / kind.replace(" ", "-").replace(",", "")
    plan_into(place, **KINDS[kind], **given)
    return arguments(place, *own)


@pytest.fixture(scope="module")
def composed(release: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every plan for verl, composed by verl 0.8.0's own configuration."""
    folder = tmp_path_factory.mktemp("verl")
    tree = unpack(release("verl", "0.8.0"), "verl", folder / "tree")
    own = ("data.train_files=/d/train.parquet", "data.val_files=/d/test.parquet")
    words = {
        kind: words_of(kind, folder, *own, model="/models/it's, 1 {a}: b=c")
        for kind, given in KINDS.items()
        if given["scenario"] != "slime"
    }
    return read("verl", words, folder, tree)


def test_verl_composes_every_plan(composed: dict[str, dict[str, Any]]) -> None:
    assert len(composed) == 8
    for kind, found in composed.items():
        config = found["config"]
        megatron = "Megatron" in kind
        assert found["classes"] == {
            "rollout": "RolloutConfig",
            "actor": "McoreActorConfig" if megatron else "FSDPActorConfig",
        }
        assert found["critic"] is False
        assert config["actor_rollout_ref"]["model"]["path"] == "/models/it's, 1 {a}: b=c"
        assert config["data"]["train_files"] == "/d/train.parquet"
        rollout = config["actor_rollout_ref"]["rollout"]
        path = rollout["engine_kwargs"]["vllm"]["additional_config"]["dump_config_path"]
        assert path.endswith("/config_generate.json")
        assert (rollout["max_num_seqs"], rollout["enable_prefix_caching"], rollout["enforce_eager"]) == (1, False, True)
        assert rollout["log_prob_use_dynamic_bsz"] is False
        actor = config["actor_rollout_ref"]["actor"]
        dtypes = {rollout["dtype"], actor["megatron" if megatron else "fsdp_config"]["dtype"]}
        assert dtypes == {"bfloat16"}


def test_verl_hands_the_variables_to_ray_as_texts(composed: dict[str, dict[str, Any]]) -> None:
    for found in composed.values():
        variables = found["config"]["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"]
        assert variables["DUMP_ON"] == variables["CONSISTENCY_KEEP_ENDS"] == "1"
        assert variables["MSPROBE_CONFIG_PATH"].endswith("/config_actor.json")
        assert all(isinstance(value, str) for value in variables.values())


def test_verl_fully_async_keeps_its_weights_in_step(composed: dict[str, dict[str, Any]]) -> None:
    for kind in ("fully async", "fully async, Megatron"):
        config = composed[kind]["config"]
        assert config["algorithm"]["rollout_correction"] is None
        assert config["async_training"]["staleness_threshold"] == 0
        assert config["async_training"]["partial_rollout"] is False
        samples = config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
        assert config["rollout"]["total_rollout_steps"] == 2 * samples


@pytest.mark.parametrize(("kind", "version"), [("slime", "0.5.8"), ("slime 0.2.4", "0.5.10.post1")])
def test_sglang_parses_its_flags(kind: str, version: str, release: Callable[..., Path], tmp_path: Path) -> None:
    tree = unpack(release("sglang", version), "sglang", tmp_path / "tree")
    found = read("sglang", {kind: words_of(kind, tmp_path)}, tmp_path, STAND_INS, tree)[kind]
    args = found["args"]
    assert (args["disable_radix_cache"], args["disable_cuda_graph"], args["max_running_requests"]) == (True, True, 1)
    assert args["chunked_prefill_size"] == 16384
    assert args.get("disable_piecewise_cuda_graph", False) is (version != "0.5.8")
    assert len(found["words"]) >= 7


def without_sglang(words: Sequence[str]) -> list[str]:
    """The words without SGLang's flags and their values, which slime v0.2.4 parses for themselves."""
    kept: list[str] = []
    dropped = False
    for word in words:
        dropped = word.startswith("--sglang-") if word.startswith("--") else dropped
        kept += [] if dropped else [word]
    return kept


@pytest.mark.parametrize(
    ("kind", "tag", "version"), [("slime", "v0.2.2", "0.5.8"), ("slime 0.2.4", "v0.2.4", "0.5.10.post1")]
)
def test_slime_parses_its_flags(
    kind: str, tag: str, version: str, source: Callable[[str], Path], release: Callable[..., Path], tmp_path: Path
) -> None:
    clone = source("slime")
    for name, text in (("wandb", ""), ("sglang_router", ""), ("sglang_router/launch_router.py", ROUTER)):
        file = tmp_path / "stand-ins" / (name if name.endswith(".py") else f"{name}/__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "clone").mkdir()
    if not check_out(clone, tag, "slime", tmp_path / "clone"):
        pytest.skip(NO_SOURCE)
    tree = unpack(release("sglang", version), "sglang", tmp_path / "tree")
    words = words_of(kind, tmp_path, "--prompt-data", "/d/p.jsonl", "--rm-type", "math", tp=2)
    paths = (STAND_INS, tmp_path / "stand-ins", tree, tmp_path / "clone")
    found = read("slime", {kind: words}, tmp_path, *paths)[kind]
    args = found["args"]
    assert (args["rollout_batch_size"], args["n_samples_per_prompt"], args["global_batch_size"]) == (1, 4, 4)
    assert (args["num_rollout"], args["start_rollout_id"], args["data_pad_size_multiplier"]) == (1, 0, 1)
    assert (args["rollout_num_gpus"], args["rollout_num_gpus_per_engine"]) == (2, 2)
    assert (args["prompt_data"], args["router_policy"]) == ("/d/p.jsonl", "round_robin")
    assert ({**args, **found["sglang"]})["sglang_disable_radix_cache"] is True
    assert without_sglang(found["left"]) == MEGATRON


@pytest.mark.parametrize(
    ("kind", "choice", "side"),
    [
        ("hybrid", {}, "generate"),
        ("hybrid", {"md5": True}, "actor"),
        ("slime", {}, "actor"),
        ("slime", {"tensors": True}, "generate"),
    ],
)
def test_msprobe_dumps_with_its_files(kind: str, choice: dict[str, Any], side: str, tmp_path: Path) -> None:
    plan = plan_into(tmp_path / "plan", **KINDS[kind], dump_root=str(tmp_path / "dumps"), **choice)
    found = read("msprobe", {side: [str(tmp_path / "plan" / f"config_{side}.json")]}, tmp_path)[side]
    assert found["task"] == ("tensor" if choice.get("tensors") else "statistics")
    assert found["step"] == ([0] if kind == "slime" else [])
    content = json.loads(plan.files[f"config_{side}.json"])
    assert found["dump_path"] == content["dump_path"]
    (dump,) = Path(content["dump_path"]).glob("step0/*/dump.json")
    data = json.loads(dump.read_text())["data"]
    leaf = data["Module.0.Linear.forward.0"]["output"][0]
    assert leaf["Mean"] is not None
    assert leaf["Norm"] is not None
    assert ("md5" in leaf) is bool(choice.get("md5"))
    assert bool(list(dump.parent.glob("dump_tensor_data/*.pt"))) is bool(choice.get("tensors"))
    assert any(key.startswith("Functional.") for key in data) is (kind == "slime")
