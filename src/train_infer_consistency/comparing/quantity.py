"""One row of a side's model: a canonical module's input, output or parameter, whole, with where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..dumps.records import Call, Leaf, RankDump
from .dialect import Dialect, Rule
from .fusion import Four, Stats

POSITIONS = "positions"
HIDDEN = ("_", "@")  # kinds that serve the comparison and are no rows of it
FUSED_KINDS = ("output", "weight", "bias")


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


# Where an undivided row was dumped, and by which rule it was placed: dump, call, slot, rule, kind. A plain tuple: there
# is one for each row.
Origin = tuple[RankDump, Call, str, Rule, str]


class Merge(NamedTuple):
    """Which rows a whole was put together from, and how: ``features``, ``tokens`` or ``parts``."""

    how: str
    rows: tuple[Quantity, ...]


class Quantity:
    """A row, whole.

    A plain class: a mixture of experts has a hundred thousand of them, and what most never need is made on demand.

    Attributes:
        stats: ``max``, ``min``, ``mean`` and ``norm`` of the whole: the leaf itself where one leaf is the whole.
        tokens: rows of an activation or a parameter.
        features: everything else.
        dtype: as msprobe writes it; the coarsest of the pieces.
        crc: only where one piece is the whole.
        parameter: whether it is a weight and no activation.
        gap: why it cannot be compared; empty where it can.
        elements: whether every piece has a file with its elements.
        conflict: what its ranks disagree about; empty where they agree.
        derived: from which other row it was rebuilt; empty where it was dumped as such.
    """

    __slots__ = (
        "_origin", "conflict", "crc", "derived", "dtype", "elements", "features", "gap", "parameter", "stats", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        stats: Leaf | Stats,
        size: tuple[int, int],
        dtype: str,
        crc: str | None,
        parameter: bool,
        gap: str,
        elements: bool,
        origin: Origin | Merge,
    ) -> None:
        self.stats = stats
        self.tokens, self.features = size
        self.dtype = dtype
        self.crc = crc
        self.parameter = parameter
        self.gap = gap
        self.elements = elements
        self.conflict = ""
        self.derived = ""
        self._origin = origin

    @property
    def numel(self) -> int:
        """The number of elements."""
        return self.tokens * self.features

    @property
    def rule(self) -> Rule:
        """The rule that placed it."""
        origin = self._origin
        return origin.rows[0].rule if isinstance(origin, Merge) else origin[3]

    @property
    def summary(self) -> Four:
        """The four statistics alone."""
        stats = self.stats
        return stats if isinstance(stats, Stats) else stats[2:6]

    @property
    def merged(self) -> bool:
        """Whether statistics of several pieces were put together, which rounds."""
        origin = self._origin
        return isinstance(origin, Merge) and origin.how != "one"

    @property
    def groups(self) -> tuple[Group, ...]:
        """What it was made from."""
        if isinstance(self._origin, Merge):
            how, rows = self._origin
            if how == "parts":
                return tuple(group for row in rows for group in row.groups)
            pieces = tuple(piece for row in rows for piece in row.pieces)
            return (rows[0].groups[0]._replace(pieces=pieces, how=how),)
        dump, call, slot, rule, kind = self._origin
        assert isinstance(self.stats, Leaf)
        axis = 1 if not self.parameter or rule.split == "row" else 0
        order = rule.order if kind in FUSED_KINDS else ""
        return (Group(rule.part, order, (Piece(dump, call, slot, self.stats),), "one", axis),)

    @property
    def column_split(self) -> bool:
        """Whether shares of its features lie side by side and not one below the other."""
        return not self.parameter or self.rule.split == "row"

    @property
    def pieces(self) -> list[Piece]:
        """All its pieces."""
        return [piece for group in self.groups for piece in group.pieces]

    def copy(self) -> Quantity:
        """Another one with the same values."""
        size = (self.tokens, self.features)
        other = Quantity(self.stats, size, self.dtype, self.crc, self.parameter, self.gap, self.elements, self._origin)
        other.conflict, other.derived = self.conflict, self.derived
        return other


class Module:
    """A canonical module of one side.

    Attributes:
        name: its path.
        template: the path with ``#`` for numbers.
        numbers: the numbers.
        rule: of its name; None for a name that the dialect does not know.
        rows: by kind.
    """

    __slots__ = ("name", "numbers", "rows", "rule", "template")

    def __init__(self, name: str, template: str, numbers: tuple[int, ...], rule: Rule | None) -> None:
        self.name = name
        self.template = template
        self.numbers = numbers
        self.rule = rule
        self.rows: dict[str, Quantity] = {}


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
        refusal: why nothing of it can be compared; empty where something can.
        problems: what forbids the word "consistent": damage, ranks that contradict each other.
        notes: what a reader should know.
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
    refusal: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    excused: set[str] = field(default_factory=set)
    dumps: list[RankDump] = field(default_factory=list)
