"""The prompts through the real vllm-ascend runner, one at a time: ``generate.py MODEL CONFIG REQUESTS [FAULT]``.

``CONFIG`` is msprobe's file. ``REQUESTS`` is written: what was asked and answered under which id, as a rollout hands it
to training.
"""

from __future__ import annotations

import hashlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from demo.faults import plant

#: Different lengths, so that no two of them can be taken for each other.
PROMPTS = (
    "Two plus two?",
    "Which is the larger number, 9.11 or 9.9?",
    "A train leaves at noon and runs at 60 km/h; where is it at three o'clock?",
    "Is a sum of two odd numbers odd or even, and why so? Give a proof in one sentence, then an example of it.",
)
RESPONSE = 4
ENGINE: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 4,
    "async_scheduling": False,
    "enable_prefix_caching": False,
    "num_gpu_blocks_override": 16,
    "disable_log_stats": True,
}


def request_id(prompt: str) -> str:
    """Return the id of a prompt's request: 32 hexadecimal digits, as verl's."""
    return hashlib.md5(prompt.encode(), usedforsecurity=False).hexdigest()


def plant_in(worker: Any, fault: str) -> None:
    """Plant a fault in one rank of the engine."""
    plant(fault, "inference", worker.model_runner.model)


def serve(model: str, config: str, fault: str) -> list[dict[str, Any]]:
    """Build the engine and let it answer.

    Args:
        model: its folder.
        config: msprobe's file.
        fault: the name of the one to plant; empty for none.

    Returns:
        A record for each request: ``request_id``, ``prompt`` and ``response``, both as token ids.
    """
    import vllm

    llm: Any = vllm.LLM(model=model, additional_config={"dump_config_path": config}, **ENGINE)
    llm.collective_rpc(partial(plant_in, fault=fault))
    sampling = vllm.SamplingParams(temperature=0, max_tokens=RESPONSE, ignore_eos=True)
    tokenizer, engine = llm.get_tokenizer(), llm.llm_engine
    records = []
    for text in PROMPTS:
        prompt = list(tokenizer.encode(text))
        engine.add_request(request_id(text), {"prompt_token_ids": prompt}, sampling)
        while engine.has_unfinished_requests():
            outputs = engine.step()
        (output,) = outputs
        response = list(output.outputs[0].token_ids)
        records.append({"request_id": output.request_id, "prompt": prompt, "response": response})
    return records


def main(model: str, config: str, requests: str, fault: str = "") -> None:
    """See the module."""
    Path(requests).write_text(json.dumps(serve(model, config, fault)))


if __name__ == "__main__":
    main(*sys.argv[1:])
