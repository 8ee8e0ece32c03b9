"""One prompt, several times, through SGLang's own engine: ``slime_generate.py MODEL REQUESTS COPIES``.

slime asks its engine for as many answers to one prompt as there are data-parallel ranks. ``REQUESTS`` is written: the
prompt's and the answers' tokens. The woven runner takes its switches from the environment, as below slime.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

PROMPT = "A train leaves at noon and runs at 60 km/h; where is it at three o'clock?"
RESPONSE = 4
#: What a collection run needs (eager, no prefix cache, whole prompts, one request at a time), then what a CPU needs.
ENGINE: dict[str, Any] = {
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "chunked_prefill_size": -1,
    "max_running_requests": 1,
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "skip_tokenizer_init": True,
    "max_total_tokens": 1024,
    "mem_fraction_static": 0.5,
    "random_seed": 1,
}


def serve(model: str, copies: int) -> list[dict[str, Any]]:
    """Build the engine and let it answer.

    Args:
        model: its folder.
        copies: how many answers.

    Returns:
        A record for each answer: ``prompt`` and ``response``, both as token ids.
    """
    tokenizer: Any = importlib.import_module("transformers").AutoTokenizer.from_pretrained(model)
    prompt = list(tokenizer.encode(PROMPT))
    engine: Any = importlib.import_module("sglang.srt.entrypoints.engine").Engine(model_path=model, **ENGINE)
    try:
        sampling = {"max_new_tokens": RESPONSE, "temperature": 1.0, "ignore_eos": True}
        outputs = engine.generate(input_ids=[prompt] * copies, sampling_params=sampling)
    finally:
        engine.shutdown()
    return [{"prompt": prompt, "response": output["output_ids"]} for output in outputs]


if __name__ == "__main__":
    # SGLang starts processes that import this module anew.
    Path(sys.argv[2]).write_text(json.dumps(serve(sys.argv[1], int(sys.argv[3]))))
