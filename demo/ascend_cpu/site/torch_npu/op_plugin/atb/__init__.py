"""Part of the CPU stand-in for torch_npu; see there."""
