"""vLLM 0.18's own CPU runner without its compiled library, for tests on any build of torch.

``site/`` goes onto the path before vLLM's Python files; ``vllm_plain_cpu`` there is a vLLM platform plugin that writes
the library's three attention operators in plain torch and takes vLLM's native code for the others. The worker does not
ask for preloaded libraries, which only speed up what is not there. No file of vLLM is edited.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

SITE = Path(__file__).resolve().parent / "site"


def environment(trees: Iterable[Path] = (), base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process that runs vLLM's CPU runner in plain torch.

    Args:
        trees: folders with ``vllm``, where it is not installed.
        base: what to start from; None for this process's environment.
    """
    env = dict(os.environ if base is None else base)
    paths = [str(SITE), *map(str, trees), *filter(None, [env.get("PYTHONPATH")])]
    return env | {
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_PLUGINS": "vllm_plain_cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
