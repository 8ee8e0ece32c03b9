"""The same prompts through verl's own FSDP worker on a CPU: ``train.py MODEL REQUESTS STRATEGY [FAULT]``.

The worker is driven as `consistency selftest` drives it. ``REQUESTS`` is what the rollout wrote (generate.py),
``STRATEGY`` fsdp or fsdp2.
"""

from __future__ import annotations

import sys

import torch

from demo.faults import plant, shift
from train_infer_consistency.selftest.training import Trainer, train


def main(model: str, requests: str, strategy: str, fault: str = "") -> None:
    """See the module."""
    torch.set_num_threads(1)
    trainer = Trainer(model, strategy)
    plant(fault, trainer.actor_rollout_wg.actor.engine.module)
    train(trainer, model, requests, shift(fault))


if __name__ == "__main__":
    main(*sys.argv[1:])
