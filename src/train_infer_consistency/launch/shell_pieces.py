"""What a shell's word is made of: quoted text, variables, commands, arithmetic, and where each of them ends."""

from __future__ import annotations

from .shell_tokens import (
    ARITHMETIC,
    COMMAND,
    DIGITS,
    ENDS_WORD,
    LITERAL,
    NAME,
    VARIABLE,
    Part,
    ShellError,
    Token,
    bare,
    begins_command,
)
from .unknown import mark

_LONGEST = 4096  # an arithmetic expression's signs: what is longer is none
_DEEPEST = 50
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}


class Pieces:
    """Reads a text piece by piece; ``at`` is how far it is, ``line`` the number of the line there."""

    def __init__(self, text: str, line: int) -> None:
        self.text = text
        self.at = 0
        self.line = line

    def token(self, into: list[Token], items: bool = False) -> None:
        """Read the next token of a command that stands in a word: the lexer's."""
        raise NotImplementedError

    def piece(self, parts: list[Part], quoted: bool) -> None:
        """Read the next piece of a word into ``parts``. ``quoted``: inside double quotes."""
        text, at = self.text, self.at
        sign = text[at]
        if sign == "\\":
            self._escape(parts, quoted)
        elif sign == "$":
            self._dollar(parts, quoted)
        elif sign == "`":
            end = at + 1
            while end < len(text) and text[end] != "`":
                end += 2 if text[end] == "\\" else 1
            if end >= len(text):
                raise ShellError("`", self.line)
            parts.append(Part(COMMAND, text[at + 1 : end], quoted, self.line, late=True))
            self.line += text.count("\n", at, end)
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
        inside = self._arithmetic(start + 2) if text.startswith("((", start) else None
        if inside is not None:
            parts.append(Part(ARITHMETIC, inside, quoted, line))
        elif after == "(":
            self.at += 1
            parts.append(Part(COMMAND, self._until_paren(), quoted, line))
        elif after == "{":
            self.at += 1
            parts.append(Part(VARIABLE, self._until_brace(), quoted, line))
        elif after == "'" and not quoted:
            parts.append(Part(LITERAL, self._ansi(), True, line))
        elif after and (after in NAME or after in "@*#?$!-"):
            self.at += 1
            if after not in DIGITS and after in NAME:
                while self.at < len(text) and text[self.at] in NAME:
                    self.at += 1
            parts.append(Part(VARIABLE, text[start : self.at], quoted, line))
        elif after != '"' or quoted:  # $"…" is a translated string: its $ is nothing
            parts.append(Part(LITERAL, "$", quoted, line))

    def _ansi(self) -> str:
        line = self.line
        self.at += 1
        signs: list[str] = []
        while self.at < len(self.text) and self.text[self.at] != "'":
            sign = self.text[self.at]
            self.line += sign == "\n"
            if sign == "\\":
                self.at += 1
                after = self.text[self.at : self.at + 1]
                sign = _ESCAPES.get(after) or mark(f"$'\\{after}…'")
            signs.append(sign)
            self.at += 1
        if self.at >= len(self.text):
            raise ShellError("$'", line)
        self.at += 1
        return "".join(signs)

    def _arithmetic(self, start: int) -> str | None:
        """What stands between ``((`` and ``))``; None where it is no arithmetic but a subshell in a subshell."""
        text, at, depth = self.text, start, 0
        last = min(len(text), start + _LONGEST)
        while at < last:
            sign = text[at]
            if sign in "\"'`\\":
                end = at + 1 if sign == "\\" else text.find(sign, at + 1)
                if end < 0:
                    raise ShellError(sign, self.line + text.count("\n", start, at))
                at = end + 1
                continue
            if sign == ")" and not depth:
                if not text.startswith("))", at):
                    return None
                self.line += text.count("\n", start, at)
                self.at = at + 2
                return text[start:at]
            depth += (sign == "(") - (sign == ")")
            if depth > _DEEPEST:
                return None
            at += 1
        return None

    def _until_paren(self) -> str:
        start, line = self.at, self.line
        inside: list[Token] = []
        depth = cases = 0
        while self.at < len(self.text):
            pattern = bool(cases) and not depth
            if self.text[self.at] == ")" and not depth and not pattern:
                self.at += 1
                return self.text[start : self.at - 1]
            count = len(inside)
            begins = begins_command(inside)
            self.token(inside)
            if len(inside) > count and inside[-1].kind == "op" and not (pattern and inside[-1].text == ")"):
                depth += (inside[-1].text == "(") - (inside[-1].text == ")")
            elif len(inside) > count and (begins or bare(inside[-1]) == "esac"):
                cases += (bare(inside[-1]) == "case") - (bare(inside[-1]) == "esac" and cases > 0)
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

    def matched(self, parts: list[Part], pair: str) -> None:
        """What stands in brackets, or in the parentheses of a regular expression or a pattern such as ``@(a|b)``."""
        line, depth, start = self.line, 0, self.at
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign in "\\$`\"'":
                parts.append(Part(LITERAL, self.text[start : self.at], False, line))
                self.piece(parts, False)
                start = self.at
                continue
            self.at += 1
            self.line += sign == "\n"
            depth += (sign == pair[0]) - (sign == pair[1])
            if not depth:
                parts.append(Part(LITERAL, self.text[start : self.at], False, line))
                return
        raise ShellError(pair[0], line)
