"""Request ids: what an engine appended to the id that the training side knows."""

from __future__ import annotations

import re
from collections.abc import Container

# vLLM >= 0.14 appends 8 random hex digits (InputProcessor.assign_request_id), its chat API puts a word in front.
_SUFFIX = re.compile(r"-[0-9a-f]{8}")
_PREFIXES = ("chatcmpl-", "cmpl-")


def base_id(request_id: str, known: Container[str | None]) -> str | None:
    """The known id that an engine's id stands for: itself, or what is left without suffix or prefix; else None.

    An id may well end in a hyphen and eight hex digits of its own: only a known rest makes them a suffix.

    Args:
        request_id: the inference side's.
        known: the training side's ids; None among them is none.
    """
    base = _known(request_id, known)
    if base is None and request_id.startswith(_PREFIXES):
        base = _known(request_id.partition("-")[2], known)
    return base


def _known(word: str, known: Container[str | None]) -> str | None:
    if word in known:
        return word
    if len(word) > 9 and _SUFFIX.fullmatch(word, len(word) - 9) and word[:-9] in known:
        return word[:-9]
    return None
