"""A stand-in for verl's fully asynchronous trainer."""

from __future__ import annotations

from verl.trainer.ppo.ray_trainer import Batch, RayPPOTrainer


class FullyAsyncTrainer(RayPPOTrainer):  # type: ignore[misc]  # verl is not installed where this is typed
    def _fit_generate(self, batch: Batch | None = None) -> Batch:
        if batch is None:
            batch = Batch([7])
        batch.meta_info["temperature"] = 0.5
        return batch


def make() -> FullyAsyncTrainer:
    return FullyAsyncTrainer()


def run(made: FullyAsyncTrainer) -> object:
    batch = made._fit_generate()
    return [batch.rows, batch.meta_info]
