"""Who may write where: one run per dump folder, one process per log folder, one process per rank folder.

All claims are made by creating something exclusively, which is atomic on local and on shared file systems, so
that processes of one run need no other word between them, and a second run cannot write over the first.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_infer_consistency.capture.switches import CaptureError

#: Beside the dumps: which run they belong to (``run.json``), and which process dumps which rank (``rank0``
#: ...).
CLAIMS = ".consistency"
_MEND = "use an empty dump_path, or give all processes of one run the same CONSISTENCY_RUN_ID"

_process_folders: dict[tuple[str, int], Path] = {}


def host_name() -> str:
    """This host's name, with what msprobe would refuse in a path replaced by a hyphen."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "-", socket.gethostname()) or "localhost"


def join_run(root: Path, run_id: str | None) -> None:
    """Claim ``root`` for a run, or join the run that has claimed it.

    A run with an id joins a folder of the same id. A run without one joins only while the process that
    claimed the folder lives, on the same host: nothing else tells its siblings from an earlier run.

    Raises:
        CaptureError: the folder belongs to another run.
    """
    claim = {"run_id": run_id, "host": host_name(), "pid": os.getpid(), "started": _started(os.getpid())}
    marker = root / CLAIMS / "run.json"
    marker.parent.mkdir(parents=True, exist_ok=True)
    if _create(marker, claim):
        return
    other = _read(marker)
    if run_id is not None or other.get("run_id") is not None:
        if other.get("run_id") != run_id:
            raise CaptureError(f"{root} holds run {other.get('run_id')!r}, and this is run {run_id!r}", _MEND)
        return
    if other.get("host") != claim["host"] or other.get("started") != _started(int(other.get("pid", 0))):
        raise CaptureError(f"{root} holds an earlier run, or another host's, and neither has an id", _MEND)


def claim_rank(root: Path, name: str) -> bool:
    """Claim the folder ``name`` (``rank0``) of every step below ``root`` for this process.

    Returns:
        False where another process has it, or where a step has such a folder already: msprobe would write
            over it.
    """
    claims = root / CLAIMS
    claims.mkdir(parents=True, exist_ok=True)
    if any(root.glob(f"step*/{name}")) or any(root.glob(f"step*/{name.replace('rank', 'rank_')}")):
        return False
    return _create(claims / name, {"host": host_name(), "pid": os.getpid()})


def process_folder(root: Path, pid: int) -> Path:
    """This process's own new folder below ``root``: ``<pid>``, or ``<host>-<pid>`` where that is taken.

    Containers and nodes repeat process ids on a shared disk; where even host and pid repeat, a number
    follows. A second call of the same process gives the same folder.
    """
    key = (str(root), os.getpid())
    if key not in _process_folders:
        host = host_name()
        names = itertools.chain([f"{pid}", f"{host}-{pid}"], (f"{host}-{pid}-{n}" for n in itertools.count(2)))
        root.mkdir(parents=True, exist_ok=True)
        _process_folders[key] = next(root / name for name in names if _made(root / name))
    return _process_folders[key]


def _made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _create(path: Path, content: Mapping[str, object]) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, json.dumps(content).encode())
    finally:
        os.close(descriptor)
    return True


def _read(marker: Path) -> dict[str, Any]:
    # Between another process's creation and its write the file is empty for a moment.
    for _ in range(50):
        try:
            content = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            time.sleep(0.02)
        else:
            return dict(content)
    raise CaptureError(f"{marker} cannot be read", _MEND)


def _started(pid: int) -> int | None:
    """When a process of this host began, in clock ticks since boot; None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(fields.rpartition(")")[2].split()[19])
