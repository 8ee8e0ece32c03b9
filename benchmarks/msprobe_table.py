"""The table of docs/comparison.md: what ``msprobe compare`` and ``consistency compare`` say of identical inputs.

The inputs are the real dumps of tests/data; the planted ones are made here. msprobe is the one of ``.venv-engines``, or
the command in ``MSPROBE``.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from train_infer_consistency.comparing.compare import Options
from train_infer_consistency.comparing.pairs import compare
from train_infer_consistency.pairing.direct import given

ROOT = Path(__file__).resolve().parent.parent
LOOK, SYNC = "lookalike", "loop/hybrid_qwen2_fsdp2"
CASES: list[tuple[str, str, str, str]] = [
    ("FSDP1 and vLLM, statistics", f"{LOOK}/verl_fsdp1_fp32_stat", f"{LOOK}/vllm_fp32_stat", "fsdp"),
    ("FSDP1 and vLLM, md5", f"{LOOK}/verl_fsdp1_fp32_md5", f"{LOOK}/vllm_fp32_md5", "fsdp"),
    ("FSDP1 and vLLM, tensors", f"{LOOK}/tensor_pair/fsdp1", f"{LOOK}/tensor_pair/infer", "fsdp"),
    ("FSDP2 and vLLM, statistics", f"{LOOK}/verl_fsdp2_fp32_stat", f"{LOOK}/vllm_fp32_stat", "fsdp"),
    ("plain HF and vLLM, statistics", f"{LOOK}/hf_train_fwd_bwd_L0_stat", f"{LOOK}/vllm_fp32_stat", "fsdp"),
    ("Megatron and vLLM, statistics", f"{LOOK}/verl_megatron_fp32_stat", f"{LOOK}/vllm_fp32_stat", "megatron"),
    ("slime's list and vLLM", f"{LOOK}/slime_megatron_list_fp32_stat", f"{LOOK}/vllm_fp32_stat", "megatron"),
    ("FSDP1 in bf16 and vLLM in fp32", f"{LOOK}/verl_fsdp1_bf16_stat", f"{LOOK}/vllm_fp32_stat", "fsdp"),
    ("left padding", f"{LOOK}/verl_fsdp1_leftpad5_stat", f"{LOOK}/vllm_fp32_stat", "fsdp"),
    ("two requests packed", f"{LOOK}/verl_fsdp1_fp32_stat", f"{LOOK}/vllm_packed_7p11_stat", "fsdp"),
    ("killed before stop", f"{LOOK}/killed_before_stop", f"{LOOK}/vllm_fp32_stat", "fsdp"),
    ("FSDP2's weight sync rounded", f"{SYNC}/update_actor/step0", f"{SYNC}/generate_sequence/*/step0", "fsdp"),
]  # fmt: skip


def scaled(source: Path, target: Path) -> Path:
    """Every activation of a dump times 1.09."""
    content = json.loads(source.read_text())

    def visit(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                visit(item)
        elif isinstance(value, dict) and str(value.get("dtype")).startswith("torch.float"):
            for name in ("Max", "Min", "Mean", "Norm"):
                value[name] = None if value[name] is None else 1.09 * value[name]
        elif isinstance(value, dict):
            for name, item in value.items():
                if name != "parameters":
                    visit(item)

    visit(content["data"])
    return write(content, source, target)


def reordered(source: Path, target: Path) -> Path:
    """Two entries of a dump in the other order."""
    content = json.loads(source.read_text())
    entries = list(content["data"].items())
    layers = ("layers.0._fsdp_wrapped_module.mlp.down", "layers.1._fsdp_wrapped_module.mlp.down")
    first, second = (next(index for index, (name, _) in enumerate(entries) if part in name) for part in layers)
    entries[first], entries[second] = entries[second], entries[first]
    content["data"] = dict(entries)
    return write(content, source, target)


def write(content: Any, source: Path, target: Path) -> Path:
    shutil.copytree(source.parent, target)
    (target / "dump.json").write_text(json.dumps(content, indent=1))
    return target / "dump.json"


def theirs(msprobe: str, train: Path, infer: Path, options: list[str], out: Path) -> str:
    """What msprobe says: matched rows of all rows, and the words of both."""
    command = [msprobe, "compare", "-tp", str(train), "-gp", str(infer), "-o", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(out.glob("*.csv"))
    if not found:
        last = next(
            (line for line in reversed((done.stdout + done.stderr).splitlines()) if "Error" in line), "no result file"
        )
        return f"{last.strip()[:90]}, rc {done.returncode}"
    with found[-1].open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    matched = [row for row in rows if "N/A" not in (row["NPU Name"], row["Bench Name"])]
    said = [
        ", ".join(f"{count} {word}" for word, count in sorted(Counter(row["Result"] for row in some).items())) or "none"
        for some in (matched, rows)
    ]
    return f"{len(matched)} of {len(rows)} rows matched: {said[0]}; all rows: {said[1]}; rc {done.returncode}"


def ours(train: Path, infer: Path) -> str:
    """What consistency compare says."""
    found = compare(given(infer, train), Options())
    return f"{found.verdict} ({found.status}), coverage {found.coverage:.3f}: {found.reason}"


def main() -> None:
    """Print the table in Markdown."""
    msprobe = os.environ.get("MSPROBE") or str(ROOT / ".venv-engines" / "bin" / "msprobe")
    if shutil.which(msprobe) is None:
        raise SystemExit(f"no {msprobe}: make test-engines makes it, or name one in MSPROBE")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        with tarfile.open(ROOT / "tests" / "data" / "dumps.tar.xz") as archive:
            archive.extractall(base, filter="data")
        inputs = [
            (name, find(base, train), find(base, infer), ["--consistent_check", "--backend", backend])
            for name, train, infer, backend in CASES
        ]
        plain, vllm = find(base, f"{LOOK}/verl_fsdp1_fp32_stat"), find(base, f"{LOOK}/vllm_fp32_stat")
        inputs.append(("every activation times 1.09", scaled(plain, base / "scaled"), plain, []))
        swapped = reordered(plain, base / "reordered")
        inputs.append(("two entries swapped in the file", swapped, vllm, ["--consistent_check", "--backend", "fsdp"]))
        print("| input (training, inference) | `msprobe compare` | `consistency compare` |\n|---|---|---|")
        for number, (name, train, infer, options) in enumerate(inputs):
            out = base / f"out{number}"
            out.mkdir()
            said = ours(train, infer).replace(str(base) + "/dumps/", "")
            print(f"| {name} | {theirs(msprobe, train, infer, options, out)} | {said} |", flush=True)


def find(base: Path, pattern: str) -> Path:
    """The first dump.json below a folder of the data."""
    (folder,) = (base / "dumps").glob(pattern)
    return min(folder.rglob("dump.json"))


if __name__ == "__main__":
    main()
