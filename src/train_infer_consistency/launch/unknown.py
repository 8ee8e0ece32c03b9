"""Unknown pieces inside a text: marks that pass through quoting, JSON and Hydra's grammar untouched.

A shell word such as ``key=${HOST}/x`` is known in part. The unknown part is kept as a mark made of private-use
characters that spell what stands there, so that every later reader treats it as plain letters, and whoever needs the
value sees that it is unknown.
"""

from __future__ import annotations

OPEN, CLOSE = "\ue000", "\ue001"
_SHIFT = 0xF0000


def mark(why: str) -> str:
    """A text that stands for an unknown one; ``why`` is what is written there (``$1``)."""
    return OPEN + "".join(chr(_SHIFT + ord(sign)) for sign in why if ord(sign) < _SHIFT) + CLOSE


def unknown_in(text: str) -> str | None:
    """What the first unknown piece of a text is, such as ``$1``; None where all of it is known."""
    start = text.find(OPEN)
    if start < 0:
        return None
    end = text.find(CLOSE, start)
    return _spell(text[start + 1 : end])


def wholly_unknown(text: str) -> bool:
    """Whether a text is nothing but one unknown piece."""
    return text.startswith(OPEN) and text.find(CLOSE) == len(text) - 1


def is_mark(sign: str) -> bool:
    """Whether a sign belongs to an unknown piece."""
    return sign in (OPEN, CLOSE) or ord(sign) >= _SHIFT


def plain(text: str) -> str:
    """A text for people: unknown pieces as they are written."""
    return _spell(text.replace(OPEN, "").replace(CLOSE, "")) if OPEN in text else text


def _spell(text: str) -> str:
    return "".join(chr(ord(sign) - _SHIFT) if ord(sign) >= _SHIFT else sign for sign in text)
