"""verl's fully asynchronous trainer over its own worker in one process, for test_verl_async.py: ``... PLAN.json``.

Real: FullyAsyncTrainer with its fit, DetachActorWorker with its saved weights, the FSDP engine, the assembling of
samples into a batch, Hydra's configuration. Stand-ins: those of verl_fsdp_worker.py; Ray's actor around the trainer,
the message queue, the rollouter. The plan has ``model``, ``report`` and ``scenarios``, of which each has ``overrides``
and ``steps``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.engines.verl_fsdp_worker import Logger, Now, Rollout, random_digest, run_scenarios, weights_digest

#: Of a metric that a clock is behind.
CLOCK = ("time", "timing", "perf/", "idle_ratio", "throughput")


class Queue:
    """verl's message queue: one prompt's answers are a sample, made with the weights that the rollout has by then."""

    def __init__(self, rollout: Rollout) -> None:
        self._samples = self._make(rollout)

    async def get_sample(self) -> tuple[bytes | None, int]:
        """The next sample as verl's rollouter sends it; None behind the last."""
        return next(self._samples, None), 0

    def _make(self, rollout: Rollout) -> Iterator[bytes]:
        protocol: Any = importlib.import_module("verl.protocol")
        utils: Any = importlib.import_module("verl.experimental.fully_async_policy.detach_utils")
        pickle: Any = importlib.import_module("ray").cloudpickle
        for step, prompts in enumerate(rollout.prompts()):
            asked = protocol.DataProto.from_single_dict(prompts).repeat(2, interleave=True)
            answers = rollout.generate_sequences(asked)
            answers.meta_info.clear()
            for end in ("min_global_steps", "max_global_steps"):
                answers.non_tensor_batch[end] = answers.non_tensor_batch["global_steps"].copy()
            for number in range(len(answers) // 2):
                sample = answers[2 * number : 2 * number + 2]
                sample.non_tensor_batch["uid"] = np.array([f"{step}-{number}"] * 2, dtype=object)
                sample.meta_info["metrics"] = [{"generate_sequences": 0.0, "tool_calls": 0.0}] * 2
                yield pickle.dumps(utils.RolloutSample(sample, f"{step}-{number}", 0, {}))


def make_trainer(config: Any, rollout: Rollout) -> tuple[Any, Any]:
    """verl's trainer, and its worker's network."""
    module: Any = importlib.import_module("verl.experimental.fully_async_policy.fully_async_trainer")
    workers: Any = importlib.import_module("verl.experimental.separation.engine_workers")
    role = importlib.import_module("verl.trainer.ppo.utils").Role.Actor
    kind = module.FullyAsyncTrainer.__ray_metadata__.modified_class
    pools = SimpleNamespace(get_n_gpus=lambda: 1)
    trainer = kind(config, None, {role: workers.DetachActorWorker}, pools, device_name="cpu")
    worker = workers.DetachActorWorker(config.actor_rollout_ref, "actor")
    worker.init_model()
    trainer.actor_wg = trainer.actor_rollout_wg = Now(worker)

    async def update_weights(global_steps: int) -> None:
        rollout.update_weights(global_steps)

    trainer.checkpoint_manager = SimpleNamespace(update_weights=update_weights)
    answered: Future[dict[str, Any]] = Future()
    answered.set_result({})
    remote = SimpleNamespace(remote=lambda: SimpleNamespace(future=lambda: answered))
    trainer.rollouter = SimpleNamespace(reset_staleness=remote)
    trainer.message_queue_client = Queue(rollout)
    trainer.model = worker.actor.engine.module
    return trainer, worker.actor.engine.module


def run(plan: dict[str, Any], number: int, passes: list[dict[str, Any]]) -> dict[str, Any]:
    """Train through one scenario."""
    hydra: Any = importlib.import_module("hydra")
    scenario = plan["scenarios"][number]
    package: Any = importlib.import_module("verl.experimental.fully_async_policy")
    with hydra.initialize_config_dir(str(Path(package.__file__).with_name("config")), version_base=None):
        overrides = [f"actor_rollout_ref.model.path={plan['model']}", *scenario["overrides"]]
        config = hydra.compose("fully_async_ppo_trainer", overrides)
    torch.manual_seed(5)
    Logger.rows = []
    passes.clear()
    rollout = Rollout(config, scenario["steps"], number)
    trainer, network = make_trainer(config, rollout)
    before = weights_digest(network)
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    rollout.update_weights(0)
    trainer.set_total_train_steps(scenario["steps"])
    asyncio.run(trainer.fit())
    rows = [{key: row[key] for key in row if not any(word in key for word in CLOCK)} for row in Logger.rows]
    return {
        "before": before,
        "after": weights_digest(network),
        "random": random_digest(),
        "metrics": rows,
        "passes": list(passes),
        "asked": rollout.asked,
    }


def main(path: Path) -> None:
    """Run all scenarios of a plan, and write the report."""
    plan = json.loads(path.read_text())
    report = run_scenarios(plan, "verl.experimental.fully_async_policy.fully_async_trainer", run)
    Path(plan["report"]).write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
