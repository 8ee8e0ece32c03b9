"""Layouts that differ by construction: padding, the last row of logits, norms inside products, partnerless modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from train_infer_consistency.comparing.compare import Options, compare_shards
from train_infer_consistency.comparing.record import PairResult
from train_infer_consistency.comparing.shapes import count_words, rows_and_columns, tokens_and_features

from .cases import ArrayDump, Builder
from .test_algebra import Layer, shards


@pytest.mark.parametrize(
    ("shape", "tokens", "expected"),
    [
        ((1, 11, 64), 11, (11, 64)),
        ((11, 1, 64), 11, (11, 64)),
        ((11, 64), 11, (11, 64)),
        ((11, 4, 16), 11, (11, 64)),
        ((1, 11, 4, 16), 11, (11, 64)),
        ((11, 1, 4, 16), 11, (11, 64)),
        ((12, 1, 1, 16), 12, (12, 16)),
        ((6, 1, 64), 12, (6, 64)),
        ((1, 64), 11, (1, 64)),
        ((1, 1, 64), 1, (1, 64)),
        ((3, 11, 64), 33, (33, 64)),
        ((0,), 11, (0, 0)),
    ],
)
def test_shapes_are_tokens_and_features(shape: tuple[int, ...], tokens: int, expected: tuple[int, int]) -> None:
    assert tokens_and_features(shape, tokens) == expected


def test_parameters_are_rows_and_columns() -> None:
    assert rows_and_columns((128, 64)) == (128, 64)
    assert rows_and_columns((4, 8, 2)) == (4, 16)
    assert rows_and_columns((64,)) == (64, 1)
    assert rows_and_columns(()) == (1, 1)


def test_words_for_counts() -> None:
    assert "padded to a multiple of tensor parallel size 4" in count_words(11, 12, 4)
    assert count_words(11, 1, 1) == "the last row only"


LAYER = Layer(7, 6, 2, 2, 4, 5)


def padded(before: int, after: int, elements: bool) -> list[ArrayDump]:
    """The HF dump with rows of padding around the prompt, in everything that has tokens."""
    other = Layer.__new__(Layer)
    other.__dict__.update(LAYER.__dict__)
    for name, array in LAYER.__dict__.items():
        if (
            isinstance(array, np.ndarray)
            and len(array) == LAYER.tokens
            and not name.startswith("w")
            and name != "table"
        ):
            width = ((before, after), *[(0, 0)] * (array.ndim - 1))
            setattr(other, name, np.pad(array, width, constant_values=0 if array.ndim == 1 else 9))
    return other.hf(elements)


@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 2), (2, 5)])
def test_padding_is_cut_by_the_ids_where_there_are_elements(before: int, after: int) -> None:
    found = compare_shards(shards(LAYER.vllm(True, 1)), shards(padded(before, after, True)), Options())
    assert (found.verdict, found.coverage) == ("consistent", 1.0), found.reason
    assert f"{before + after} further rows of the training side cut" in found.identity
    plain = compare_shards(shards(LAYER.vllm(False, 1)), shards(padded(before, after, False)), Options())
    assert plain.verdict == "insufficient"
    assert "6 tokens on the inference side" in plain.reason


def head(dumps: list[ArrayDump], logits: Any, made: str) -> list[ArrayDump]:
    """Add lm_head as one side has it."""
    (dump,) = dumps
    builder = Builder(0, dump.task == "tensor")
    builder.calls, builder.arrays = list(dump.calls), dict(dump.arrays)
    hidden = LAYER.out if len(logits) > 1 else LAYER.out[-1:]
    if made == "vllm":
        builder.add("logits_processor", "LogitsProcessor", [None, hidden], [logits])
    else:
        builder.add("lm_head", "Linear", [hidden[None]], [logits[None]])
    return [builder.dump()]


def logits_row(found: PairResult) -> Any:
    (module,) = [module for module in found.modules if module.module == "lm_head"]
    return next(row for row in module.rows if row.kind == "output")


@pytest.mark.parametrize("vocabulary", [20, 24])
def test_logits_are_compared_in_the_last_row_only(vocabulary: int) -> None:
    """And in the words that both have, where one engine pads its vocabulary."""
    logits = np.random.default_rng(3).normal(size=(LAYER.tokens, 20)).astype(np.float32)
    wide = np.pad(logits, ((0, 0), (0, vocabulary - 20)))
    ours = head(LAYER.vllm(True, 1), wide[-1:], "vllm")
    found = compare_shards(shards(ours), shards(head(LAYER.hf(True), logits, "hf")), Options())
    assert found.verdict == "consistent"
    assert logits_row(found).word == "equal"
    assert not any("logits" in note for note in found.notes)
    other = logits.copy()
    other[-1, 4] += 1
    found = compare_shards(shards(ours), shards(head(LAYER.hf(True), other, "hf")), Options())
    assert found.first_difference is not None
    assert found.first_difference.module == "lm_head"


def test_statistics_of_one_row_and_of_all_are_no_difference() -> None:
    logits = np.random.default_rng(3).normal(size=(LAYER.tokens, 20)).astype(np.float32)
    ours, theirs = head(LAYER.vllm(False, 1), logits[-1:], "vllm"), head(LAYER.hf(False), logits, "hf")
    found = compare_shards(shards(ours), shards(theirs), Options(min_coverage=0.8))
    assert found.verdict == "consistent"
    assert found.coverage == 1.0, "nothing that could be compared was left out"
    assert logits_row(found).word == "not compared"
    words = "logits: last row only, not comparable"
    assert any(note.startswith(words) for note in found.notes)


def transformer_engine(elements: bool) -> list[ArrayDump]:
    """Megatron with the first norm inside linear_qkv and the second inside linear_fc1."""
    (dump,) = LAYER.megatron(elements, 1, False)
    builder = Builder(0, elements)
    builder.arrays = dict(dump.arrays)
    for call in dump.calls:
        if "layernorm" in call.module and "final" not in call.module:
            continue
        if call.module.endswith(("linear_qkv", "linear_fc1")):
            weight = builder.leaf(np.ones(LAYER.hidden, np.float32))
            before = builder.leaf((LAYER.x if call.module.endswith("qkv") else LAYER.o)[:, None])
            parameters = {**call.parameters, "layer_norm_weight": weight}
            cls = "TELayerNormColumnParallelLinear"
            call = call._replace(cls=cls, inputs=(before,), parameters=parameters)  # noqa: PLW2901
        elif call.module.endswith(("linear_proj", "linear_fc2")):
            call = call._replace(cls="TERowParallelLinear")  # noqa: PLW2901
        builder.calls.append(call)
    return [builder.dump()]


def hf_with_norm_weights(factor: float) -> list[ArrayDump]:
    (dump,) = LAYER.hf(False)
    builder = Builder(0, False)
    for call in dump.calls:
        if call.module.endswith("input_layernorm"):
            weight = builder.leaf(factor * np.ones(LAYER.hidden, np.float32))
            call = call._replace(parameters={"weight": weight})  # noqa: PLW2901
        builder.calls.append(call)
    ones = np.ones(LAYER.hidden, np.float32)
    name = "model.layers.0.post_attention_layernorm"
    builder.add(name, "RMSNorm", [LAYER.o[None]], [LAYER.post[None]], weight=ones)
    return [builder.dump()]


def test_a_norm_inside_a_product_is_compared_by_its_weight_and_input() -> None:
    found = compare_shards(shards(hf_with_norm_weights(1.0)), shards(transformer_engine(False)), Options())
    assert (found.verdict, found.coverage) == ("consistent", 1.0), found.reason
    (norm,) = [module for module in found.modules if module.module == "layers.0.input_norm"]
    assert {row.kind: row.word for row in norm.rows} == {"weight": "equal", "input": "equal"}
    assert any("module names of Megatron-Core (Transformer Engine) are not verified" in note for note in found.notes)
    found = compare_shards(shards(hf_with_norm_weights(1.5)), shards(transformer_engine(False)), Options())
    assert found.first_difference is not None
    assert (found.first_difference.module, found.first_difference.row.kind) == ("layers.0.input_norm", "weight")


def experts(whole: bool) -> list[ArrayDump]:
    """A block of experts, as one module or as one for each expert."""
    (dump,) = LAYER.hf(False)
    builder = Builder(0, False)
    builder.calls = list(dump.calls)
    base = "model.layers.0.mlp"
    if whole:
        builder.add(f"{base}.experts", "Qwen3MoeExperts", [LAYER.post], [LAYER.down])
    else:
        for number in range(3):
            for part, width in (("gate", LAYER.gate), ("up", LAYER.up), ("down", LAYER.down)):
                builder.add(f"{base}.experts.{number}.{part}_proj", "Linear", [LAYER.post], [width])
    return [builder.dump()]


def test_experts_in_one_module_have_no_partners_one_by_one() -> None:
    found = compare_shards(shards(experts(True)), shards(experts(False)), Options())
    lone = [m for m in found.modules if m.module.startswith("layers.0.mlp.experts.")]
    assert len(lone) == 6
    assert all(not m.counted and "inside layers.#.mlp.experts" in m.reason for m in lone)


def test_a_name_that_no_dialect_knows_is_missing_and_said_to_be_so() -> None:
    (dump,) = LAYER.hf(False)
    builder = Builder(0, False)
    builder.calls = list(dump.calls)
    builder.add("model.layers.0.mystery", "Mystery", [LAYER.x], [LAYER.x])
    found = compare_shards(shards(LAYER.vllm(False, 1)), shards([builder.dump()]), Options())
    (module,) = [module for module in found.modules if module.module == "layers.0.mystery"]
    assert (module.word, module.counted) == ("not compared", True)
    assert "a name that the dialect hf does not know" in module.reason
    assert found.coverage < 1
