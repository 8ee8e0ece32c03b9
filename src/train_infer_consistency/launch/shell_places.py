"""Where a word of a script begins and ends, for corrections."""

from __future__ import annotations

from contextlib import suppress

from .shell_lexer import Lexer
from .shell_tokens import ENDS_WORD, ShellError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shell_tokens import Part


class _Quotes(Lexer):
    """Remembers where quotes begin and end."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 1)
        self.spans: list[tuple[int, int]] = []

    def piece(self, parts: list[Part], quoted: bool) -> None:
        start = self.at
        super().piece(parts, quoted)
        if not quoted and self.text[start] in "'\"":
            self.spans.append((start, self.at))


def word_at(text: str, at: int) -> tuple[int, int, bool]:
    """The word around a place in a script.

    Returns:
        Where it begins and ends, and whether it is one of several in a quoted text (``ARGS="--a 1 --b 2"``).
    """
    lexer = _Quotes(text)
    with suppress(ShellError):  # what comes before the place was read
        lexer.run()
    start = at
    while start and text[start - 1] in "+~":
        start -= 1
    around = next((span for span in lexer.spans if span[0] < at < span[1]), None)
    if around is not None and around[0] != start - 1:
        end = at
        while end < around[1] - 1 and not text[end].isspace() and text[end] != "\\":
            end += 1
        return start, end, True
    start = start if around is None else around[0]
    ends = Lexer(text, 1)
    ends.at = start
    ignored: list[Part] = []
    while ends.at < len(text) and text[ends.at] not in ENDS_WORD:
        ends.piece(ignored, False)
    return start, ends.at, False
