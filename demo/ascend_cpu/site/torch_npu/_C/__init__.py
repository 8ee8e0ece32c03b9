"""Names that msprobe and annotations look for in torch_npu's compiled part."""

from torch_npu._C import _distributed_c10d

__all__ = ["_NPUTaskGroupHandle", "_VariableFunctionsClass", "_distributed_c10d"]


class _VariableFunctionsClass:
    """The functions that msprobe would wrap; there are none."""


class _NPUTaskGroupHandle:
    """Named in an annotation of vllm-ascend's graphs."""
