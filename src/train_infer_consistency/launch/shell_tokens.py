"""A shell script's words and operators, as the lexer cuts them."""

from __future__ import annotations

LITERAL, VARIABLE, ARITHMETIC, COMMAND = "literal", "variable", "arithmetic", "command"
ENDS_WORD = " \t\r\n;&|()<>"
NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
DIGITS = frozenset("0123456789")
#: Words behind which a command begins, so that "((" is arithmetic there.
BEFORE_COMMANDS = frozenset(("if", "then", "elif", "else", "while", "until", "do", "for", "!", "{", "time"))
_REACH = 100  # so many tokens back a place in a command is looked at
REDIRECTS = frozenset(("&>>", "<<<", "<<-", "&>", ">>", ">&", "<&", "<<", "<>", ">|", "<", ">"))


class ShellError(Exception):
    """Something in a script has no end: ``what`` begins in ``line``."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.what = what
        self.line = line


class UnexpectedError(ShellError):
    """``what`` stands in ``line``, where bash does not take it."""


class Part:
    """A piece of a word. ``kind`` is one of the four above; ``text`` its inside: a name, an expression, a command.

    ``late``: a command in backquotes, which bash parses no sooner than it runs it.
    """

    __slots__ = ("kind", "late", "line", "quoted", "text")

    def __init__(self, kind: str, text: str, quoted: bool, line: int, late: bool = False) -> None:
        self.kind = kind
        self.late = late
        self.text = text
        self.quoted = quoted
        self.line = line


class Token:
    """A word, an operator, or an array assignment.

    ``kind`` is "word", "op" or "array". ``text`` is an operator ("\\n" is one) or an array's ``name=`` or ``name+=``;
    ``items`` the array's words; ``body`` the text of a here-document or of ``((…))``, and ``raw_body`` whether it is
    taken as it is.
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


def is_name(text: str) -> bool:
    """Whether a text can be a variable's name."""
    return bool(text) and text[0] not in DIGITS and NAME.issuperset(text)


def bare(token: Token) -> str:
    """A word's text where it is written without quotes and variables, else ""."""
    if token.kind == "word" and len(token.parts) == 1 and not token.parts[0].quoted:
        return token.parts[0].text if token.parts[0].kind == LITERAL else ""
    return ""


def begins_command(into: list[Token]) -> bool:
    """Whether a command may begin behind these tokens."""
    if not into or into[-1].kind == "op":
        return not into or into[-1].text not in REDIRECTS
    return bare(into[-1]) in BEFORE_COMMANDS


def behind_match(into: list[Token]) -> bool:
    """Whether a regular expression comes next: ``[[ $A =~ ^(a|b)$ ]]``."""
    return bool(into) and bare(into[-1]) == "=~" and in_test(into)


def in_test(into: list[Token]) -> bool:
    """Whether ``[[`` is open."""
    for token in into[: -_REACH - 1 : -1]:
        if bare(token) in ("[[", "]]"):
            return bare(token) == "[["
        if token.text == ";":
            return False
    return False


def assigns(token: Token) -> bool:
    """Whether a word is an assignment where a command begins: ``A=x``, ``A+=x``, ``A[0]=x``, ``A=(x y)``."""
    if token.kind != "word":
        return token.kind == "array"
    head = token.parts[0] if token.parts else None
    if head is None or head.quoted or head.kind != LITERAL:
        return False
    name, sign, _ = head.text.partition("=")
    if not sign and len(token.parts) > 1 and token.parts[1].text.startswith("["):
        return is_name(head.text) and any(part.text.startswith(("=", "+=")) for part in token.parts[2:])
    return bool(sign) and is_name(name.removesuffix("+"))


def assigns_element(item: Token) -> bool:
    """Whether an array's word says where it goes: ``[1]=x``."""
    parts = item.parts
    written = bool(parts) and not parts[0].quoted and parts[0].text.startswith("[")
    return written and any(part.text.startswith(("=", "+=")) for part in parts[1:] if not part.quoted)


def behind_assignments(into: list[Token]) -> bool:
    """Whether an assignment may come next: a command begins here, and has nothing but assignments so far."""
    for token in into[: -_REACH - 1 : -1]:
        if not assigns(token):
            return token.kind == "op" or bare(token) in BEFORE_COMMANDS
    return True
