"""A stand-in for a worker that chooses between two model runners."""

from __future__ import annotations

from types import SimpleNamespace

envs = SimpleNamespace(VLLM_USE_V2_MODEL_RUNNER=False)


class Worker:
    def __init__(self, vllm_config: SimpleNamespace) -> None:
        self.vllm_config = vllm_config
        self.use_v2_model_runner = envs.VLLM_USE_V2_MODEL_RUNNER
        self.runner = "v2" if self.use_v2_model_runner else "v1"


def make() -> list[Worker]:
    made = [Worker(SimpleNamespace(additional_config=config)) for config in ({}, {"dump_config_path": "c.json"})]
    envs.VLLM_USE_V2_MODEL_RUNNER = True
    made += [Worker(SimpleNamespace(additional_config=config)) for config in ({}, {"other": 1}, object())]
    envs.VLLM_USE_V2_MODEL_RUNNER = False
    return made


def run(made: list[Worker]) -> object:
    return [worker.runner for worker in made]


def switch_on() -> object:
    envs.VLLM_USE_V2_MODEL_RUNNER = True
    return Worker(SimpleNamespace(additional_config={"dump_config_path": "config.json"}))
