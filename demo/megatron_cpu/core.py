"""What megatron-core asks of CUDA whatever the device, and the two local layers that are too narrow."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from import_hooks import after_import

_FACTORIES = ("arange", "empty", "full", "ones", "rand", "tensor", "zeros")


def install() -> None:
    """Stand in for CUDA's calls at once, and for the layers when they are imported."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    for name in ("synchronize", "set_device", "empty_cache", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    tensor: Any = torch.Tensor
    tensor.cuda = _same
    tensor.type = _as_on_cuda(tensor.type)
    module: Any = torch.nn.Module
    module.cuda = _same
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    after_import("megatron.core.tensor_parallel.random", _take_cpu_generator)
    after_import("megatron.core.transformer.torch_norm", _let_norm_split_sequences)
    after_import("megatron.core.transformer.dot_product_attention", _let_attention_take_packed_sequences)
    after_import("megatron.core.models.gpt.gpt_layer_specs", _choose_local_layers)


def _same(value: Any, *args: object, **kwargs: object) -> Any:
    return value


def _on_cpu(factory: Any) -> Any:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def _as_on_cuda(original: Any) -> Any:
    """Megatron's optimizers sort parameters by the name of their type, ``torch.cuda.FloatTensor`` and the like."""

    def name(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tensor, *args, **kwargs)
        is_name = isinstance(result, str) and not result.startswith("torch.cuda.")
        return result.replace("torch.", "torch.cuda.", 1) if is_name else result

    return name


def _take_cpu_generator(module: Any) -> None:
    module._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    module._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


class RMSNorm(torch.nn.RMSNorm):
    """A norm that says of its weight that its gradient is to be summed over the ranks a sequence is split over."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010 - an attribute of a tensor


def _let_norm_split_sequences(module: Any) -> None:
    module.WrappedTorchNorm = RMSNorm


def _let_attention_take_packed_sequences(module: Any) -> None:
    """Run each sequence of a packed batch through the layer's own forward, as the fused kernels do in one call."""
    original = module.DotProductAttention.forward

    def forward(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
    ) -> Any:
        if packed_seq_params is None:
            return original(self, query, key, value, attention_mask, attn_mask_type, attention_bias)
        padded = getattr(packed_seq_params, "cu_seqlens_q_padded", None)
        bounds = (packed_seq_params.cu_seqlens_q if padded is None else padded).tolist()
        parts = []
        for start, end in itertools.pairwise(bounds):
            one = (part[start:end].unsqueeze(1) for part in (query, key, value))
            later = torch.ones(end - start, end - start, dtype=torch.bool).triu(1)[None, None]
            parts.append(original(self, *one, later, attn_mask_type).squeeze(1))
        return torch.cat(parts)

    module.DotProductAttention.forward = forward


def _choose_local_layers(module: Any) -> None:
    """Callers ask for Transformer Engine's layers without looking whether it is there."""
    original = module.get_gpt_decoder_block_spec

    @functools.wraps(original)
    def spec(config: Any, use_transformer_engine: bool = False, **kwargs: Any) -> Any:
        return original(config, use_transformer_engine=False, **kwargs)

    module.get_gpt_decoder_block_spec = spec
