"""Cut a shell script into words and operators, with what is quoted and what is to be expanded.

This follows what bash does with the scripts persons launch runs with; where it cannot, it raises
:class:`ShellError` and the script is named as not read.
"""

from __future__ import annotations

LITERAL, VARIABLE, ARITHMETIC, COMMAND = "literal", "variable", "arithmetic", "command"
_BLANK = " \t\r"
ENDS_WORD = " \t\r\n;&|()<>"
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGITS = frozenset("0123456789")
# Longest first.
_OPERATORS = (
    "&>>", "<<<", "<<-", ";;&", "&&", "||", ";;", ";&", "|&", "&>", ">>", ">&", "<&", "<<", "<>", ">|",
    ";", "|", "&", "(", ")", "<", ">",
)  # fmt: skip
REDIRECTS = frozenset(("&>>", "<<<", "<<-", "&>", ">>", ">&", "<&", "<<", "<>", ">|", "<", ">"))
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}


class ShellError(Exception):
    """Something in a script has no end: ``what`` begins in ``line``."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.what = what
        self.line = line


class Part:
    """A piece of a word. ``kind`` is one of the four above; ``text`` its inside: a name, an expression, a command."""

    __slots__ = ("kind", "line", "quoted", "text")

    def __init__(self, kind: str, text: str, quoted: bool, line: int) -> None:
        self.kind = kind
        self.text = text
        self.quoted = quoted
        self.line = line


class Token:
    """A word, an operator, or an array assignment.

    ``kind`` is "word", "op" or "array". ``text`` is an operator ("\\n" is one) or an array's ``name=`` or ``name+=``;
    ``items`` the array's words; ``body`` the text of a here-document, and ``raw_body`` whether it is taken as it is.
    """

    __slots__ = ("body", "items", "kind", "line", "parts", "raw_body", "text")

    def __init__(self, kind: str, text: str, line: int, parts: list[Part] | None = None) -> None:
        self.kind = kind
        self.text = text
        self.line = line
        self.parts = parts or []
        self.items: list[Token] = []
        self.body = ""
        self.raw_body = False


def tokens(text: str, line: int = 1) -> list[Token]:
    """Cut a script.

    Args:
        text: the script, or a part of one.
        line: the number of its first line.

    Raises:
        ShellError: a quote, a brace or a here-document that has no end.
    """
    return Lexer(text.replace("\r\n", "\n"), line).run()


def word_of(text: str, line: int, quoted: bool) -> Token:
    """A text as one word, for what stands behind ``:-`` and in a here-document: blanks do not end it."""
    lexer = Lexer(text, line)
    parts: list[Part] = []
    while lexer.at < len(text):
        lexer.piece(parts, quoted)
    return Token("word", "", line, parts)


class Lexer:
    """Cuts a text; ``at`` is how far it is."""

    def __init__(self, text: str, line: int) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.found: list[Token] = []
        self.waiting: list[tuple[list[Token], Token]] = []  # here-documents whose body begins on the next line

    def run(self) -> list[Token]:
        """All tokens of the text."""
        while self.at < len(self.text):
            self._next(self.found)
        if self.waiting:
            raise ShellError("<<", self.waiting[0][1].line)
        return self.found

    def _next(self, into: list[Token]) -> None:
        text, at = self.text, self.at
        sign = text[at]
        if sign in _BLANK:
            self.at += 1
        elif text.startswith("\\\n", at):
            self.at += 2
            self.line += 1
        elif sign == "#":
            end = text.find("\n", at)
            self.at = len(text) if end < 0 else end
        elif sign == "\n":
            into.append(Token("op", "\n", self.line))
            self.at += 1
            self.line += 1
            if self.waiting:
                self._bodies()
        elif sign in "&|;()<>":
            self._operator(into)
        else:
            self._word(into)

    def _operator(self, into: list[Token]) -> None:
        if self.text.startswith(("<(", ">("), self.at):
            line = self.line
            self.at += 2
            into.append(Token("word", "", line, [Part(COMMAND, self._until_paren(), False, line)]))
            return
        if self.text.startswith("((", self.at) and (not into or into[-1].kind == "op"):
            self.at += 2
            self._arithmetic()
            into.append(Token("word", "", self.line, [Part(LITERAL, "((", False, self.line)]))
            return
        operator = next(one for one in _OPERATORS if self.text.startswith(one, self.at))
        self.at += len(operator)
        token = Token("op", operator, self.line)
        into.append(token)
        if operator in ("<<", "<<-"):
            self.waiting.append((into, token))

    def _word(self, into: list[Token]) -> None:
        line = self.line
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in ENDS_WORD:
            self.piece(parts, False)
        name = parts[0].text if len(parts) == 1 and parts[0].kind == LITERAL and not parts[0].quoted else ""
        if self.text.startswith("(", self.at) and name.endswith("=") and is_name(name.rstrip("=").rstrip("+")):
            self.at += 1
            into.append(self._array(name, line))
            return
        if name and _DIGITS.issuperset(name) and self.text[self.at : self.at + 1] in ("<", ">"):
            return  # the number of a file that is redirected
        into.append(Token("word", "", line, parts))

    def _array(self, name: str, line: int) -> Token:
        token = Token("array", name, line)
        while True:
            if self.at >= len(self.text):
                raise ShellError(f"{name}(", line)
            if self.text[self.at] == ")":
                self.at += 1
                token.items = [item for item in token.items if item.kind == "word"]
                return token
            self._next(token.items)

    def piece(self, parts: list[Part], quoted: bool) -> None:
        """Read the next piece of a word into ``parts``. ``quoted``: inside double quotes."""
        text, at = self.text, self.at
        sign = text[at]
        if sign == "\\":
            self._escape(parts, quoted)
        elif sign == "$":
            self._dollar(parts, quoted)
        elif sign == "`":
            end = text.find("`", at + 1)
            if end < 0:
                raise ShellError("`", self.line)
            parts.append(Part(COMMAND, text[at + 1 : end], quoted, self.line))
            self.at = end + 1
        elif sign == "'" and not quoted:
            end = text.find("'", at + 1)
            if end < 0:
                raise ShellError("'", self.line)
            parts.append(Part(LITERAL, text[at + 1 : end], True, self.line))
            self.line += text.count("\n", at, end)
            self.at = end + 1
        elif sign == '"' and not quoted:
            self._double(parts)
        else:
            self._letters(parts, quoted)

    def _letters(self, parts: list[Part], quoted: bool) -> None:
        text, start = self.text, self.at
        stops = '\\$`"' if quoted else ENDS_WORD + "\\$`\"'"
        at = start + 1
        while at < len(text) and text[at] not in stops:
            at += 1
        parts.append(Part(LITERAL, text[start:at], quoted, self.line))
        self.line += text.count("\n", start, at)
        self.at = at

    def _double(self, parts: list[Part]) -> None:
        line = self.line
        self.at += 1
        count = len(parts)
        while True:
            if self.at >= len(self.text):
                raise ShellError('"', line)
            if self.text[self.at] == '"':
                self.at += 1
                if len(parts) == count:
                    parts.append(Part(LITERAL, "", True, line))
                return
            self.piece(parts, True)

    def _escape(self, parts: list[Part], quoted: bool) -> None:
        after = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if after == "\n":
            self.line += 1
        elif quoted and after not in ("$", "`", '"', "\\"):
            parts.append(Part(LITERAL, "\\" + after, True, self.line))
        else:
            parts.append(Part(LITERAL, after, True, self.line))

    def _dollar(self, parts: list[Part], quoted: bool) -> None:
        text, line = self.text, self.line
        start = self.at + 1
        self.at = start
        after = text[start : start + 1]
        if text.startswith("((", start):
            self.at += 2
            parts.append(Part(ARITHMETIC, self._arithmetic(), quoted, line))
        elif after == "(":
            self.at += 1
            parts.append(Part(COMMAND, self._until_paren(), quoted, line))
        elif after == "{":
            self.at += 1
            parts.append(Part(VARIABLE, self._until_brace(), quoted, line))
        elif after == "'" and not quoted:
            parts.append(Part(LITERAL, self._ansi(), True, line))
        elif after and (after in _NAME or after in "@*#?$!-"):
            self.at += 1
            if after not in _DIGITS and after in _NAME:
                while self.at < len(text) and text[self.at] in _NAME:
                    self.at += 1
            parts.append(Part(VARIABLE, text[start : self.at], quoted, line))
        elif after != '"' or quoted:  # $"…" is a translated string: its $ is nothing
            parts.append(Part(LITERAL, "$", quoted, line))

    def _ansi(self) -> str:
        self.at += 1
        signs: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != "'":
            sign = self.text[self.at]
            if sign == "\\":
                self.at += 1
                after = self.text[self.at : self.at + 1]
                sign = _ESCAPES.get(after, "\\" + after)
            signs.append(sign)
            self.at += 1
        self.at += 1
        return "".join(signs)

    def _arithmetic(self) -> str:
        start, depth = self.at, 0
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == ")" and not depth and self.text.startswith("))", self.at):
                self.at += 2
                return self.text[start : self.at - 2]
            depth += (sign == "(") - (sign == ")")
            self.line += sign == "\n"
            self.at += 1
        raise ShellError("((", self.line)

    def _until_paren(self) -> str:
        start, line = self.at, self.line
        inside: list[Token] = []
        depth = 0
        while self.at < len(self.text):
            if self.text[self.at] == ")" and not depth:
                self.at += 1
                return self.text[start : self.at - 1]
            count = len(inside)
            self._next(inside)
            if len(inside) > count and inside[-1].kind == "op":
                depth += (inside[-1].text == "(") - (inside[-1].text == ")")
        raise ShellError("$(", line)

    def _until_brace(self) -> str:
        start, line = self.at, self.line
        ignored: list[Part] = []
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == "}":
                self.at += 1
                return self.text[start : self.at - 1]
            if sign in "\\$`\"'":
                self.piece(ignored, False)
            else:
                self.line += sign == "\n"
                self.at += 1
        raise ShellError("${", line)

    def _bodies(self) -> None:
        waiting, self.waiting = self.waiting, []
        for found, token in waiting:
            behind = found[found.index(token) + 1 :]
            if not behind or behind[0].kind != "word":
                raise ShellError("<<", token.line)
            target = behind[0]
            end = "".join(part.text for part in target.parts)
            token.raw_body = any(part.quoted for part in target.parts)
            token.body = self._body(end, token)

    def _body(self, end: str, token: Token) -> str:
        lines: list[str] = []
        while self.at < len(self.text):
            stop = self.text.find("\n", self.at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[self.at : stop]
            self.at = min(stop + 1, len(self.text))
            self.line += 1
            line = line.lstrip("\t") if token.text == "<<-" else line
            if line == end:
                return "".join(lines)
            lines.append(line + "\n")
        raise ShellError(f"<<{end}", token.line)


def is_name(text: str) -> bool:
    """Whether a text can be a variable's name."""
    return bool(text) and text[0] not in _DIGITS and _NAME.issuperset(text)
