"""Comparisons of real dumps that the reports are tested on, each made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.comparing.cases import Data, changed, direct, dump_of, find, leaves, scale, trees
from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.pairing.plan import Plan


@pytest.fixture(scope="session")
def equal(dumps: Path) -> Comparison:
    """vLLM's names against FSDP1's: consistent, everything equal, q/k/v and gate/up put together."""
    folder = dumps / "lookalike"
    return direct(dump_of(folder / "vllm_fp32_stat"), dump_of(folder / "verl_fsdp1_fp32_stat"))


@pytest.fixture(scope="session")
def planted_dumps(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same two dumps; on the training side mlp.down of layer 1 is 9 % off and attn.o of layer 0 is gone."""
    folder = dumps / "lookalike"

    def off(data: Data) -> None:
        for leaf in leaves(find(data, "layers.1._fsdp_wrapped_module.mlp.down_proj")["output"]):
            scale(leaf, 1.09)
        (gone,) = [name for name in data if "layers.0." in name and "o_proj" in name]
        del data[gone]

    target = tmp_path_factory.mktemp("planted") / "step0" / "rank0"
    two = changed(dump_of(folder / "verl_fsdp1_fp32_stat"), target, off)
    return dump_of(folder / "vllm_fp32_stat"), two


@pytest.fixture(scope="session")
def planted(planted_dumps: tuple[Path, Path]) -> Comparison:
    """Different: ``layers.1.mlp.down`` output; ``layers.0.attn.o`` is missing on the training side."""
    return direct(*planted_dumps)


@pytest.fixture(scope="session")
def run(dumps: Path) -> Comparison:
    """A whole run: two pairs within rounding, eight steps that were not used."""
    folder = dumps / "loop" / "fully_async_qwen3_fsdp2_ids"
    return trees(folder / "generate_sequence", folder / "update_actor")


@pytest.fixture(scope="session")
def tensors(dumps: Path) -> Comparison:
    """Two dumps with elements."""
    folder = dumps / "lookalike" / "tensor_pair"
    return direct(dump_of(folder / "infer"), dump_of(folder / "fsdp1"))


@pytest.fixture(scope="session")
def nothing(dumps: Path) -> Comparison:
    """Not enough evidence: one side was killed before it wrote anything."""
    folder = dumps / "lookalike"
    return direct(dump_of(folder / "vllm_fp32_stat"), dump_of(folder / "killed_before_stop"))


@pytest.fixture(scope="session")
def gaps(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """bfloat16 against float32; of attn.o of layer 0 the training side has nulls, of mlp.down of layer 0 no tensor."""
    folder = dumps / "lookalike"

    def lose(data: Data) -> None:
        for leaf in leaves(find(data, "layers.0._fsdp_wrapped_module.self_attn.o_proj")):
            leaf.update(Max=None, Min=None, Mean=None, Norm=None)
        find(data, "layers.0._fsdp_wrapped_module.mlp.down_proj").update(input_args=[], output=[], parameters={})

    target = tmp_path_factory.mktemp("gaps") / "step0" / "rank0"
    two = changed(dump_of(folder / "verl_fsdp1_fp32_stat"), target, lose)
    return direct(dump_of(folder / "vllm_bf16_stat"), two)


@pytest.fixture
def planned(run: Comparison) -> Comparison:
    """The run, with its plan."""
    return replace(run, plan=Plan("/dumps/plan.toml", "/plans/<a>", "verl-hybrid", "verl-0.8", "t", ("t",)))
