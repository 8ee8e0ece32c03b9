"""A stand-in for verl's agent loop worker."""

from __future__ import annotations


class AgentLoopWorker:
    def __init__(self) -> None:
        self.name = "worker"

    def _postprocess(self, inputs: list[dict[str, int]]) -> dict[str, list[int | None]]:
        default_extra_keys = {"turns", "reward"}
        keys = {key for item in inputs for key in item} | default_extra_keys
        return {key: [item.get(key) for item in inputs] for key in sorted(keys)}


def make() -> AgentLoopWorker:
    return AgentLoopWorker()


def run(made: AgentLoopWorker) -> object:
    return made._postprocess([{"turns": 1}, {"extra": 2}])
