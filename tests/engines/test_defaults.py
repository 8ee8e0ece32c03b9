"""The upstream defaults that rules rest on are those of verl's composed configurations and SGLang's arguments.

Those of slime and Megatron, which are in no registry: tests/launch/test_defaults.py.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.launch import defaults
from train_infer_consistency.launch.run import SLIME, VERL_FULLY_ASYNC, VERL_HYBRID, Run
from train_infer_consistency.launch.stacks import STACKS

pytestmark = [pytest.mark.engines, pytest.mark.download]

CONFIGURATIONS = "verl/trainer/config/_generated_{}.yaml"
FULLY_ASYNC = "verl/experimental/fully_async_policy/config/fully_async_ppo_trainer.yaml"
#: Not in a composed configuration: the choice of one, and what an engine takes where nothing is given.
NOT_COMPOSED = {"model_engine", "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"}

#: What rules ask of SGLang beside the defaults that are written down: off, or not set.
SGLANG = {
    "sglang_chunked_prefill_size",
    "sglang_disable_cuda_graph",
    "sglang_disable_radix_cache",
    "sglang_enable_dp_attention",
    "sglang_max_running_requests",
    "sglang_speculative_algorithm",
}


def composed(wheel: Path, name: str) -> dict[str, Any]:
    """A configuration of the wheel, by dotted keys."""
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = {}

    def flatten(content: dict[str, Any], prefix: str) -> None:
        for key, value in content.items():
            if isinstance(value, dict):
                flatten(value, f"{prefix}{key}.")
            else:
                found[prefix + key] = value

    with zipfile.ZipFile(wheel) as archive:
        flatten(yaml.safe_load(archive.read(name)), "")
    return found


@pytest.mark.parametrize("name", ["ppo_trainer", "ppo_megatron_trainer"])
def test_hybrid(release: Callable[..., Path], name: str) -> None:
    upstream = composed(release("verl", "0.8.0"), CONFIGURATIONS.format(name))
    run = Run(VERL_HYBRID)
    known = {key for key in defaults._VERL if key in upstream}
    assert {key: defaults.verl(run, key) for key in known} == {key: upstream[key] for key in known}
    missing = set(defaults._VERL) - known - NOT_COMPOSED
    other = "ulysses" if name == "ppo_megatron_trainer" else ".megatron."
    assert all(other in key for key in missing)


def test_fully_async(release: Callable[..., Path]) -> None:
    upstream = composed(release("verl", "0.8.0"), FULLY_ASYNC)
    run = Run(VERL_FULLY_ASYNC)
    assert {key: defaults.verl(run, key) for key in defaults._FULLY_ASYNC} == {
        key: upstream[key] for key in defaults._FULLY_ASYNC
    }
    given = set(upstream) & set(defaults._VERL)
    assert {key: defaults.verl(run, key) for key in given} == {key: upstream[key] for key in given}


@pytest.mark.parametrize("stack", ["slime-0.2.2", "slime-0.2.4"])
def test_sglang(release: Callable[..., Path], stack: str) -> None:
    with zipfile.ZipFile(release("sglang", STACKS[stack]["sglang"])) as archive:
        tree = ast.parse(archive.read("sglang/srt/server_args.py"))
    (arguments,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ServerArgs")
    own = {
        f"sglang_{node.target.id}": ast.literal_eval(node.value)
        for node in arguments.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    run = Run(SLIME)
    ours = {dest for dest in defaults._SLIME if dest.startswith("sglang_")}
    assert own.keys() >= ours
    asked = ours | (SGLANG & own.keys())
    assert {dest: defaults.slime(run, dest) or None for dest in asked} == {dest: own[dest] or None for dest in asked}
