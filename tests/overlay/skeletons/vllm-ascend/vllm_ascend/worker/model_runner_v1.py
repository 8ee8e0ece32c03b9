"""A stand-in for vllm-ascend's model runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NPUModelRunner:
    def __init__(self, additional_config: dict[str, str]) -> None:
        self.debugger: Any = None
        dump_cfg = additional_config.get("dump_config_path")
        if dump_cfg is not None:
            from msprobe.pytorch import PrecisionDebugger

            self.debugger = PrecisionDebugger(dump_cfg)
        self.ready = True

    def _dummy_run(self, num_tokens: int, cudagraph_runtime_mode: int | None = None) -> int:
        assert cudagraph_runtime_mode is None or cudagraph_runtime_mode > 0
        return num_tokens

    def execute_model(self, scheduler_output: SimpleNamespace) -> int:
        total: int = scheduler_output.total_num_scheduled_tokens
        if self.debugger is not None:
            dbg_cfg = getattr(self.debugger, "config_path", None)
            self.debugger.start()
            total += len(dbg_cfg or "")
        return total


def make() -> NPUModelRunner:
    return NPUModelRunner({})


def run(made: NPUModelRunner) -> object:
    return [
        made.execute_model(SimpleNamespace(total_num_scheduled_tokens=5)),
        made.ready,
        made.debugger,
        made._dummy_run(1),
    ]


def switch_on() -> object:
    return NPUModelRunner({"dump_config_path": "config.json"})
