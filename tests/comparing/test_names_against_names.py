"""Every form of one model's names against every other: equal in either direction, and with bits and elements, too."""

from __future__ import annotations

import re
import shutil
from itertools import permutations
from pathlib import Path

import pytest

from .cases import Data, changed, direct, dump_of

FORMS = {
    "vllm": "vllm_fp32_stat",
    "fsdp1": "verl_fsdp1_fp32_stat",
    "fsdp2": "verl_fsdp2_fp32_stat",
    "hf": "hf_train_fwd_bwd_L0_stat",
    "mix": "hf_mix_stat",
    "megatron": "verl_megatron_fp32_stat",
    "list": "slime_megatron_list_fp32_stat",
    "ascend": "vllm_fp32_stat",
}


def as_ascend(data: Data) -> None:
    """vLLM-Ascend puts classes of its own in the places of vLLM's."""
    own = (
        "VocabParallelEmbedding|RMSNorm|QKVParallelLinear|RotaryEmbedding|RowParallelLinear|MergedColumnParallelLinear"
    )
    for name in list(data):
        data[re.sub(rf"\.({own}|SiluAndMul)\.forward", r".Ascend\1.forward", name)] = data.pop(name)


def unwrapped(data: Data) -> None:
    """FSDP2's and plain HF's names from FSDP1's."""
    for name in list(data):
        data[name.replace("_fsdp_wrapped_module.", "")] = data.pop(name)


@pytest.fixture(scope="module")
def forms(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {form: dump_of(dumps / "lookalike" / folder) for form, folder in FORMS.items()}
    return {**found, "ascend": changed(found["ascend"], tmp_path_factory.mktemp("ascend") / "rank0", as_ascend)}


@pytest.mark.parametrize(("one", "two"), list(permutations(FORMS, 2)))
def test_statistics(forms: dict[str, Path], one: str, two: str) -> None:
    found = direct(forms[one], forms[two])
    assert (found.verdict, found.pairs[0].count("differs"), found.pairs[0].count("within rounding")) == (
        "consistent",
        0,
        0,
    )
    dialects = {"fsdp1": "hf", "fsdp2": "hf", "mix": "hf", "list": "megatron", "ascend": "vllm-ascend"}
    for form, side in ((one, found.pairs[0].inference), (two, found.pairs[0].training)):
        assert side is not None
        assert side.dialect.name == dialects.get(form, form)


@pytest.mark.parametrize("change", [as_ascend, None])
def test_bits(dumps: Path, tmp_path: Path, change: object) -> None:
    ours, theirs = (dump_of(dumps / "lookalike" / name) for name in ("vllm_fp32_md5", "verl_fsdp1_fp32_md5"))
    if change is as_ascend:
        ours = changed(ours, tmp_path / "ours" / "rank0", as_ascend)
    theirs = changed(theirs, tmp_path / "theirs" / "rank0", unwrapped)
    found = direct(ours, theirs)
    assert (found.verdict, found.coverage, found.pairs[0].count("equal")) == ("consistent", 1.0, 20)
    assert "equal CRC" in found.pairs[0].identity


def test_elements(dumps: Path, tmp_path: Path) -> None:
    pair = dumps / "lookalike" / "tensor_pair"
    sides = []
    for side, change in (("infer", as_ascend), ("fsdp1", unwrapped)):
        shutil.copytree(pair / side / "step0" / "rank0", tmp_path / side / "rank0")
        sides.append(changed(dump_of(pair / side), tmp_path / side / "rank0", change))
    found = direct(*sides)
    assert (found.verdict, found.coverage, found.pairs[0].count("equal")) == ("consistent", 1.0, 20)
    assert {row.evidence for module in found.pairs[0].modules for row in module.rows} == {"tensors"}
