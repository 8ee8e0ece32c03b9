"""Finds the dump that a log line speaks of, and the dumps that no line speaks of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..dumps.steps import Decodes, LogLine
from ..dumps.tree import StepFolder, Tree, rank_number


class Folders:
    """The step folders of one side, by where they lie."""

    def __init__(self, tree: Tree) -> None:
        self._steps = tree.steps
        self._roots = [str(root.resolve()) for root in tree.roots]
        self._ranks = {str(path): path for folder in tree.steps for path in folder.ranks.values()}
        self._beside: dict[tuple[str, int], StepFolder] = {}
        self._below: dict[tuple[str, int], list[StepFolder]] = {}
        for folder in tree.steps:
            parent = folder.path.parent
            self._beside[str(parent), folder.step] = folder
            if folder.process is None:
                self._below.setdefault((str(parent.parent), folder.step), []).append(folder)

    def find(self, line: LogLine) -> Path | None:
        """The rank folder of a line; None where there is none, or where it cannot be told which one it is.

        The line says where it is, or it is where the documents put it: beside the log (inference), beside the log's
        folder (training), or one folder below that (slime's ``old_log_prob``).
        """
        if line.step is None or not self._steps:
            return None
        base, root = str(line.path.parent), str(line.path.parent.parent)
        if line.dump is not None:
            places = (f"{place}/{line.dump}" for place in (root, base, *self._roots))
            return next((self._ranks[place] for place in places if place in self._ranks), None)
        for place in (base, root):
            folder = self._beside.get((place, line.step))
            if folder is not None:
                return _rank_in(folder, line)
        below = self._below.get((root, line.step), [])
        return _rank_in(below[0], line) if len(below) == 1 else None

    def unclaimed(self, claimed: Iterable[Path], decodes: Iterable[Decodes]) -> list[tuple[StepFolder, Path]]:
        """The rank folders that neither a line nor a plain decode claims; a step without any counts as one."""
        taken = set(claimed)
        decoded = [(str(run.path.parent), run.origin.rank, set(run.steps)) for run in decodes]
        left = []
        for folder in self._steps:
            bases = (str(folder.path.parent),)
            for path in folder.ranks.values():
                rank = rank_number(path.name)
                known = any(
                    base in bases and folder.step in steps and (rank is None or own is None or rank == own)
                    for base, own, steps in decoded
                )
                if path not in taken and not known:
                    left.append((folder, path))
            if not folder.ranks:
                left.append((folder, folder.path))
        return left


def _rank_in(folder: StepFolder, line: LogLine) -> Path | None:
    """The folder of a line's rank: by number, else by process id, else the only one that has no number."""
    rank, pid = line.origin.rank, line.origin.pid
    for name, path in folder.ranks.items():
        if rank is not None and rank_number(name) == rank:
            return path
    if pid is not None and f"proc{pid}" in folder.ranks:
        return folder.ranks[f"proc{pid}"]
    bare = [path for name, path in folder.ranks.items() if rank_number(name) is None]
    # A process without distributed ranks writes a bare name, and logs rank 0.
    return bare[0] if len(bare) == len(folder.ranks) == 1 and rank in (0, None) else None
