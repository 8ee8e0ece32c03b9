"""A stand-in for verl's trainer."""

from __future__ import annotations


class Batch:
    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self.meta_info: dict[str, float] = {}


class RayPPOTrainer:
    def __init__(self, bypass: bool = False) -> None:
        self.bypass = bypass

    def fit(self) -> list[int]:
        rows = []
        for step in range(2):
            batch = Batch([step, step + 1])
            bypass_recomputing_logprobs = self.bypass and step > 0
            if not bypass_recomputing_logprobs:
                rows += batch.rows
        return rows


def make() -> list[RayPPOTrainer]:
    return [RayPPOTrainer(), RayPPOTrainer(bypass=True)]


def run(made: list[RayPPOTrainer]) -> object:
    return [trainer.fit() for trainer in made]
