"""Whether bash takes a script at all: its grammar over the words and operators, as ``bash -n`` tries it.

What a shell refuses here it refuses before or while it runs, so nothing that was read of such a script is known to run.
"""

from __future__ import annotations

from .shell_lexer import tokens, word_of
from .shell_tokens import ARITHMETIC, COMMAND, REDIRECTS, VARIABLE, ShellError, UnexpectedError, assigns, bare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shell_tokens import Part, Token

_END = "end"  # the kind of what comes behind the last token
_SEPARATORS = ("\n", ";", "&")
_ENDS_BRANCH = (";;", ";&", ";;&")
#: Reserved words that begin no command; ``time`` and ``!`` stand before one.
_STRAY = frozenset(("then", "do", "done", "elif", "else", "fi", "esac", "in", "}", "]]", "!"))
#: The commands whose arguments may be arrays.
_ARRAYS = frozenset(("alias", "declare", "eval", "export", "let", "local", "readonly", "typeset"))
_UNARY = frozenset("-" + letter for letter in "abcdefghknoprstuvwxzGLONRS")
_BINARY = frozenset(
    ("=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef", "-eq", "-ne", "-lt", "-le", "-gt", "-ge")
)  # fmt: skip


def accept(found: list[Token]) -> None:
    """Try the tokens of a script.

    Raises:
        UnexpectedError: a word or an operator is not where bash takes it.
        ShellError: a command such as ``if`` has no end.
    """
    _Grammar(found).script()


class _Grammar:
    def __init__(self, found: list[Token]) -> None:
        self.found = found
        self.at = 0

    def script(self) -> None:
        self._newlines()
        if self._kind() != _END:
            self._list(None, _END)

    def _kind(self) -> str:
        """ "word" (an array is one), an operator, or the end."""
        if self.at >= len(self.found):
            return _END
        token = self.found[self.at]
        return token.text if token.kind == "op" else "word"

    def _reserved(self) -> str:
        """The next word as it is written without quotes; "" for anything else."""
        return bare(self.found[self.at]) if self.at < len(self.found) else ""

    def _is(self, *signs: str) -> bool:
        return (self._reserved() if self._kind() == "word" else self._kind()) in signs

    def _refuse(self, opener: Token | None = None) -> ShellError:
        if self.at < len(self.found):
            token = self.found[self.at]
            return UnexpectedError(_shown(token), token.line)
        opener = opener or next((token for token in reversed(self.found) if token.text != "\n"), self.found[-1])
        return ShellError(_shown(opener), opener.line)

    def _take(self, *signs: str, opener: Token | None = None) -> Token:
        if not self._is(*signs):
            raise self._refuse(opener)
        self.at += 1
        return self.found[self.at - 1]

    def _newlines(self) -> None:
        while self._kind() == "\n":
            self.at += 1

    def _list(self, opener: Token | None, *ends: str) -> None:
        """Commands, at least one, up to one of ``ends``, which stays."""
        self._newlines()
        while True:
            self._and_or(opener)
            apart = self._kind() in _SEPARATORS
            self.at += apart
            self._newlines()
            if self._is(*ends) and (apart or self._kind() != "word" or not self._behind_redirect()):
                return
            if not apart or self._kind() == _END:
                raise self._refuse(opener)

    def _behind_redirect(self) -> bool:
        return self.at > 1 and self.found[self.at - 2].kind == "op" and self.found[self.at - 2].text in REDIRECTS

    def _and_or(self, opener: Token | None) -> None:
        while True:
            self._pipeline(opener)
            if self._kind() not in ("&&", "||"):
                return
            self.at += 1
            self._newlines()

    def _pipeline(self, opener: Token | None) -> None:
        while self._reserved() in ("!", "time"):
            timed = self._reserved() == "time"
            self.at += 1
            if timed and self._reserved() == "-p":
                self.at += 1
            if self._kind() in ("\n", ";", _END):
                return
        while True:
            self._command(opener)
            if self._kind() not in ("|", "|&"):
                return
            self.at += 1
            self._newlines()
            if self._reserved() == "time":
                self.at += 1

    def _command(self, opener: Token | None) -> None:
        if self._kind() != "word" and self._kind() != "(" and self._kind() not in REDIRECTS:
            raise self._refuse(opener)
        word = self._reserved()
        if word in _STRAY:
            raise self._refuse()
        if word == "coproc":
            self.at += 1
            named = self._kind() == "word" and not self._starts_compound(self.at) and self._starts_compound(self.at + 1)
            self.at += named
            self._command(opener)
        elif word == "function":
            self._function()
        elif self._starts_compound(self.at):
            self._compound()
        else:
            self._simple()

    def _starts_compound(self, at: int) -> bool:
        token = self.found[at] if at < len(self.found) else None
        if token is None:
            return False
        return token.text == "(" if token.kind == "op" else bare(token) in _COMPOUNDS

    def _compound(self) -> None:
        """A command with an end of its own, and what is redirected there."""
        opener = self.found[self.at]
        self.at += 1
        _COMPOUNDS[bare(opener) or "("](self, opener)
        while self._kind() in REDIRECTS:
            self._redirect()

    def _redirect(self) -> None:
        self.at += 1
        if self._kind() != "word" or self.found[self.at].kind == "array":
            raise self._refuse()
        _inside(self.found[self.at])
        self.at += 1

    def _simple(self) -> None:
        """A plain command, or ``name() …``."""
        start, command, arrays = self.at, "", True
        while True:
            kind = self._kind()
            if kind in REDIRECTS:
                self._redirect()
                continue
            if kind != "word":
                break
            token = self.found[self.at]
            if token.kind == "array" and not arrays:
                raise self._refuse()
            _inside(token)
            if not command and not assigns(token):
                command = bare(token) or "?"
                arrays = command in _ARRAYS
            self.at += 1
        if kind == "(" and command and self.at == start + 1:
            self.at += 1
            self._take(")")
            self._body()
        elif kind == "(":
            raise self._refuse()

    def _function(self) -> None:
        self.at += 1
        if self._kind() != "word":
            raise self._refuse(self.found[self.at - 1])
        self.at += 1
        if self._kind() == "(" and self.found[self.at + 1 : self.at + 2] and self.found[self.at + 1].text == ")":
            self.at += 2
        self._body()

    def _body(self) -> None:
        """A function's."""
        self._newlines()
        if not self._starts_compound(self.at):
            raise self._refuse()
        self._compound()

    def _subshell(self, opener: Token) -> None:
        self._list(opener, ")")
        self.at += 1

    def _braces(self, opener: Token) -> None:
        self._list(opener, "}")
        self.at += 1

    def _arithmetic(self, opener: Token) -> None:
        if "$(" in opener.body:
            _inside(word_of(opener.body, opener.line, False))

    def _if(self, opener: Token) -> None:
        branch = "if"
        while branch != "fi":
            if branch != "else":
                self._list(opener, "then")
                self.at += 1
            self._list(opener, *(("fi",) if branch == "else" else ("elif", "else", "fi")))
            branch = self._reserved()
            self.at += 1

    def _while(self, opener: Token) -> None:
        self._list(opener, "do")
        self.at += 1
        self._list(opener, "done")
        self.at += 1

    def _for(self, opener: Token) -> None:
        if self._kind() != "word":
            raise self._refuse(opener)
        counting = self._reserved() == "(("
        if counting:
            self._arithmetic(self.found[self.at])
            if self.found[self.at].body.count(";") != len(";;"):
                raise self._refuse()
        self.at += 1
        if self._kind() == ";":
            self.at += 1
        elif not counting:
            self._newlines()
            if self._reserved() == "in":
                self.at += 1
                while self._kind() == "word":
                    _inside(self.found[self.at])
                    self.at += 1
                self._take(";", "\n", opener=opener)
        self._newlines()
        end = "done" if self._take("do", "{", opener=opener).parts[0].text == "do" else "}"
        self._list(opener, end)
        self.at += 1

    def _case(self, opener: Token) -> None:
        if self._kind() != "word":
            raise self._refuse(opener)
        _inside(self.found[self.at])
        self.at += 1
        self._newlines()
        self._take("in", opener=opener)
        self._newlines()
        while not self._is("esac"):
            self._patterns(opener)
            self._newlines()
            if not self._is(*_ENDS_BRANCH, "esac"):
                self._list(opener, *_ENDS_BRANCH, "esac")
            if self._kind() in _ENDS_BRANCH:
                self.at += 1
                self._newlines()
            elif not self._is("esac"):
                raise self._refuse(opener)
        self.at += 1

    def _patterns(self, opener: Token) -> None:
        self.at += self._kind() == "("
        while True:
            if self._kind() != "word":
                raise self._refuse(opener)
            _inside(self.found[self.at])
            self.at += 1
            if self._take("|", ")", opener=opener).text == ")":
                return

    def _test(self, opener: Token) -> None:
        """``[[ … ]]``."""
        if self._reserved() != "]]":  # bash takes an empty one
            self._either(opener)
        self._take("]]", opener=opener)

    def _either(self, opener: Token) -> None:
        while True:
            self._term(opener)
            if self._kind() not in ("&&", "||"):
                return
            self.at += 1

    def _term(self, opener: Token) -> None:
        self._newlines()
        if self._kind() == "(":
            self.at += 1
            self._either(opener)
            self._take(")", opener=opener)
            self._newlines()
        elif self._reserved() == "!":
            self.at += 1
            self._term(opener)
        elif self._reserved() in _UNARY:
            self.at += 1
            self._operand(opener)
            self._newlines()
        else:
            self._operand(opener)
            if not self._is("]]", "&&", "||", ")"):
                self._take(*_BINARY, opener=opener)
                self._operand(opener)
                self._newlines()

    def _operand(self, opener: Token) -> None:
        if self._kind() != "word" or self._reserved() == "]]":
            raise self._refuse(opener)
        _inside(self.found[self.at])
        self.at += 1


_COMPOUNDS = {
    "(": _Grammar._subshell,
    "{": _Grammar._braces,
    "((": _Grammar._arithmetic,
    "[[": _Grammar._test,
    "if": _Grammar._if,
    "while": _Grammar._while,
    "until": _Grammar._while,
    "for": _Grammar._for,
    "select": _Grammar._for,
    "case": _Grammar._case,
}


def _shown(token: Token) -> str:
    text = token.text if token.kind != "word" else "".join(part.text for part in token.parts)
    return text if text != "\n" else "the line's end"


def _inside(token: Token) -> None:
    """Try the commands that are substituted in a word."""
    for item in token.items:
        _inside(item)
    for part in token.parts:
        _part(part)


def _part(part: Part) -> None:
    if part.kind == COMMAND and not part.late:
        accept(tokens(part.text + "\n", part.line))
    elif part.kind in (VARIABLE, ARITHMETIC) and "$(" in part.text:
        _inside(word_of(part.text, part.line, part.quoted))
