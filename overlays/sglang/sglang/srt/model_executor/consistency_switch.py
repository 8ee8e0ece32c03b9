# SPDX-License-Identifier: Apache-2.0
"""The one switch of SGLang's woven files; laid here by train-infer-consistency, not part of SGLang.

``SGLANG_MSPROBE_DUMP`` is read once, when this module is imported. Off (unset, empty, 0, false, no, off)
leaves ``capture`` None and everything as SGLang has it, whether or not train-infer-consistency is installed.
Any other value is for the capture module to judge.
"""

import importlib
import os
from types import ModuleType

_OFF = frozenset({"", "0", "false", "no", "off"})


def _load() -> ModuleType | None:
    """Return the capture module where the switch is on, else None.

    Raises:
        RuntimeError: the switch is on and train-infer-consistency is not installed in this environment.
    """
    if os.environ.get("SGLANG_MSPROBE_DUMP", "").strip().lower() in _OFF:
        return None
    try:
        return importlib.import_module("train_infer_consistency.capture.sglang")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "train_infer_consistency":
            raise
        raise RuntimeError(
            "SGLANG_MSPROBE_DUMP is set but train-infer-consistency is not installed here; "
            "install its wheel on every node, or unset SGLANG_MSPROBE_DUMP"
        ) from None


capture = _load()
