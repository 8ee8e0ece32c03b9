"""What capture costs: a switched-off hook against an empty method call, and a log line against its rivals.

The line of a batch of 512 requests is written against a plain ``json.dumps`` of the same record with a flush, and
against the time that msprobe takes to dump that step (48 layers of 13 modules, as a dense model has; msprobe is the one
of ``.venv-engines``, which ``make test-engines`` makes, or that of the interpreter in ``ENGINES_PYTHON``).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from train_infer_consistency.capture.log import JsonLines, identity
from train_infer_consistency.capture.vllm import Requests

ROOT = Path(__file__).resolve().parent.parent
LAID = ROOT / "overlays/vllm/vllm/v1/worker/dispatch_logger.py"
REQUESTS = 512
OFF, LINE, SHARE = 3.0, 1.0, 0.02


def batch() -> Any:
    """A decode step of 512 running requests, with the fields of vLLM's ``SchedulerOutput`` that capture reads."""
    ids = [f"{number:032x}-{number:08x}" for number in range(REQUESTS)]
    cached = SimpleNamespace(
        req_ids=ids,
        resumed_req_ids=set(),
        num_computed_tokens=[100 + number for number in range(REQUESTS)],
        num_output_tokens=[10] * REQUESTS,
    )
    return SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=dict.fromkeys(ids, 1),
        total_num_scheduled_tokens=REQUESTS,
        scheduled_spec_decode_tokens={},
        finished_req_ids=set(),
    )


def best(work: Callable[[], object], number: int = 30, rounds: int = 7) -> float:
    """Seconds of one call, the shortest of several rounds."""
    return min(timeit.repeat(work, number=number, repeat=rounds)) / number


def switched_off() -> float:
    """A decorated method without a session, as a multiple of an empty method's call."""
    spec = importlib.util.spec_from_file_location("dispatch_logger", LAID)
    assert spec is not None
    assert spec.loader is not None
    laid = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(laid)

    class Runner:
        debugger = None

        def empty(self, scheduler_output: object, intermediate_tensors: object = None) -> None:
            pass

        hooked = laid.recorded(empty)

    runner, number = Runner(), 200_000
    plain = best(lambda: runner.empty(None), number)
    hooked = best(lambda: runner.hooked(None), number)
    print(f"switched off: {hooked * 1e9:.0f} ns, an empty method {plain * 1e9:.0f} ns")
    return hooked / plain


def line_times(folder: Path) -> tuple[float, float]:
    """Seconds for one line: ours, and ``json.dumps`` of the same record with a flush."""
    record = {**Requests().describe(batch()), "step": 3, "dump": "step3/rank0", "skipped": None}
    constants = identity("dispatch_logger", "vllm", 0, {"tp_size": 1}, run_id="bench")
    log = JsonLines(folder / "ours.jsonl", constants)
    with (folder / "plain.jsonl").open("w") as file:

        def plain() -> None:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime())
            file.write(json.dumps({**constants, "timestamp": stamp, **record}, ensure_ascii=False) + "\n")
            file.flush()

        pairs = [(best(lambda: log.write(record), rounds=1), best(plain, rounds=1)) for _ in range(9)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def describe_time() -> float:
    """Seconds to learn from the scheduler's message what the line says."""
    requests, message = Requests(), batch()
    return best(lambda: requests.describe(message))


DUMP = """
import json, sys, time, torch
from msprobe.pytorch import PrecisionDebugger
folder = sys.argv[1]
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(12))
    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(48))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
torch.set_num_threads(1)
model, x = Model(), torch.randn(512, 64)
open(folder + "/config.json", "w").write(json.dumps({"task": "statistics", "dump_path": folder + "/dump", "rank": [],
    "step": [], "level": "L0", "async_dump": False, "statistics": {"scope": [], "list": [], "data_mode": ["all"],
    "summary_mode": "statistics"}}))
debugger = PrecisionDebugger(folder + "/config.json")
with torch.no_grad():
    model(x)
    times = []
    for _ in range(4):
        start = time.perf_counter(); model(x); bare = time.perf_counter() - start
        start = time.perf_counter()
        debugger.start(model=model); model(x); debugger.stop(); debugger.step()
        times.append(time.perf_counter() - start - bare)
print("SECONDS", min(times))
"""


def dump_time(folder: Path) -> float:
    """Seconds that msprobe adds to a step."""
    python = os.environ.get("ENGINES_PYTHON") or str(ROOT / ".venv-engines/bin/python")
    if not Path(python).exists():
        raise SystemExit(f"{python} is missing: run 'make test-engines' once, or set ENGINES_PYTHON")
    done = subprocess.run([python, "-c", DUMP, str(folder)], capture_output=True, text=True, check=True)
    return float(done.stdout.rpartition("SECONDS")[2])


def main() -> None:
    """Print the ratios; fail where one is above what is promised."""
    ratio = switched_off()
    print(f"ratio {ratio:.1f} (promised: at most {OFF:g})")
    with tempfile.TemporaryDirectory() as name:
        ours, plain = line_times(Path(name))
        print(f"a line of {REQUESTS} requests: {ours * 1e3:.2f} ms, json.dumps and flush {plain * 1e3:.2f} ms")
        print(f"ratio {ours / plain:.2f} (promised: at most {LINE:g})")
        whole, dump = ours + describe_time(), dump_time(Path(name))
    print(f"the line with what leads to it {whole * 1e3:.2f} ms, msprobe's dump of the step {dump * 1e3:.0f} ms")
    print(f"share {whole / dump:.2%} (promised: at most {SHARE:.0%})")
    if ratio > OFF or ours / plain > LINE or whole / dump > SHARE:
        sys.exit(1)


if __name__ == "__main__":
    main()
