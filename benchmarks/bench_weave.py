"""Weaving all files of the stack verl-0.8 against LibCST's parsing of the same files, which is only its first step.

Both read the same bytes in one run and one process; the best of several rounds counts, because noise only adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import libcst

from train_infer_consistency.overlay.inspect import weave_upstream
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import MappingTree, Tree, WheelTree
from train_infer_consistency.wheels.registry import fetch_artifact

STACK = "verl-0.8"
REQUIRED = 5.0
ROUNDS = 5


def _best(work: Callable[[], object]) -> float:
    """Return the shortest of several runs, in seconds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print both times and their ratio; fail where it is below the promised one."""
    lock, upstreams = load_lock(), load_upstreams()
    trees: dict[str, Tree] = {}
    sources: list[bytes] = []
    for name, version in lock.stacks[STACK].pins.items():
        pin = lock.pin(name, version)
        artifact = next(item for item in pin.artifacts.values() if "x86_64" in item.file or "any" in item.file)
        assert pin.requirement is not None
        wheel = WheelTree(fetch_artifact(pin.requirement, artifact.file, artifact.sha256))
        files = {file.path: wheel.read(file.path) for file in upstreams[name].files if not file.lays}
        trees[name] = MappingTree(wheel.label, {path: data for path, data in files.items() if data is not None})
        sources += [data for data in files.values() if data is not None]
    ours = _best(lambda: [weave_upstream(upstreams[name], tree, lock) for name, tree in trees.items()])
    theirs = _best(lambda: [libcst.parse_module(source) for source in sources])
    lines = sum(source.count(b"\n") for source in sources)
    print(f"{len(sources)} files, {lines} lines: weave {ours:.3f} s, LibCST parse {theirs:.3f} s")
    print(f"ratio {theirs / ours:.1f} (promised: at least {REQUIRED:g})")
    if theirs / ours < REQUIRED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
