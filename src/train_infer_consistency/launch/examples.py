"""Rules' examples: the runs of a few lines, with no file of the disk."""

from __future__ import annotations

from .inputs import Reader
from .run import SLIME, VERL_FULLY_ASYNC, VERL_HYBRID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .run import Run


def example(scenario: str, text: str | dict[str, str], stack: str = "") -> list[Run]:
    """The runs of a rule's example: arguments of the scenario's command, a whole script, or files by name."""
    starts = {
        VERL_HYBRID: "python3 -m verl.trainer.main_ppo ",
        VERL_FULLY_ASYNC: "python3 -m verl.experimental.fully_async_policy.fully_async_main ",
        SLIME: "python3 train.py --hf-checkpoint /models/m ",
    }
    if isinstance(text, str):
        text = {"run.sh": text if "python" in text else starts[scenario or SLIME] + text}
    files = dict(text)
    reader = Reader(files.pop("stack", stack), files)
    for path in files:
        if not path.startswith("/"):  # those are files of the target machine
            reader.path(path)
    runs = reader.finish()
    for run in runs:
        run.listing = lambda folder: _names(files, folder)
    return runs


def _names(files: dict[str, str], folder: str) -> list[str] | None:
    under = folder.rstrip("/") + "/"
    return sorted({path[len(under) :].partition("/")[0] for path in files if path.startswith(under)}) or None
