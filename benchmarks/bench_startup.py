"""Start-up of ``consistency --help`` against a bare interpreter's start, interleaved in one run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

REQUIRED = 6.0
ROUNDS = 15


def _once(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Print both times and their ratio; fail where it is above the promised one."""
    bare = [sys.executable, "-c", "pass"]
    ours = [str(Path(sys.executable).with_name("consistency")), "--help"]
    pairs = [(_once(bare), _once(ours)) for _ in range(ROUNDS)]
    base, verb = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    print(f"bare interpreter {base * 1000:.1f} ms, consistency --help {verb * 1000:.1f} ms")
    print(f"ratio {verb / base:.1f} (promised: at most {REQUIRED:g})")
    if verb / base > REQUIRED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
