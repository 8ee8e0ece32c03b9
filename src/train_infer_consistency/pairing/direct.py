"""One pair of two paths that the user names: dumps, ranks, or steps with all their ranks; no log is asked."""

from __future__ import annotations

from pathlib import Path

from ..dumps.tokens import Tokens, peek_tokens
from ..dumps.tree import kind_of, rank_number, ranks_of
from ..errors import EvidenceError, UsageError
from .model import Pair, Pairing, Part, Reason, Side, SideName, StepVerdict, notes


def is_direct(inference: Path, training: Path) -> bool:
    """Whether two paths name dumps, ranks or steps, and not trees.

    Raises:
        UsageError: one does and the other does not.
        EvidenceError: one does not exist or is something else.
    """
    trees = [kind_of(path) == "tree" for path in (inference, training)]
    if any(trees) and not all(trees):
        one, other = (inference, training) if trees[0] else (training, inference)
        raise UsageError(
            f"{one} is a whole tree, {other} is not", "name two trees, or two steps, ranks or dump.json files"
        )
    return not any(trees)


def given(inference: Path, training: Path) -> Pairing:
    """The pair of two paths. The ranks of a step are taken for the shards of one model.

    Raises:
        EvidenceError: one does not exist or holds no dump.
    """
    sides = [_side(path) for path in (inference, training)]
    names: tuple[SideName, SideName] = ("inference", "training")
    verdicts = [
        StepVerdict(name, part.name, part.step, Reason.USED, "", None, str(part.path))
        for name, side in zip(names, sides, strict=True)
        for part in side.parts
    ]
    found = Pair(None, None, sides[0], sides[1], (), "given", notes(sides[0], sides[1]))
    return Pairing([found], verdicts)


def _side(path: Path) -> Side:
    ranks = ranks_of(path)
    if not ranks:
        raise EvidenceError(f"{path} holds no dump")
    parts = [Part(inner, name, rank_number(name), None) for name, inner in ranks.items()]
    parts.sort(key=lambda part: (part.rank is None, part.rank or 0, part.name))
    tokens = next((found for part in parts if (found := peek_tokens(part.path)).count is not None), Tokens())
    return Side(path.name, tuple(parts), None, False, tokens)
