# SPDX-License-Identifier: Apache-2.0
"""The prompt-only training dump; laid here by train-infer-consistency, not part of slime.

Importing this module does nothing and needs neither torch nor msprobe. The work is done by
``train_infer_consistency.capture.slime``, which is imported only where ``DUMP_ON`` is on.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

_OFF = frozenset({"", "0", "false", "no", "off"})


def _capture() -> Any:
    """Import the capture module.

    Raises:
        RuntimeError: train-infer-consistency is not installed in this environment.
    """
    try:
        return importlib.import_module("train_infer_consistency.capture.slime")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "train_infer_consistency":
            raise
        raise RuntimeError(
            "the prompt-only dump needs train-infer-consistency, which is not installed here; "
            "install its wheel on every node, or unset DUMP_ON"
        ) from None


def open_session(actor: Any, args: Any, role: str) -> Any | None:
    """Return the session that dumps this actor's prompt-only pass, or None where ``DUMP_ON`` is off.

    Args:
        actor: the training actor at the head of its ``init``; gets ``debugger`` and ``dump_path_prefix``.
        args: slime's arguments.
        role: ``actor`` or ``critic``.

    Raises:
        RuntimeError: the switch is on and train-infer-consistency is not installed in this environment.
    """
    if os.environ.get("DUMP_ON", "").strip().lower() in _OFF:
        return None
    return _capture().open_session(actor, args, role)


def copy_rollout_data_prompts_only(rollout_data: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of slime's rollout data in which every sample ends with its prompt.

    Raises:
        RuntimeError: train-infer-consistency is not installed in this environment.
    """
    prompts_only: dict[str, Any] = _capture().copy_rollout_data_prompts_only(rollout_data)
    return prompts_only
