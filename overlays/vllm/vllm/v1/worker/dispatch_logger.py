# SPDX-License-Identifier: Apache-2.0
"""Which requests each engine step held; laid here by train-infer-consistency, not part of vLLM.

Importing this module does nothing and needs neither torch nor msprobe. The work is done by
``train_infer_consistency.capture.vllm``, which is imported when a session or a log is opened: that is, only
where ``additional_config.dump_config_path`` is set.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


def _needed(module: str, distribution: str) -> Any:
    """Import what a dump needs; say in one line which distribution is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise RuntimeError(
            f"additional_config.dump_config_path is set but {distribution} is not installed here; "
            "install it on every node, or remove dump_config_path"
        ) from None


def _capture() -> Any:
    """Import the capture module; a :class:`RuntimeError` where it is not installed."""
    return _needed("train_infer_consistency.capture.vllm", "train-infer-consistency")


def _dump_config_path(vllm_config: Any) -> Any:
    config = vllm_config.additional_config
    return config.get("dump_config_path") if isinstance(config, dict) else None


class DispatchLogger:
    """Writes one line for each engine step to ``{dump_path}/{pid}/dispatch_log.jsonl``.

    Args:
        dump_path: msprobe's dump path, without the sub-directory of this process.
        pid: names the sub-directory.
        rank: the worker's rank, recorded in every line.
    """

    def __init__(self, dump_path: str, pid: int, rank: int = 0) -> None:
        self._log = _capture().DispatchLogger(dump_path, pid, rank)

    def log_step(self, scheduler_output: Any, attn_state: Any, step: int | None = None) -> None:
        """Record one step: ``step`` is msprobe's step number, or None to count here."""
        self._log.log_step(scheduler_output, attn_state, step=step)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._log.close()


def open_session(runner: Any) -> Any | None:
    """Return the session that dumps this runner's forwards, or None where no dump is asked for.

    None as well for a runner class that is defined outside vLLM: a plugin such as vllm-ascend has a debugger
    of its own behind the same setting, and two would write over each other.

    Raises:
        RuntimeError: a dump is asked for, and train-infer-consistency or msprobe is not installed here.
    """
    path = _dump_config_path(runner.vllm_config)
    if path is None or type(runner).__module__.partition(".")[0] != "vllm":
        return None
    msprobe = _needed("msprobe.pytorch", "mindstudio-probe (>= 26.0.0)")
    return _capture().open_session(runner, lambda: msprobe.PrecisionDebugger(path), path)


def refuse_v2_runner(vllm_config: Any) -> None:
    """Stop a worker that is about to build the v2 model runner, which no edit reaches, where a dump is asked for.

    Raises:
        RuntimeError: a dump is asked for.
    """
    if _dump_config_path(vllm_config) is not None:
        raise RuntimeError(
            "additional_config.dump_config_path is set and the v2 model runner dumps nothing; "
            "unset VLLM_USE_V2_MODEL_RUNNER, or remove dump_config_path"
        )


def recorded(execute_model: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``execute_model``: without a session it is called as it is, else by the session."""

    # The arguments are spelt out: passing on *args and **kwargs would cost several times as much.
    @functools.wraps(execute_model)
    def execute(self: Any, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        if self.debugger is None:
            return execute_model(self, scheduler_output, intermediate_tensors)
        return self.debugger.forward(execute_model, self, scheduler_output, intermediate_tensors)

    return execute
