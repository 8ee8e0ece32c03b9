"""The same prompt through slime's own Megatron actor, once per data-parallel rank: ``slime_train.py MODEL REQUESTS``.

Real: MegatronTrainRayActor with its ``init`` and ``train``, over megatron-core; what stands in is in
demo/megatron_cpu/slime.py. ``REQUESTS`` is what the rollout wrote (slime_generate.py); rank N gets its Nth answer, as
slime's RolloutManager would split the samples.
"""

from __future__ import annotations

import importlib
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


def main(model: str, requests: str) -> None:
    """Start this rank's actor and give it the one rollout."""
    torch.set_num_threads(1)
    records, rank = json.loads(Path(requests).read_text()), int(os.environ["RANK"])
    adapter: Any = importlib.import_module("megatron_cpu.slime")
    module: Any = importlib.import_module("slime.backends.megatron_utils.actor")
    actor = object.__new__(module.MegatronTrainRayActor)
    args = adapter.make_args(Path(model), data_parallel=len(records))
    actor.init(args, "actor")
    shares = [SimpleNamespace(inner=make_share(records, number)) for number in range(len(records))]
    actor.train(0, shares)
    version = importlib.import_module("megatron.core").__version__
    print(f"rank {rank} of {len(records)}: rollout 0 done over megatron-core {version}")


if __name__ == "__main__":
    main(*sys.argv[1:])
