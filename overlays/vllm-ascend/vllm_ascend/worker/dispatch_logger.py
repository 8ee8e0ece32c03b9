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


def _capture() -> Any:
    """Import the capture module.

    Raises:
        RuntimeError: train-infer-consistency is not installed in this environment.
    """
    try:
        return importlib.import_module("train_infer_consistency.capture.vllm")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "train_infer_consistency":
            raise
        raise RuntimeError(
            "additional_config.dump_config_path is set but train-infer-consistency is not installed here; "
            "install its wheel on every node, or remove dump_config_path"
        ) from None


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
