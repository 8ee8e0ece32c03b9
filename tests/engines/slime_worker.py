"""slime's own Megatron actor over megatron-core, for test_slime_actor.py: ``slime_worker.py PLAN.json``, once per rank.

Real: MegatronTrainRayActor with its init, train, timers, weight backups, losses and optimizer step. Stand-ins: those of
demo/megatron_cpu/slime.py. The plan has ``model``, ``tensor_parallel``, ``pipeline_parallel``, ``report``, ``save`` (a
template of slime's save_debug_train_data), ``rollouts`` (numbers, trained on in this order) and ``args``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

#: Tokens of the prompt, the same for all samples of a rollout, and of each response.
PROMPT, RESPONSES = 8, (3, 6)


def rollout(number: int, partition: list[int]) -> dict[str, Any]:
    """What slime's RolloutManager sends to a data-parallel rank."""
    generator = torch.Generator().manual_seed(50 + number)
    prompt = torch.randint(1, 200, (PROMPT,), generator=generator).tolist()
    responses = [torch.randint(1, 200, (length,), generator=generator).tolist() for length in RESPONSES]
    return {
        "partition": partition,
        "tokens": [prompt + response for response in responses],
        "response_lengths": list(RESPONSES),
        "total_lengths": [PROMPT + length for length in RESPONSES],
        "loss_masks": [[1] * length for length in RESPONSES],
        "rewards": [1.0, -1.0],
        "raw_reward": [1.0, -1.0],
        "truncated": [0, 0],
        "sample_indices": [10 * number, 10 * number + 1],
    }


def digest(model: list[torch.nn.Module]) -> str:
    """A digest of all parameters, bit by bit."""
    whole = hashlib.sha256()
    for chunk in model:
        for name, parameter in chunk.named_parameters():
            whole.update(name.encode())
            whole.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Start an actor and train through the rollouts."""
    adapter: Any = importlib.import_module("megatron_cpu.slime")
    module: Any = importlib.import_module("slime.backends.megatron_utils.actor")
    timers: Any = importlib.import_module("slime.utils.timer")
    actor = object.__new__(module.MegatronTrainRayActor)
    args = adapter.make_args(
        Path(plan["model"]),
        plan["tensor_parallel"],
        pipeline_parallel=plan["pipeline_parallel"],
        save_debug_train_data=plan["save"],
        **plan["args"],
    )
    report: dict[str, Any] = {"modules": {}, "rollouts": {}}
    report["start"] = actor.init(args, "actor")
    stages: list[str | None] = []
    actor.model[0].register_forward_pre_hook(lambda *_: stages.append(os.environ.get("ROUTING_REPLAY_STAGE")))
    for number in plan["rollouts"]:
        before = digest(actor.model)
        stages.clear()
        data = rollout(number, [0, 1])
        tokens = [list(sample) for sample in data["tokens"]]
        actor.train(number, [SimpleNamespace(inner=data)])
        report["rollouts"][str(number)] = {
            "before": before,
            "after": digest(actor.model),
            "tokens": tokens,
            "stages": list(stages),
            "stage": os.environ.get("ROUTING_REPLAY_STAGE"),
            "training": actor.model[0].training,
            "running": sorted(timers.Timer().start_time),
        }
    report["random"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    report["debugger"] = type(actor.debugger).__name__
    report["dump_path_prefix"] = actor.dump_path_prefix
    for name in ("train_infer_consistency", "msprobe"):
        report["modules"][name] = getattr(sys.modules.get(name), "__file__", None)
    return report


def main(path: Path) -> None:
    """Run the plan and write the report."""
    torch.set_num_threads(1)
    plan = json.loads(path.read_text())
    try:
        report = run(plan)
    except Exception:
        report = {"traceback": traceback.format_exc()}
    Path(plan["report"].format(rank=os.environ["RANK"])).write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
