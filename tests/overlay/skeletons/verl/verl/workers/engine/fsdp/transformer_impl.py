"""A stand-in for verl's FSDP engine: the names an edit looks for, and no training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class FSDPEngine:
    """Sums instead of training."""

    def __init__(self) -> None:
        self.scale = 2

    def forward_backward_batch(self, data: list[list[int]], forward_only: bool = False) -> list[int]:
        factor = 1 if forward_only else self.scale
        scaler = getattr(self, "scaler", None)  # never set here
        ctx: AbstractContextManager[None] = nullcontext()
        losses = []
        for micro_batch in data:
            with ctx:
                losses.append(sum(micro_batch) * factor + (0 if scaler is None else 1))
        return losses

    def disable_adapter(self) -> str:
        return "disabled"

    def enable_adapter(self) -> str:
        return "enabled"


def make() -> FSDPEngine:
    return FSDPEngine()


def run(made: FSDPEngine) -> object:
    batches = [[1, 2], [3]]
    return [made.forward_backward_batch(batches), made.forward_backward_batch(batches, forward_only=True)]
