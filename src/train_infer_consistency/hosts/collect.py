"""Brings logs and chosen steps of both sides into one folder: whole, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..dumps.tree import COLLECTED, scan
from ..errors import UnfinishedError, UsageError
from ..pairing.join import pair
from ..pairing.mapping import RankMap
from ..pairing.model import Pair, Pairing
from .copying import Item, bring_logs, copied, forget_others, is_there, write_whole
from .sources import SIDES, Source, Together, names_of, parts_of

# progress(bytes so far, all bytes)
Progress = Callable[[int, int], None]


class Choice(NamedTuple):
    """Which steps are brought along.

    Attributes:
        request: only this request's; None for all.
        steps: only pairs with one of these steps of msprobe's on a side; None for all.
        everything: every dump, whether a pair has it or not.
        mapping: which ranks belong together.
    """

    request: str | None = None
    steps: frozenset[int] | None = None
    everything: bool = False
    mapping: RankMap | None = None

    def of(self, pairing: Pairing) -> list[Pair]:
        """The pairs that are chosen."""
        return [
            found
            for found in pairing.pairs
            if (self.request is None or self.request in (found.request_id, _name(found)))
            and (self.steps is None or any(part.step in self.steps for part in parts_of(found)))
        ]

    def to_json(self) -> dict[str, Any]:
        """What was asked for."""
        steps = "all" if self.everything else "used" if self.steps is None else sorted(self.steps)
        return {"request": self.request, "steps": steps}


@dataclass(frozen=True)
class Plan:
    """What is to be copied.

    Attributes:
        together: the sources.
        pairing: what they hold.
        chosen: the pairs that are brought along.
        items: the files of their dumps; the logs are there already.
        folders: how many rank folders are copied, and how many there are.
        logs: the logs' records.
    """

    together: Together
    pairing: Pairing
    chosen: list[Pair]
    items: list[Item]
    folders: tuple[int, int]
    logs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the dumps' files."""
        return sum(item.file.size for item in self.items)


def workplace(output: Path) -> Path:
    """Where a collection is put together before it gets its name.

    Raises:
        UsageError: there is something of that name already.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} is there already", "name another folder, or delete it")
    return output.parent / f"{output.name}.part"


def plan(sources: list[Source], part: Path, choice: Choice) -> Plan:
    """Bring the logs, pair them, and choose.

    Raises:
        EvidenceError: a host does not answer, or a file cannot be read.
        UnfinishedError: there is no room.
    """
    records = bring_logs(sources, part)
    together = Together(sources, part)
    pairing = together.pairing(choice.mapping, choice.request)
    chosen = choice.of(pairing)
    every = together.folders()
    used = (
        every if choice.everything else list(dict.fromkeys(part.path for found in chosen for part in parts_of(found)))
    )
    items = [item for own in _by_source(together, used) for item in own]
    return Plan(together, pairing, chosen, items, (len(used), len(every)), records)


def carry_out(planned: Plan, part: Path, output: Path, choice: Choice, progress: Progress) -> dict[str, Any]:
    """Copy the dumps, see that they pair as before, and give the collection its name.

    Returns:
        The record of it, which is ``collected.json`` there.

    Raises:
        EvidenceError: a host does not answer, or a file cannot be read.
        UnfinishedError: there is no room, or the run went on and changed the dumps meanwhile.
    """
    room = shutil.disk_usage(part).free
    missing = sum(i.file.size for i in planned.items if not is_there(part / i.place, i.file))
    if missing > room:
        raise UnfinishedError(
            f"{output} needs {megabytes(missing)} more and {megabytes(room)} are free",
            "make room, or choose fewer steps",
        )
    files = [*planned.logs, *copied(planned.items, part, lambda done: progress(done, planned.size))]
    forget_others(part, {file["path"] for file in files})
    for source in planned.together.sources:
        (part / source.to).mkdir(parents=True, exist_ok=True)
    record = _record(planned, choice, files)
    write_whole(part / COLLECTED, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    again = pair(*(scan(part / side) for side in SIDES), mapping=choice.mapping, sliced=choice.request)
    if [names_of(found) for found in choice.of(again)] != [names_of(found) for found in planned.chosen]:
        (part / COLLECTED).unlink()
        raise UnfinishedError(
            f"what was copied to {part} does not pair as it did where it was", "run it again when the run has ended"
        )
    with suppress(FileNotFoundError):
        output.rmdir()
    part.rename(output)
    return record


def megabytes(size: int) -> str:
    """A size for a person."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _name(found: Pair) -> str | None:
    """What the inference side calls a pair's request."""
    return found.inference.request.request_id if found.inference.request is not None else None


def _by_source(together: Together, folders: Iterable[Path]) -> Iterator[list[Item]]:
    """The files of rank folders, asked of each host at once."""
    wanted: dict[int, tuple[Source, list[Path]]] = {}
    for path in folders:
        source, there = together.origin(path)
        wanted.setdefault(id(source), (source, []))[1].append(there)
    for source, paths in wanted.values():
        files = source.found.host.files_in(paths)
        yield [Item(source, file, source.to / file.path.relative_to(source.root)) for file in files]


def _record(planned: Plan, choice: Choice, files: list[dict[str, Any]]) -> dict[str, Any]:
    sources = planned.together.sources
    copied, every = planned.folders
    return {
        "schema": 1,
        "version": __version__,
        "roots": {side: [s.to.as_posix() for s in sources if s.found.side == side] for side in SIDES},
        "sources": [
            {
                "side": source.found.side,
                "host": source.found.host.name,
                "logs_of": source.found.survey.host,
                "folder": str(source.root),
                "to": source.to.as_posix(),
            }
            for source in sources
        ],
        "choice": choice.to_json(),
        "pairs": len(planned.chosen),
        "bytes": sum(file["bytes"] for file in files),
        "files": files,
        "left_out": {
            "folders": every - copied,
            "counts": {
                side: {reason.value: n for reason, n in sorted(planned.pairing.counts(side).items(), key=str)}
                for side in ("inference", "training")
            },
            "steps": [
                verdict.to_json()
                for verdict in planned.pairing.verdicts
                if not verdict.used and verdict.step is not None
            ],
        },
    }
