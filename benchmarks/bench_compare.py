"""``consistency compare`` against ``msprobe compare`` on the same dumps in one run: time and memory, as ratios.

The dumps are made here in msprobe's format: 48 dense layers as vLLM and as FSDP1 name them; a mixture of experts of
31,000 modules; and a run of many dense pairs with its logs, compared by one process and by two. msprobe is the one of
``.venv-engines`` (``make test-engines`` makes it), or the command in ``MSPROBE``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from train_infer_consistency.comparing.compare import Options, compare_shards
from train_infer_consistency.comparing.rows import Shard
from train_infer_consistency.dumps.reader import read_rank

ROOT = Path(__file__).resolve().parent.parent
HIDDEN, KV, INNER, TOKENS, VOCABULARY = 64, 32, 128, 11, 256
LAYERS, EXPERTS = 48, 128
PAIRS, PARALLEL = 96, 1.3
Entry = tuple[str, list[Any], list[Any], dict[str, Any]]


class Writer:
    """Numbers that are the same for the same row on both sides, but for a rounding of 1e-7."""

    def __init__(self, side: int, batch: bool) -> None:
        self.side, self.batch = side, batch

    def leaf(self, row: str, *shape: int, parameter: bool = False) -> dict[str, Any]:
        numbers = random.Random(row)
        factor = 1.0 if parameter else 1.0 + self.side * 1e-7 * numbers.random()
        full = [*shape] if parameter or not self.batch else [1, *shape]
        norm = numbers.uniform(1, 30) * factor
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": full, "Max": norm / 3, "Min": -norm / 4}
        return {**leaf, "Mean": norm / 1000, "Norm": norm, "requires_grad": parameter}

    def ids(self, top: int) -> dict[str, Any]:
        shape = [1, TOKENS] if self.batch else [TOKENS]
        return {
            "type": "torch.Tensor", "dtype": "torch.int64", "shape": shape, "Max": top, "Min": 0, "Mean": None,
            "Norm": None, "requires_grad": False,
        }  # fmt: skip

    def linear(self, name: str, cls: str, row: str, into: tuple[str, int], out: int, tokens: int = TOKENS) -> Entry:
        inputs = [self.leaf(into[0], tokens, into[1])]
        weight = self.leaf(f"{row}.weight", out, into[1], parameter=True)
        return f"{name}.{cls}", inputs, [self.leaf(row, tokens, out)], {"weight": weight}

    def same(self, name: str, cls: str, into: list[tuple[str, int]], rows: list[tuple[str, int]]) -> Entry:
        return (
            f"{name}.{cls}",
            [self.leaf(r, TOKENS, w) for r, w in into],
            [self.leaf(r, TOKENS, w) for r, w in rows],
            {},
        )


def training(experts: int, layers: int, side: int = 1) -> Iterator[Entry]:
    """HF's modules under FSDP1 (dense) or plain (experts)."""
    w, wrap = Writer(side, True), "" if experts else "_fsdp_wrapped_module."
    yield (
        f"{wrap}model.embed_tokens.Embedding",
        [w.ids(250)],
        [w.leaf("x0", TOKENS, HIDDEN)],
        {"weight": w.leaf("embed.weight", VOCABULARY, HIDDEN, parameter=True)},
    )
    for i in range(layers):
        base, row = f"{wrap}model.layers.{i}.{wrap}", f"L{i}."
        weight = {"weight": w.leaf(f"{row}n1.weight", HIDDEN, parameter=True)}
        yield (
            f"{base}input_layernorm.RMSNorm",
            [w.leaf(f"x{i}", TOKENS, HIDDEN)],
            [w.leaf(f"{row}n1", TOKENS, HIDDEN)],
            weight,
        )
        for name, width in (("q", HIDDEN), ("k", KV), ("v", KV)):
            yield w.linear(f"{base}self_attn.{name}_proj", "Linear", f"{row}{name}", (f"{row}n1", HIDDEN), width)
        yield w.linear(f"{base}self_attn.o_proj", "Linear", f"{row}o", (f"{row}a", HIDDEN), HIDDEN)
        yield w.same(f"{base}self_attn", "Qwen2Attention", [(f"{row}n1", HIDDEN)], [(f"{row}o", HIDDEN)])
        weight = {"weight": w.leaf(f"{row}n2.weight", HIDDEN, parameter=True)}
        yield (
            f"{base}post_attention_layernorm.RMSNorm",
            [w.leaf(f"{row}r", TOKENS, HIDDEN)],
            [w.leaf(f"{row}n2", TOKENS, HIDDEN)],
            weight,
        )
        yield from mlp(w, f"{base}mlp", row, experts)
        yield w.same(f"{base}mlp", "Qwen2MLP", [(f"{row}n2", HIDDEN)], [(f"{row}m", HIDDEN)])
        yield w.same(base[:-1], "Qwen2DecoderLayer", [(f"x{i}", HIDDEN)], [(f"x{i + 1}", HIDDEN)])
    yield f"{wrap}model.norm.RMSNorm", [w.leaf(f"x{layers}", TOKENS, HIDDEN)], [w.leaf("final", TOKENS, HIDDEN)], {}


def mlp(w: Writer, base: str, row: str, experts: int) -> Iterator[Entry]:
    """A dense block, or every expert apart."""
    for name in [f".experts.{e}" for e in range(experts)] or [""]:
        for part in ("gate", "up"):
            yield w.linear(f"{base}{name}.{part}_proj", "Linear", f"{row}{name}{part}", (f"{row}n2", HIDDEN), INNER)
        yield w.same(f"{base}{name}.act_fn", "SiLU", [(f"{row}{name}gate", INNER)], [(f"{row}{name}act", INNER)])
        yield w.linear(f"{base}{name}.down_proj", "Linear", f"{row}{name}m", (f"{row}{name}p", INNER), HIDDEN)
        if experts:
            yield w.same(f"{base}{name}", "Qwen3MoeMLP", [(f"{row}n2", HIDDEN)], [(f"{row}{name}m", HIDDEN)])


def inference(layers: int) -> Iterator[Entry]:
    """vLLM's modules: fused products, norms that take and return the residual."""
    w = Writer(0, False)
    yield (
        "model.embed_tokens.VocabParallelEmbedding",
        [w.ids(250)],
        [w.leaf("x0", TOKENS, HIDDEN)],
        {"weight": w.leaf("embed.weight", VOCABULARY, HIDDEN, parameter=True)},
    )
    for i in range(layers):
        base, row = f"model.layers.{i}.", f"L{i}."
        before = [(f"x{i}", HIDDEN)] if not i else [(f"L{i - 1}.m", HIDDEN), (f"L{i - 1}.r", HIDDEN)]
        name, ins, outs, _ = w.same(
            f"{base}input_layernorm", "RMSNorm", before, [(f"{row}n1", HIDDEN), (f"x{i}", HIDDEN)][: len(before)]
        )
        yield name, ins, outs, {"weight": w.leaf(f"{row}n1.weight", HIDDEN, parameter=True)}
        yield fused(
            w,
            f"{base}self_attn.qkv_proj",
            "QKVParallelLinear",
            f"{row}n1",
            [(f"{row}q", HIDDEN), (f"{row}k", KV), (f"{row}v", KV)],
        )
        qkv = [(f"{row}q", HIDDEN), (f"{row}k", KV), (f"{row}v", KV)]
        yield w.same(f"{base}self_attn.attn", "Attention", qkv, [(f"{row}a", HIDDEN)])
        yield w.linear(f"{base}self_attn.o_proj", "RowParallelLinear", f"{row}o", (f"{row}a", HIDDEN), HIDDEN)
        yield w.same(f"{base}self_attn", "Qwen2Attention", [(f"{row}n1", HIDDEN)], [(f"{row}o", HIDDEN)])
        name, ins, outs, _ = w.same(
            f"{base}post_attention_layernorm",
            "RMSNorm",
            [(f"{row}o", HIDDEN), (f"x{i}", HIDDEN)],
            [(f"{row}n2", HIDDEN), (f"{row}r", HIDDEN)],
        )
        yield name, ins, outs, {"weight": w.leaf(f"{row}n2.weight", HIDDEN, parameter=True)}
        yield fused(
            w,
            f"{base}mlp.gate_up_proj",
            "MergedColumnParallelLinear",
            f"{row}n2",
            [(f"{row}gate", INNER), (f"{row}up", INNER)],
        )
        yield w.same(f"{base}mlp.act_fn", "SiluAndMul", [(f"{row}gu", 2 * INNER)], [(f"{row}p", INNER)])
        yield w.linear(f"{base}mlp.down_proj", "RowParallelLinear", f"{row}m", (f"{row}p", INNER), HIDDEN)
        yield w.same(f"{base}mlp", "Qwen2MLP", [(f"{row}n2", HIDDEN)], [(f"{row}m", HIDDEN)])
        yield w.same(base[:-1], "Qwen2DecoderLayer", [(f"x{i}", HIDDEN)], [(f"{row}m", HIDDEN), (f"{row}r", HIDDEN)])
    yield w.same(
        "model.norm",
        "RMSNorm",
        [(f"L{layers - 1}.m", HIDDEN), (f"L{layers - 1}.r", HIDDEN)],
        [("final", HIDDEN), (f"x{layers}", HIDDEN)],
    )


def fused(w: Writer, name: str, cls: str, into: str, parts: list[tuple[str, int]]) -> Entry:
    """A fused product with the exact statistics of its parts."""
    outs = [w.leaf(row, TOKENS, width) for row, width in parts]
    weights = [w.leaf(f"{row}.weight", width, HIDDEN, parameter=True) for row, width in parts]
    total = sum(width for _, width in parts)
    out = merged(outs, [TOKENS, total], [width for _, width in parts])
    weight = merged(weights, [total, HIDDEN], [width for _, width in parts])
    return f"{name}.{cls}", [w.leaf(into, TOKENS, HIDDEN)], [out], {"weight": weight}


def merged(leaves: list[dict[str, Any]], shape: list[int], widths: list[int]) -> dict[str, Any]:
    mean = sum(leaf["Mean"] * width for leaf, width in zip(leaves, widths, strict=True)) / sum(widths)
    norm = sum(leaf["Norm"] ** 2 for leaf in leaves) ** 0.5
    extremes = {"Max": max(leaf["Max"] for leaf in leaves), "Min": min(leaf["Min"] for leaf in leaves)}
    return {**leaves[0], "shape": shape, **extremes, "Mean": mean, "Norm": norm}


def write(folder: Path, entries: Iterator[Entry]) -> Path:
    """A rank folder as msprobe writes it; returns its dump.json."""
    folder.mkdir(parents=True)
    data: dict[str, Any] = {}
    construct: dict[str, None] = {}
    for name, inputs, outputs, parameters in entries:
        data[f"Module.{name}.forward.0"] = {
            "input_args": inputs, "input_kwargs": {}, "output": outputs, "parameters": parameters,
        }  # fmt: skip
        construct[f"Module.{name}.forward.0"] = None
    head = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (folder / "dump.json").write_text(json.dumps(head, indent=1))
    (folder / "construct.json").write_text(json.dumps(construct, indent=1))
    (folder / "stack.json").write_text("{}")
    return folder / "dump.json"


def many(run: Path, dense: Path) -> None:
    """A run whose every step has the dense dumps, with logs as documented."""
    infer, train = run / "generate" / "17", run / "train"
    logs = (
        (infer / "dispatch_log.jsonl", 17, infer, "infer"),
        (train / "99" / "update_actor_log.jsonl", 99, train, "train"),
    )
    for log, pid, folder, side in logs:
        log.parent.mkdir(parents=True)
        lines = []
        for step in range(PAIRS):
            (folder / f"step{step}").mkdir()
            shutil.copytree(dense / side, folder / f"step{step}" / "rank0")
            line: dict[str, Any] = {"timestamp": "2026-11-29T21:49:18", "pid": pid, "rank": 0, "step": step}
            if side == "infer":
                new = {"request_id": f"{step:032x}-1a2b3c4d", "type": "new", "tokens": TOKENS}
                line.update(phase="prefill", total_num_scheduled_tokens=TOKENS, requests=[new])
            else:
                line.update(request_ids=[f"{step:032x}"], num_requests=1)
            lines.append(json.dumps(line) + "\n")
        log.write_text("".join(lines))


class Cost(NamedTuple):
    """What one run of a command took.

    Attributes:
        wall: seconds by the clock: what a person waits, and on a busy machine what others take as well.
        cpu: seconds on a processor.
        memory: the peak resident set, in MB.
    """

    wall: float
    cpu: float
    memory: float


def measure(command: list[str], folder: Path, accepted: set[int]) -> Cost:
    """Run a command once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package, msprobe's or ours, has its bytecode
    start = time.perf_counter()
    with (folder / "output.txt").open("w") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if child.returncode not in accepted:
        raise SystemExit(
            f"{' '.join(command[:3])} ended with {child.returncode}: {(folder / 'output.txt').read_text()[-2000:]}"
        )
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def rival() -> str:
    """The msprobe command."""
    given = os.environ.get("MSPROBE") or str(ROOT / ".venv-engines" / "bin" / "msprobe")
    if shutil.which(given) is None:
        raise SystemExit(f"no {given}: make test-engines makes it, or name one in MSPROBE")
    return given


def contest(name: str, infer: Path, train: Path, options: list[str], least: tuple[float, float], rounds: int) -> bool:
    """Print the ratios of one pair; whether they are what was promised."""
    work = infer.parent.parent
    ours_command = [sys.executable, "-m", "train_infer_consistency.cli.main", "compare", str(infer), str(train)]
    theirs_command = [rival(), "compare", "-tp", str(train), "-gp", str(infer), "-o", str(work / "out"), *options]
    ours, theirs = [], []
    for number in range(rounds):  # by turns: both meet the machine as it is
        ours.append(measure(ours_command, work, {0}))
        if number < 2:
            theirs.append(measure(theirs_command, work, {0}))
    print(f"{name}: msprobe compare {words(theirs)}; consistency compare {words(ours)}")
    wall, cpu = (min(cost[index] for cost in theirs) / min(cost[index] for cost in ours) for index in (0, 1))
    memory = min(cost.memory for cost in theirs) / max(cost.memory for cost in ours)
    print(
        f"  time ratio {wall:.1f} by the clock, {cpu:.1f} by the processor (promised: at least {least[0]:g}), "
        f"memory 1/{memory:.1f} (at most 1/{least[1]:g})"
    )
    # What others take on a busy machine is no time of either: the processor's counts.
    return cpu >= least[0] and memory >= least[1]


def beside(run: Path, rounds: int = 3) -> bool:
    """Print how much faster two processes compare a run's pairs than one does; whether that is what was promised."""
    command = [sys.executable, "-m", "train_infer_consistency.cli.main", "compare", str(run / "generate")]
    one: list[Cost] = []
    two: list[Cost] = []
    for _ in range(rounds):
        for costs, workers in ((one, "1"), (two, "2")):
            costs.append(measure([*command, str(run / "train"), "--workers", workers], run, {0}))
    ratio: float = min(cost.wall for cost in one) / min(cost.wall for cost in two)
    print(f"{PAIRS} pairs of 48 dense layers: one process {words(one)}; two {words(two)} in the larger one")
    print(f"  time ratio {ratio:.2f} by the clock (promised: at least {PARALLEL:g} on two processors that are free)")
    return ratio >= PARALLEL


def words(costs: list[Cost]) -> str:
    """The least time and the most memory of several runs."""
    wall, cpu = (min(cost[index] for cost in costs) for index in (0, 1))
    return f"{wall:.2f} s ({cpu:.2f} s of processor), {max(cost.memory for cost in costs):.0f} MB"


def make(base: Path) -> None:
    """Write all dumps."""
    write(base / "dense" / "infer", inference(LAYERS))
    write(base / "dense" / "train", training(0, LAYERS))
    many(base / "run", base / "dense")
    write(base / "moe" / "infer", training(EXPERTS, LAYERS, 0))
    write(base / "moe" / "train", training(EXPERTS, LAYERS))


def main() -> None:
    """Print all ratios; fail where one is below what was promised."""
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, load average {load:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        # In a process of its own: a child's peak memory counts what its parent had when it was started.
        subprocess.run([sys.executable, __file__, "--make", folder], check=True)
        infer, train = (base / "dense" / side / "dump.json" for side in ("infer", "train"))
        good = contest("48 dense layers", infer, train, ["--consistent_check", "--backend", "fsdp"], (25, 5), 5)
        again = []
        for _ in range(8):
            start = time.perf_counter()
            result = compare_shards([Shard(0, 0, read_rank(infer))], [Shard(0, 0, read_rank(train))], Options())
            again.append(time.perf_counter() - start)
            assert result.verdict == "consistent", result.reason
        print(f"  a further pair in one process: {min(again[1:]):.3f} s (promised: at most 0.05)")
        good = good and min(again[1:]) <= 0.05
        # The second processor has to be free for that.
        good = (beside(base / "run") or load >= 1) and good
        infer, train = (base / "moe" / side / "dump.json" for side in ("infer", "train"))
        good = contest("mixture of experts, 31,000 modules", infer, train, [], (15, 3), 3) and good
    if not good:
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(Path(sys.argv[2]))
    else:
        main()
