"""Repacking the vllm-ascend 0.18.0 wheel against ``wheel unpack`` and ``wheel pack``, in one run.

Both start from the upstream's wheel and end with a wheel whose RECORD is right. The rival packs what it unpacked,
without an edit; ours holds the digest of the upstream's wheel, the weaving, the provenance and the SBOM.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.wheels.repack import repack, weave_wheel
from train_infer_consistency.wheels.sources import from_registry
from train_infer_consistency.wheels.stacks import choose_artifact, wheel_version

NAME, VERSION = "vllm-ascend", "0.18.0"
REQUIRED = 10.0
ROUNDS = 3


def _rival(wheel: Path, folder: Path) -> float:
    """Seconds for ``wheel unpack`` and ``wheel pack``."""
    run = [sys.executable, "-m", "wheel"]
    start = time.perf_counter()
    subprocess.run([*run, "unpack", "--dest", str(folder), str(wheel)], check=True, stdout=subprocess.DEVNULL)
    (tree,) = [path for path in folder.iterdir() if path.is_dir()]
    subprocess.run([*run, "pack", "--dest-dir", str(folder), str(tree)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _ours(folder: Path) -> float:
    """Seconds for weaving and repacking, the digest of the upstream's file included."""
    lock, upstream = load_lock(), load_upstreams()[NAME]
    pin = lock.pin(NAME, VERSION)
    start = time.perf_counter()
    source = from_registry(pin, choose_artifact(NAME, pin, "x86_64", "3.11"))
    weave = weave_wheel(upstream, source.wheel, lock)
    repack(source.wheel, weave, wheel_version(pin, lock), folder, artifact=source.record(), vouched=True)
    return time.perf_counter() - start


def main() -> None:
    """Print both times and their ratio; fail where it is below the promised one."""
    pin = load_lock().pin(NAME, VERSION)
    wheel = from_registry(pin, choose_artifact(NAME, pin, "x86_64", "3.11")).wheel  # into the cache, and into memory
    pairs: list[tuple[float, float]] = []
    for _ in range(ROUNDS):  # in turns, so that a busy moment meets both
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            pairs.append((_ours(Path(one)), _rival(wheel, Path(two))))
    mine, theirs = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    print(f"{wheel.name}: repack {mine:.3f} s, wheel unpack and pack {theirs:.3f} s")
    print(f"ratio {theirs / mine:.1f} (promised: at least {REQUIRED:g})")
    if theirs / mine < REQUIRED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
