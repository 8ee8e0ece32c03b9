"""What one host has of one side: asked there, and small enough to send; and the files that are asked for then."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ..dumps.tokens import Tokens
from ..dumps.tree import StepFolder, Tree, scan
from ..errors import EvidenceError
from ..pairing.dumped import look

Looked = Tokens | EvidenceError | None
CHUNK = 8 << 20


class File(NamedTuple):
    """One file to copy.

    Attributes:
        path: on its host.
        size: in bytes.
        modified: in nanoseconds since the epoch.
    """

    path: Path
    size: int
    modified: int


class Piece(NamedTuple):
    """A part of a file."""

    path: Path
    offset: int
    size: int


@dataclass(frozen=True)
class Survey:
    """One folder of one side.

    Attributes:
        root: the folder, resolved on its host.
        tree: what is below it.
        logs: its logs.
        host: the host that its logs name; None where they name none, or several.
        looks: what the first calls of each dump tell; empty where that can be asked later.
        fingerprint: the same for the same folder seen from two hosts, and no other.
        cpus: of the host.
    """

    root: Path
    tree: Tree
    logs: list[File]
    host: str | None
    looks: dict[Path, Looked]
    fingerprint: str
    cpus: int


def survey(root: Path, without: Iterable[Path] = (), *, looking: bool = False) -> Survey:
    """Look through a folder of one side.

    Args:
        root: the folder.
        without: folders of the other side.
        looking: whether to look into every dump as well.

    Raises:
        EvidenceError: it is no folder.
    """
    tree = scan(root, without=without)
    ranks = [path for step in tree.steps for path in step.ranks.values()]
    looks = {path: look(path) for path in ranks} if looking else {}
    logs = [file_of(path) for path in tree.logs]
    return Survey(root.resolve(), tree, logs, _host(tree.logs), looks, _fingerprint(tree), len(os.sched_getaffinity(0)))


def file_of(path: Path) -> File:
    """A file as it is now.

    Raises:
        EvidenceError: it cannot be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror or error})") from None
    return File(path, status.st_size, status.st_mtime_ns)


def files_in(folders: Iterable[Path]) -> list[File]:
    """All files below folders, in the order of their paths.

    Raises:
        EvidenceError: one cannot be read.
    """
    return [
        file_of(Path(above) / name)
        for folder in folders
        for above, _, names in sorted(os.walk(folder))
        for name in sorted(names)
    ]


def pieces_of(files: Iterable[File]) -> Iterator[tuple[File, Piece]]:
    """Files in pieces, in order; an empty one is one empty piece."""
    for file in files:
        for offset in range(0, max(file.size, 1), CHUNK):
            yield file, Piece(file.path, offset, min(CHUNK, file.size - offset))


def chunks(files: Iterable[File]) -> Iterator[tuple[File, bytes]]:
    """The contents of files, as :func:`pieces_of` cuts them.

    Raises:
        EvidenceError: one cannot be read, or has become shorter.
    """
    for file, piece in pieces_of(files):
        yield file, read_part(*piece)


def read_part(path: Path, offset: int, size: int) -> bytes:
    """A part of a file.

    Raises:
        EvidenceError: it cannot be read, or ends before.
    """
    try:
        with path.open("rb") as opened:
            opened.seek(offset)
            data = opened.read(size)
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror or error})") from None
    if len(data) < size:
        raise EvidenceError(f"{path} became shorter while it was copied", "wait for the run to end, then do it again")
    return data


def moved(tree: Tree, root: Path, to: Path) -> Tree:
    """A tree as it is where its root lies elsewhere."""

    def place(path: Path) -> Path:
        return to / path.relative_to(root)

    def step(folder: StepFolder) -> StepFolder:
        ranks = {name: place(path) for name, path in folder.ranks.items()}
        return replace(folder, path=place(folder.path), ranks=ranks, invalid=tuple(map(place, folder.invalid)))

    return Tree(
        (to,),
        [step(folder) for folder in tree.steps],
        [place(path) for path in tree.dispatch_logs],
        [place(path) for path in tree.update_logs],
        tree.problems,
    )


def together(trees: Sequence[Tree]) -> Tree:
    """Several trees of one side as one."""
    return Tree(
        tuple(root for tree in trees for root in tree.roots),
        [step for tree in trees for step in tree.steps],
        [path for tree in trees for path in tree.dispatch_logs],
        [path for tree in trees for path in tree.update_logs],
        [problem for tree in trees for problem in tree.problems],
    )


def _host(logs: Iterable[Path]) -> str | None:
    """The one host that the logs name in their first lines."""
    names = set()
    for path in logs:
        with suppress(OSError), path.open("rb") as lines:
            for line in islice(lines, 10):
                with suppress(ValueError, AttributeError):
                    names.add(json.loads(line).get("host"))
    names.discard(None)
    found = names.pop() if len(names) == 1 else None
    return found if isinstance(found, str) else None


def _fingerprint(tree: Tree) -> str:
    """Of places, sizes, times and inodes of logs and step folders: a network file system shows all hosts the same."""
    root = tree.roots[0].resolve()
    digest = hashlib.sha256()
    for path in sorted([*tree.logs, *(step.path for step in tree.steps), root]):
        with suppress(OSError):
            status = path.stat()
            words = (os.path.relpath(path, root), status.st_ino, status.st_size, status.st_mtime_ns)
            digest.update(repr(words).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()
