"""What a shell's words become: variables, defaults, arrays, arithmetic, field splitting. Nothing is executed."""

from __future__ import annotations

from .run import Origin
from .shell_arithmetic import Arithmetic
from .shell_builtins import assigned_in
from .shell_lexer import tokens, word_of
from .shell_tokens import ARITHMETIC, COMMAND, LITERAL, VARIABLE, ShellError, Token, is_name
from .unknown import is_mark, mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .shell_tokens import Part

#: More no program is given as one argument (Linux); a text that grows beyond it is unknown.
LONGEST = 128 << 10
_BLANKS = (" ", "\t", "\n")  # and no other sign that Unicode calls blank
MOST = 10_000  # elements of an array


class Field:
    """One argument as a command gets it; ``origin`` is where it is written, ``quoted`` whether it was in quotes."""

    __slots__ = ("origin", "quoted", "text")

    def __init__(self, text: str, origin: Origin, quoted: bool = False) -> None:
        self.text = text
        self.origin = origin
        self.quoted = quoted


class Variables:
    """The variables of a script so far.

    A value is a :class:`Field`, or a list of them for an array. ``in_function``: ``$1`` and ``"$@"`` are unknown there,
    while in the script itself no arguments are taken as given. ``assumed``: what was taken so, to be said.
    """

    def __init__(self, file: str, load: Callable[[str], tuple[str, str] | None]) -> None:
        self.file = file
        self.load = load
        self.values: dict[str, Field | list[Field]] = {}
        self.exported: set[str] = set()
        self.in_function = 0
        self.assumed: set[str] = set()

    def text(self, name: str) -> str | None:
        """A variable's text; an array's first element; None where it is not set."""
        value = self.values.get(name)
        if isinstance(value, list):
            return value[0].text if value else None
        return None if value is None else value.text

    def fields(self, word: Token) -> list[Field]:
        """What a word becomes: none, one or several arguments."""
        made = _Fields(self, Origin(self.file, word.line))
        for number, part in enumerate(word.parts):
            made.add(part, number == 0)
        if any(not part.quoted and part.kind == LITERAL and "{" in part.text for part in word.parts):
            return [_braces(field) for field in made.done()]
        return made.done()

    def one(self, word: Token) -> str:
        """What a word becomes where it is not split: in an assignment, a here-document, behind ``:-``."""
        text = ""
        for number, part in enumerate(word.parts):
            text += self._whole(part, number == 0)
            if len(text) > LONGEST:
                return mark("…")
        return text

    def _whole(self, part: Part, first: bool) -> str:
        if part.kind == LITERAL:
            return home(part.text) if first and not part.quoted else part.text
        found = self.expand(part)
        return found if isinstance(found, str) else " ".join(field.text for field in found)

    def expand(self, part: Part) -> str | list[Field]:
        """A variable, an arithmetic expression or a command: its text, or an array's elements."""
        if part.kind == COMMAND:
            return self._command(part)
        if part.kind == ARITHMETIC:
            try:
                return str(Arithmetic(part.text, self).value())
            except ValueError:
                for name in assigned_in(part.text):
                    self.values[name] = Field(mark(f"${name}"), Origin(self.file, part.line))
                return mark(f"$(({part.text}))")
        return self._variable(part)

    def _command(self, part: Part) -> str:
        """``$(cat <<EOF …)`` is known, and ``$(cat FILE)`` where the file is here; no other command's output is."""
        try:
            inside = [token for token in tokens(part.text + "\n", part.line) if token.text != "\n"]
        except ShellError:
            inside = []
        kinds = [token.text or token.kind for token in inside]
        if kinds[:2] in (["word", "<<"], ["word", "<<-"]) and len(inside) == len(("cat", "<<", "EOF")):
            return self.document(inside[1]).rstrip("\n")
        if kinds in (["word", "word"], ["<", "word"]) and (kinds[0] == "<" or inside[0].parts[0].text == "cat"):
            loaded = self.load(self.one(inside[1]))
            if loaded is not None:
                return loaded[1].rstrip("\n")
        return mark(f"$({' '.join(part.text.split())})")

    def document(self, token: Token) -> str:
        """The text of a here-document."""
        if token.raw_body:
            return token.body
        try:
            return self.one(word_of(token.body, token.line, True))
        except ShellError:  # bash meets it no sooner than it runs the command
            return mark("<<")

    def _variable(self, part: Part) -> str | list[Field]:
        text = part.text
        if text in ("@", "*"):
            return self._given(text)
        name, rest = _name_of(text)
        shown = f"${text}" if text == name else f"${{{text}}}"
        if rest in ("[@]", "[*]"):
            return self._array(name, shown)
        if rest.startswith(("[@]", "[*]")) and self.values.get(name) is not None:
            return self._array_or(name, rest[3:].removeprefix(":"), shown, part)
        if rest.startswith("[") and rest.endswith("]"):
            return self._element(name, rest[1:-1], shown)
        value = self.text(name)
        if not rest:
            return mark(shown) if value is None else value
        return self._with_default(name, rest, value, shown, part)

    def _given(self, text: str) -> str | list[Field]:
        if self.in_function:
            return mark(f"${text}")
        self.assumed.add(f"${text}")
        return []

    def _array(self, name: str, shown: str) -> str | list[Field]:
        value = self.values.get(name)
        if value is None:
            return mark(shown)
        return value if isinstance(value, list) else [value]

    def _array_or(self, name: str, rest: str, shown: str, part: Part) -> str | list[Field]:
        """``"${ARGS[@]:-}"`` and its like; unknown where the elements are changed or some left out."""
        if rest[:1] not in ("-", "=", "+"):
            return mark(shown)
        elements = self._array(name, shown)
        return self._default(rest[1:], part) if bool(elements) == rest.startswith("+") else elements

    def _element(self, name: str, index: str, shown: str) -> str:
        value = self.values.get(name)
        if isinstance(value, list) and index.isdigit() and int(index) < len(value):
            return value[int(index)].text
        return mark(shown)

    def _with_default(self, name: str, rest: str, value: str | None, shown: str, part: Part) -> str | list[Field]:
        empty_counts = rest.startswith(":")
        sign, word = rest[empty_counts : empty_counts + 1], rest[empty_counts + 1 :]
        if sign not in ("-", "=", "+", "?") or not sign:
            return mark(shown)
        if name.isdigit():
            if self.in_function:
                return mark(shown)
            self.assumed.add(f"${name}")
        elif value and all(map(is_mark, value)):
            return value  # it may be empty, or not set at all
        there = bool(value) if empty_counts else value is not None
        if sign == "+":
            return self._default(word, part) if there else ""
        if there:
            return value or ""
        if sign == "?":
            return mark(shown)
        default = self._default(word, part)
        if sign == "=" and is_name(name):
            text = default if isinstance(default, str) else " ".join(field.text for field in default)
            self.values[name] = Field(text, Origin(self.file, part.line))
        return default

    def _default(self, word: str, part: Part) -> str | list[Field]:
        # Inside double quotes a default may have quotes of its own, which bash takes away too when they are double.
        try:
            inner = word_of(word, part.line, part.quoted and '"' not in word)
        except ShellError:
            return mark(f"${{{part.text}}}")
        if part.quoted:
            return self.one(inner)
        if any(piece.quoted for piece in inner.parts):
            return self.fields(inner)
        return self.one(inner)


class _Fields:
    """Joins the pieces of one word, and splits it where an unquoted variable has blanks."""

    def __init__(self, variables: Variables, origin: Origin) -> None:
        self.variables = variables
        self.origin = origin
        self.found: list[Field] = []
        self.text: str | None = None
        self.quoted = False
        self.source: Origin | None = None

    def add(self, part: Part, first: bool) -> None:
        if self.text is not None and len(self.text) > LONGEST:
            self.text = mark("…")
        if part.kind == LITERAL:
            text = home(part.text) if first and not part.quoted else part.text
            self.text = (self.text or "") + text
            self.source = self.origin
            self.quoted = self.quoted or part.quoted
            return
        found = self.variables.expand(part)
        if isinstance(found, list):
            self._elements(found, part)
        elif part.quoted:
            self.text = (self.text or "") + found
            self.quoted = True
        else:
            value = self.variables.values.get(_name_of(part.text)[0]) if part.kind == VARIABLE else None
            self._split(found, value.origin if isinstance(value, Field) else None)

    def _elements(self, elements: list[Field], part: Part) -> None:
        if (part.quoted and part.text.endswith("*]")) or (part.text == "*" and part.quoted):
            self.text = (self.text or "") + " ".join(field.text for field in elements)
            return
        for number, field in enumerate(elements):
            if number:
                self.close()
            if part.quoted or field.quoted:
                self.text = (self.text or "") + field.text
                self.quoted = True
            else:
                self._split(field.text, field.origin)
            self.source = self.source or field.origin

    def _split(self, text: str, origin: Origin | None) -> None:
        separators = self.variables.text("IFS")
        if separators is not None and any(sign in _BLANKS or sign in separators for sign in text):
            text = mark(text)  # it is split in another way, which nobody relies on
        if text[:1] in _BLANKS:
            self.close()
        for number, piece in enumerate(filter(None, text.replace("\t", " ").replace("\n", " ").split(" "))):
            if number:
                self.close()
            self.text = (self.text or "") + piece
            self.source = self.source or origin
        if text[-1:] in _BLANKS:
            self.close()

    def close(self) -> None:
        if self.text is not None:
            self.found.append(Field(self.text, self.source or self.origin, self.quoted))
        self.text, self.source, self.quoted = None, None, False

    def done(self) -> list[Field]:
        self.close()
        return self.found


def _name_of(text: str) -> tuple[str, str]:
    """The name at the start of what stands in ``${…}``, and the rest."""
    end = 0
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    return (text, "") if not end else (text[:end], text[end:])


def home(text: str) -> str:
    """``~/x`` with the home folder, which reading cannot know."""
    return mark("~") + text[1:] if text == "~" or text.startswith("~/") else text


def _braces(field: Field) -> Field:
    """Unquoted ``{a,b}`` is several words to the shell: no word that can be known without counting braces."""
    text = field.text
    start = text.find("{")
    end = text.find("}", start)
    inside = text[start + 1 : end]
    if not field.quoted and 0 <= start < end and ("," in inside or ".." in inside):
        return Field(text[:start] + mark(text[start:]), field.origin)
    return field
