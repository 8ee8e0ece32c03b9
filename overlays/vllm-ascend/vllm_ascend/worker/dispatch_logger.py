# SPDX-License-Identifier: Apache-2.0
"""Which requests each engine step held; laid here by train-infer-consistency, not part of vllm-ascend.

Importing this module does nothing and needs neither torch nor msprobe. The work is done by
``train_infer_consistency.capture.vllm``, which is imported when a session or a log is opened: that is, only
where ``additional_config.dump_config_path`` is set.
"""

from __future__ import annotations

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


def need_msprobe() -> None:
    """Say in one line that msprobe is missing, before the runner's own import of it fails.

    Raises:
        RuntimeError: it is not installed in this environment.
    """
    _needed("msprobe.pytorch", "mindstudio-probe (>= 26.0.0)")


def refuse_v2_runner(vllm_config: Any) -> None:
    """Stop a worker that is about to build the v2 model runner, which no edit reaches, where a dump is asked for.

    Raises:
        RuntimeError: a dump is asked for.
    """
    config = vllm_config.additional_config
    if isinstance(config, dict) and config.get("dump_config_path") is not None:
        raise RuntimeError(
            "additional_config.dump_config_path is set and the v2 model runner dumps nothing; "
            "unset VLLM_USE_V2_MODEL_RUNNER, or remove dump_config_path"
        )


def open_session(runner: Any, make_debugger: Callable[[], Any], dump_config_path: str) -> Any:
    """Return a session that stands in for the runner's debugger, and give the runner its dispatch log.

    Args:
        runner: the model runner under construction.
        make_debugger: makes msprobe's debugger, as the runner would have made it.
        dump_config_path: msprobe's configuration file.

    Raises:
        RuntimeError: train-infer-consistency is not installed in this environment.
    """
    return _capture().open_session(runner, make_debugger, dump_config_path)
