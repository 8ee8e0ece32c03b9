"""One row of a side's model: a canonical module's input, output or parameter, whole, with where it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from ..dumps.records import Call, Leaf, RankDump
from .dialect import Dialect, Rule
from .fusion import Stats

POSITIONS = "positions"
HIDDEN = ("_", "@")  # kinds that serve the comparison and are no rows of it


class Piece(NamedTuple):
    """A leaf and its place: with these four a number can be found again in its file."""

    dump: RankDump
    call: Call
    slot: str
    leaf: Leaf

    def to_json(self) -> dict[str, object]:
        """File, step, rank, entry and slot."""
        return {
            "file": str(self.dump.path),
            "step": self.dump.step,
            "rank": self.dump.rank,
            "entry": self.call.name,
            "slot": self.slot,
        }


class Group(NamedTuple):
    """Pieces that make up one part over the ranks.

    Attributes:
        part: ``q``, ``gate`` ... or "" for a whole.
        order: how a fused whole is laid out; "" for one that is not fused.
        pieces: by rank.
        how: ``one`` (all ranks hold the same), ``tokens`` or ``features`` (each holds its share).
        axis: along which shares of features lie: 0 rows, 1 columns.
    """

    part: str
    order: str
    pieces: tuple[Piece, ...]
    how: str
    axis: int


@dataclass(slots=True)
class Quantity:
    """A row, whole.

    Attributes:
        dtype: as msprobe writes it; the coarsest of the pieces.
        tokens: rows of an activation or a parameter.
        features: everything else.
        stats: of the whole.
        crc: only where one piece is the whole.
        merged: whether statistics of several pieces were put together, which rounds.
        gap: why it cannot be compared; empty where it can.
        conflict: what its ranks disagree about; empty where they agree.
        groups: what it was made from.
        derived: from which other row it was rebuilt; empty where it was dumped as such.
    """

    dtype: str
    tokens: int
    features: int
    stats: Stats
    crc: str | None
    merged: bool
    gap: str
    groups: tuple[Group, ...]
    conflict: str = ""
    derived: str = ""

    @property
    def pieces(self) -> list[Piece]:
        """All its pieces."""
        return [piece for group in self.groups for piece in group.pieces]

    @property
    def has_elements(self) -> bool:
        """Whether every piece has a file with its elements."""
        return all(piece.leaf.file is not None for piece in self.pieces)

    @property
    def finite(self) -> bool:
        """Whether every statistic that is there is a finite number."""
        return all(value is None or math.isfinite(value) for value in self.stats[:4])


@dataclass(slots=True)
class Module:
    """A canonical module of one side: its rows by kind, and the rule of its name."""

    name: str
    rule: Rule | None
    rows: dict[str, Quantity] = field(default_factory=dict)


@dataclass(slots=True)
class Side:
    """One side's model, whole.

    Attributes:
        label: ``inference`` or ``training``.
        dialect: how its modules are named.
        modules: by canonical path.
        layers: how many layers were seen, at least.
        tokens: tokens of the forward pass; 0 where the embedding's input was not dumped.
        ids: the embedding's input; None where it was not dumped.
        positions: the position rows with the module that had them.
        parallel: the tensor parallel size that was seen.
        problems: what forbids the word "consistent": damage, ranks that contradict each other.
        notes: what a reader should know.
        unknown: canonical paths whose names the dialect does not know.
        excused: canonical paths that msprobe is known to leave out here.
        dumps: the files.
    """

    label: str
    dialect: Dialect
    modules: dict[str, Module]
    layers: int = 0
    tokens: int = 0
    ids: Quantity | None = None
    positions: list[tuple[str, Quantity]] = field(default_factory=list)
    parallel: int = 1
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    dumps: list[RankDump] = field(default_factory=list)
