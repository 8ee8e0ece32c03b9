"""What a comparison found, as typed records and as the JSON object of docs/comparison.schema.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..pairing.plan import Plan
from .judge import DIFFERS, NOT_COMPARED, WITHIN, Errors
from .quantity import Quantity, Side
from .tensors import TensorErrors

CONSISTENT, DIFFERENT, INSUFFICIENT = "consistent", "different", "insufficient"
STATUS = {CONSISTENT: 0, DIFFERENT: 1, INSUFFICIENT: 3}
VERSION = 1


@dataclass(slots=True)
class RowResult:
    """One input, output or parameter of one module.

    Attributes:
        kind: ``input``, ``output``, ``weight`` and so on.
        word: equal, within rounding, differs or not compared.
        reason: why it was not compared, or what is wrong beyond the figures.
        evidence: ``crc``, ``tensors``, ``statistics``, or empty.
        parameter: whether it is a weight and no activation.
        bound: the relative error that rounding explains here.
        worst: the largest error in units of its bound.
        errors: of the statistics.
        tensor: of the elements, in tensor mode.
        side: which side is at fault alone; ``both`` where only their difference speaks.
        inference: the inference side's row; None where it has none.
        training: the training side's row; None where it has none.
    """

    kind: str
    word: str
    reason: str = ""
    evidence: str = ""
    parameter: bool = False
    bound: float = 0.0
    worst: float = 0.0
    errors: Errors | None = None
    tensor: TensorErrors | None = None
    side: str = "both"
    inference: Quantity | None = None
    training: Quantity | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything, with both sides' figures and where they are from."""
        found: dict[str, Any] = {"kind": self.kind, "word": self.word, "reason": self.reason, "evidence": self.evidence}
        found["bound"], found["worst"] = _number(self.bound), _number(self.worst)
        found["errors"] = None if self.errors is None else {k: _number(v) for k, v in self.errors._asdict().items()}
        found["tensor"] = _tensor_json(self.tensor)
        for label, quantity in (("inference", self.inference), ("training", self.training)):
            found[label] = None if quantity is None else figures(quantity)
        return found


@dataclass(slots=True)
class ModuleResult:
    """One canonical module.

    Attributes:
        module: the canonical path.
        word: the worst of its rows'; "not compared" where nothing that counts could be compared.
        reason: why it was not compared, or why it has no partner.
        counted: whether it counts for the coverage; False for what is partnerless by construction.
        rows: in the order of the forward pass.
        whole: whether both sides have the same rows and all were compared.
    """

    module: str
    word: str
    reason: str
    counted: bool
    rows: list[RowResult] = field(default_factory=list)
    whole: bool = False

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "module": self.module,
            "word": self.word,
            "reason": self.reason,
            "counted": self.counted,
            "rows": [row.to_json() for row in self.rows],
        }


@dataclass(slots=True)
class Difference:
    """The first row that differs, in the order of evidence: positions, parameters, then the forward pass."""

    module: str
    row: RowResult
    request_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Module, side, kind, figures."""
        return {"module": self.module, "side": self.row.side, "request_id": self.request_id, **self.row.to_json()}


@dataclass(slots=True)
class PairResult:
    """One prompt on both sides.

    Attributes:
        request_id: what paired it; None for folders compared directly.
        verdict: consistent, different or insufficient.
        reason: one sentence.
        coverage: compared modules over all that count, 0 to 1.
        first_difference: None where nothing differs.
        identity: how it is known that both saw the same tokens.
        modules: in the order of the forward pass.
        notes: what a reader should know.
        inference: the inference side; None where it could not be read.
        training: the training side; None where it could not be read.
    """

    request_id: str | None
    verdict: str
    reason: str
    coverage: float = 0.0
    first_difference: Difference | None = None
    identity: str = "unknown"
    modules: list[ModuleResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    inference: Side | None = None
    training: Side | None = None

    def count(self, word: str) -> int:
        """How many counted modules have a word."""
        return sum(module.counted and module.word == word for module in self.modules)

    def to_json(self) -> dict[str, Any]:
        """Everything but the modules, which stand at the top."""
        found: dict[str, Any] = {"request_id": self.request_id, "verdict": self.verdict, "reason": self.reason}
        found["coverage"] = round(self.coverage, 6)
        found["identity"] = self.identity
        found["first_difference"] = None if self.first_difference is None else self.first_difference.to_json()
        found["notes"] = self.notes
        for side in (self.inference, self.training):
            if side is not None:
                found[side.label] = side_json(side)
        return found


@dataclass(slots=True)
class Comparison:
    """The verdict over all pairs.

    Attributes:
        verdict: different if one pair is; consistent if all are; else insufficient.
        reason: one sentence.
        coverage: the lowest of the pairs'.
        pairs: what was compared; without modules and rows where ``load`` has them.
        rejected: steps that were not used, each with its reason, as pairing reports them.
        load: gets a whole result by its place in ``pairs``; None where those are whole.
        plan: of the run; None where there is none.
    """

    verdict: str
    reason: str
    coverage: float
    pairs: list[PairResult]
    rejected: list[Mapping[str, Any]] = field(default_factory=list)
    load: Callable[[int], PairResult] | None = None
    plan: Plan | None = None

    @property
    def status(self) -> int:
        """The exit status of this verdict."""
        return STATUS[self.verdict]

    def whole(self, index: int) -> PairResult:
        """A pair with its modules."""
        return self.pairs[index] if self.load is None else self.load(index)

    def wholes(self) -> Iterator[PairResult]:
        """All pairs with their modules, one at a time."""
        return map(self.whole, range(len(self.pairs)))

    @property
    def worst_index(self) -> int | None:
        """Which pair speaks for the whole: the first that differs, else the one with the least coverage."""
        return min(range(len(self.pairs)), key=lambda index: (*severity(self.pairs[index]), index), default=None)

    @property
    def worst(self) -> PairResult | None:
        """The pair that speaks for the whole, with its modules."""
        return None if self.worst_index is None else self.whole(self.worst_index)

    @property
    def first_difference(self) -> Difference | None:
        """The first difference of the pair that speaks for the whole."""
        return None if self.worst_index is None else self.pairs[self.worst_index].first_difference

    def to_json(self) -> dict[str, Any]:
        """The JSON object; docs/comparison.schema.json is its schema."""
        worst = self.worst
        return {
            "schema": VERSION,
            "verdict": self.verdict,
            "reason": self.reason,
            "coverage": round(self.coverage, 6),
            "plan": None if self.plan is None else self.plan.to_json(),
            "first_difference": None if self.first_difference is None else self.first_difference.to_json(),
            "modules_of": None if worst is None else worst.request_id,
            "modules": [] if worst is None else [module.to_json() for module in worst.modules],
            "pairs": {"used": [pair.to_json() for pair in self.pairs], "rejected": list(self.rejected)},
        }


def severity(pair: PairResult) -> tuple[int, float]:
    """Orders pairs by how much they matter to the whole, the worst first: one that differs, whatever its coverage."""
    return (0, 0.0) if pair.verdict == DIFFERENT else (2 if pair.verdict == CONSISTENT else 1, pair.coverage)


def figures(quantity: Quantity) -> dict[str, Any]:
    """One side's numbers of a row and the place of each."""
    stats = quantity.stats
    return {
        "dtype": quantity.dtype,
        "tokens": quantity.tokens,
        "features": quantity.features,
        "max": _number(stats.max),
        "min": _number(stats.min),
        "mean": _number(stats.mean),
        "norm": _number(stats.norm),
        "crc": quantity.crc,
        "merged": quantity.merged,
        "derived": quantity.derived or None,
        "sources": [piece.to_json() for piece in quantity.pieces],
    }


def side_json(side: Side) -> dict[str, Any]:
    """What one side is."""
    return {
        "dialect": side.dialect.name,
        "dialect_verified": side.dialect.verified or "not verified",
        "tokens": side.tokens,
        "layers": side.layers,
        "tensor_parallel": side.parallel,
        "files": [str(dump.path) for dump in side.dumps],
        "problems": side.problems,
    }


def worst_word(rows: Sequence[RowResult]) -> str:
    """The word of a module: its worst compared row's; "not compared" where its output is there but was not compared."""
    word, compared = NOT_COMPARED, True
    for row in rows:
        if row.word == DIFFERS:
            return DIFFERS
        if row.word == NOT_COMPARED:
            compared = compared and row.kind != "output"
        elif word != WITHIN:
            word = row.word
    return word if compared else NOT_COMPARED


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity: they become the words that msprobe's own files use."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _tensor_json(errors: TensorErrors | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    return {
        "relative": errors.relative,
        "cosine": errors.cosine,
        "max_abs": errors.max_abs,
        "max_rel": errors.max_rel,
        "ulp": errors.ulp,
        "token": errors.token,
        "token_relative": errors.token_relative,
        "exact": errors.exact,
    }
