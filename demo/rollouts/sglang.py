"""SGLang 0.5.10.post1's whole engine, its processes included, in the training engine's environment.

SGLang asks for nothing that contradicts it: its files lie in a folder of their own, and what a CPU lacks (its kernels,
Triton, torchvision, torchao) is stood in for by ``demo/sglang_cpu/site``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import ENVIRONMENT, ROOT, unpack_woven

TITLE = "SGLang 0.5.10.post1's engine"
FOLDER = ENVIRONMENT
HEADS = 4
SGLANG = ("sglang", "0.5.10.post1")
STAND_INS = ROOT / "demo" / "sglang_cpu" / "site"
#: A prompt is one forward pass, whole and alone, and nothing of it comes from another.
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "skip_tokenizer_init": True,
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "chunked_prefill_size": -1,
    "max_running_requests": 1,
    "max_total_tokens": 1024,
    "mem_fraction_static": 0.5,
    "random_seed": 1,
}


def check() -> None:
    """Do nothing: pip brings all that is needed."""


def install(tree: Path) -> None:
    """Put SGLang into a folder."""
    unpack_woven(*SGLANG, tree)


def environment(base: Mapping[str, str], tree: Path, config: Path) -> dict[str, str]:
    """See :class:`demo.rollouts.Rollout`."""
    return {
        **base,
        "PYTHONPATH": os.pathsep.join((str(STAND_INS), str(tree), base["PYTHONPATH"])),
        "SGLANG_MSPROBE_DUMP": "1",
        "MSPROBE_GENERATE_CONFIG": str(config),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def answer(model: str, config: str, prompts: Mapping[str, list[int]], length: int) -> dict[str, list[int]]:
    """See :class:`demo.rollouts.Rollout`."""
    from sglang.srt.entrypoints.engine import Engine

    engine: Any = Engine(model_path=model, **SETTINGS)
    sampling = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
    try:
        outputs = [
            engine.generate(input_ids=tokens, rid=request_id, sampling_params=sampling)
            for request_id, tokens in prompts.items()
        ]
    finally:
        engine.shutdown()
    return {output["meta_info"]["id"]: list(output["output_ids"]) for output in outputs}
