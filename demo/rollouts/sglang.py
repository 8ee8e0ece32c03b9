"""SGLang 0.5.10.post1's whole engine, its processes included, in the training engine's environment.

SGLang asks for nothing that contradicts it: its files lie in a folder of their own, and what a CPU lacks (its kernels,
Triton, torchvision, torchao) is stood in for by ``demo/sglang_cpu/site``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from train_infer_consistency.selftest.inference import serve_sglang as answer

from . import ENVIRONMENT, ON_A_CPU, ROOT, unpack_woven

__all__ = ["FOLDER", "HEADS", "TITLE", "answer", "check", "environment", "install"]

TITLE = "SGLang 0.5.10.post1's engine"
FOLDER = ENVIRONMENT
HEADS = 4
SGLANG = ("sglang", "0.5.10.post1")
STAND_INS = ROOT / "demo" / "sglang_cpu" / "site"


def check() -> None:
    """Do nothing: pip brings all that is needed."""


def install(tree: Path) -> None:
    """Put SGLang into a folder."""
    unpack_woven(*SGLANG, tree)


def environment(base: Mapping[str, str], tree: Path, config: Path) -> dict[str, str]:
    """See :class:`demo.rollouts.Rollout`."""
    return {
        **base,
        **ON_A_CPU,
        "PYTHONPATH": os.pathsep.join((str(STAND_INS), str(tree), base["PYTHONPATH"])),
        "SGLANG_MSPROBE_DUMP": "1",
        "MSPROBE_GENERATE_CONFIG": str(config),
        "SGLANG_USE_CPU_ENGINE": "1",
    }
