"""``--map``: which inference ranks and which training ranks hold the same model, where no log says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..dumps.tree import rank_number
from ..errors import UsageError
from .model import Side

_ENTRY = re.compile(r"([A-Za-z0-9_]+(?:\+[A-Za-z0-9_]+)*):([A-Za-z0-9_]+(?:\+[A-Za-z0-9_]+)*)")


@dataclass(frozen=True)
class RankMap:
    """Pairs of rank sets, each set the shards of one model: numbers, or names of folders without one."""

    entries: tuple[tuple[frozenset[str], frozenset[str]], ...]

    @classmethod
    def parse(cls, words: Iterable[str]) -> RankMap:
        """Read ``4:0`` (rank 4 of inference, rank 0 of training), ``4+5:0+1`` (two shards each), or several by comma.

        Raises:
            UsageError: anything else, or a rank that is mapped twice.
        """
        entries = []
        for word in words:
            for part in word.split(","):
                match = _ENTRY.fullmatch(part.strip())
                if match is None:
                    raise UsageError(
                        f"'--map {word}' is not INFERENCE:TRAINING",
                        "write --map 4:0, or --map 4+5:0+1 for two shards each",
                    )
                entries.append((_ranks(match[1]), _ranks(match[2])))
        inference = [rank for ranks, _ in entries for rank in ranks]
        if len(set(inference)) != len(inference):
            raise UsageError("--map names an inference rank twice", "name each inference rank once")
        return cls(tuple(entries))

    def allows(self, inference: Side, training: Side) -> bool:
        """Whether the ranks of two sides are mapped to each other."""
        return (ranks_of_side(inference), ranks_of_side(training)) in self.entries

    def __iter__(self) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
        """The entries."""
        return iter(self.entries)


def ranks_of_side(side: Side) -> frozenset[str]:
    """A side's ranks as a map names them: by their folders, since every engine of a run counts its ranks from 0."""
    return frozenset(rank_word(part.name) for part in side.parts)


def rank_word(folder: str) -> str:
    """What a map calls the rank of a folder: its number, else its name."""
    number = rank_number(folder)
    return folder if number is None else str(number)


def _ranks(text: str) -> frozenset[str]:
    return frozenset(rank_word(word) if not word.isdigit() else str(int(word)) for word in text.split("+"))
