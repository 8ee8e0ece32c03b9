"""Part of the CPU stand-in for torch_npu; see there."""

from typing import NoReturn


def _rebuild_npu_tensor(*args: object) -> NoReturn:
    """Refuse: a CPU run pickles no NPU tensor. msprobe allows this name in pickles."""
    raise NotImplementedError("the CPU stand-in cannot unpickle an NPU tensor")
