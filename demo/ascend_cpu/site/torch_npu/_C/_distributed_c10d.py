"""The process group that vllm-ascend names; the groups themselves are gloo's (:mod:`torch_npu.wiring`)."""

from typing import Any


class _Options:
    """Settings that nothing reads."""

    hccl_config: Any = None


class ProcessGroupHCCL:
    """Named, never made."""

    Options = _Options
