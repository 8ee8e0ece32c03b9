"""Data-parallel training ranks that saw the same prompt must agree with each other, number by number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from train_infer_consistency.comparing.compare import Options
from train_infer_consistency.comparing.pairs import compare
from train_infer_consistency.comparing.record import Comparison

from ..pairing.runs import Run, ours
from .cases import Data, changed, dump_of, find, leaves, scale

PROMPT = {"request_id": None, "prompt_length": 11, "response_length": 0, "prompt_hash": "same"}
Change = Callable[[Data], None]


class Replicas:
    """One engine and two data-parallel ranks of slime's trainer, from real dumps."""

    def __init__(self, root: Path, dumps: Path) -> None:
        self.run, self._dumps = Run(root), dumps / "megatron"
        self.run.forward([ours(None, 11, prompt_hash="same")], step=0)
        rank = self.run.inference.root / "17" / "step0" / "rank0"
        shutil.copytree(dump_of(self._dumps / "hf_n11").parent, rank)

    def add(self, rank: int, change: Change = lambda data: None, source: str = "core0121_tp1_n11") -> Path:
        """A rank with its log line; returns its dump."""
        parallel = {"tp_size": 1, "pp_size": 1, "cp_size": 1, "dp_rank": rank}
        fields = {"phase": "log_prob", "parallel": parallel, "requests": [PROMPT], "host": "node7"}
        self.run.train(step=0, rank=rank, pid=200 + rank, dumped=None, **fields)
        return changed(dump_of(self._dumps / source), self.run.training.root / "step0" / f"rank{rank}", change)

    def compare(self) -> Comparison:
        """The verdict."""
        pairing = self.run.pair()
        assert [len(found.replicas) for found in pairing.pairs] == [1]
        return compare(pairing, Options())


@pytest.fixture
def replicas(tmp_path: Path, dumps: Path) -> Replicas:
    return Replicas(tmp_path, dumps)


def notes(found: Comparison) -> str:
    (pair,) = found.pairs
    assert pair.training is not None
    return "\n".join([*pair.notes, *pair.training.problems])


def off(part: str, factor: float = 1.5) -> Change:
    def change(data: Data) -> None:
        for leaf in leaves(find(data, part)["output"]):
            scale(leaf, factor)

    return change


def test_replicas_that_agree(replicas: Replicas) -> None:
    replicas.add(0)
    replicas.add(1)
    found = replicas.compare()
    assert found.verdict == "consistent", found.reason
    assert "node7/201 rank1 saw the same prompt and was checked against node7/200 rank0" in notes(found)


@pytest.mark.parametrize("bad", [0, 1])
def test_a_replica_that_is_off_is_named_by_its_rank(replicas: Replicas, bad: int) -> None:
    for rank in range(2):
        replicas.add(rank, off("layers.1.mlp.linear_fc2") if rank == bad else lambda data: None)
    found = replicas.compare()
    assert (found.verdict, found.status) == ("different", 1)
    first = found.first_difference
    assert first is not None
    assert (first.module, first.row.kind, first.row.side) == ("layers.1.mlp.down", "output", "training")
    words = "data-parallel replicas: node7/200 rank0 and node7/201 rank1 hold different values of one row"
    assert words in found.reason
    assert "replicas node7/200 rank0 and node7/201 rank1 differ, first at layers.1.mlp.down output" in notes(found)


def test_the_engines_difference_does_not_hide_that_of_the_replicas(replicas: Replicas) -> None:
    replicas.add(0, off("layers.0.mlp.linear_fc2"))

    def both(data: Data) -> None:
        off("layers.0.mlp.linear_fc2")(data)
        off("layers.1.mlp.linear_fc2")(data)

    replicas.add(1, both)
    found = replicas.compare()
    assert found.verdict == "different"
    assert "layers.0.mlp.down: output differs (relative error" in found.reason
    assert "rank1 differ, first at layers.1.mlp.down output" in notes(found)


def lose(part: str) -> Change:
    def change(data: Data) -> None:
        for name in [name for name in data if part in name]:
            del data[name]

    return change


@pytest.mark.parametrize("what", ["torn", "lost", "prompt"])
def test_a_replica_that_cannot_be_checked_denies_consistent(replicas: Replicas, what: str) -> None:
    replicas.add(0)
    if what == "lost":
        replicas.add(1, lose("layers.1.mlp.linear_fc2"))
    elif what == "prompt":
        replicas.add(1, source="core0121_tp1_n12")
    else:
        path = replicas.add(1)
        path.write_text(path.read_text()[:-2000])
    found = replicas.compare()
    assert (found.verdict, found.status) == ("insufficient", 3)
    words = {
        "torn": "ends too early",
        "lost": "data-parallel replica node7/201 rank1 lacks layers.1.mlp.down",
        "prompt": "its token ids are not those of node7/200 rank0",
    }
    assert words[what] in notes(found)


def test_an_unreadable_replica_hides_no_difference(replicas: Replicas) -> None:
    replicas.add(0, off("layers.0.mlp.linear_fc2"))
    path = replicas.add(1)
    pairing = replicas.run.pair()
    path.write_text(json.dumps({"task": "statistics", "level": "L0", "data": {}}))
    found = compare(pairing, Options())
    assert found.verdict == "different"
    assert "data-parallel replica node7/201 rank1 cannot be checked" in notes(found)
