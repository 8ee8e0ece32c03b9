"""The prompts through one of the rollout engines, one at a time: ``generate.py ENGINE MODEL CONFIG REQUESTS``.

``ENGINE`` is a module of demo/rollouts, ``CONFIG`` msprobe's file. ``REQUESTS`` is written: what was asked and answered
under which id, as a rollout hands it to training.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

#: Different lengths, so that no two of them can be taken for each other.
PROMPTS = (
    "Two plus two?",
    "Which is the larger number, 9.11 or 9.9?",
    "A train leaves at noon and runs at 60 km/h; where is it at three o'clock?",
    "Is a sum of two odd numbers odd or even, and why so? Give a proof in one sentence, then an example of it.",
)
RESPONSE = 4


def request_id(prompt: str) -> str:
    """Return the id of a prompt's request: 32 hexadecimal digits, as verl's."""
    return hashlib.md5(prompt.encode(), usedforsecurity=False).hexdigest()


def tokenize(model: str) -> dict[str, list[int]]:
    """Return the prompts' token ids by request id."""
    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    return {request_id(text): list(tokenizer.encode(text)) for text in PROMPTS}


def main(engine: str, model: str, config: str, requests: str) -> None:
    """See the module."""
    rollout: Any = importlib.import_module(f"demo.rollouts.{engine}")
    prompts = tokenize(model)
    answers = rollout.answer(model, config, prompts, RESPONSE)
    records = [{"request_id": name, "prompt": prompts[name], "response": answers[name]} for name in answers]
    Path(requests).write_text(json.dumps(records))


if __name__ == "__main__":
    main(*sys.argv[1:])
