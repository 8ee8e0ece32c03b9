"""A CPU stand-in for ``torch_npu``, for trying vllm-ascend's own runner without an NPU; not Huawei's package.

Tensors stay CPU tensors: nothing is moved, ``torch.npu`` does its bookkeeping on the host, and the operators that the
dense models of vllm-ascend 0.18.0 call are written in plain torch (:mod:`torch_npu.ops`). A name that is not written
here raises AttributeError, so that nothing runs by accident.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from torch_npu import _C, distributed, npu, ops, utils, wiring
from torch_npu.ops import (
    _npu_matmul_add_fp32,
    _npu_paged_attention,
    _npu_reshape_and_cache,
    _npu_rotary_embedding,
    npu_add_rms_norm,
    npu_format_cast,
    npu_fused_infer_attention_score,
    npu_fusion_attention,
    npu_rms_norm,
    npu_swiglu,
)

__version__ = "2.9.0"
__all__ = [
    "_C",
    "_npu_matmul_add_fp32",
    "_npu_paged_attention",
    "_npu_reshape_and_cache",
    "_npu_rotary_embedding",
    "distributed",
    "npu",
    "npu_add_rms_norm",
    "npu_format_cast",
    "npu_fused_infer_attention_score",
    "npu_fusion_attention",
    "npu_rms_norm",
    "npu_swiglu",
    "ops",
    "utils",
]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"the CPU stand-in for torch_npu has no {name!r}")


wiring.install(torch, npu)
