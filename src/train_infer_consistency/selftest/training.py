"""The same prompts through verl's own FSDP worker: ``...selftest.training MODEL REQUESTS DTYPE``.

Real: ActorRolloutRefWorker, its engine, the trainer's own ``_compute_old_log_prob``, Hydra's configuration, and the
added prompt-only pass that PROMPTS_ONLY switches on. Ray's worker group is left out: a call is a call. ``REQUESTS`` is
what the rollout wrote (:mod:`.inference`).
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STRATEGY = "fsdp2"
_SHORT = {"float32": "fp32", "bfloat16": "bf16"}
_OVERRIDES = (
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.n=1",
    "actor_rollout_ref.rollout.name=vllm",
)


def make_batch(records: list[dict[str, Any]], pad: int, shifted: int = 0) -> Any:
    """Return the rollout's requests as the trainer has them: prompts padded on the left, responses on the right.

    Args:
        records: see :mod:`.inference`.
        pad: the padding's token id.
        shifted: what is added to every position; a fault, where it is not 0.
    """
    np: Any = importlib.import_module("numpy")
    torch: Any = importlib.import_module("torch")
    before = max(len(record["prompt"]) for record in records)
    after = max(len(record["response"]) for record in records)
    prompts = torch.full((len(records), before), pad)
    responses = torch.full((len(records), after), pad)
    mask = torch.zeros((len(records), before + after), dtype=torch.int64)
    for row, record in enumerate(records):
        prompts[row, before - len(record["prompt"]) :] = torch.tensor(record["prompt"])
        responses[row, : len(record["response"])] = torch.tensor(record["response"])
        mask[row, before - len(record["prompt"]) : before + len(record["response"])] = 1
    return importlib.import_module("verl").DataProto.from_dict(
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
    """The parts of RayPPOTrainer that old log-probs need, on verl's own device.

    Args:
        model: its folder.
        strategy: ``fsdp`` or ``fsdp2``.
        dtype: that parameters are computed with, ``float32`` or ``bfloat16``; they are kept in float32.
        overrides: of Hydra's configuration, beside those that the old log-probs of a tiny model need.
    """

    #: The first step, whose rollout had the weights number 0.
    global_steps = 1

    def __init__(self, model: str, strategy: str, dtype: str = "float32", overrides: Iterable[str] = ()) -> None:
        device: Any = importlib.import_module("verl.utils.device")
        workers: Any = importlib.import_module("verl.workers.engine_workers")
        hydra: Any = importlib.import_module("hydra")
        short = _SHORT[dtype]
        mixed = f"{{param_dtype:{short},reduce_dtype:fp32,buffer_dtype:fp32}}"
        chosen = [
            *_OVERRIDES,
            f"trainer.device={device.get_device_name()}",
            f"actor_rollout_ref.model.path={model}",
            f"actor_rollout_ref.actor.strategy={strategy}",
            f"+actor_rollout_ref.actor.fsdp_config.mixed_precision={mixed}",
            *overrides,
        ]
        with hydra.initialize_config_module("verl.trainer.config", version_base=None):
            self.config = hydra.compose("ppo_trainer", chosen)
        self.actor_rollout_wg: Any = workers.ActorRolloutRefWorker(self.config.actor_rollout_ref, "actor")
        self.actor_rollout_wg.init_model()
        self._own = importlib.import_module("verl.trainer.ppo.ray_trainer").RayPPOTrainer._compute_old_log_prob

    def _compute_old_log_prob(self, batch: Any) -> Any:
        return self._own(self, batch)

    def old_log_probs(self, batch: Any) -> Any:
        """Do what the trainer's step does for the old policy: the added pass if it is on, then the pass itself.

        Args:
            batch: of :func:`make_batch`.

        Returns:
            The log-probability of each response token, a tensor (requests, responses' width).
        """
        from ..capture.verl import prompt_only_pass

        prompt_only_pass(self, batch)
        output, _ = self._compute_old_log_prob(batch)
        return output.batch["old_log_probs"]


def train(trainer: Trainer, model: str, requests: str, shifted: int = 0) -> None:
    """Compute the log-probs of the rollout's answers, and print them.

    Args:
        trainer: on the same model.
        model: its folder.
        requests: what the rollout wrote.
        shifted: see :func:`make_batch`.
    """
    records = json.loads(Path(requests).read_text(encoding="utf-8"))
    pad = json.loads(Path(model, "config.json").read_text(encoding="utf-8"))["pad_token_id"]
    values = trainer.old_log_probs(make_batch(records, pad, shifted))
    for record, row in zip(records, values.tolist(), strict=True):
        print(record["request_id"], [round(value, 4) for value in row])


if __name__ == "__main__":
    train(Trainer(sys.argv[1], STRATEGY, sys.argv[3]), sys.argv[1], sys.argv[2])
