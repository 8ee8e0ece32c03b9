"""Part of the stand-in for torchair; see there."""

from typing import NoReturn


class ValuePack:
    """Replaced by vllm-ascend."""


def _is_symlist(value: object) -> NoReturn:
    raise NotImplementedError("the CPU stand-in for torchair compiles no graph")
