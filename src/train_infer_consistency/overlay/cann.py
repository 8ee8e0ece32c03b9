"""Which CANN toolkit is installed on this machine, by its own version file."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_TOOLKIT = "/usr/local/Ascend/ascend-toolkit/latest"
_VERSION = re.compile(r"(?im)^version=(\S+)")


def cann_version() -> str | None:
    """The toolkit's version where ``set_env.sh`` or the usual folder has it; None where no file tells."""
    toolkit = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH") or _TOOLKIT
    info = Path(toolkit, f"{platform.machine()}-linux", "ascend_toolkit_install.info")
    for path in (info, *sorted(Path(toolkit).glob("*/version.info"))):
        try:
            match = _VERSION.search(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if match:
            return match[1].strip("[]\"'")
    return None
