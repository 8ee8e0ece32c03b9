"""The few names of torchair that vllm-ascend patches when it is imported; no graph is ever compiled here."""

from torchair import core, fx_summary, npu_fx_compiler

__all__ = ["core", "fx_summary", "npu_fx_compiler"]
