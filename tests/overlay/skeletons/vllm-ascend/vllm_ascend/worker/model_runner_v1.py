"""A stand-in for vllm-ascend's model runner."""

from __future__ import annotations

from types import SimpleNamespace


class PrecisionDebugger:
    """Stands for msprobe's."""

    def __init__(self, config_path: str) -> None:
        self.config_path = config_path
        self.started = 0

    def start(self) -> None:
        self.started += 1


class NPUModelRunner:
    def __init__(self, additional_config: dict[str, str]) -> None:
        self.debugger: PrecisionDebugger | None = None
        dump_cfg = additional_config.get("dump_config_path")
        if dump_cfg is not None:
            self.debugger = PrecisionDebugger(dump_cfg)
        self.ready = True

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
    return [made.execute_model(SimpleNamespace(total_num_scheduled_tokens=5)), made.ready, made.debugger]


def switch_on() -> object:
    return NPUModelRunner({"dump_config_path": "config.json"})
