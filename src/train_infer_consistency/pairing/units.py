"""Forwards that may become one side of a pair: the log lines of all shards of one model, put together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..dumps.steps import Log, LogLine, Request
from .judge import Judgement
from .model import Reason, SideName, StepVerdict, process_name

#: What joins two forwards: a request's id, or the hash of a prompt.
Kind = Literal["request-id", "prompt-hash"]


class Unit(NamedTuple):
    """One forward of one model.

    Attributes:
        lines: numbers of its lines in the log, one a rank (or a rank and virtual chunk).
        request: the request, as its first line has it.
        sliced: msprobe sliced the dump to this request.
    """

    lines: tuple[int, ...]
    request: Request
    sliced: bool = False


@dataclass
class LoggedSide:
    """The lines of one side, and what became of each.

    Attributes:
        name: which side.
        log: its lines.
        judged: for each line why it is not used; None while it may be.
    """

    name: SideName
    log: Log
    judged: list[Judgement | None] = field(default_factory=list)
    _instances: dict[int, tuple[Hashable, ...]] = field(default_factory=dict)

    def first(self, unit: Unit) -> LogLine:
        """A unit's first line."""
        return self.log.lines[unit.lines[0]]

    def why(self, unit: Unit) -> Judgement | None:
        """Why a unit is not used; None while it may be."""
        if len(unit.lines) == 1:
            return self.judged[unit.lines[0]]
        return next((judgement for number in unit.lines if (judgement := self.judged[number]) is not None), None)

    def reject(self, units: Iterable[Unit], reason: Reason, detail: str = "") -> None:
        """Say why units are not used; what was said of a line before stays."""
        for unit in units:
            for number in unit.lines:
                if self.judged[number] is None:
                    self.judged[number] = reason, detail

    def use(self, unit: Unit) -> None:
        """Say that a unit is used."""
        for number in unit.lines:
            self.judged[number] = Reason.USED, "sliced to one request" if unit.sliced else ""

    def order(self, number: int) -> tuple[str | int, ...]:
        """An order of lines that does not depend on how they lie in their files."""
        line, origin = self.log.lines[number], self.log.lines[number].origin
        rank, step = origin.rank, line.step
        names = (origin.run_id or "", origin.host or "", origin.replica or "")
        return (*names, -1 if step is None else step, -1 if rank is None else rank, origin.pid or 0, line.timestamp)

    def models(self, numbers: Iterable[int]) -> list[list[int]]:
        """Lines by the model whose processes wrote them, each in an order that does not depend on their files."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for number in numbers:
            groups[self.instance(number)].append(number)
        return [sorted(group, key=self.order) for group in groups.values()]

    def instance(self, number: int) -> tuple[Hashable, ...]:
        """What tells one model's processes from another replica's; the host does not, for ranks may lie on several."""
        line = self.log.lines[number]
        key = id(line.origin)
        found = self._instances.get(key)
        if found is None:
            found = self._instances[key] = _instance(line)
        return found

    def verdicts(self) -> Iterator[StepVerdict]:
        """A verdict for each line."""
        for line, judgement in zip(self.log.lines, self.judged, strict=True):
            reason, detail = judgement or (Reason.ONE_SIDE, "")
            origin = line.origin
            process = process_name(line.path, origin.host, origin.pid, origin.rank)
            name = line.requests[0].request_id if len(line.requests) == 1 else None
            yield StepVerdict(self.name, process, line.step, reason, detail, name, line.place)

    def counts(self) -> Counter[Reason]:
        """How many lines have which reason."""
        return Counter(Reason.ONE_SIDE if judgement is None else judgement[0] for judgement in self.judged)


def _instance(line: LogLine) -> tuple[Hashable, ...]:
    origin, count = line.origin, shard_count(line)
    # Ranks that compute alone, or in groups of neighbours, are replicas unless the log numbers the replicas itself.
    group = None if count is None or origin.rank is None or "dp_rank" in origin.parallel else origin.rank // count
    return origin.run_id, origin.replica, origin.parallel.get("port"), origin.parallel.get("dp_rank"), group


def shard_count(line: LogLine) -> int | None:
    """How many ranks compute one forward together, as far as the line tells; None where it does not."""
    sizes = [line.origin.size(name) for name in ("tp_size", "pp_size", "cp_size", "ulysses_size")]
    count = 1
    for size in sizes:
        count *= size or 1
    return count if any(size is not None for size in sizes) else None
