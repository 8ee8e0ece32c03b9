"""One prompt, several times, through SGLang's own engine: ``slime_generate.py MODEL REQUESTS COPIES``.

slime asks its engine for as many answers to one prompt as there are data-parallel ranks. ``REQUESTS`` is written: the
prompt's and the answers' tokens. The woven runner takes its switches from the environment, as below slime.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from demo.generate import PROMPTS, RESPONSE
from demo.rollouts.sglang import answer
from train_infer_consistency.selftest.inference import tokenize


def main(model: str, requests: str, copies: int) -> None:
    """See the module; the prompt is the longest of the demo's."""
    prompt = max(tokenize(model, PROMPTS).values(), key=len)
    answers = answer(model, "", {f"sample-{number}": prompt for number in range(copies)}, RESPONSE)
    Path(requests).write_text(json.dumps([{"prompt": prompt, "response": tokens} for tokens in answers.values()]))


if __name__ == "__main__":
    # SGLang starts processes that import this module anew.
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
