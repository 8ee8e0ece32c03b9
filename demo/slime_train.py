"""The same prompt through slime's own Megatron actor, once per rank: ``slime_train.py MODEL REQUESTS WORDS``.

Real: MegatronTrainRayActor with its ``init`` and ``train``, over megatron-core; what stands in is in
demo/megatron_cpu/slime.py. ``REQUESTS`` is what the rollout wrote (slime_generate.py); rank N gets its Nth answer, as
slime's RolloutManager would split the samples. ``WORDS`` is a JSON file of the words of slime's job, whose settings
come after those that a CPU needs.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def make_share(records: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    """Return what slime's RolloutManager sends to a data-parallel rank: one sample, and the whole batch's lengths.

    Args:
        records: see slime_generate.py.
        rank: whose share; as many ranks as records.
    """
    own = records[rank]
    rewards = [float(number % 2) for number in range(len(records))]
    return {
        "partition": [rank],
        "tokens": [own["prompt"] + own["response"]],
        "response_lengths": [len(own["response"])],
        "total_lengths": [len(record["prompt"]) + len(record["response"]) for record in records],
        "loss_masks": [[1] * len(own["response"])],
        "rewards": [rewards[rank]],
        "raw_reward": rewards,
        "truncated": [0],
        "sample_indices": [rank],
    }


def settings_of(words: list[str]) -> dict[str, Any]:
    """The settings in slime's words: by slime's own parser; Megatron's, whose parser is in no wheel, are numbers."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module("slime.utils.arguments").get_slime_extra_args_provider()(parser)
    args, left = parser.parse_known_args(words)
    given = {word[2:].replace("-", "_") for word in words if word.startswith("--")}
    megatron = {
        flag[2:].replace("-", "_"): int(value)
        for flag, value in itertools.pairwise(left)
        if flag.startswith("--") and value.isdecimal() and not flag.startswith("--sglang-")
    }
    return {name: value for name, value in vars(args).items() if name in given} | megatron


def main(model: str, requests: str, words: str) -> None:
    """Start this rank's actor and give it the one rollout."""
    torch.set_num_threads(1)
    records, rank = json.loads(Path(requests).read_text()), int(os.environ["RANK"])
    adapter: Any = importlib.import_module("megatron_cpu.slime")
    module: Any = importlib.import_module("slime.backends.megatron_utils.actor")
    actor = object.__new__(module.MegatronTrainRayActor)
    submitted = json.loads(Path(words).read_text())
    settings = settings_of(submitted[submitted.index("train.py") + 1 :])
    print(f"slime's and Megatron's settings from the plan: {settings}")
    args = adapter.make_args(Path(model), data_parallel=len(records), **settings)
    actor.init(args, "actor")
    shares = [SimpleNamespace(inner=make_share(records, number)) for number in range(len(records))]
    actor.train(0, shares)
    version = importlib.import_module("megatron.core").__version__
    print(f"rank {rank} of {len(records)}: rollout 0 done over megatron-core {version}")


if __name__ == "__main__":
    main(*sys.argv[1:])
