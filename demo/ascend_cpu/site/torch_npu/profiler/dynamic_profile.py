"""Part of the CPU stand-in for torch_npu; see there."""


def step() -> None:
    """Do nothing: there is no monitor."""
