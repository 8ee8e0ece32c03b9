"""Every folder of real dumps gives the verdict that its README implies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train_infer_consistency.comparing.compare import Options, compare_shards
from train_infer_consistency.comparing.pairs import shards
from train_infer_consistency.comparing.rows import Shard
from train_infer_consistency.comparing.side import build_side
from train_infer_consistency.dumps.reader import read_rank
from train_infer_consistency.pairing.direct import given

from .cases import direct, dump_of, step0, trees

LOOKALIKE = [
    ("vllm_fp32_stat", "verl_fsdp1_fp32_stat", 1.0),
    ("vllm_fp32_stat", "verl_fsdp2_fp32_stat", 1.0),
    ("vllm_fp32_stat", "verl_megatron_fp32_stat", 1.0),
    ("vllm_fp32_stat", "slime_megatron_list_fp32_stat", 20 / 21),  # vLLM's lm_head was left out
    ("vllm_fp32_stat", "hf_train_fwd_bwd_L0_stat", 20 / 21),
    ("vllm_fp32_stat", "hf_mix_stat", 20 / 21),
    ("vllm_fp32_md5", "verl_fsdp1_fp32_md5", 1.0),
    ("tensor_pair/infer", "tensor_pair/fsdp1", 1.0),
]


@pytest.mark.parametrize(("one", "two", "coverage"), LOOKALIKE)
def test_bit_equal_models_are_equal(dumps: Path, one: str, two: str, coverage: float) -> None:
    found = direct(step0(dumps / "lookalike" / one), step0(dumps / "lookalike" / two))
    assert (found.verdict, found.status) == ("consistent", 0)
    assert found.coverage == pytest.approx(coverage)
    assert {module.word for module in found.pairs[0].modules if module.counted} <= {"equal", "not compared"}
    assert found.pairs[0].count("equal") == 20


def test_md5_rows_are_decided_by_their_bits_where_nothing_is_fused(dumps: Path) -> None:
    look = dumps / "lookalike"
    found = direct(step0(look / "vllm_fp32_md5"), step0(look / "verl_fsdp1_fp32_md5"))
    evidence = {(m.module, row.kind): row.evidence for m in found.pairs[0].modules for row in m.rows}
    assert evidence["layers.1.attn.o", "output"] == "crc"
    assert evidence["layers.1.attn.qkv", "output"] == "statistics"
    assert "equal CRC" in found.pairs[0].identity


def test_tensors_are_compared_element_by_element(dumps: Path) -> None:
    pair = dumps / "lookalike" / "tensor_pair"
    found = direct(step0(pair / "infer"), step0(pair / "fsdp1"))
    rows = [row for module in found.pairs[0].modules for row in module.rows]
    assert {row.evidence for row in rows} == {"tensors"}
    assert all(row.tensor is not None and row.tensor.exact and row.tensor.ulp == 0 for row in rows)
    assert "equal ids" in found.pairs[0].identity


def test_the_residual_is_put_back(dumps: Path) -> None:
    look = dumps / "lookalike"
    found = direct(step0(look / "vllm_fp32_stat"), step0(look / "verl_fsdp1_fp32_stat"))
    rows = {(m.module, row.kind): row for m in found.pairs[0].modules for row in m.rows}
    for module, kind in (("layers.0", "output"), ("layers.1", "output"), ("layers.1.post_attn_norm", "input")):
        row = rows[module, kind]
        assert row.word == "equal"
        assert row.inference is not None
        assert "output.1" in row.inference.derived


@pytest.mark.parametrize("old", ["verl_fsdp1_bf16_stat", "msprobe_8.3.3_hf_bf16_stat", "msprobe_26.0.0_hf_bf16_stat"])
@pytest.mark.parametrize("mine", ["vllm_bf16_stat", "vllm_fp32_stat"])
def test_bf16_old_writers_and_other_dtypes_are_within_rounding(dumps: Path, mine: str, old: str) -> None:
    look = dumps / "lookalike"
    found = direct(step0(look / mine), step0(look / old))
    assert found.verdict == "consistent"
    assert found.pairs[0].count("within rounding") == (4 if mine == "vllm_bf16_stat" else 20)


def test_killed_before_stop_has_no_data(dumps: Path) -> None:
    look = dumps / "lookalike"
    for first, second in (("vllm_fp32_stat", "killed_before_stop"), ("killed_before_stop", "vllm_fp32_stat")):
        found = compare_shards(
            [Shard(0, 0, read_rank(dump_of(look / first)))], [Shard(0, 0, read_rank(dump_of(look / second)))], Options()
        )
        assert found.verdict == "insufficient"
        assert "no data: the process ended between start and stop" in found.reason


@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        ("vllm_packed_7p11_stat", "verl_fsdp1_fp32_stat", "the inference side has several requests packed"),
        ("vllm_fp32_stat", "verl_fsdp1_leftpad5_stat", "the training side is padded, its last position is 10"),
        ("vllm_packed_reqslice_prechigh_stat", "verl_fsdp1_fp32_stat", "Mean and Norm are null: precision 'high'"),
        ("vllm_fp32_stat", "hf5_qwen3moe_stat", "different tokens"),
        ("vllm_fp32_stat", "l1_only_stat", "has no forward of a module: level L1 records API calls alone"),
        ("l1_only_stat", "verl_fsdp1_fp32_stat", "dump with level L0 or mix"),
    ],
)
def test_what_cannot_be_compared_has_its_own_words(dumps: Path, one: str, two: str, words: str) -> None:
    look = dumps / "lookalike"
    found = direct(step0(look / one), step0(look / two))
    assert (found.verdict, found.status) == ("insufficient", 3)
    assert words in found.reason
    assert found.first_difference is None


@pytest.mark.parametrize("train", ["hf_n12", "hf_n12_bf16", "core0121_tp1_n12"])
def test_a_training_forward_with_the_response_in_it_is_not_comparable(dumps: Path, train: str) -> None:
    """n12 is n11 and one token more: a prompt, and the same prompt with a response."""
    found = direct(step0(dumps / "megatron" / "hf_n11"), step0(dumps / "megatron" / train))
    assert (found.verdict, found.status, found.first_difference) == ("insufficient", 3, None)
    assert "11 tokens on the inference side against 12 on the training side" in found.reason
    assert "has the response in it (dump prompts alone, PROMPTS_ONLY=1)" in found.reason
    other_way = direct(step0(dumps / "megatron" / train), step0(dumps / "megatron" / "hf_n11"))
    assert other_way.verdict == "insufficient"
    assert "response" not in other_way.reason


def test_a_mixture_of_experts_equals_itself(dumps: Path) -> None:
    moe = step0(dumps / "lookalike" / "hf5_qwen3moe_stat")
    found = direct(moe, moe)
    words = {module.module: module.word for module in found.pairs[0].modules if module.counted}
    assert words["layers.0.mlp.router"] == words["layers.1.mlp.experts"] == "equal"
    assert (found.verdict, found.coverage) == ("consistent", 1.0)


MEGATRON = [
    ("hf_n11", "core0121_tp1_n11", 21),
    ("hf_n11", "core0121_tp1_n11_list", 21),
    ("hf_n11", "core0121_tp2_n11_nosp", 21),
    ("hf_n11", "core0161_tp1_n11", 21),
    ("hf_n11", "verl_tp1_n11", 20),
    ("hf_n11", "verl_tp1_n11_bshd", 20),
    ("hf_n11", "slime_tp1_n11", 21),
    ("hf_n11", "slime_tp1_n11_mix", 21),
    ("hf_n12", "core0121_tp1_n12", 21),
    ("hf_n12", "core0121_tp2_n12_nosp", 21),
    ("hf_n12", "core0121_tp2_n12_sp", 21),
    ("hf_n12", "core0161_tp2_n12_sp", 21),
    ("hf_n12", "verl_tp2_n12_sp", 20),
    ("hf_n12", "verl_tp2_n12_nosp", 20),
    ("hf_n12", "slime_tp2_n12_sp", 21),
    ("hf_n12", "slime_tp2_n12_nosp", 21),
    ("hf_qwen3_n11", "verl_qwen3_tp1_n11", 24),
    ("hf_qwen3_n12", "verl_qwen3_tp2_n12_sp", 24),
    ("hf_n11", "verl_pp2_n11", 19),
]


@pytest.mark.parametrize(("one", "two", "compared"), MEGATRON)
def test_megatron_merges_to_its_hf_partner(dumps: Path, one: str, two: str, compared: int) -> None:
    """To 1e-6 in all four statistics: the facts say 5e-7 for the rows, fp32 sums of weights add a little."""
    found = direct(step0(dumps / "megatron" / one), step0(dumps / "megatron" / two))
    assert found.verdict == "consistent"
    (result,) = found.pairs
    assert result.count("equal") + result.count("within rounding") == compared
    errors = [row.errors for module in result.modules if module.counted for row in module.rows if row.errors]
    assert max(error or 0.0 for four in errors for error in four) <= 1e-6


@pytest.mark.parametrize("ours", ["hf_n11", "hf_n11_bf16"])
@pytest.mark.parametrize("theirs", ["verl_tp1_n11_bf16", "slime_tp1_n11_bf16"])
def test_megatron_in_bf16_is_within_rounding(dumps: Path, ours: str, theirs: str) -> None:
    found = direct(step0(dumps / "megatron" / ours), step0(dumps / "megatron" / theirs))
    assert found.verdict == "consistent"
    assert found.pairs[0].count("within rounding") >= 18


@pytest.mark.parametrize("ours", ["hf_n12", "hf_n12_bf16"])
def test_bf16_shards_are_within_rounding(dumps: Path, ours: str) -> None:
    found = direct(step0(dumps / "megatron" / ours), step0(dumps / "megatron" / "verl_tp2_n12_sp_bf16"))
    assert (found.verdict, found.pairs[0].count("within rounding")) == ("consistent", 20)


@pytest.mark.parametrize("padded", ["verl_tp2_n11_sp", "slime_tp2_n11_sp"])
def test_padding_to_a_multiple_of_tensor_parallel_is_no_equality(dumps: Path, padded: str) -> None:
    found = direct(step0(dumps / "megatron" / "hf_n11"), step0(dumps / "megatron" / padded))
    assert found.verdict == "insufficient"
    assert "padded to a multiple of tensor parallel size 2" in found.reason
    found = direct(step0(dumps / "megatron" / "hf_n12"), step0(dumps / "megatron" / padded))
    assert found.verdict == "insufficient"
    assert "different tokens" in found.reason


def test_one_rank_of_two_is_not_the_model(dumps: Path) -> None:
    ours, theirs = step0(dumps / "megatron" / "hf_n12"), step0(dumps / "megatron" / "verl_tp2_n12_sp")
    assert direct(ours / "rank0", theirs / "rank0").verdict != "consistent"
    stages = step0(dumps / "megatron" / "verl_pp2_n11")
    ours = step0(dumps / "megatron" / "hf_n11")
    assert direct(ours / "rank0", stages / "rank0").verdict == "insufficient"
    assert direct(ours / "rank0", stages / "rank1").verdict == "insufficient"


def test_virtual_chunks_become_one_model_with_global_layers(dumps: Path) -> None:
    """Steps 0 and 2 are the two chunks of one request: four layers, each taking what the one before it gave."""
    folder = dumps / "megatron" / "verl_core0161_pp2_vpp2_4layers_n11"
    members = [
        Shard(rank, chunk, read_rank(folder / f"step{step}" / f"rank{rank}"))
        for chunk, step in enumerate((0, 2))
        for rank in (0, 1)
    ]
    side = build_side("training", members)
    assert side.layers == 4
    assert not side.problems
    norms = [side.modules[f"layers.{layer}.input_norm"].rows["input"].stats.norm for layer in range(4)]
    outputs = [side.modules[f"layers.{layer}"].rows["output"].stats.norm for layer in range(4)]
    assert norms[1:] == outputs[:3]
    assert side.modules["final_norm"].rows["input"].stats.norm == outputs[3]


def test_pipeline_ranks_of_vllm_ascend_become_one_model(dumps: Path) -> None:
    folder = dumps / "loop" / "ascend_pp2"
    members = [
        Shard(0, 0, read_rank(folder / "11795/step0/rank0")),
        Shard(1, 0, read_rank(folder / "11910/step0/rank1")),
    ]
    side = build_side("inference", members)
    assert (side.dialect.name, side.layers, side.tokens) == ("vllm-ascend", 2, 27)
    assert not side.problems
    # Layer 0 is on rank 0; what it gave to layer 1 is in the first norm of rank 1.
    assert side.modules["layers.0"].rows["output"].derived.startswith("layers.1.input_norm")
    itself = direct(folder / "11795/step0", folder / "11795/step0")
    assert itself.verdict == "consistent"


LOOP = [
    ("hybrid_qwen2_fsdp1", "consistent", 1),
    ("single_qwen3_fsdp1", "consistent", 1),
    ("ascend_hybrid_qwen2_fsdp1", "consistent", 1),
    ("fully_async_qwen3_fsdp2_ids", "consistent", 2),
    ("fully_async_qwen3_fsdp2", "insufficient", 0),
]


@pytest.mark.parametrize(("run", "verdict", "pairs"), LOOP)
def test_whole_runs(dumps: Path, run: str, verdict: str, pairs: int) -> None:
    folder = dumps / "loop" / run
    found = trees(folder / "generate_sequence", folder / "update_actor")
    assert (found.verdict, len(found.pairs)) == (verdict, pairs)
    assert all("logits not compared" in " ".join(pair.notes) for pair in found.pairs)
    json.dumps(found.to_json(), allow_nan=False)


def test_a_run_whose_weight_sync_rounds_names_the_weights(dumps: Path) -> None:
    folder = dumps / "loop" / "hybrid_qwen2_fsdp2"
    found = trees(folder / "generate_sequence", folder / "update_actor")
    assert (found.verdict, found.status) == ("different", 1)
    assert found.first_difference is not None
    assert (found.first_difference.module, found.first_difference.row.kind) == ("embed", "weight")
    assert found.first_difference.row.errors is not None
    assert 1e-4 < (found.first_difference.row.errors.min or 0.0) < 3e-3


def test_nothing_to_pair_with_is_status_3(dumps: Path) -> None:
    loop = dumps / "loop"
    for folder in ("ascend_pp2", "ascend_chunked_fabricated"):
        found = trees(loop / folder, loop / "hybrid_qwen2_fsdp1" / "update_actor")
        assert (found.verdict, found.status, found.pairs) == ("insufficient", 3, [])
        assert found.rejected


def test_every_number_leads_to_its_file(dumps: Path) -> None:
    ours, theirs = step0(dumps / "megatron" / "hf_n12"), step0(dumps / "megatron" / "slime_tp2_n12_sp")
    found = direct(ours, theirs).to_json()
    rows = [row for module in found["modules"] for row in module["rows"]]
    assert rows
    for row in rows:
        for side in ("inference", "training"):
            for source in row[side]["sources"]:
                entry = json.loads(Path(source["file"]).read_text())["data"][source["entry"]]
                where, _, name = source["slot"].partition(".")
                assert (name in entry["parameters"]) if where == "parameters" else entry
    ranks = {source["rank"] for row in rows for source in row["training"]["sources"]}
    assert ranks == {0, 1}


def test_chunks_are_taken_in_the_order_of_their_steps(dumps: Path) -> None:
    """Where no log names the chunk, the steps of one rank in a pair are its chunks."""
    folder = dumps / "megatron" / "hf_n11"
    (pair,) = given(step0(folder), step0(folder)).pairs
    (shard,) = shards(pair.inference)
    assert (shard.rank, shard.chunk) == (0, 0)
