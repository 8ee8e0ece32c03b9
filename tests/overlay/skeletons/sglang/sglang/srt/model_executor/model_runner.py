"""A stand-in for SGLang's model runner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Recorder:
    @contextmanager
    def with_forward_pass(self, pass_id: int, batch: list[int]) -> Iterator[list[int]]:
        yield [pass_id, *batch]


def get_global_expert_distribution_recorder() -> Recorder:
    return Recorder()


class ModelRunner:
    def __init__(self, offset: int) -> None:
        self.forward_pass_id = 0
        self.offset = offset
        self._weights_send_group = {}  # type: ignore[var-annotated]  # an anchor has no annotation

    def forward(self, forward_batch: list[int]) -> list[int]:
        self.forward_pass_id += 1
        with get_global_expert_distribution_recorder().with_forward_pass(
            self.forward_pass_id,
            forward_batch,
        ) as recorded:
            return [token + self.offset for token in recorded]


def make() -> ModelRunner:
    return ModelRunner(10)


def run(made: ModelRunner) -> object:
    return [made.forward([1, 2]), made.forward([3])]
