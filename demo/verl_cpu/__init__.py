"""Lets verl's training workers run on CPU tensors over gloo.

verl loads it itself, with this folder's parent on the path: ``VERL_USE_EXTERNAL_MODULES=verl_cpu``. Nothing of verl's
arithmetic is replaced; the configuration has to ask for an attention other than flash_attention_2
(``+actor_rollout_ref.model.override_config.attn_implementation=sdpa``).
"""

from __future__ import annotations

from typing import Any

import torch
from import_hooks import after_import

DEVICE = "cpu"
#: What verl asks of its device's module, and torch.cpu has not; answers as of a device without memory of its own.
_ANSWERS: dict[str, Any] = {
    "empty_cache": None,
    "ipc_collect": None,
    "mem_get_info": (0, 0),
    "memory_allocated": 0,
    "memory_reserved": 0,
    "max_memory_allocated": 0,
    "max_memory_reserved": 0,
    "reset_peak_memory_stats": None,
    "set_per_process_memory_fraction": None,
}


def install() -> None:
    """Change what stands in the way, each when its module is imported."""
    for name, value in _ANSWERS.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, _answer(value))
    torch.Tensor.pin_memory = _same  # type: ignore[method-assign,assignment]  # pinning needs a driver
    torch.distributed.init_process_group = _over_gloo(torch.distributed.init_process_group)
    after_import("torch.distributed.fsdp._init_utils", _accept_cpu_parameters)
    after_import("verl.utils.device", _compute_on_the_cpu)
    after_import("verl.workers.engine.base", _register_for_cpu)
    after_import("verl.utils.attention_utils", _unpad_without_flash_attention)
    after_import("verl.utils.fsdp_utils", _leave_parameters_where_they_are)
    after_import("verl.utils.model", _load_critic_without_flash_attention)


def _answer(value: Any) -> Any:
    return lambda *args, **kwargs: value


def _same(tensor: Any, *args: object, **kwargs: object) -> Any:
    return tensor


def _over_gloo(original: Any) -> Any:
    """verl names a backend for each device, ``cpu:gloo,cpu:nccl``: the second one is not to be had here."""

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        original("gloo", *args, **kwargs)

    return init_process_group


def _accept_cpu_parameters(module: Any) -> None:
    """FSDP1 would refuse to broadcast parameters that are on no accelerator; gloo can."""
    module._check_module_states_for_sync_module_states = _answer(None)


def _compute_on_the_cpu(module: Any) -> None:
    """A rollout's stand-in for ``torch_npu`` may be on the path as well, and says that there is a card."""
    module.is_npu_available = False


def _register_for_cpu(module: Any) -> None:
    """Engines are registered for cuda and npu; the same classes serve the CPU."""
    registry = module.EngineRegistry
    original = registry.register

    def register(model_type: str, backend: Any, device: Any = "cuda") -> Any:
        devices = [*device] if isinstance(device, list) else [device]
        return original(model_type, backend, [*devices, DEVICE] if "cuda" in devices else devices)

    registry.register = register


def _unpad_without_flash_attention(module: Any) -> None:
    """Take verl's own functions in plain torch, which it has for devices without flash-attn."""

    def functions() -> tuple[Any, Any, Any, Any]:
        from verl.utils import npu_flash_attn_utils as plain

        return plain.index_first_axis, plain.pad_input, plain.rearrange, plain.unpad_input

    module._get_attention_functions = functions


def _leave_parameters_where_they_are(module: Any) -> None:
    """There is no other device to load them to or to offload them from."""
    for name in (
        "load_fsdp_model_to_gpu",
        "offload_fsdp_model_to_cpu",
        "load_fsdp_optimizer",
        "offload_fsdp_optimizer",
    ):
        setattr(module, name, _answer(None))
    module.fsdp2_sharded_save_to_cpu = _copying(module.fsdp2_sharded_save_to_cpu)


def _copying(original: Any) -> Any:
    """What is moved to the CPU is a copy, unless it is there already: saved weights would go on training."""

    def save(model: Any) -> Any:
        state, spec = original(model)
        return {name: (tensor.clone(), kept) for name, (tensor, kept) in state.items()}, spec

    return save


def _load_critic_without_flash_attention(module: Any) -> None:
    """verl asks for flash_attention_2 here whatever the configuration says; the configuration decides instead."""

    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
        )

    module.load_valuehead_model = load


install()
