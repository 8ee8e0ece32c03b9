"""Cut a shell script into words and operators, with what is quoted and what is to be expanded.

This follows what bash does with the scripts persons launch runs with; where it cannot, it raises
:class:`ShellError` and the script is named as not read.
"""

from __future__ import annotations

from .shell_pieces import Pieces
from .shell_tokens import (
    COMMAND,
    DIGITS,
    ENDS_WORD,
    LITERAL,
    Part,
    ShellError,
    Token,
    UnexpectedError,
    begins_command,
    behind_assignments,
    behind_match,
    in_test,
    is_name,
)

_BLANK = " \t\r"
# Longest first.
_OPERATORS = (
    "&>>", "<<<", "<<-", ";;&", "&&", "||", ";;", ";&", "|&", "&>", ">>", ">&", "<&", "<<", "<>", ">|",
    ";", "|", "&", "(", ")", "<", ">",
)  # fmt: skip


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


class Lexer(Pieces):
    """Cuts a text into tokens."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text, line)
        self.found: list[Token] = []
        self.waiting: list[tuple[list[Token], Token]] = []  # here-documents whose body begins on the next line

    def run(self) -> list[Token]:
        """All tokens of the text."""
        while self.at < len(self.text):
            self.token(self.found)
        if self.waiting:
            raise ShellError("<<", self.waiting[0][1].line)
        return self.found

    def token(self, into: list[Token], items: bool = False) -> None:
        """Read the next token. ``items``: inside the parentheses of an array."""
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
        elif sign in "&|;()<>" and not (sign in "(|" and behind_match(into)):
            self._operator(into)
        else:
            self._word(into, items)

    def _operator(self, into: list[Token]) -> None:
        if self.text.startswith(("<(", ">("), self.at):
            line = self.line
            self.at += 2
            into.append(Token("word", "", line, [Part(COMMAND, self._until_paren(), False, line)]))
            return
        if self.text.startswith("((", self.at) and begins_command(into):
            line = self.line
            inside = self._arithmetic(self.at + 2)
            if inside is not None:
                into.append(Token("word", "", line, [Part(LITERAL, "((", False, line)]))
                into[-1].body = inside
                return
        operator = next(one for one in _OPERATORS if self.text.startswith(one, self.at))
        self.at += len(operator)
        token = Token("op", operator, self.line)
        into.append(token)
        if operator in ("<<", "<<-"):
            self.waiting.append((into, token))

    def _word(self, into: list[Token], items: bool) -> None:
        line = self.line
        parts: list[Part] = []
        match = behind_match(into)
        while self.at < len(self.text):
            start = self.at
            if self.text[start] not in ENDS_WORD:
                self.piece(parts, False)
                if len(parts) == 1 and "[" in parts[0].text:
                    self._subscript(parts, start, items, into)
            elif self.text[start] == "(" and (match or (_has_pattern(parts) and in_test(into))):
                self.matched(parts, "()")
            elif self.text[start] == "|" and match:
                self.at += 1
            else:
                break
        name = parts[0].text if len(parts) == 1 and parts[0].kind == LITERAL and not parts[0].quoted else ""
        if self.text.startswith("(", self.at) and name.endswith("=") and is_name(name.rstrip("=").rstrip("+")):
            self.at += 1
            into.append(self._array(name, line))
            return
        if name and DIGITS.issuperset(name) and self.text[self.at : self.at + 1] in ("<", ">"):
            return  # the number of a file that is redirected
        into.append(Token("word", "", line, parts))

    def _array(self, name: str, line: int) -> Token:
        token = Token("array", name, line)
        while True:
            if self.at >= len(self.text):
                raise ShellError(f"{name}(", line)
            if self.text[self.at] == ")":
                self.at += 1
                if self.at < len(self.text) and self.text[self.at] not in ENDS_WORD:
                    raise UnexpectedError(self.text[self.at], self.line)
                token.items = [item for item in token.items if item.kind == "word"]
                return token
            self.token(token.items, items=True)
            last = token.items[-1:]
            if last and last[0].kind != "word" and last[0].text != "\n":
                raise UnexpectedError(last[0].text, last[0].line)

    def _subscript(self, parts: list[Part], start: int, items: bool, into: list[Token]) -> None:
        """``A[x y]=z``: up to its bracket nothing ends the word."""
        head = parts[0]
        name = head.text.partition("[")[0]
        if (
            head.kind != LITERAL
            or head.quoted
            or not ((items and not name) or (is_name(name) and behind_assignments(into)))
        ):
            return
        self.at = start + len(name)
        parts[:] = [Part(LITERAL, name, False, head.line)] if name else []
        self.matched(parts, "[]")

    def _bodies(self) -> None:
        waiting, self.waiting = self.waiting, []
        for found, token in waiting:
            at = next(number for number in range(len(found) - 1, -1, -1) if found[number] is token)
            target = found[at + 1] if at + 1 < len(found) else token
            if target.kind != "word":
                raise ShellError("<<", token.line)
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


def _has_pattern(parts: list[Part]) -> bool:
    """Whether a word so far ends with the sign of a pattern in parentheses."""
    return bool(parts) and parts[-1].kind == LITERAL and not parts[-1].quoted and parts[-1].text[-1:] in tuple("?*+@!")
