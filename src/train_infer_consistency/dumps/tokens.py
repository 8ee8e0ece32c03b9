"""How many tokens a dumped forward had, and at which positions, as far as the first calls tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import EvidenceError
from .reader import peek
from .records import Call, Leaf

_INTEGERS = frozenset(["torch.int64", "torch.int32"])


@dataclass(frozen=True)
class Tokens:
    """What the first calls of a forward tell.

    Attributes:
        count: how many token ids the embedding got, all requests and paddings together; None where no call tells.
        first: the lowest position; above 0 the forward began behind what was in the cache. None as above.
        last: the highest position; None as above.
        shape: of the token ids.
    """

    count: int | None = None
    first: int | None = None
    last: int | None = None
    shape: tuple[int, ...] = ()

    @property
    def length(self) -> int | None:
        """How long a lone prompt is without padding: up to its highest position; None where no call tells."""
        return None if self.last is None else self.last + 1


def tokens_of(calls: Iterable[Call]) -> Tokens:
    """Read count and positions off the first calls of a forward."""
    count: int | None = None
    shape: tuple[int, ...] = ()
    for call in calls:
        if call.direction != "forward":
            continue
        if count is None and _is_embedding(call):
            ids = next((leaf for leaf in call.inputs if leaf is not None and leaf.dtype in _INTEGERS), None)
            if ids is not None:
                count, shape = ids.numel, ids.shape
            continue
        for leaf in _positions(call):
            if leaf.min is not None and leaf.max is not None and count in (None, leaf.numel, leaf.shape[-1]):
                return Tokens(count, int(leaf.min), int(leaf.max), shape)
    return Tokens(count, shape=shape)


def peek_tokens(path: Path) -> Tokens:
    """Count and positions of a rank folder's forward; all None where it has no readable dump."""
    try:
        return tokens_of(peek(path).calls)
    except EvidenceError:
        return Tokens()


def _is_embedding(call: Call) -> bool:
    # VocabParallelEmbedding, AscendVocabParallelEmbedding, and the API; Qwen2RotaryEmbedding is another thing.
    return (call.cls.endswith("Embedding") and "Rotary" not in call.cls) or call.module == "embedding"


def _positions(call: Call) -> Iterator[Leaf]:
    """The integer inputs that are positions: by name, of rotary embeddings, and the first one of decoder layers."""
    for name in ("position_ids", "positions"):
        leaf = call.kwargs.get(name)
        if leaf is not None and leaf.dtype in _INTEGERS and leaf.shape:
            yield leaf
    if "Rotary" in call.cls or "DecoderLayer" in call.cls or call.cls.endswith("Attention"):
        for item in call.inputs[:2]:
            if item is not None and item.dtype in _INTEGERS and item.shape:
                yield item
