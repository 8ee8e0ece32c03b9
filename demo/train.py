"""The same prompts through verl's own FSDP worker on a CPU: ``train.py MODEL REQUESTS STRATEGY [FAULT]``.

Real: ActorRolloutRefWorker, TrainingWorker, FSDPEngineWithLMHead, the trainer's own ``_compute_old_log_prob``, Hydra's
configuration, and the added prompt-only pass that PROMPTS_ONLY switches on. Ray's worker group is left out: a call is a
call. ``REQUESTS`` is what the rollout wrote (generate.py), ``STRATEGY`` fsdp or fsdp2.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from demo.faults import plant, shift

FLOAT32 = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
OVERRIDES = (
    "trainer.device=cpu",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    f"+actor_rollout_ref.actor.fsdp_config.mixed_precision={FLOAT32}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.n=1",
    "actor_rollout_ref.rollout.name=vllm",
)


def make_batch(records: list[dict[str, Any]], pad: int, shifted: int) -> Any:
    """Return the rollout's requests as the trainer has them: prompts padded on the left, responses on the right.

    Args:
        records: see generate.py.
        pad: the padding's token id.
        shifted: what is added to every position, for one of the faults.
    """
    from verl import DataProto

    before = max(len(record["prompt"]) for record in records)
    after = max(len(record["response"]) for record in records)
    prompts = torch.full((len(records), before), pad)
    responses = torch.full((len(records), after), pad)
    mask = torch.zeros((len(records), before + after), dtype=torch.int64)
    for row, record in enumerate(records):
        prompts[row, before - len(record["prompt"]) :] = torch.tensor(record["prompt"])
        responses[row, : len(record["response"])] = torch.tensor(record["response"])
        mask[row, before - len(record["prompt"]) : before + len(record["response"])] = 1
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0) + shifted,
            "response_mask": mask[:, before:].clone(),
        },
        non_tensors={
            "request_id": np.array([record["request_id"] for record in records], dtype=object),
            "min_global_steps": np.array([0] * len(records), dtype=object),
            "max_global_steps": np.array([0] * len(records), dtype=object),
            "multi_modal_inputs": np.array([{} for _ in records], dtype=object),
        },
        meta_info={"temperature": 1.0, "global_token_num": mask.sum(dim=-1).tolist()},
    )


class Trainer:
    """The parts of RayPPOTrainer that old log-probs need."""

    #: The first step, whose rollout had the weights number 0.
    global_steps = 1

    def __init__(self, model: str, strategy: str) -> None:
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer
        from verl.workers.engine_workers import ActorRolloutRefWorker

        overrides = [
            f"actor_rollout_ref.model.path={model}",
            f"actor_rollout_ref.actor.strategy={strategy}",
            *OVERRIDES,
        ]
        hydra: Any = importlib.import_module("hydra")
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            self.config = hydra.compose("ppo_trainer", overrides)
        self.actor_rollout_wg: Any = ActorRolloutRefWorker(self.config.actor_rollout_ref, "actor")
        self.actor_rollout_wg.init_model()
        self._own = RayPPOTrainer._compute_old_log_prob

    def _compute_old_log_prob(self, batch: Any) -> Any:
        return self._own(self, batch)

    def old_log_probs(self, batch: Any) -> torch.Tensor:
        """Do what the trainer's step does for the old policy: the added pass if it is on, then the pass itself.

        Args:
            batch: of :func:`make_batch`.

        Returns:
            The log-probability of each response token, (requests, responses' width).
        """
        from train_infer_consistency.capture.verl import prompt_only_pass

        prompt_only_pass(self, batch)
        output, _ = self._compute_old_log_prob(batch)
        values: torch.Tensor = output.batch["old_log_probs"]
        return values


def main(model: str, requests: str, strategy: str, fault: str = "") -> None:
    """See the module."""
    torch.set_num_threads(1)
    trainer = Trainer(model, strategy)
    plant(fault, trainer.actor_rollout_wg.actor.engine.module)
    records = json.loads(Path(requests).read_text())
    pad = json.loads(Path(model, "config.json").read_text())["pad_token_id"]
    values = trainer.old_log_probs(make_batch(records, pad, shift(fault)))
    for record, row in zip(records, values.tolist(), strict=True):
        print(record["request_id"], [round(value, 4) for value in row])


if __name__ == "__main__":
    main(*sys.argv[1:])
