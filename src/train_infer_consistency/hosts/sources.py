"""The folders of both sides on all hosts, under names of their own, and the pairing of what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from ..errors import EvidenceError
from ..pairing.dumped import look
from ..pairing.join import pair
from ..pairing.mapping import RankMap
from ..pairing.model import Pair, Pairing, Part, Side
from .survey import File, Looked, Survey, chunks, files_in, moved, survey, together

SideFolder = Literal["generate", "train"]
SIDES: tuple[SideFolder, SideFolder] = ("generate", "train")


class Host(Protocol):
    """Where folders lie. What it raises is in words for a person, with its name."""

    @property
    def name(self) -> str:
        """For a person."""

    def files_in(self, folders: Sequence[Path]) -> list[File]:
        """See :func:`~.survey.files_in`."""

    def chunks(self, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """See :func:`~.survey.chunks`."""

    def look(self, path: Path) -> Looked:
        """What the first calls of a dump tell."""


class Here:
    """This machine, and what is mounted on it."""

    name = "here"

    def files_in(self, folders: Sequence[Path]) -> list[File]:
        """See :class:`Host`."""
        return files_in(folders)

    def chunks(self, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """See :class:`Host`."""
        return chunks(files)

    def look(self, path: Path) -> Looked:
        """See :class:`Host`."""
        return look(path)


class Found(NamedTuple):
    """A folder that a host has."""

    side: SideFolder
    host: Host
    survey: Survey


@dataclass(frozen=True)
class Source:
    """One of them, and where it is put.

    Attributes:
        found: the folder.
        label: names its host.
        to: its place below the collection: side, label, and its own name, by which msprobe's layouts are told apart.
    """

    found: Found
    label: str
    to: Path

    @property
    def root(self) -> Path:
        """The folder on its host."""
        return self.found.survey.root


def here(generate: Iterable[Path], train: Iterable[Path]) -> list[Found]:
    """The folders of this machine.

    Raises:
        EvidenceError: one is no folder.
    """
    sides = {"generate": list(generate), "train": list(train)}
    host = Here()
    found = []
    for side, other in (SIDES, SIDES[::-1]):
        without = [path for path in sides[other] if path not in sides[side]]
        roots = dict.fromkeys(path.resolve() for path in sides[side])
        found += [Found(side, host, survey(root, without)) for root in roots]
    return found


def labelled(found: Iterable[Found]) -> list[Source]:
    """Give each folder its host's name and a place of its own: the name in its logs, else the host's, or a number."""
    named: dict[str, Host] = {}
    counts: dict[SideFolder, int] = {"generate": 0, "train": 0}
    made: list[Source] = []
    for item in found:
        counts[item.side] += 1
        number = counts[item.side]
        own = f"source-{number}" if isinstance(item.host, Here) else item.host.name.partition(" ")[0]
        base = label = re.sub(r"[^A-Za-z0-9._-]", "_", item.survey.host or own).lstrip(".") or f"source-{number}"
        again = 1
        while named.setdefault(label, item.host) is not item.host:
            again += 1
            label = f"{base}-{again}"
        place = Path(item.side, label, item.survey.root.name or "root")
        if any(source.to == place for source in made):
            place = Path(item.side, label, str(number), place.name)
        made.append(Source(item, label, place))
    return made


class Together:
    """All sources as one run, whose logs are in one folder and whose dumps are where they were.

    Args:
        sources: of both sides.
        base: the folder where the logs are, each in its place below its source's ``to``.
    """

    def __init__(self, sources: Sequence[Source], base: Path) -> None:
        self.sources, self.base = sources, base.resolve()
        self._roots = {self.base / source.to: source for source in sources}

    def pairing(self, mapping: RankMap | None, sliced: str | None) -> Pairing:
        """Pair both sides as if all folders were on this machine.

        Raises:
            EvidenceError: a host does not answer.
        """
        trees = {
            side: together([
                moved(source.found.survey.tree, source.root, self.base / source.to)
                for source in self.sources
                if source.found.side == side
            ])
            for side in SIDES
        }  # fmt: skip
        return pair(trees["generate"], trees["train"], mapping=mapping, sliced=sliced, look=self._look)

    def origin(self, path: Path) -> tuple[Source, Path]:
        """The source of a path of the pairing, and the path on its host."""
        for above in path.parents:
            if above in self._roots:
                source = self._roots[above]
                return source, source.root / path.relative_to(above)
        raise EvidenceError(f"{path} is of no source")

    def folders(self) -> list[Path]:
        """All rank folders, and those that were set aside, in the pairing's paths."""
        return [
            path
            for source in self.sources
            for step in moved(source.found.survey.tree, source.root, self.base / source.to).steps
            for path in (*step.ranks.values(), *step.invalid)
        ]

    def _look(self, path: Path) -> Looked:
        source, there = self.origin(path)
        return source.found.host.look(there)


def parts_of(pair: Pair) -> Iterator[Part]:
    """The dumps of a pair."""
    for side in (pair.inference, pair.training, *pair.replicas):
        yield from side.parts


def names_of(pair: Pair) -> tuple[object, ...]:
    """What a pair is, to be compared with another pairing's."""

    def paths(side: Side) -> tuple[Path, ...]:
        return tuple(part.path for part in side.parts)

    sides = (pair.inference, pair.training, *pair.replicas)
    return pair.request_id, pair.prompt_hash, pair.joined, *map(paths, sides)
