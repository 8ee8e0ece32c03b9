"""A stand-in for verl's Megatron engine."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

torch = SimpleNamespace(distributed=SimpleNamespace(get_rank=lambda: 3))


class MegatronEngine:
    def __init__(self) -> None:
        self.mode = None
        self.steps: list[int] = []

    def forward_backward_batch(self, data: list[list[int]], forward_only: bool = False) -> list[int]:
        enable_routing_replay = bool(getattr(self, "replay", False))
        return [self.forward_step(batch, forward_only or enable_routing_replay) for batch in data]

    def forward_step(self, batch: list[int], fused: bool) -> int:
        raise NotImplementedError

    def disable_adapter(self) -> None:
        self.steps.clear()


class MegatronEngineWithLMHead(MegatronEngine):
    """Has the forward itself."""

    def forward_step(self, batch: list[int], fused: bool) -> int:
        model: Callable[[int], int] = abs
        if fused:
            fused_forward_fn = sum_of
            output = fused_forward_fn(
                model,
                batch,
            )
        else:
            forward_fn = product_of
            output = forward_fn(model, batch)
        return output


def sum_of(model: Callable[[int], int], batch: list[int]) -> int:
    return sum(model(item) for item in batch)


def product_of(model: Callable[[int], int], batch: list[int]) -> int:
    product = 1
    for item in batch:
        product *= model(item)
    return product


def make() -> MegatronEngineWithLMHead:
    return MegatronEngineWithLMHead()


def run(made: MegatronEngineWithLMHead) -> object:
    batches = [[1, -2], [3, 4]]
    return [made.forward_backward_batch(batches), made.forward_backward_batch(batches, forward_only=True)]
