"""Help for the tests of comparing: real dumps, changed dumps, and dumps made of arrays in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from train_infer_consistency.comparing.compare import Options
from train_infer_consistency.comparing.pairs import compare
from train_infer_consistency.comparing.record import Comparison
from train_infer_consistency.dumps.records import Call, Leaf, RankDump
from train_infer_consistency.dumps.tensors import TensorData
from train_infer_consistency.dumps.tree import scan
from train_infer_consistency.pairing.direct import given
from train_infer_consistency.pairing.join import pair

Data = dict[str, Any]


def direct(inference: Path, training: Path, **options: Any) -> Comparison:
    """Compare two dumps, ranks or steps."""
    return compare(given(inference, training), Options(**options))


def trees(inference: Path, training: Path, **options: Any) -> Comparison:
    """Compare two trees with their logs."""
    return compare(pair(scan(inference), scan(training)), Options(**options))


def step0(folder: Path) -> Path:
    """The one step0 below a folder."""
    (found,) = folder.rglob("step0")
    return found


def dump_of(folder: Path) -> Path:
    """The one dump.json below a folder."""
    (found,) = folder.rglob("dump.json")
    return found


def changed(source: Path, target: Path, change: Callable[[Data], None]) -> Path:
    """Copy a dump.json with a change to its ``data``."""
    content = json.loads(source.read_text())
    change(content["data"])
    target.mkdir(parents=True, exist_ok=True)
    (target / "dump.json").write_text(json.dumps(content, indent=1))
    return target / "dump.json"


def leaves(entry: Any) -> Iterator[Data]:
    """Every tensor leaf below an entry."""
    if isinstance(entry, dict):
        if "dtype" in entry:
            yield entry
        else:
            for value in entry.values():
                yield from leaves(value)
    elif isinstance(entry, list):
        for value in entry:
            yield from leaves(value)


def scale(leaf: Data, factor: float) -> None:
    """Scale a leaf's statistics."""
    for name in ("Max", "Min", "Mean", "Norm"):
        if leaf[name] is not None:
            leaf[name] *= factor


def find(data: Data, part: str, kind: str = "forward") -> Data:
    """The one entry whose name contains ``part``."""
    (found,) = [entry for name, entry in data.items() if part in name and f".{kind}." in name]
    assert isinstance(found, dict)
    return found


def leaf_of(array: Any, dtype: str = "torch.float32", file: str | None = None) -> Leaf:
    """The leaf that msprobe would write of an array, with exact statistics."""
    values = np.asarray(array, dtype=np.float64)
    if dtype.startswith("torch.int"):
        return Leaf(dtype, tuple(values.shape), float(values.max()), float(values.min()), None, None, None, file)
    mean, norm = float(values.mean()), float(np.linalg.norm(values))
    return Leaf(dtype, tuple(values.shape), float(values.max()), float(values.min()), mean, norm, None, file)


@dataclass(frozen=True)
class ArrayDump(RankDump):
    """A rank's dump whose elements are in memory."""

    arrays: dict[str, Any] = field(default_factory=dict)

    def tensor(self, leaf: Leaf) -> TensorData:
        assert leaf.file is not None
        return TensorData(leaf.dtype, self.arrays[leaf.file])


class Builder:
    """Builds a rank's dump from arrays, call by call; ``elements`` says whether they are kept."""

    def __init__(self, rank: int, elements: bool) -> None:
        self.rank, self.elements = rank, elements
        self.calls: list[Call] = []
        self.arrays: dict[str, Any] = {}

    def leaf(self, array: Any) -> Leaf:
        name = f"{len(self.arrays)}.pt" if self.elements else None
        if name is not None:
            self.arrays[name] = np.asarray(array)
        integer = np.issubdtype(np.asarray(array).dtype, np.integer)
        return leaf_of(array, "torch.int64" if integer else "torch.float32", name)

    def add(self, path: str, cls: str, inputs: list[Any], outputs: list[Any], **parameters: Any) -> None:
        made = {name: self.leaf(array) for name, array in parameters.items()}
        ins = tuple(None if array is None else self.leaf(array) for array in inputs)
        outs = tuple(map(self.leaf, outputs))
        name = f"Module.{path}.{cls}.forward.0"
        self.calls.append(Call(name, path, None, cls, 0, "forward", "Module", ins, {}, outs, made, len(self.calls)))

    def dump(self) -> ArrayDump:
        task = "tensor" if self.elements else "statistics"
        return ArrayDump(
            Path(f"rank{self.rank}/dump.json"), 0, self.rank, task, "L0", tuple(self.calls), arrays=self.arrays
        )
