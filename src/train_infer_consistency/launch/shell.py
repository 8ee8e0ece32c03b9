"""Read a launch script as bash would, as far as that can be known without running anything.

What comes out is the commands with their arguments and environment, and what could not be read. Commands under ``if``,
``for`` and the like are read as if they ran; a variable that is set there is unknown afterwards, unless it was set to
the same.
"""

from __future__ import annotations

from .run import Origin
from .shell_branches import Frame, Scope
from .shell_builtins import assigned_in, exports_all, set_by, sets_arguments
from .shell_grammar import accept
from .shell_lexer import tokens
from .shell_tokens import REDIRECTS, ShellError, Token, UnexpectedError, assigns, assigns_element, bare
from .shell_values import Field, Variables
from .unknown import mark, plain
from .words import Said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_OPENS = frozenset(("if", "while", "until", "for", "select", "case"))
_BRANCHES = frozenset(("then", "do", "else", "elif"))
_CLOSES = frozenset(("fi", "done", "esac"))
#: Commands that succeed, or the script is at its end: what stands behind their "&&" runs ("" is an assignment).
_SURE = frozenset((
    "", ":", ".", "cd", "conda", "cp", "declare", "echo", "export", "local", "mkdir", "module", "pip", "pip3", "popd",
    "pushd", "ray", "rm", "set", "sleep", "source", "true", "ulimit", "unset", "uv",
))  # fmt: skip
_DECLARES = frozenset(("export", "declare", "typeset", "local", "readonly"))
_CASTS = frozenset("ilun")  # declare -i and its like
_PREFIXES = frozenset(("!", "time", "coproc", "{", "}", "exec", "builtin"))


class Command:
    """A command: its arguments, what it inherits (``exported``), and what only the shell has (``shell``).

    ``fed`` is the text of a here-document that it reads.
    """

    __slots__ = ("argv", "exported", "fed", "origin", "shell")

    def __init__(
        self, argv: list[Field], exported: dict[str, Field], shell: dict[str, Field], origin: Origin, fed: str = ""
    ) -> None:
        self.argv = argv
        self.exported = exported
        self.fed = fed
        self.shell = shell
        self.origin = origin


class Script:
    """What a script does.

    ``written`` are files that it writes with here-documents; ``unread`` what could not be read; ``assumed`` arguments
    of the script that were taken as not given; ``elsewhere`` files of the target machine that it reads.
    """

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.written: dict[str, Field] = {}
        self.unread: list[tuple[Origin, Said]] = []
        self.assumed: set[str] = set()
        self.elsewhere: list[str] = []
        self.texts: dict[str, str] = {}


def read_script(text: str, file: str, load: Callable[[str], tuple[str, str] | None] | None = None) -> Script:
    """Read a script.

    Args:
        text: the script.
        file: what to call it.
        load: for ``source``: a path as the script names it -> the file's name and text; None where it is not here.
    """
    reader = _Reader(file, load or _not_here)
    reader.read(text, file)
    reader.script.assumed = reader.variables.assumed
    return reader.script


def _not_here(path: str) -> tuple[str, str] | None:  # noqa: ARG001 - the default of read_script's load
    return None


class _Reader(Scope):
    def __init__(self, file: str, load: Callable[[str], tuple[str, str] | None]) -> None:
        super().__init__(Variables(file, load))
        self.script = Script()
        self.load = load
        self.conditional = False
        self.piped = False
        self.last = ""
        self.depth = 0
        self.fed = ""
        self.cast: set[str] = set()  # variables that change what they are given: declare -i, -l, -u
        self.ended = False
        self.replaced = False  # the shell is, by exec

    def read(self, text: str, file: str, line: int = 1) -> None:
        self.script.texts.setdefault(file, text)
        outer, self.variables.file = self.variables.file, file
        text = self._as_bash(text, file, line)
        try:
            found = tokens(text if text.endswith("\n") else text + "\n", line)
        except ShellError as error:
            self._unread(file, error)
        else:
            try:
                accept(found)
            except ShellError as error:
                self._unread(file, error)
            self._commands(found)
        self.variables.file = outer

    def _as_bash(self, text: str, file: str, line: int) -> str:
        """The text without the invisible signs that bash would not overlook; they are named."""
        if text.startswith("\ufeff"):
            self.script.unread.append((Origin(file, line), Said("order-mark")))
        at = text.find("\r")
        if at >= 0:
            where = Origin(file, line + text.count("\n", 0, at))
            self.script.unread.append((where, Said("carriage", path=plain(file))))
        return text.removeprefix("\ufeff")

    def _unread(self, file: str, error: ShellError) -> None:
        key = "unexpected" if isinstance(error, UnexpectedError) else "no-end"
        self.script.unread.append((Origin(file, error.line), Said(key, what=plain(error.what))))

    def _commands(self, found: list[Token]) -> None:
        at, start = 0, 0
        while at < len(found) and not self.ended:
            token = found[at]
            if token.kind == "op" and token.text not in REDIRECTS:
                at = self._separator(found, start, at)
                start = at
            else:
                at += 1
        if start < at and not self.ended:
            self._simple(found[start:at], self.piped)

    def _separator(self, found: list[Token], start: int, at: int) -> int:
        """End the command before an operator; returns where the next one begins."""
        sign = found[at].text
        words = found[start:at]
        if sign == "(":
            if len(words) == 1 and found[at + 1 : at + 2] and found[at + 1].text == ")":
                self.open("function")  # name() { … }
                return at + 2
            self._keywords(words)
            self.open("subshell")
            return at + 1
        if self._in_pattern() and sign in ("|", ")"):
            if sign == ")":
                self.frames[-1].kind = "case"
            return at + 1
        apart = sign in ("|", "|&", "&")
        if words:
            self._simple(words, self.piped or apart)
        self.piped = apart and sign != "&"
        if sign == ")" and self._in_pattern():
            self.frames[-1].kind = "case"  # the pattern stands on the line of its "case"
        elif sign == ")":
            self.close("subshell")
        elif sign in (";;", ";&", ";;&") and self.frames and self.frames[-1].kind == "case":
            self.end_branch()
            self.frames[-1].kind = "pattern"
        self.conditional = sign == "||" or (sign == "&&" and (self.conditional or self.last not in _SURE))
        return at + 1

    def _in_pattern(self) -> bool:
        return bool(self.frames) and self.frames[-1].kind == "pattern"

    def _keywords(self, words: list[Token]) -> list[Token]:
        """Take the reserved words at a command's start, and open or close what they open or close."""
        while words and words[0].kind == "word":
            word = bare(words[0])
            if word in _OPENS:
                return self._opening(word, words)
            if word in _BRANCHES:
                if word in ("else", "elif") and self.frames:
                    self.end_branch()
            elif word in _CLOSES:
                self.close()
            elif word == "function":
                self.open("function")
                words = words[1:]  # its name
            elif word == "}":
                self.close("function")
            elif word not in _PREFIXES:
                break
            elif word == "exec" and len(words) > 1 and not self.frames and not self.conditional:
                self.replaced = True
            words = words[1:]
        return words

    def _opening(self, word: str, words: list[Token]) -> list[Token]:
        self.open("pattern" if word == "case" else word)
        if word in ("for", "select") and len(words) > 1:
            counted = assigned_in(words[1].body) if words[1].body else [bare(words[1])]
            for name in counted:
                self.forget(name, words[0])
        return [] if word in ("for", "select", "case") else self._keywords(words[1:])

    def _simple(self, found: list[Token], apart: bool) -> None:
        """A command without its separator; ``apart``: in a shell of its own, as in a pipe."""
        words = self._keywords(self._redirects(found))
        frame = Frame("subshell" if apart else "condition") if apart or self.conditional else None
        if frame is not None:
            self.frames.append(frame)
        count = 0
        while count < len(words) and assigns(words[count]):
            count += 1
        if count < len(words):
            self._command(words[count:], words[:count])
        else:
            for word in words:
                self._assignment(word)
            self.last = ""
        self.ended = self.ended or self.replaced
        if frame is not None and frame in self.frames:
            while self.frames[-1] is not frame:  # what a conditional command opened stays open
                self.frames.remove(frame)
                return
            self.close()

    def _redirects(self, found: list[Token]) -> list[Token]:
        """A command's words without its redirections; a here-document that goes into a file is kept."""
        words: list[Token] = []
        body: Token | None = None
        target: Token | None = None
        skip = False
        for number, token in enumerate(found):
            if skip:
                skip = False
            elif token.kind == "op":
                skip = True
                after = found[number + 1] if number + 1 < len(found) else None
                if token.text in ("<<", "<<-"):
                    body = token
                elif token.text in (">", ">|", "&>", ">>"):
                    target = after
            else:
                words.append(token)
        self.fed = "" if body is None else self.variables.document(body)
        if body is not None:
            first = [bare(word) for word in words]
            if target is None and first[:1] == ["tee"] and len(words) > 1:
                target = words[-1]
            if target is not None and first[:1] in (["cat"], ["tee"]):
                self.script.written[self.variables.one(target)] = Field(self.fed, self.at(body))
        return words

    def _assignment(self, token: Token) -> str:
        """Set a variable; returns its name."""
        if token.kind == "array":
            name, more = token.text.rstrip("=").rstrip("+"), token.text.endswith("+=")
            fields = [field for item in token.items for field in self.variables.fields(item)]
            if any(assigns_element(item) for item in token.items):  # ([1]=x [0]=y)
                fields = [Field(mark(f"${name}"), self.at(token))]
            for field in fields:
                field.quoted = False  # ${A[@]} splits them again, whatever quotes they had here
            old = self.variables.values.get(name) if more else None
            self.assign(name, (old if isinstance(old, list) else [old] if old else []) + fields)
            return name
        name, sign, rest = token.parts[0].text.partition("=")
        if not sign:  # A[0]=x
            self.forget(name, token)
            return name
        text = self.variables.one(_without_head(token, rest))
        if name.endswith("+"):
            name = name[:-1]
            text = (self.variables.text(name) or "") + text
            text = mark(f"${name}") if name in self.cast else text
        if name in self.cast and not text.isdigit():
            text = mark(f"${name}")
        self.assign(name, Field(text, self.at(token)))
        return name

    def _command(self, words: list[Token], assignments: list[Token]) -> None:
        argv = [field for word in words for field in self.variables.fields(word)]
        own: dict[str, Field] = {}
        before = dict(self.variables.values) if assignments else {}
        for token in assignments:  # A=1 command: for the command alone, and behind its words' expansion
            name = self._assignment(token)
            value = self.variables.values[name]
            if isinstance(value, Field):
                own[name] = value
        if argv:
            self._run(argv, words, own)
        for name in own:
            if name in before:
                self.variables.values[name] = before[name]
            else:
                self.variables.values.pop(name, None)

    def _run(self, argv: list[Field], words: list[Token], own: dict[str, Field]) -> None:
        self.last = name = argv[0].text
        origin = self.at(words[0])
        options = [field.text for field in argv[1:]]
        for variable in [*set_by(name, options), *(assigned_in(words[0].body) if words[0].body else ())]:
            self.forget(variable, words[0])
        if name in _DECLARES:
            self._declare(name, words[1:])
        elif name == "unset":
            for option in options:
                self.unset(option)
        elif name == "set":
            self.all_exported = exports_all(options, self.all_exported)
            # set -- x y: from here on $1 and "$@" are no longer the script's own
            self.variables.in_function += sets_arguments(options)
        elif name in ("source", ".") and options:
            self._source(options[0], origin)
        elif name == "exit" and not self.frames and not self.conditional:
            self.ended = True
        elif name not in ("eval", "bash", "sh") or not self._inner(name, argv):
            self._record(argv, own, origin)

    def _record(self, argv: list[Field], own: dict[str, Field], origin: Origin) -> None:
        exported: dict[str, Field] = {}
        shell: dict[str, Field] = {}
        for name, value in self.variables.values.items():
            if isinstance(value, Field):
                (exported if name in self.variables.exported or name in own else shell)[name] = value
        self.script.commands.append(Command(argv, exported, shell, origin, self.fed))

    def _declare(self, name: str, words: list[Token]) -> None:
        exports, casts = name == "export", False
        for word in words:
            text = bare(word)
            if word.kind == "word" and text.startswith("-"):
                exports = exports or "x" in text
                casts = casts or not _CASTS.isdisjoint(text)
                continue
            if casts:
                self.cast.add(text.partition("=")[0])
            if assigns(word):
                text = self._assignment(word)
            if exports:
                self.variables.exported.add(text)

    def _inner(self, name: str, argv: list[Field]) -> bool:
        """``bash -c 'text'`` and ``eval text``: read the text as a script of this one."""
        texts = argv[1:] if name == "eval" else argv[2:3] if len(argv) > 2 and argv[1].text in ("-c", "-lc") else []
        if not texts or self.depth > 8:
            return False
        self.depth += 1
        count = len(self.frames)
        if name != "eval":
            self.open("subshell")
        self.read(" ".join(field.text for field in texts), texts[0].origin.file, texts[0].origin.line)
        while name != "eval" and len(self.frames) > count:
            self.close()
        self.depth -= 1
        return True

    def _source(self, path: str, origin: Origin) -> None:
        loaded = self.load(path) if self.depth < 8 else None
        if loaded is None:
            if path.startswith("/") or plain(path).startswith("~"):
                self.script.elsewhere.append(plain(path))
            else:
                self.script.unread.append((origin, Said("not-here", path=plain(path))))
            return
        self.depth += 1
        self.read(loaded[1], loaded[0])
        self.depth -= 1


def _without_head(token: Token, rest: str) -> Token:
    """An assignment's value as a word."""
    value = Token("word", "", token.line, list(token.parts))
    head = token.parts[0]
    value.parts[0] = type(head)(head.kind, rest, False, head.line)
    if not rest and len(value.parts) > 1:
        del value.parts[0]
    return value
