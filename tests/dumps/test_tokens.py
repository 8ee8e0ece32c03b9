"""How many tokens a dumped forward had and at which positions, on real dumps of every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from train_infer_consistency.dumps.tokens import Tokens, peek_tokens


@pytest.mark.parametrize(
    ("folder", "count", "first", "last"),
    [
        ("lookalike/vllm_fp32_stat/step0/rank0", 11, 0, 10),
        ("lookalike/vllm_packed_7p11_stat/step0/rank0", 18, 0, 10),
        ("lookalike/vllm_packed_reqslice_prechigh_stat/step0/proc4416", 11, 0, 10),
        ("lookalike/verl_fsdp1_leftpad5_stat/step0/rank0", 16, 0, 10),
        ("lookalike/verl_megatron_fp32_stat/step0/rank0", 11, 0, 10),
        ("lookalike/hf_mix_stat/step0/proc15746", 11, 0, 10),
        ("lookalike/msprobe_8.3.3_hf_bf16_stat/step0/rank", 11, 0, 10),
        ("loop/ascend_chunked_fabricated/22261/step1/rank0", 1, 27, 27),
        ("loop/ascend_pp2/11910/step0/rank1", None, 0, 26),
        ("megatron/slime_tp2_n11_sp/old_log_prob/step0/rank0", 12, None, None),
        ("lookalike/killed_before_stop/step0/proc25227", None, None, None),
        ("lookalike/nowhere", None, None, None),
    ],
)
def test_real_forwards(dumps: Path, folder: str, count: int | None, first: int | None, last: int | None) -> None:
    found = peek_tokens(dumps / folder)
    assert (found.count, found.first, found.last) == (count, first, last)


def test_length_is_the_prompt_without_its_padding(dumps: Path) -> None:
    assert peek_tokens(dumps / "lookalike" / "verl_fsdp1_leftpad5_stat" / "step0" / "rank0").length == 11
    assert Tokens(count=16).length is None
