"""A stand-in for SGLang's batch of one forward, as it was before it had request ids."""

from __future__ import annotations

from types import SimpleNamespace


class ForwardBatch:
    def __init__(self, input_ids: list[int]) -> None:
        self.input_ids = input_ids
        self.moved = ""

    @classmethod
    def init_new(cls, batch: SimpleNamespace, model_runner: SimpleNamespace) -> ForwardBatch:
        ret = cls(input_ids=batch.input_ids)
        device = model_runner.device
        ret.moved = f"{device}:0"
        return ret


def make() -> SimpleNamespace:
    return SimpleNamespace(device="cpu", debugger=None)


def run(made: SimpleNamespace) -> object:
    request = SimpleNamespace(rid="a")
    return vars(ForwardBatch.init_new(SimpleNamespace(input_ids=[1, 2], reqs=[request]), made))
