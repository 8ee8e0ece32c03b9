"""What a variable is behind an ``if``, a loop or a function that may have run: known only where nothing changed it."""

from __future__ import annotations

from .run import Origin
from .shell_values import LONGEST, MOST, Field, Variables
from .unknown import mark, unknown_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shell_tokens import Token


class Frame:
    """An ``if``, ``for``, ``case``, function or subshell that is open; ``before`` is what its branch changed."""

    __slots__ = ("before", "kind", "touched")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.before: dict[str, Field | list[Field] | None] = {}
        self.touched: dict[str, Field | list[Field] | None] = {}


class Scope:
    """The variables of a script so far, and what is open around the place that is read."""

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.frames: list[Frame] = []
        self.all_exported = False

    def open(self, kind: str) -> None:
        """A command with branches begins."""
        self.frames.append(Frame(kind))
        self.variables.in_function += kind == "function"

    def close(self, *kinds: str) -> None:
        """It ends, if it is of one of the kinds."""
        if not self.frames or (kinds and self.frames[-1].kind not in kinds):
            return
        self.end_branch()
        frame = self.frames.pop()
        self.variables.in_function -= frame.kind == "function"
        if frame.kind == "subshell":
            return  # what it set is gone with it
        for name, value in frame.touched.items():
            old = self.variables.values.get(name)
            if not same(old, value):
                self.assign(name, either(name, old, value))

    def end_branch(self) -> None:
        """Put back what the branch changed, and remember what it was changed to."""
        frame = self.frames[-1]
        for name, old in frame.before.items():
            new = self.variables.values.get(name)
            seen = frame.touched.get(name, new)
            frame.touched[name] = new if same(seen, new) else either(name, seen, new)
            if old is None:
                self.variables.values.pop(name, None)
            else:
                self.variables.values[name] = old
        frame.before = {}

    def assign(self, name: str, value: Field | list[Field]) -> None:
        """Set a variable, for as long as the branch lasts."""
        fields = as_list(value)
        if len(fields) > MOST or any(len(field.text) > LONGEST for field in fields):
            value = Field(mark(f"${name}"), fields[0].origin)
        if self.frames:
            self.frames[-1].before.setdefault(name, self.variables.values.get(name))
        self.variables.values[name] = value
        if self.all_exported:
            self.variables.exported.add(name)

    def unset(self, name: str) -> None:
        """A variable is set no more, for as long as the branch lasts."""
        if self.frames:
            self.frames[-1].before.setdefault(name, self.variables.values.get(name))
        else:
            self.variables.exported.discard(name)
        self.variables.values.pop(name, None)

    def forget(self, name: str, token: Token) -> None:
        """A variable is set to what cannot be known."""
        self.assign(name, Field(mark(f"${name}"), self.at(token)))

    def at(self, token: Token) -> Origin:
        """Where a token stands."""
        return Origin(self.variables.file, token.line)


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
