"""One prompt, several times, through SGLang's own engine: ``slime_generate.py MODEL REQUESTS COPIES WORDS``.

slime asks its engine for as many answers to one prompt as there are data-parallel ranks. ``REQUESTS`` is written: the
prompt's and the answers' tokens. The woven runner takes its switches from the environment, as below slime. ``WORDS`` is
a JSON file of the words of slime's job, of which the engine gets its own flags, as SGLang's parser reads
them, and the answers their length.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo.generate import PROMPTS
from demo.rollouts.sglang import answer
from train_infer_consistency.selftest.inference import tokenize

PREFIX, LENGTH = "--sglang-", "--rollout-max-response-len"


def engine_settings(words: Sequence[str]) -> dict[str, Any]:
    """SGLang's own settings among slime's words, which have a prefix there."""
    server: Any = importlib.import_module("sglang.srt.server_args").ServerArgs
    parser = argparse.ArgumentParser(allow_abbrev=False)
    server.add_cli_args(parser)
    own, taken = list[str](), False
    for word in words:
        taken = word.startswith(PREFIX) if word.startswith("--") else taken
        own += [word.replace(PREFIX, "--")] if taken else []
    read = vars(parser.parse_args(["--model-path", "m", *own]))
    return {name: read[name] for word in own if (name := word[2:].replace("-", "_")) in read}


def main(model: str, requests: str, copies: int, words: str) -> None:
    """See the module; the prompt is the longest of the demo's."""
    prompt = max(tokenize(model, PROMPTS).values(), key=len)
    prompts = {f"sample-{number}": prompt for number in range(copies)}
    job = json.loads(Path(words).read_text())
    settings = engine_settings(job)
    print(f"SGLang's own settings from the plan: {settings}")
    length = int(job[job.index(LENGTH) + 1])
    answers = answer(model, "", prompts, length, more=settings)
    Path(requests).write_text(json.dumps([{"prompt": prompt, "response": tokens} for tokens in answers.values()]))


if __name__ == "__main__":
    # SGLang starts processes that import this module anew.
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
