"""A stand-in for vLLM's model runner."""

from __future__ import annotations

from types import SimpleNamespace


def inference_mode(function: object) -> object:
    return function


class GPUModelRunner:
    def __init__(self, vllm_config: SimpleNamespace) -> None:
        self.vllm_config = vllm_config
        self.layerwise_nvtx_hooks_registered = False

    def warm_up(self) -> bool:
        return True

    @staticmethod
    def _double(value: int) -> int:
        return value * 2

    def _dummy_run(self, num_tokens: int, cudagraph_runtime_mode: int | None = None) -> int:
        assert cudagraph_runtime_mode is None or cudagraph_runtime_mode > 0
        return num_tokens

    def execute_model(self, scheduler_output: SimpleNamespace, intermediate_tensors: int | None = None) -> int:
        """Return what the caller expects."""
        return self._double(scheduler_output.total_num_scheduled_tokens) * (intermediate_tensors or 1)


def make() -> GPUModelRunner:
    return GPUModelRunner(SimpleNamespace(additional_config={}))


def run(made: GPUModelRunner) -> object:
    output = SimpleNamespace(total_num_scheduled_tokens=5)
    method = GPUModelRunner.execute_model
    results = [made.execute_model(output), made.execute_model(output, intermediate_tensors=3)]
    return [*results, method.__name__, method.__doc__, made._dummy_run(1)]


def switch_on() -> object:
    return GPUModelRunner(SimpleNamespace(additional_config={"dump_config_path": "config.json"}))
