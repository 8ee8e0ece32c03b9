"""Part of the CPU stand-in for torch_npu; see there."""


def _register_atb_extensions() -> None:
    """Do nothing: the operators are Python functions."""
