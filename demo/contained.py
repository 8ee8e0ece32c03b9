"""Run a command and leave none of its processes behind: ``contained.py COMMAND…``, on Linux.

A Ray job starts daemons and workers in sessions of their own, which outlive a driver that was killed. Here every orphan
below this process becomes its child; they are all ended with the command, with SIGTERM or SIGINT to this process, and
with the end of the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

#: Of <linux/prctl.h>.
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
#: How long the command may take to end by itself, in seconds.
GRACE = 10.0


class Stopped(BaseException):
    """A signal asked to stop; ``args[0]`` is its number."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def descendants(root: int) -> list[int]:
    """Return the processes below a process that have not ended, in no order."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # Behind the name, which may hold anything but ends with the last bracket: state, parent.
            state, parent, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = children.get(root, [])
    for process in found:
        found.extend(children.get(process, []))
    return found


def _tracks(process: int) -> bool:
    """Whether it is one of Python's resource trackers, which remove the shared memory of those that were killed."""
    with contextlib.suppress(OSError):
        return b"resource_tracker" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


def end_descendants() -> None:
    """Kill everything below this process, and what it starts meanwhile."""
    patience = time.monotonic() + GRACE
    while found := descendants(os.getpid()):
        for process in found:
            # A tracker ends by itself, once all whose memory it tracks have ended.
            if _tracks(process) and time.monotonic() < patience:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
    # What was left to this process is its to bury: nobody else might.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(command: list[str]) -> int:
    """Run the command and return its status, or 128 and a signal's number."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_SET_CHILD_SUBREAPER, 1), (_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)):
        if libc.prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    job = None
    try:
        job = subprocess.Popen(command, start_new_session=True)
        status = job.wait()
    except Stopped as stopped:
        status = 128 + int(stopped.args[0])
        if job is not None:
            job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired, Stopped):
                job.wait(GRACE)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        end_descendants()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
