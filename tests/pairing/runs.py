"""A run's two trees, built line by line: documented logs, our own, and dumps of a given number of tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from train_infer_consistency.dumps.tree import scan
from train_infer_consistency.pairing.join import pair
from train_infer_consistency.pairing.mapping import RankMap
from train_infer_consistency.pairing.model import Pairing, SideName

STAMP = "2026-05-13T10:00:00"
A, B, C = "0c9d1e52a7b84f0c9a3be6d2f1407a55", "f1f254c04e0c443b85ea1e7359e842dc", "det-4-deadbeef"


def dump(folder: Path, tokens: int = 11, first: int = 0, *, embedding: bool = True) -> Path:
    """Write a dump of a forward of ``tokens`` tokens from position ``first`` on."""

    def leaf(shape: list[int], low: int, high: int) -> dict[str, Any]:
        return {"type": "torch.Tensor", "dtype": "torch.int64", "shape": shape, "Max": high, "Min": low}

    def entry(*inputs: dict[str, Any]) -> dict[str, Any]:
        return {"input_args": list(inputs), "input_kwargs": {}, "output": [], "parameters": {}}

    data = {}
    if embedding:
        data["Module.model.embed_tokens.VocabParallelEmbedding.forward.0"] = entry(leaf([tokens], 1, 99))
        positions = leaf([tokens], first, first + tokens - 1)
        data["Module.model.layers.0.Qwen2DecoderLayer.forward.0"] = entry(positions)
    else:
        data["Module.model.layers.0.TransformerLayer.forward.0"] = entry()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dump.json").write_text(json.dumps({"task": "statistics", "level": "L0", "data": data}, indent=1))
    return folder


class Side:
    """One side's folder."""

    def __init__(self, root: Path, source: str, log: str) -> None:
        self.root, self._source, self._log = root, source, log
        root.mkdir(parents=True, exist_ok=True)

    def line(self, *, pid: int = 17, folder: str | None = None, **fields: Any) -> None:
        """Append a line to a process's log."""
        path = self.root / (folder or str(pid)) / self._log
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"source": self._source, "timestamp": STAMP, "pid": pid, "rank": 0, **fields}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


class Run:
    """Both sides."""

    def __init__(self, root: Path) -> None:
        self.inference = Side(root / "generate", "dispatch_logger", "dispatch_log.jsonl")
        self.training = Side(root / "train", "update_actor", "update_actor_log.jsonl")

    def prefill(
        self,
        request_id: str | None,
        tokens: int = 11,
        *,
        step: int = 0,
        pid: int = 17,
        dumped: int | None = -1,
        **more: Any,
    ) -> None:
        """Log a new request alone, in the documented form, and dump it where the documents say.

        ``dumped``: how many tokens the dump has; -1 as many as logged, None no dump.
        """
        first = more.pop("first", 0)
        entries = [{"request_id": request_id, "type": "new", "tokens": tokens}]
        self.forward(entries, step=step, pid=pid, **more)
        if dumped is not None:
            rank = more.get("rank", 0)
            dump(
                self.inference.root / str(pid) / f"step{step}" / f"rank{rank}", tokens if dumped < 0 else dumped, first
            )

    def forward(self, entries: list[dict[str, Any]], *, step: int | None, pid: int = 17, **more: Any) -> None:
        """Log an inference forward."""
        total = sum(entry.get("tokens") or 0 for entry in entries)
        fields = {"step": step, "phase": "prefill", "total_num_scheduled_tokens": total, "requests": entries, **more}
        self.inference.line(pid=pid, **fields)

    def train(self, *ids: str | None, step: int = 0, rank: int = 0, dumped: int | None = 11, **more: Any) -> None:
        """Log a micro-batch, in the documented form unless ``more`` has our fields, and dump it."""
        pid = more.pop("pid", 99 + rank)
        fields = {"step": step, "rank": rank, "request_ids": list(ids), "num_requests": len(ids), **more}
        self.training.line(pid=pid, **fields)
        if dumped is not None:
            dump(self.training.root / f"step{step}" / f"rank{rank}", dumped)

    def pair(self, *, mapping: Iterable[str] = (), sliced: str | None = None) -> Pairing:
        """Pair them."""
        words = list(mapping)
        rank_map = RankMap.parse(words) if words else None
        return pair(scan(self.inference.root), scan(self.training.root), mapping=rank_map, sliced=sliced)


def ours(request_id: str | None, tokens: int, **fields: Any) -> dict[str, Any]:
    """A request as our own loggers write it: a new one whose whole prompt is computed, unless ``fields`` say else."""
    made = {"request_id": request_id, "type": "new", "tokens": tokens, "phase": "prefill", "computed_tokens": 0}
    return {**made, "prompt_length": tokens, "prompt_hash": f"hash-of-{tokens}", **fields}


def reasons(pairing: Pairing, side: SideName) -> list[tuple[int | None, str, str]]:
    """(step, reason, detail) of every step of a side, by step."""
    found = [(verdict.step, verdict.reason.value, verdict.detail) for verdict in pairing.steps(side)]
    return sorted(found, key=lambda item: (-1 if item[0] is None else item[0], item[1]))


def copy_into(source: Path, target: Path) -> Path:
    """Copy a tree."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    return target
