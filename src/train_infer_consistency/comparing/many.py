"""Many pairs compared in processes beside each other: the same results as one after the other, whatever their order."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..dumps.records import FOLDER
from ..pairing.model import Pair, Pairing
from .compare import Options, summarise
from .pairs import compare_pair, rejected
from .record import Comparison, PairResult, severity
from .stored import Packed, Store, pack, unpack

# Below this many bytes of dumps (a second or so of work) starting processes takes longer than they save.
WORTH_IT = 32 << 20
Severity = tuple[int, float, int]
# progress(done, all)
Progress = Callable[[int, int], None]


class How(NamedTuple):
    """What is the same for all pairs.

    Attributes:
        options: how to compare.
        noise: see :func:`~.pairs.compare`.
        every: whether a report needs the modules of every pair; else only those of the one that speaks for the whole.
    """

    options: Options
    noise: Path | None = None
    every: bool = False


class Task(NamedTuple):
    """One pair to compare.

    Attributes:
        number: its place among all.
        pair: its dumps.
        beaten: the severity of the worst result so far: one that is no worse need not be sent whole.
    """

    number: int
    pair: Pair
    beaten: Severity | None


# Compares pairs in any order, as many at a time as it likes: run(pairs, how, beaten) yields a result for each.
Runner = Callable[[Sequence[Pair], How, Callable[[], Severity | None]], Generator[Packed, None, None]]


def compare_many(
    pairing: Pairing, how: How, store: Store, *, runner: Runner | None = None, progress: Progress | None = None
) -> Comparison:
    """Compare all pairs of a pairing, and keep no more than one of them whole in memory.

    Args:
        pairing: the pairs, and why other steps are not used.
        how: how to compare.
        store: keeps the whole results; what is returned reads them there.
        runner: where; None for this process, one after the other.
        progress: is told how many are done.

    Raises:
        UsageError, EvidenceError: as :func:`~.pairs.compare_pair`, of the first pair that has an error.
        UnfinishedError: there is no room for the results, or a process was killed.
    """
    worst = _Worst()
    results: dict[int, PairResult] = {}
    with closing((runner or one_by_one)(pairing.pairs, how, lambda: worst.key)) as running:
        for packed in running:
            result = results[packed.number] = unpack(packed.bare)
            worst.see(packed.number, result)
            if packed.whole is not None:
                store.add(packed.number, packed.whole)
            if progress is not None:
                progress(len(results), len(pairing.pairs))
    found = summarise([results[index] for index in range(len(pairing.pairs))], rejected(pairing))
    return replace(found, load=store.load)


def one_by_one(pairs: Sequence[Pair], how: How, beaten: Callable[[], Severity | None]) -> Generator[Packed, None, None]:
    """A :data:`Runner` that is this process."""
    for index, pair in enumerate(pairs):
        yield compare_task(Task(index, pair, beaten()), how)


def compare_task(task: Task, how: How, change: Callable[[PairResult], None] | None = None) -> Packed:
    """Compare one pair, let the result be changed, and pack it."""
    result = compare_pair(task.pair, how.options, how.noise)
    if change is not None:
        change(result)
    wanted = how.every or task.beaten is None or (*severity(result), task.number) < task.beaten
    return pack(task.number, result, whole=wanted)


def workers_for(pairs: Sequence[Pair]) -> int:
    """How many processes are worth it on this machine: 1 for one pair, and for a few small ones."""
    count = min(len(os.sched_getaffinity(0)), len(pairs))
    return count if count > 1 and _worth_it(pairs) else 1


def _worth_it(pairs: Sequence[Pair]) -> bool:
    total = 0
    for pair in pairs:
        for side in (pair.inference, pair.training, *pair.replicas):
            for part in side.parts:
                total += size_of(part.path)
                if total >= WORTH_IT:
                    return True
    return False


def size_of(path: Path) -> int:
    """The bytes of a ``dump.json``, or of a rank folder's and its tensors; 0 for what cannot be read."""
    try:
        if path.is_file():
            return path.stat().st_size
        tensors = path / FOLDER
        files = [path / "dump.json", *(tensors.iterdir() if tensors.is_dir() else ())]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0


class _Worst:
    """The severity of the worst result so far."""

    def __init__(self) -> None:
        self.key: Severity | None = None

    def see(self, index: int, result: PairResult) -> None:
        key = (*severity(result), index)
        if self.key is None or key < self.key:
            self.key = key
