"""Fusion and shard algebra against direct computation on random tensors: statistics, and elements in their order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_infer_consistency.comparing.compare import Options, compare_shards
from train_infer_consistency.comparing.fusion import Stats, combine, split_order
from train_infer_consistency.comparing.rows import Shard
from train_infer_consistency.comparing.side import build_side
from train_infer_consistency.comparing.tensors import Layout, elements, layout_of, part_sizes

from .cases import ArrayDump, Builder

SEED = st.integers(0, 2**32 - 1)


def stats_of(array: Any) -> tuple[Stats, int]:
    return Stats(float(array.max()), float(array.min()), float(array.mean()), float(np.linalg.norm(array))), array.size


@given(SEED, st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 7))
def test_statistics_of_parts_are_those_of_the_whole(seed: int, widths: list[int], tokens: int) -> None:
    generator = np.random.default_rng(seed)
    parts = [generator.normal(generator.normal(), 3.0, (tokens, width)) for width in widths]
    whole, _ = stats_of(np.concatenate(parts, axis=1))
    found = combine([stats_of(part) for part in parts])
    assert (found.max, found.min) == (whole.max, whole.min)
    assert found.norm == pytest.approx(whole.norm, rel=1e-12)
    assert found.mean == pytest.approx(whole.mean, abs=1e-12 * (whole.norm or 0.0))


@given(st.sampled_from(["max", "min", "mean", "norm"]), st.integers(0, 2))
def test_what_one_part_lacks_the_whole_lacks_and_a_nan_stays(name: str, index: int) -> None:
    good = (Stats(2.0, -1.0, 0.5, 3.0), 4)
    lacking = [good] * 3
    lacking[index] = (good[0]._replace(**{name: None}), 4)
    assert getattr(combine(lacking), name) is None
    lacking[index] = (good[0]._replace(**{name: math.nan}), 4)
    assert math.isnan(getattr(combine(lacking), name))
    lacking[index] = (good[0]._replace(**{name: -math.inf if name == "min" else math.inf}), 4)
    assert not math.isfinite(getattr(combine(lacking), name))


@given(SEED, st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 1))
def test_grouped_query_order_is_taken_apart(seed: int, groups: int, per_group: int, head: int, axis: int) -> None:
    """Megatron's order, built head by head, gives back q, k and v; of outputs and of weights."""
    generator = np.random.default_rng(seed)
    other = 3
    shape = (lambda width: (width, other)) if axis == 0 else (lambda width: (other, width))
    query = generator.normal(size=shape(groups * per_group * head))
    key, value = generator.normal(size=shape(groups * head)), generator.normal(size=shape(groups * head))
    blocks = []
    for group in range(groups):
        blocks.append(np.split(query, groups, axis)[group])
        blocks.append(np.split(key, groups, axis)[group])
        blocks.append(np.split(value, groups, axis)[group])
    fused = np.concatenate(blocks, axis)
    sizes = (groups * per_group * head, groups * head, groups * head)
    found = split_order(fused, "grouped_qkv", sizes, head, axis)
    for one, two in zip(found, (query, key, value), strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize(
    ("sizes", "head"), [((8, 4, 4), 3), ((8, 4, 2), 2), ((6, 4, 4), 4), ((8, 4, 3), 2), ((8, 4, 4), 0)]
)
def test_sizes_that_have_no_heads_are_refused(sizes: tuple[int, ...], head: int) -> None:
    with pytest.raises(ValueError, match=r"q, k, v|do not make up"):
        split_order(np.zeros((2, 16)), "grouped_qkv", sizes, head, 1)


class Layer:
    """A layer's arrays, to be dumped as any engine would."""

    def __init__(self, seed: int, tokens: int, kv_heads: int, per_group: int, head: int, inner: int) -> None:
        generator = np.random.default_rng(seed)
        self.tokens, self.kv_heads, self.per_group, self.head, self.inner = tokens, kv_heads, per_group, head, inner
        self.hidden = 4 * kv_heads
        width, kv = kv_heads * per_group * head, kv_heads * head

        def array(*shape: int) -> Any:
            return generator.normal(size=shape).astype(np.float32)

        self.ids = generator.integers(0, 50, tokens)
        self.x, self.normed, self.post = (array(tokens, self.hidden) for _ in range(3))
        self.q, self.k, self.v = array(tokens, width), array(tokens, kv), array(tokens, kv)
        self.wq, self.wk, self.wv = array(width, self.hidden), array(kv, self.hidden), array(kv, self.hidden)
        self.core, self.o, self.wo = array(tokens, width), array(tokens, self.hidden), array(self.hidden, width)
        self.gate, self.up = array(tokens, inner), array(tokens, inner)
        self.wg, self.wu = array(inner, self.hidden), array(inner, self.hidden)
        self.act, self.down, self.wd = array(tokens, inner), array(tokens, self.hidden), array(self.hidden, inner)
        self.out, self.table = array(tokens, self.hidden), array(64, self.hidden)

    def hf(self, elements: bool) -> list[ArrayDump]:
        made = Builder(0, elements)

        def batch(array: Any) -> Any:
            return array[None]

        made.add("model.embed_tokens", "Embedding", [batch(self.ids)], [batch(self.x)], weight=self.table)
        base = "model.layers.0."
        made.add(f"{base}input_layernorm", "RMSNorm", [batch(self.x)], [batch(self.normed)])
        for name, out, weight in (("q", self.q, self.wq), ("k", self.k, self.wk), ("v", self.v, self.wv)):
            made.add(f"{base}self_attn.{name}_proj", "Linear", [batch(self.normed)], [batch(out)], weight=weight)
        made.add(f"{base}self_attn.o_proj", "Linear", [batch(self.core)], [batch(self.o)], weight=self.wo)
        for name, out, weight in (("gate", self.gate, self.wg), ("up", self.up, self.wu)):
            made.add(f"{base}mlp.{name}_proj", "Linear", [batch(self.post)], [batch(out)], weight=weight)
        made.add(f"{base}mlp.down_proj", "Linear", [batch(self.act)], [batch(self.down)], weight=self.wd)
        made.add(base[:-1], "Qwen2DecoderLayer", [batch(self.x)], [batch(self.out)])
        made.add("model.norm", "RMSNorm", [batch(self.out)], [batch(self.out)])
        return [made.dump()]

    def megatron(self, elements: bool, size: int, sequence: bool) -> list[ArrayDump]:
        return [self._megatron_rank(rank, size, sequence, elements) for rank in range(size)]

    def _megatron_rank(self, rank: int, size: int, sequence: bool, elements: bool) -> ArrayDump:
        made = Builder(rank, elements)

        def share(array: Any, axis: int) -> Any:
            return np.split(array, size, axis)[rank]

        def rows(array: Any) -> Any:  # [s, b, h], of sequence parallel's share of tokens
            return (share(array, 0) if sequence else array)[:, None]

        def columns(array: Any) -> Any:
            return share(array, 1)[:, None]

        def grouped(parts: tuple[Any, ...], axis: int) -> Any:
            heads = [np.split(part, self.kv_heads, axis) for part in parts]
            whole = np.concatenate([piece[group] for group in range(self.kv_heads) for piece in heads], axis)
            return share(whole, axis)

        def heads(array: Any) -> Any:
            mine = share(array, 1)
            return mine.reshape(self.tokens, 1, -1, self.head)

        base = "decoder.layers.0."
        made.add(
            "embedding.word_embeddings",
            "VocabParallelEmbedding",
            [self.ids[None]],
            [rows(self.x)],
            weight=share(self.table, 0),
        )
        made.add(f"{base}input_layernorm", "RMSNorm", [rows(self.x)], [rows(self.normed)])
        made.add(
            f"{base}self_attention.linear_qkv", "ColumnParallelLinear", [rows(self.normed)],
            [grouped((self.q, self.k, self.v), 1)[:, None]], weight=grouped((self.wq, self.wk, self.wv), 0),
        )  # fmt: skip
        qkv = [heads(self.q), heads(self.k), heads(self.v)]
        made.add(f"{base}self_attention.core_attention", "DotProductAttention", qkv, [columns(self.core)])
        made.add(
            f"{base}self_attention.linear_proj", "RowParallelLinear", [columns(self.core)], [rows(self.o)],
            weight=share(self.wo, 1),
        )  # fmt: skip
        gate_up = np.concatenate([share(self.gate, 1), share(self.up, 1)], 1)[:, None]
        weight = np.concatenate([share(self.wg, 0), share(self.wu, 0)], 0)
        made.add(f"{base}mlp.linear_fc1", "ColumnParallelLinear", [rows(self.post)], [gate_up], weight=weight)
        made.add(
            f"{base}mlp.linear_fc2",
            "RowParallelLinear",
            [columns(self.act)],
            [rows(self.down)],
            weight=share(self.wd, 1),
        )
        made.add(base[:-1], "TransformerLayer", [rows(self.x)], [rows(self.out)])
        made.add("decoder.final_layernorm", "RMSNorm", [rows(self.out)], [rows(self.out)])
        return made.dump()

    def vllm(self, elements: bool, size: int) -> list[ArrayDump]:
        return [self._vllm_rank(rank, size, elements) for rank in range(size)]

    def _vllm_rank(self, rank: int, size: int, elements: bool) -> ArrayDump:
        made = Builder(rank, elements)

        def share(array: Any, axis: int) -> Any:
            return np.split(array, size, axis)[rank]

        base = "model.layers.0."
        q, k, v = (share(array, 1) for array in (self.q, self.k, self.v))
        weight = np.concatenate([share(array, 0) for array in (self.wq, self.wk, self.wv)], 0)
        made.add("model.embed_tokens", "VocabParallelEmbedding", [self.ids], [self.x], weight=share(self.table, 0))
        made.add(f"{base}input_layernorm", "RMSNorm", [self.x], [self.normed])
        made.add(
            f"{base}self_attn.qkv_proj",
            "QKVParallelLinear",
            [self.normed],
            [np.concatenate([q, k, v], 1)],
            weight=weight,
        )
        made.add(f"{base}self_attn.attn", "Attention", [q, k, v], [share(self.core, 1)])
        made.add(
            f"{base}self_attn.o_proj", "RowParallelLinear", [share(self.core, 1)], [self.o], weight=share(self.wo, 1)
        )
        gate_up = np.concatenate([share(self.gate, 1), share(self.up, 1)], 1)
        weight = np.concatenate([share(self.wg, 0), share(self.wu, 0)], 0)
        made.add(f"{base}mlp.gate_up_proj", "MergedColumnParallelLinear", [self.post], [gate_up], weight=weight)
        made.add(
            f"{base}mlp.down_proj", "RowParallelLinear", [share(self.act, 1)], [self.down], weight=share(self.wd, 1)
        )
        made.add(base[:-1], "Qwen2DecoderLayer", [np.arange(self.tokens), self.x], [self.down, self.out - self.down])
        made.add("model.norm", "RMSNorm", [self.down, self.out - self.down], [self.out, self.out])
        return made.dump()


def shards(dumps: list[ArrayDump]) -> list[Shard]:
    return [Shard(dump.rank or 0, 0, dump) for dump in dumps]


LAYERS = st.builds(
    lambda seed, per_rank, size, per_group, head, inner: (
        Layer(seed, 2 * size + size * per_rank, size * per_rank, per_group, head, inner * size),
        size,
    ),
    SEED,
    st.integers(1, 2),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.sampled_from([2, 4]),
    st.integers(1, 5),
)


@settings(max_examples=60, deadline=None)
@given(LAYERS, st.booleans(), st.booleans())
def test_megatron_shards_make_up_the_hf_model(case: tuple[Layer, int], sequence: bool, keep: bool) -> None:
    layer, size = case
    found = compare_shards(shards(layer.megatron(keep, size, sequence and size > 1)), shards(layer.hf(keep)), Options())
    assert (found.verdict, found.coverage) == ("consistent", 1.0), found.reason
    assert found.count("equal") == sum(module.counted for module in found.modules)
    words = {row.evidence for module in found.modules for row in module.rows}
    assert words == ({"tensors"} if keep else {"statistics"})


@settings(max_examples=60, deadline=None)
@given(LAYERS, st.booleans())
def test_vllm_shards_make_up_megatrons(case: tuple[Layer, int], keep: bool) -> None:
    layer, size = case
    found = compare_shards(shards(layer.vllm(keep, size)), shards(layer.megatron(keep, size, False)), Options())
    assert (found.verdict, found.coverage) == ("consistent", 1.0), found.reason
    core = next(module for module in found.modules if module.module == "layers.0.attn.core")
    assert (core.word, core.counted) == ("equal", False)


@settings(max_examples=40, deadline=None)
@given(LAYERS, st.sampled_from(["wk", "v", "gate", "wu", "core", "down"]), SEED)
def test_one_element_of_one_shard_is_found(case: tuple[Layer, int], name: str, seed: int) -> None:
    """With elements, a single element that is off is found wherever it is: the orders are undone exactly."""
    layer, size = case
    other = Layer.__new__(Layer)
    other.__dict__.update(layer.__dict__)
    array = getattr(layer, name).copy()
    index = tuple(np.random.default_rng(seed).integers(0, side) for side in array.shape)
    array[index] += 5 * float(np.abs(array).max())
    setattr(other, name, array)
    found = compare_shards(shards(layer.megatron(True, size, False)), shards(other.hf(True)), Options())
    assert found.verdict == "different"
    assert found.first_difference is not None
    where = {
        "wk": "attn.qkv",
        "v": "attn.qkv",
        "gate": "mlp.gate_up",
        "wu": "mlp.gate_up",
        "core": "attn.o",
        "down": "mlp.down",
    }
    assert found.first_difference.module == f"layers.0.{where[name]}"
    if name in ("v", "gate", "core", "down") and found.first_difference.row.tensor is not None:
        assert found.first_difference.row.tensor.token == index[0]


@settings(max_examples=20, deadline=None)
@given(LAYERS)
def test_parts_and_wholes_are_the_same_arrays(case: tuple[Layer, int]) -> None:
    layer, size = case
    fused, apart = (
        build_side("inference", shards(layer.megatron(True, size, False))),
        build_side("training", shards(layer.hf(True))),
    )
    one, two = (side.modules["layers.0.attn.qkv"].rows["output"] for side in (fused, apart))
    layout = layout_of(fused.modules["layers.0.attn.core"])
    assert np.array_equal(elements(one, layout, part_sizes(two)), elements(two, Layout()))
    assert np.array_equal(elements(two, Layout()), np.concatenate([layer.q, layer.k, layer.v], 1))


@settings(max_examples=30, deadline=None)
@given(LAYERS, st.data())
def test_replicas_must_agree(case: tuple[Layer, int], data: st.DataObject) -> None:
    """Two data-parallel copies are one model; a copy that is off is a difference of the training side with itself."""
    layer, size = case
    ranks = [*layer.megatron(False, size, False), *layer.megatron(False, size, False)]
    members = [Shard(index, 0, dump) for index, dump in enumerate(ranks)]
    found = compare_shards(shards(layer.hf(False)), members, Options())
    assert found.verdict == "consistent", found.reason
    assert any("2 data-parallel replicas" in note for note in found.notes)
    other = Layer.__new__(Layer)
    other.__dict__.update(layer.__dict__)
    name = data.draw(st.sampled_from(["core", "normed", "down"]))
    setattr(other, name, getattr(layer, name) * 1.5)
    ranks = [*layer.megatron(False, size, False), *other.megatron(False, size, False)]
    found = compare_shards(shards(layer.hf(False)), [Shard(i, 0, d) for i, d in enumerate(ranks)], Options())
    assert found.verdict == "different"
    assert found.first_difference is not None
    assert found.first_difference.row.side == "training"
    assert "hold different values" in found.reason
