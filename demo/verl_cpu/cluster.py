"""What verl's Ray jobs need beyond :mod:`verl_cpu` when vllm-ascend's runner is the rollout, all of it on a CPU.

``VERL_USE_EXTERNAL_MODULES=verl_cpu,verl_cpu.cluster``. To Ray and to verl's placement there are NPUs
(``ray_kwargs.ray_init.resources``); to verl's tensors there are none, though the rollout's stand-in for ``torch_npu``
can be imported by then.
"""

from __future__ import annotations

from typing import Any

from import_hooks import after_import


def install() -> None:
    """Change what stands in the way, each when its module is imported."""
    after_import("verl.utils.device", _place_on_npus_and_compute_on_the_cpu)
    after_import("verl.workers.rollout.vllm_rollout.utils", _name_the_device)


def _place_on_npus_and_compute_on_the_cpu(module: Any) -> None:
    module.is_npu_available = False
    module.is_torch_npu_available = lambda check_device=True: True


def _name_the_device(module: Any) -> None:
    """verl names a weight sync's sender by its card; a CPU has no such name."""
    module.get_device_uuid = lambda device_id: "NPU-0"


install()
