"""Stand-in for the device library's run time; see torch_npu beside it."""

from typing import NoReturn


def memcpy(*args: object) -> NoReturn:
    """Refuse: only vllm-ascend's sleep mode copies device memory by hand."""
    raise NotImplementedError("the CPU stand-in has no sleep mode")
