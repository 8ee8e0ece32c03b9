"""vLLM's CPU platform and worker without the compiled library, through vLLM's own plugin and worker settings."""

# ruff: noqa: PLR0913, PLR0917  # the signatures are those of the operators that this stands for

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from vllm.platforms.cpu import CpuPlatform

PLATFORM, WORKER = "vllm_plain_cpu.PlainCpuPlatform", "vllm_plain_cpu.PlainCPUWorker"


def register() -> str:
    """Name the platform; the entry point of the group ``vllm.platform_plugins``."""
    return PLATFORM


class PlainCpuPlatform(CpuPlatform):
    """The CPU platform that loads no compiled operators."""

    @classmethod
    def import_kernels(cls) -> None:
        """Do nothing: the library fits one build of torch only."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Let vLLM fill in the configuration, then choose native code and the worker below."""
        super().check_and_update_config(vllm_config)
        vllm_config.compilation_config.custom_ops = ["none"]
        if vllm_config.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker":
            vllm_config.parallel_config.worker_cls = WORKER


def __getattr__(name: str) -> Any:
    if name != "PlainCPUWorker":
        raise AttributeError(name)
    # Made on demand: the worker's module needs the platform to be settled.
    from vllm.v1.worker.cpu_worker import CPUWorker

    class PlainCPUWorker(CPUWorker):  # type: ignore[misc]
        """The CPU worker, which is told that its libraries are preloaded."""

        def init_device(self) -> None:
            with mock.patch.dict(os.environ, LD_PRELOAD="libtcmalloc libiomp"):
                super().init_device()

    globals()[name] = PlainCPUWorker
    return PlainCPUWorker


def _reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, isa: str
) -> None:
    """Store [tokens, heads, size] in caches [blocks, heads, block size, size]; slot -1 is none."""
    slots = slot_mapping[slot_mapping >= 0].long()
    block, offset = slots // key_cache.shape[2], slots % key_cache.shape[2]
    for tensor, cache in ((key, key_cache), (value, value_cache)):
        cache[block, :, offset] = tensor[: len(slot_mapping)][slot_mapping >= 0]


def _attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    output: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    causal: bool,
    alibi_slopes: Tensor | None,
    left: int,
    right: int,
    block_table: Tensor,
    softcap: float,
    scheduler_metadata: Tensor,
    s_aux: Tensor | None,
) -> None:
    """Attend causally, the queries of a sequence being its last tokens."""
    if not causal or alibi_slopes is not None or left >= 0 or softcap or s_aux is not None:
        raise NotImplementedError("plain causal attention only")
    for number, length in enumerate(seq_lens.tolist()):
        rows = slice(int(query_start_loc[number]), int(query_start_loc[number + 1]))
        queries = query[rows].transpose(0, 1).float()
        used = block_table[number, : -(-length // key_cache.shape[2])].long()
        keys, values = (
            cache[used]
            .transpose(0, 1)
            .flatten(1, 2)[:, :length]
            .float()
            .repeat_interleave(query.shape[1] // cache.shape[1], 0)
            for cache in (key_cache, value_cache)
        )
        scores = queries @ keys.transpose(1, 2) * scale
        behind = torch.ones(scores.shape[1:], dtype=torch.bool).triu(length - queries.shape[1] + 1)
        attended = scores.masked_fill(behind, float("-inf")).softmax(-1) @ values
        output[rows] = attended.transpose(0, 1).to(output.dtype)


def _scheduler_metadata(*args: object) -> Tensor:
    return torch.empty(0)


_METADATA = """get_scheduler_metadata(int num_req, int num_heads_q, int num_heads_kv, int head_dim, Tensor seq_lens,
    ScalarType dtype, Tensor query_start_loc, bool causal, int window_size, str isa_hint, bool enable_kv_split)
    -> Tensor"""
_CACHE = """cpu_attn_reshape_and_cache(Tensor key, Tensor value, Tensor(a2!) key_cache, Tensor(a3!) value_cache,
    Tensor slot_mapping, str isa) -> ()"""
_ATTENTION = """cpu_attention_with_kv_cache(Tensor query, Tensor key_cache, Tensor value_cache, Tensor(a3!) output,
    Tensor query_start_loc, Tensor seq_lens, float scale, bool causal, Tensor? alibi_slopes,
    SymInt sliding_window_left, SymInt sliding_window_right, Tensor block_table, float softcap,
    Tensor scheduler_metadata, Tensor? s_aux) -> ()"""

_library = torch.library.Library("_C", "FRAGMENT")
for _schema, _function in ((_METADATA, _scheduler_metadata), (_CACHE, _reshape_and_cache), (_ATTENTION, _attention)):
    _library.define(" ".join(_schema.split()))
    _library.impl(_schema.partition("(")[0], _function, "CPU")
