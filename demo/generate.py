"""The prompts through one of the rollout engines, one at a time: ``generate.py ENGINE MODEL CONFIG REQUESTS``.

``ENGINE`` is a module of demo/rollouts, ``CONFIG`` msprobe's file. ``REQUESTS`` is written, as the self-test writes it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from train_infer_consistency.selftest import inference
from train_infer_consistency.selftest.inference import RESPONSE, request_id, tokenize, write_requests

__all__ = ["PROMPTS", "RESPONSE", "main", "request_id"]

PROMPTS = (
    *inference.PROMPTS,
    "Is a sum of two odd numbers odd or even, and why so? Give a proof in one sentence, then an example of it.",
)


def main(engine: str, model: str, config: str, requests: str) -> None:
    """See the module."""
    rollout: Any = importlib.import_module(f"demo.rollouts.{engine}")
    prompts = tokenize(model, PROMPTS)
    write_requests(requests, prompts, rollout.answer(model, config, prompts, RESPONSE))


if __name__ == "__main__":
    main(*sys.argv[1:])
