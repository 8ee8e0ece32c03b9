"""The prompts through an inference engine, one at a time: ``...selftest.inference ENGINE MODEL CONFIG REQUESTS DTYPE``.

``ENGINE`` is vllm (with or without vllm-ascend) or sglang, ``CONFIG`` msprobe's file. ``REQUESTS`` is written: what was
asked and answered under which id, as a rollout hands it to training.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

#: Different lengths, so that no two of them can be taken for each other; each a multiple of nothing.
PROMPTS = (
    "Two plus two?",
    "Which is the larger number, 9.11 or 9.9?",
    "A train leaves at noon and runs at 60 km/h; where is it at three o'clock?",
)
#: Tokens of an answer: enough that the engine also decodes.
RESPONSE = 4
Answers = dict[str, list[int]]


def request_id(prompt: str) -> str:
    """Return the id of a prompt's request: 32 hexadecimal digits, as verl's."""
    return hashlib.md5(prompt.encode(), usedforsecurity=False).hexdigest()


def tokenize(model: str, texts: Iterable[str] = PROMPTS) -> dict[str, list[int]]:
    """Return the prompts' token ids by request id."""
    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    return {request_id(text): list(tokenizer.encode(text)) for text in texts}


def write_requests(path: str, prompts: Mapping[str, list[int]], answers: Answers) -> None:
    """Write what was asked and answered, in the order of the answers."""
    records = [{"request_id": name, "prompt": prompts[name], "response": answers[name]} for name in answers]
    Path(path).write_text(json.dumps(records), encoding="utf-8")


def serve_vllm(
    model: str, config: str, prompts: Mapping[str, list[int]], length: int, dtype: str = "float32"
) -> Answers:
    """Let vLLM answer, greedily and one prompt at a time; eager, and nothing of a prompt comes from another.

    Args:
        model: its folder.
        config: msprobe's file.
        prompts: token ids by request id.
        length: of each answer, in tokens.
        dtype: of weights and activations.

    Returns:
        The answers' token ids by the request id that the engine gave back.
    """
    vllm: Any = importlib.import_module("vllm")
    llm = vllm.LLM(
        model=model,
        dtype=dtype,
        additional_config={"dump_config_path": config},
        enforce_eager=True,
        max_model_len=256,
        max_num_batched_tokens=256,
        max_num_seqs=4,
        enable_prefix_caching=False,
        async_scheduling=False,
        num_gpu_blocks_override=32,
        disable_log_stats=True,
    )
    sampling = vllm.SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
    answers = {}
    for name, tokens in prompts.items():
        llm.llm_engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        outputs: list[Any] = []
        while llm.llm_engine.has_unfinished_requests():
            outputs = llm.llm_engine.step() or outputs
        (output,) = outputs
        answers[output.request_id] = list(output.outputs[0].token_ids)
    return answers


def serve_sglang(
    model: str,
    _config: str,
    prompts: Mapping[str, list[int]],
    length: int,
    dtype: str = "float32",
    more: Mapping[str, Any] | None = None,
) -> Answers:
    """Let SGLang answer, as :func:`serve_vllm`; msprobe's file is named by its environment.

    Args:
        model, prompts, length, dtype: see there.
        more: settings of a plan, which come last.
    """
    torch: Any = importlib.import_module("torch")
    engine_module: Any = importlib.import_module("sglang.srt.entrypoints.engine")
    known = {field.name for field in dataclasses.fields(importlib.import_module("sglang.srt.server_args").ServerArgs)}
    settings: dict[str, Any] = {
        "model_path": model,
        "dtype": dtype,
        "skip_tokenizer_init": True,
        "grammar_backend": "none",
        "sampling_backend": "pytorch",
        "disable_cuda_graph": True,
        "disable_piecewise_cuda_graph": True,
        "disable_radix_cache": True,
        "chunked_prefill_size": -1,
        "max_running_requests": 1,
        "max_total_tokens": 4096,
        "mem_fraction_static": 0.5,
        "random_seed": 1,
    }
    npu = getattr(torch, "npu", None)
    if not torch.cuda.is_available() and not (npu is not None and npu.is_available()):
        settings |= {"device": "cpu", "attention_backend": "torch_native"}
    settings = {name: value for name, value in settings.items() if name in known}
    engine = engine_module.Engine(**{**settings, **(more or {})})
    sampling = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
    try:
        outputs = [
            engine.generate(input_ids=tokens, rid=name, sampling_params=sampling) for name, tokens in prompts.items()
        ]
    finally:
        engine.shutdown()
    return {output["meta_info"]["id"]: list(output["output_ids"]) for output in outputs}


DRIVERS: dict[str, Callable[..., Answers]] = {"vllm": serve_vllm, "sglang": serve_sglang}


def main(engine: str, model: str, config: str, requests: str, dtype: str) -> None:
    """See the module."""
    prompts = tokenize(model)
    write_requests(requests, prompts, DRIVERS[engine](model, config, prompts, RESPONSE, dtype))


if __name__ == "__main__":
    # SGLang starts processes that import this module anew.
    main(*sys.argv[1:])
