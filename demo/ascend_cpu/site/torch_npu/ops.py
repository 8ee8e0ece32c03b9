"""The operators of torch_npu that vllm-ascend's dense models call, in plain torch.

Arguments and results are those of the operators' public documentation. What a caller could ask for beyond it is
refused with NotImplementedError instead of being guessed.
"""

# ruff: noqa: PLR0913, PLR0917  # the signatures are those of the operators that this stands for

from __future__ import annotations

import itertools
from typing import NoReturn

import torch
from torch import Tensor


def npu_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Normalise the last axis in float32; return it in ``x``'s type times ``gamma``, and the reciprocal deviation."""
    wide = x.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * rstd).to(x.dtype) * gamma, rstd


def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of the sum, the reciprocal deviation, and the sum."""
    total = x1 + x2
    normed, rstd = npu_rms_norm(total, gamma, epsilon)
    return normed, rstd, total


def npu_swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """Return silu of the first half times the second."""
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def npu_format_cast(x: Tensor, acl_format: int) -> Tensor:
    """Return the tensor as it is: a host has no storage formats."""
    return x


def _npu_matmul_add_fp32(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Add ``x`` transposed times ``weight`` to ``out``; vllm-ascend calls it once to warm the device up."""
    out += x.t().float() @ weight.float()


def _npu_rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    """Rotate ``query`` and ``key`` [tokens, heads * head_size] in place.

    Args:
        positions: [tokens].
        query: see above.
        key: see above.
        head_size: of one head; all of it is rotated.
        cos_sin_cache: [positions, head_size]: the cosines of each half-head, then its sines.
        is_neox: rotate the two halves of a head against each other; else neighbouring pairs.
    """
    cos, sin = cos_sin_cache[positions.flatten()].unsqueeze(1).chunk(2, -1)
    for tensor in (query, key):
        heads = tensor.view(positions.numel(), -1, head_size)
        first, second = heads.chunk(2, -1) if is_neox else (heads[..., ::2], heads[..., 1::2])
        parts = (first * cos - second * sin, second * cos + first * sin)
        turned = torch.cat(parts, -1) if is_neox else torch.stack(parts, -1).flatten(-2)
        heads.copy_(turned)


def _npu_reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> None:
    """Store keys and values [tokens, heads, size] in the caches [blocks, block size, heads, size]; slot -1 is none."""
    slots = slot_indices.long()
    kept = slots >= 0
    for tensor, cache in ((key, key_cache), (value, value_cache)):
        cache.flatten(0, 1)[slots[kept]] = tensor[kept]


def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    actual_seq_lengths: list[int],
    actual_seq_lengths_kv: list[int],
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    input_layout: str,
    atten_mask: Tensor | None = None,
    block_table: Tensor | None = None,
    block_size: int = 0,
    sparse_mode: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attend causally, the queries of a sequence being its last tokens.

    Args:
        query: [tokens, heads, size], the sequences one after the other.
        key: without a block table like the query; with one the cache [blocks, block size, heads * size].
        value: like the key.
        actual_seq_lengths: where each sequence's queries end (cumulated).
        actual_seq_lengths_kv: without a block table where its keys end (cumulated); with one how many there are.
        num_heads: of the query.
        num_key_value_heads: of key and value.
        scale: of the scores.
        input_layout: ``TND`` only.
        atten_mask: not read; ``sparse_mode`` 3 says that it is the causal one.
        block_table: [sequences, blocks].
        block_size: tokens in a block.
        sparse_mode: 3 only.

    Returns:
        [tokens, heads, size], and the log-sum-exp, which no caller reads and which is empty here.
    """
    if input_layout != "TND" or sparse_mode != 3:
        raise NotImplementedError(f"the CPU stand-in has no layout {input_layout!r} with sparse_mode {sparse_mode}")
    outputs = []
    for number, (start, end) in enumerate(itertools.pairwise([0, *actual_seq_lengths])):
        if start == end:
            continue
        if block_table is None:
            span = slice(0 if number == 0 else actual_seq_lengths_kv[number - 1], actual_seq_lengths_kv[number])
            keys, values = key[span], value[span]
        else:
            keys, values = (
                _paged(cache, block_table[number], actual_seq_lengths_kv[number], num_key_value_heads)
                for cache in (key, value)
            )
        outputs.append(_attend(query[start:end], keys, values, num_heads, num_key_value_heads, scale))
    return torch.cat(outputs), query.new_empty(0)


def _npu_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
) -> None:
    """Attend with one query token a sequence, [sequences, heads, size], into ``out``; caches as they are stored."""
    for number, length in enumerate(context_lens.tolist()):
        keys, values = (_paged(cache, block_table[number], length, num_kv_heads) for cache in (key_cache, value_cache))
        attended = _attend(query[number : number + 1], keys, values, num_heads, num_kv_heads, scale_value)
        out[number] = attended[0]


def npu_fusion_attention(*args: object, **kwargs: object) -> NoReturn:
    """Refuse: transformers imports the name as soon as there is a torch_npu, and only an encoder would call it."""
    raise NotImplementedError("the CPU stand-in has no npu_fusion_attention")


def _paged(cache: Tensor, blocks: Tensor, length: int, heads: int) -> Tensor:
    used = blocks[: -(-length // cache.shape[1])].long()
    return cache[used].flatten(0, 1)[:length].view(length, heads, -1)


def _attend(query: Tensor, key: Tensor, value: Tensor, heads: int, kv_heads: int, scale: float) -> Tensor:
    """[queries, heads, size] by [keys, kv_heads, size], each head with its group's, the last query at the last key."""
    query = query.view(query.shape[0], heads, -1)
    keys, values = (tensor.repeat_interleave(heads // kv_heads, dim=1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys.float()) * scale
    behind = torch.ones(scores.shape[1:], dtype=torch.bool).triu(scores.shape[2] - scores.shape[1] + 1)
    weights = scores.masked_fill(behind, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values.float()).to(query.dtype)
