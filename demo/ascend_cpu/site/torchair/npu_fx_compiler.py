"""Part of the stand-in for torchair; vllm-ascend loads it again, so it has to be a file."""

from typing import NoReturn


class _NpuGraphConverter:
    """Patched by vllm-ascend."""


def _unpack_meta_list(values: object) -> NoReturn:
    raise NotImplementedError("the CPU stand-in for torchair compiles no graph")
