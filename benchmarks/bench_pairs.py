"""Joining the two request logs of a run, one million lines, against pandas (read_json and merge) on the same files.

Both forms are promised: the published procedures' and that of this project's loggers. Every second has 40 forwards.
Pandas does the least that gives the pairs: it reads both files, keeps lone prefills, strips the suffix and merges. Each
works in a process of its own, whose peak memory counts; the best of several rounds counts, because noise only adds.
Seconds are the process's own on the processor: on a free core the same as those on the clock, on a busy one still true.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

REQUESTS, DECODES, FORWARDS = 100_000, 8, 40
SECONDS, MEGABYTES, RATIO = 3.0, 500.0, 3.0
ROUNDS = 3
HEAD = {
    "source": "dispatch_logger",
    "pid": 17600,
    "rank": 0,
    "engine": "vllm-ascend",
    "host": "node-7",
    "replica": "0",
    "parallel": {"world_size": 8, "tp_size": 1, "pp_size": 1, "dp_size": 8, "dp_rank": 0},
    "run_id": "run-1",
    "msprobe": "26.2.0",
    "overlay": "consistency.1",
}


def write_documented(folder: Path) -> None:
    """Write both logs as the published procedures have them: a prefill, eight decodes, a training line a request."""
    names = [f"{random.getrandbits(128):032x}" for _ in range(REQUESTS)]
    head = {"source": "dispatch_logger", "timestamp": "", "pid": 17600, "rank": 0}
    trained = {"source": "update_actor", "timestamp": "", "pid": 17086, "rank": 0}
    ids = [f"{name}-{random.getrandbits(32):08x}" for name in names]
    with _log(folder / "generate" / "17600" / "dispatch_log.jsonl") as write:
        step = 0
        for number, name in enumerate(ids):
            new = [{"request_id": name, "type": "new", "tokens": 95}]
            head["timestamp"] = stamp(step)
            write({**head, "step": step, "phase": "prefill", "total_num_scheduled_tokens": 95, "requests": new})
            cached = [
                {"request_id": one, "type": "cached", "tokens": 1} for one in ids[max(0, number - 1) : number + 1]
            ]
            for more in range(1, DECODES + 1):
                head["timestamp"] = stamp(step + more)
                record = {**head, "step": step + more, "phase": "decode", "total_num_scheduled_tokens": 2}
                write({**record, "requests": cached})
            step += DECODES + 1
    with _log(folder / "train" / "17086" / "update_actor_log.jsonl") as write:
        for number, name in enumerate(random.sample(names, len(names))):
            trained["timestamp"] = stamp(number)
            write({**trained, "step": number, "request_ids": [name], "num_requests": 1})


def write_ours(folder: Path) -> None:
    """Write both logs as this project's loggers do."""
    names = [f"{random.getrandbits(128):032x}" for _ in range(REQUESTS)]
    known = {"prompt_length": 95}
    with _log(folder / "generate" / "17600" / "dispatch_log.jsonl", compact=True) as write:
        for number, name in enumerate(names):
            entry = {"request_id": f"{name}-1a2b3c4d", "type": "new", "tokens": 95, "phase": "prefill"}
            entry = {**entry, "computed_tokens": 0, **known, "prompt_hash": name[:16]}
            end = {"weight_version": 1, "step": number, "dump": f"17600/step{number}/rank0", "skipped": None}
            time = {"timestamp": stamp(number * (DECODES + 1))}
            line = {**HEAD, **time, "phase": "prefill", "total_num_scheduled_tokens": 95}
            write({**line, "requests": [entry], **end})
            for computed in range(95, 95 + DECODES):
                entry = {"request_id": f"{name}-1a2b3c4d", "type": "cached", "tokens": 1, "phase": "decode"}
                entry = {**entry, "computed_tokens": computed, **known}
                line = {**HEAD, **time, "phase": "decode", "total_num_scheduled_tokens": 1}
                end = {"weight_version": 1, "step": None, "dump": None, "skipped": "decode"}
                write({**line, "requests": [entry], **end})
    head = {**HEAD, "source": "update_actor", "pid": 17086, "engine": "verl-fsdp", "parallel": {"world_size": 8}}
    with _log(folder / "train" / "17086" / "update_actor_log.jsonl", compact=True) as write:
        for number, name in enumerate(random.sample(names, len(names))):
            sample = {"request_id": name, **known, "response_length": 0, "prompt_hash": name[:16]}
            sample["rollout_weight_versions"] = [0, 0]
            line = {**head, "timestamp": stamp(number), "request_ids": [name], "num_requests": 1, "requests": [sample]}
            end = {"weight_version": 0, "phase": "log_prob", "step": number, "dump": f"step{number}/rank0"}
            write({**line, **end, "skipped": None})


def stamp(forward: int) -> str:
    """When a forward was logged, to the second as the loggers write it."""
    start = datetime(2026, 11, 29, 21, 49, 18)  # noqa: DTZ001 - the logs have the local time
    return (start + timedelta(seconds=forward // FORWARDS)).isoformat()


class _log:  # noqa: N801 - used as a function
    def __init__(self, path: Path, compact: bool = False) -> None:
        path.parent.mkdir(parents=True)
        self._file = path.open("w", encoding="utf-8")
        self._encode = json.JSONEncoder(separators=(",", ":") if compact else None).encode

    def __enter__(self) -> Callable[[object], object]:
        return lambda record: self._file.write(self._encode(record) + "\n")

    def __exit__(self, *_: object) -> None:
        self._file.close()


def ours(folder: Path) -> int:
    """Join the logs; every request is found on both sides, and none has a dump here."""
    from train_infer_consistency.dumps.tree import scan
    from train_infer_consistency.pairing.join import pair
    from train_infer_consistency.pairing.model import Reason

    return pair(scan(folder / "generate"), scan(folder / "train")).counts("training")[Reason.NO_DUMP]


def theirs(folder: Path) -> int:
    """Join the logs with pandas."""
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]

    (dispatch,), (update,) = folder.glob("generate/*/*.jsonl"), folder.glob("train/*/*.jsonl")
    infer, train = pd.read_json(dispatch, lines=True), pd.read_json(update, lines=True)
    lone = infer[(infer["phase"] == "prefill") & (infer["requests"].str.len() == 1)]
    raw = lone["requests"].str[0].str.get("request_id")
    lone = lone.assign(request_id=raw.str.replace(r"-[0-9a-f]{8}$", "", regex=True))
    train = train[train["num_requests"] == 1].assign(request_id=lambda rows: rows["request_ids"].str[0])
    return len(lone.merge(train, on="request_id", suffixes=("_infer", "_train")))


def measure(name: str, folder: Path) -> tuple[float, float, float]:
    """Return of several processes the shortest times by processor and by clock, in seconds, and the peak in MB."""
    times, clocks, peaks = [], [], []
    for _ in range(ROUNDS):
        command = [sys.executable, __file__, name, str(folder)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert found["pairs"] == REQUESTS, found
        times.append(found["seconds"])
        clocks.append(found["clock"])
        peaks.append(found["megabytes"])
    return min(times), min(clocks), max(peaks)


def child(name: str, folder: Path) -> None:
    """Do one join, and print what it took. Imports are in the time: a user waits for them too."""
    start, clock = time.process_time(), time.perf_counter()
    pairs = {"ours": ours, "theirs": theirs}[name](folder)
    seconds, clock = time.process_time() - start, time.perf_counter() - clock
    print(json.dumps({"pairs": pairs, "seconds": seconds, "clock": clock, "megabytes": _peak()}))


def _peak() -> float:
    """The highest memory of this process, in MB; getrusage would count its parent's too, up to the exec."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Print times, peaks and the ratio; fail where one is not what is promised."""
    random.seed(1)
    print(f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}; seconds of processor count")
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        for name, write in (("documented", write_documented), ("our loggers'", write_ours)):
            folder = Path(temporary) / name.split()[0]
            write(folder)
            seconds, clock, megabytes = measure("ours", folder)
            print(f"{REQUESTS * (DECODES + 2):,} lines, {name} form: {seconds:.2f} s", end="")
            print(f" ({clock:.2f} by the clock), {megabytes:.0f} MB", end="")
            print(f" (promised: at most {SECONDS:g} s, {MEGABYTES:g} MB)")
            good = good and seconds <= SECONDS and megabytes <= MEGABYTES
            if name == "documented":
                other, clock, memory = measure("theirs", folder)
                print(f"pandas: {other:.2f} s ({clock:.2f} by the clock), {memory:.0f} MB; ", end="")
                print(f"ratio {other / seconds:.1f} in time", end="")
                print(f" (promised: at least {RATIO:g}), {memory / megabytes:.1f} in memory")
                good = good and other / seconds >= RATIO
    if not good:
        raise SystemExit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
