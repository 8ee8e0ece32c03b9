"""Finds the step folders and the request logs below one or more folders, in every layout that msprobe and verl write.

``step0/rank0`` and ``proc123`` (msprobe 26), a bare ``rank`` (up to 8.3), ``step_0/rank_0`` (published documents),
``step_4/old_log_prob/step0/rank0`` (verl's own profiler); each perhaps below a process's folder, hosts side by side.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import EvidenceError
from .reader import DUMP
from .records import FOLDER

Kind = Literal["dump", "rank", "step", "tree"]

# Beside the two sides of a collection: where everything in it is from.
COLLECTED = "collected.json"
_STEP = re.compile(r"step_?([0-9]{1,9})")
_RANK = re.compile(r"(?:rank_?([0-9]{1,9})|rank|proc[0-9]+)")
# A process's own folder: its id, or where that was taken its host and id, perhaps numbered.
_PROCESS = re.compile(r"(?:.+-)?[0-9]+")
_LOG = re.compile(r"(dispatch_log|update_actor_log).*\.jsonl")
_SKIPPED = frozenset([FOLDER, ".consistency"])


@dataclass(frozen=True)
class StepFolder:
    """A folder that msprobe wrote one step into.

    Attributes:
        path: the ``stepN`` folder.
        step: its N.
        process: the name of the process's folder it lies in (``3680237``, ``node7-3680237``); None without one.
        stage: what lies between verl's outer step and this one (``old_log_prob``), or a folder of that name; else None.
        outer_step: verl's own step; None in the other layouts.
        ranks: the folders of its ranks by name (``rank0``, ``rank_0``, ``proc123``, ``rank``), with or without a dump.
        invalid: folders that our logger set aside because their forward failed.
    """

    path: Path
    step: int
    process: str | None
    stage: str | None
    outer_step: int | None
    ranks: dict[str, Path]
    invalid: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Tree:
    """All that is below the given folders of one side.

    Attributes:
        roots: the given folders.
        steps: in the order of their paths.
        dispatch_logs: the inference side's logs.
        update_logs: the training side's logs.
        problems: folders that could not be read.
    """

    roots: tuple[Path, ...]
    steps: list[StepFolder] = field(default_factory=list)
    dispatch_logs: list[Path] = field(default_factory=list)
    update_logs: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def logs(self) -> list[Path]:
        """All logs."""
        return [*self.dispatch_logs, *self.update_logs]


def scan(*roots: Path, without: Iterable[Path] = ()) -> Tree:
    """Look through the folders of one side, which may lie on several hosts.

    Args:
        roots: folders; a side that was collected stands for the folders that it was collected from.
        without: folders to leave out, because they are the other side's. (slime's training folder holds both.)

    Raises:
        EvidenceError: a root is no folder.
    """
    roots = tuple(root for path in roots for root in _collected(path))
    tree = Tree(roots)
    left_out = {path.resolve() for path in without}
    for root in dict.fromkeys(path.resolve() for path in roots):
        if not root.is_dir():
            raise EvidenceError(f"{root} is no folder", "name the dump_path of one side's msprobe file")
        for folder, names, files in _walk(root, tree.problems):
            names[:] = sorted(name for name in names if name not in _SKIPPED and folder / name not in left_out)
            if _STEP.fullmatch(folder.name) and not _holds_steps(folder, names):
                step = _step_folder(folder, root, names)
                tree.steps.append(step)
                names[:] = []
            for name in sorted(files):
                if match := _LOG.fullmatch(name):
                    (tree.dispatch_logs if match[1] == "dispatch_log" else tree.update_logs).append(folder / name)
    return tree


def _collected(path: Path) -> list[Path]:
    """What a side of a collection was put together from, in the order that was given; else the path alone."""
    record = path.resolve().parent / COLLECTED
    if not record.is_file():
        return [path]
    try:
        places = json.loads(record.read_text(encoding="utf-8"))["roots"].get(path.resolve().name)
        return [path] if places is None else [record.parent / place for place in places]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise EvidenceError(f"{record} is damaged", "collect the dumps again") from None


def kind_of(path: Path) -> Kind:
    """What a path on the command line is: one ``dump.json``, a rank folder, a step folder, or a tree.

    Raises:
        EvidenceError: it does not exist, or is a file of another name.
    """
    if path.is_file():
        if path.suffix == ".json" and path.name not in ("stack.json", "construct.json"):
            return "dump"
        raise EvidenceError(f"{path} is no dump.json and no folder", f"name a {DUMP} or a folder that holds some")
    if not path.is_dir():
        raise EvidenceError(f"{path} does not exist")
    if (path / DUMP).is_file():
        return "rank"
    return "step" if any((inner / DUMP).is_file() for inner in _ranks_in(path).values()) else "tree"


def ranks_of(path: Path) -> dict[str, Path]:
    """The rank folders (or the one ``dump.json``) that a path of any kind but ``tree`` holds, by name."""
    kind = kind_of(path)
    if kind == "step":
        return {name: inner for name, inner in _ranks_in(path).items() if (inner / DUMP).is_file()}
    return {path.name if kind == "rank" else path.parent.name: path}


def rank_number(name: str) -> int | None:
    """The M of ``rankM`` or ``rank_M``; None for ``procPID``, a bare ``rank`` and other names."""
    match = _RANK.fullmatch(name)
    return int(match[1]) if match and match[1] else None


def _walk(root: Path, problems: list[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    def failed(error: OSError) -> None:
        problems.append(f"{error.filename} cannot be read ({error.strerror})")

    for folder, names, files in os.walk(root, onerror=failed):
        yield Path(folder), names, files


def _holds_steps(folder: Path, names: Iterable[str]) -> bool:
    """Whether steps lie two levels below: then ``folder`` is verl's outer step."""
    stages = [folder / name for name in names if not _RANK.fullmatch(name) and os.access(folder / name, os.R_OK)]
    return any(_STEP.fullmatch(inner.name) for stage in stages for inner in stage.iterdir() if inner.is_dir())


def _ranks_in(folder: Path) -> dict[str, Path]:
    return {inner.name: inner for inner in sorted(folder.iterdir()) if inner.is_dir() and _RANK.fullmatch(inner.name)}


def _step_folder(folder: Path, root: Path, names: Iterable[str]) -> StepFolder:
    match = _STEP.fullmatch(folder.name)
    assert match is not None
    above = [] if folder == root else [part.name for part in folder.parents if part == root or root in part.parents]
    process = stage = None
    outer: int | None = None
    for name in above:
        if outer_match := _STEP.fullmatch(name):
            outer = int(outer_match[1])
        elif process is None and _PROCESS.fullmatch(name):
            process = name
        elif stage is None and process is None and name != root.name:
            stage = name
    ranks = {name: folder / name for name in names if _RANK.fullmatch(name)}
    invalid = tuple(folder / name for name in names if name.startswith("invalid-"))
    return StepFolder(folder, int(match[1]), process, stage, outer, ranks, invalid)
