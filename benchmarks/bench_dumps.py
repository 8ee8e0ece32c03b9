"""Reading a mixture-of-experts dump of 31,000 modules (28 MB) against json.load of the same file, in time and memory.

json.load gives dictionaries that nothing is checked in yet; the reader gives typed records. Each works in a process of
its own, whose peak memory counts; the best of several rounds counts, because noise only adds.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LAYERS, EXPERTS = 48, 128
# msprobe's own comparer needs 763 MB for such a pair; a third of that is promised for the whole comparison.
MEGABYTES, MEMORY_RATIO, TIME_RATIO = 254.0, 1.5, 0.7
ROUNDS = 5


def write(path: Path) -> int:
    """Write the dump, and return how many modules it has."""
    data: dict[str, Any] = {}

    def module(name: str, kind: str, inner: list[int], outer: list[int], weight: list[int] | None = None) -> None:
        entry = {"input_args": [_leaf(inner)], "input_kwargs": {}, "output": [_leaf(outer)]}
        data[f"Module.{name}.{kind}.forward.0"] = {**entry, "parameters": {"weight": _leaf(weight)} if weight else {}}

    hidden, tokens = 2048, 11
    for layer in range(LAYERS):
        place = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            module(f"{place}.{name}", "Qwen3MoeRMSNorm", [1, tokens, hidden], [1, tokens, hidden], [hidden])
        for name in "qkvo":
            module(f"{place}.self_attn.{name}_proj", "Linear", [1, tokens, hidden], [1, tokens, 4096], [4096, hidden])
        for expert in range(EXPERTS):
            inner = f"{place}.mlp.experts.{expert}"
            for name in ("gate_proj", "up_proj", "down_proj"):
                module(f"{inner}.{name}", "Linear", [3, hidden], [3, 768], [768, hidden])
            module(f"{inner}.act_fn", "SiLU", [3, 768], [3, 768])
            module(inner, "Qwen3MoeMLP", [3, hidden], [3, hidden])
        module(place, "Qwen3MoeDecoderLayer", [1, tokens, hidden], [1, tokens, hidden])
    head = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None}
    path.write_text(json.dumps({**head, "data": data}, indent=1))
    return len(data)


def _leaf(shape: list[int]) -> dict[str, Any]:
    stats = {name: random.gauss(0, 1) for name in ("Max", "Min", "Mean", "Norm")}
    return {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": shape, **stats, "requires_grad": False}


def child(name: str, path: Path) -> None:
    """Read once, and print what it took."""
    if name == "ours":
        from train_infer_consistency.dumps.reader import read_rank

        start = time.process_time()
        count = len(read_rank(path).calls)
    else:
        start = time.process_time()
        with path.open() as file:
            count = len(json.load(file)["data"])
    seconds = time.process_time() - start
    print(json.dumps({"modules": count, "seconds": seconds, "megabytes": _peak()}))


def _peak() -> float:
    """The highest memory of this process, in MB; getrusage would count its parent's too, up to the exec."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(name: str, path: Path, modules: int) -> tuple[float, float]:
    """Return the shortest time in seconds and the highest peak in MB of several processes."""
    times, peaks = [], []
    for _ in range(ROUNDS):
        command = [sys.executable, __file__, name, str(path)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert found["modules"] == modules, found
        times.append(found["seconds"])
        peaks.append(found["megabytes"])
    return min(times), max(peaks)


def main() -> None:
    """Print times, peaks and ratios; fail where one is not what is promised."""
    random.seed(1)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "dump.json"
        modules = write(path)
        size = path.stat().st_size / 1e6
        seconds, megabytes = measure("ours", path, modules)
        other, memory = measure("json.load", path, modules)
    print(f"{modules:,} modules, {size:.0f} MB: {seconds:.2f} s, {megabytes:.0f} MB", end="")
    print(f" (promised: at most {MEGABYTES:g} MB); json.load {other:.2f} s, {memory:.0f} MB")
    print(f"ratio {other / seconds:.2f} in time (promised: at least {TIME_RATIO:g})", end="")
    print(f", {memory / megabytes:.1f} in memory (promised: at least {MEMORY_RATIO:g})")
    if megabytes > MEGABYTES or other / seconds < TIME_RATIO or memory / megabytes < MEMORY_RATIO:
        raise SystemExit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
