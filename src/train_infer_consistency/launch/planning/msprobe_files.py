"""msprobe's two files: what each side dumps, and where."""

from __future__ import annotations

import json
from typing import Any

from ..run import SLIME
from . import verl
from .answers import Answers

GENERATE, ACTOR = "config_generate.json", "config_actor.json"
#: What slime's training side appends to its dump_path.
OLD_LOG_PROB = "old_log_prob"


def folders(answers: Answers) -> dict[str, str]:
    """Where the dumps of each side lie: ``generate`` and ``actor`` -> folder."""
    root = answers.dump_root.rstrip("/")
    names = {"generate": "generate", "actor": OLD_LOG_PROB} if answers.scenario == SLIME else verl.FOLDERS
    return {side: f"{root}/{name}" for side, name in names.items()}


def configuration(answers: Answers, side: str) -> dict[str, Any]:
    """The content of a side's file.

    Nothing is in it that msprobe 26.2.0 gets wrong: no ``precision`` (``high`` loses mean and norm), no ``dump_enable``
    (its reload forgets the process's folder), no ``rank`` (a rank that is not there dumps nothing, silently).
    """
    slime = answers.scenario == SLIME
    task = "tensor" if answers.tensors else "statistics"
    root = answers.dump_root.rstrip("/")
    # verl: every whole prompt, on both sides. SGLang's own switch counts every forward: none can be named before.
    steps = [0] if slime and not (side == "generate" and answers.native_sglang) else []
    content: dict[str, Any] = {
        "task": task,
        "dump_path": root if slime and side == "actor" else folders(answers)[side],
        "rank": [],
        "step": steps,
        "level": "mix" if slime else "L0",
        "async_dump": False,
    }
    if slime:
        content["extra_info"] = True
    chosen: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}
    if not answers.tensors:
        chosen |= {"tensor_list": [], "summary_mode": "md5" if answers.md5 else "statistics"}
    return {**content, task: chosen}


def render(content: dict[str, Any]) -> str:
    """A file's text."""
    return json.dumps(content, indent=2) + "\n"
