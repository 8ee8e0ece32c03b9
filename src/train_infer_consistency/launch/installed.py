"""The packages that are installed here: what ``consistency doctor`` finds, where there is something to look at."""

from __future__ import annotations

import os
import sys

from .words import Said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .check import Report

_UPSTREAMS = ("verl-", "vllm_ascend-", "vllm-", "slime-", "sglang-", "mindstudio_probe-")


class Installed:
    """One finding about an installed package. ``level`` is doctor's: "wrong" counts as a broken rule."""

    __slots__ = ("level", "mend", "subject", "what")

    def __init__(self, level: str, subject: str, what: str, mend: str | None) -> None:
        self.level = level
        self.subject = subject
        self.what = what
        self.mend = mend


def anything() -> bool:
    """Whether one of the upstreams is installed here, by the names in the search path's folders alone."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        if any(name.startswith(_UPSTREAMS) and name.endswith(".dist-info") for name in names):
            return True
    return False


def look(report: Report) -> None:
    """Add what doctor finds here; where nothing is installed, say that the target machine has to show it."""
    if not anything():
        report.target.append(Said("target-packages"))
        return
    from ..overlay.doctor import examine
    from ..overlay.lock import load_lock
    from ..overlay.reading import load_upstreams

    found = examine(load_upstreams(), load_lock())
    wanted = {name for run in report.runs for name in run.stack if not (name == "vllm" and "vllm-ascend" in run.stack)}
    for row in found.upstreams:
        if row.upstream not in wanted or row.state != "pristine":
            continue
        mend = f"consistency overlay apply {row.upstream}"
        if row.upstream == "mindstudio-probe":  # its overlay serves CONSISTENCY_KEEP_ENDS alone
            what = "is installed without the overlay: CONSISTENCY_KEEP_ENDS does nothing"
            report.installed.append(Installed("warning", row.upstream, what, mend))
        else:
            what = "is installed without the overlay, and dumps nothing that can be paired"
            report.installed.append(Installed("wrong", row.upstream, what, mend))
    for one in found.findings:
        if one.level in ("wrong", "warning"):
            report.installed.append(Installed(one.level, one.subject, one.what, one.mend))
        elif one.level == "not checked":
            mend = f"; {one.mend}" if one.mend else ""
            report.target.append(Said("target-doctor", what=f"{one.subject}: {one.what}{mend}"))
