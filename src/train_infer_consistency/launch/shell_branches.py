"""What a variable is behind an ``if``, a loop or a function that may have run: known only where nothing changed it."""

from __future__ import annotations

from .run import Origin
from .shell_values import Field
from .unknown import mark, unknown_in


class Frame:
    """An ``if``, ``for``, ``case``, function or subshell that is open; ``before`` is what its branch changed."""

    __slots__ = ("before", "kind", "touched")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.before: dict[str, Field | list[Field] | None] = {}
        self.touched: dict[str, Field | list[Field] | None] = {}


def same(old: Field | list[Field] | None, new: Field | list[Field] | None) -> bool:
    """Whether two values are known and the same."""

    def texts(value: Field | list[Field] | None) -> object:
        if isinstance(value, list):
            return [field.text for field in value]
        return None if value is None else value.text

    return texts(old) == texts(new) and unknown_in(str(texts(new))) is None


def either(name: str, old: Field | list[Field] | None, new: Field | list[Field] | None) -> Field | list[Field]:
    """What a variable is after a branch that may have run: unknown, but for what an array had before."""
    why = mark(f"${name}")
    origin = next((field.origin for field in (*as_list(new), *as_list(old))), Origin(""))
    if isinstance(old, list) or isinstance(new, list):
        kept: list[Field] = []
        for first, second in zip(as_list(old), as_list(new), strict=False):
            if first.text != second.text:
                break
            kept.append(first)
        origin = kept[-1].origin if kept else origin
        return [*kept, Field(why, origin)]
    return Field(why, origin)


def as_list(value: Field | list[Field] | None) -> list[Field]:
    """An array's elements; a text is an array of one, and what is not set has none."""
    return value if isinstance(value, list) else [] if value is None else [value]
