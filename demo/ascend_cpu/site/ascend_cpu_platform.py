"""vllm-ascend's platform and worker over CPU tensors, through vLLM's own plugin and worker settings.

The platform and the worker are subclasses with other device names; everything else of them, the model runner, the
attention backend and the sampler are vllm-ascend's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_npu  # noqa: F401  # before vllm_ascend, which is in the middle of its own imports when it imports it
from vllm_ascend.platform import NPUPlatform

PLATFORM, WORKER = "ascend_cpu_platform.CpuNPUPlatform", "ascend_cpu_platform.CpuNPUWorker"


def register() -> str:
    """Name the platform; the entry point of the group ``vllm.platform_plugins``."""
    return PLATFORM


class CpuNPUPlatform(NPUPlatform):
    """The NPU platform whose tensors are made on, and whose operators are registered for, the CPU."""

    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    # vLLM looks these up in the module of the device type, and torch.cpu has them not.
    mem_get_info = staticmethod(torch.npu.mem_get_info)
    current_device = staticmethod(torch.npu.current_device)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Say no: pinning needs a device's driver."""
        return False

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Let vllm-ascend fill in the configuration, and put the CPU worker in its worker's place."""
        super().check_and_update_config(vllm_config)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "vllm_ascend.worker.worker.NPUWorker":
            parallel.worker_cls = WORKER


def __getattr__(name: str) -> Any:
    if name != "CpuNPUWorker":
        raise AttributeError(name)
    # Made on demand: the worker's module needs the platform to be settled.
    from vllm_ascend.worker.worker import NPUWorker

    class CpuNPUWorker(NPUWorker):  # type: ignore[misc]
        """The NPU worker, whose device is the CPU once it has been initialised as an NPU."""

        def _init_device(self) -> torch.device:
            super()._init_device()
            return torch.device("cpu")

    globals()[name] = CpuNPUWorker
    return CpuNPUWorker
