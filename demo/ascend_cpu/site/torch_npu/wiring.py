"""What importing the real torch_npu does to torch itself, as far as a CPU can do it."""

# the signatures are those of the operators that this stands for

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

DEVICE = "npu"


def install(torch_module: Any, npu: ModuleType) -> None:
    """Name the spare device ``npu``, give torch its module, and let operators for it run on CPU tensors."""
    torch.utils.rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, npu)
    torch_module.Tensor.npu = _same
    torch_module.Tensor.pin_memory = _same
    torch_module.library.Library.impl = _implement(torch.library.Library.impl)
    # A barrier asks for "the" accelerator, which must not be the renamed device: it has no hooks in C++.
    torch_module._C._get_accelerator = lambda: torch.device("cpu")
    dist.Backend.register_backend("hccl", _gloo, devices=["cpu", DEVICE])
    dist.is_hccl_available = lambda: True  # type: ignore[attr-defined]
    _define_missing()


def _same(tensor: Any, *args: object, **kwargs: object) -> Any:
    return tensor


def _implement(original: Any) -> Any:
    """Wrap ``Library.impl``: an operator written for the spare device is registered for the CPU."""

    def impl(self: Any, name: Any, function: Any, dispatch_key: str = "", **kwargs: Any) -> None:
        original(self, name, function, "CPU" if dispatch_key == "PrivateUse1" else dispatch_key, **kwargs)

    return impl


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


_fragments: list[Any] = []


def _define_missing() -> None:
    """Define what vllm-ascend takes from its compiled library, which cannot load here, and has no other way for."""
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    library.define("npu_apply_top_k_top_p(Tensor logits, *, Tensor? k=None, Tensor? p=None) -> Tensor")
    library.impl("npu_apply_top_k_top_p", _top_k_top_p, "CPU")
    _fragments.append(library)


def _top_k_top_p(logits: Any, *, k: Any = None, p: Any = None) -> Any:
    from vllm_ascend.sample import sampler

    return sampler._apply_top_k_top_p_pytorch(logits.clone(), k, p)
