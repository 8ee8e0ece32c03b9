"""Part of the CPU stand-in for torch_npu; see there."""

from torch_npu.utils import storage

__all__ = ["storage"]
