"""Read slime's, Megatron's and SGLang's flags: ``--a b``, ``--a=b``, ``--a 1 2``, ``--a``."""

from __future__ import annotations

from .run import Origin, Setting, Unknown
from .unknown import plain, unknown_in, wholly_unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .shell_values import Field


def read(
    fields: list[Field], settings: dict[str, Setting]
) -> tuple[list[tuple[Origin, str]], list[tuple[Origin, str]]]:
    """Put flags among the settings, by their own words: ``--no-rope-fusion`` is ``no_rope_fusion``; the last one wins.

    A flag without a value is True, with one a number or a text, with several a list of them. Which flag takes how many
    is not asked: what follows up to the next flag is its own.

    Returns:
        Words that are wholly unknown and stand where a flag may, and words that belong to no flag.
    """
    unknown: list[tuple[Origin, str]] = []
    stray: list[tuple[Origin, str]] = []
    at = 0
    while at < len(fields):
        field = fields[at]
        at += 1
        if not _is_flag(field.text):
            (unknown if wholly_unknown(field.text) else stray).append((field.origin, plain(field.text)))
            continue
        name, sign, text = field.text.partition("=")
        values = [text] if sign else []
        while not sign and at < len(fields) and not _is_flag(fields[at].text):
            if values and wholly_unknown(fields[at].text) and not fields[at].quoted:
                break  # a second word that may be anything: more flags, most likely
            values.append(fields[at].text)
            at += 1
        dest = name.lstrip("-").replace("-", "_")
        settings[dest] = Setting(dest, _value(values), " ".join(map(plain, values)), field.origin)
    return unknown, stray


def flag_of(dest: str) -> str:
    """A flag as it is written."""
    return "--" + dest.replace("_", "-")


def _is_flag(text: str) -> bool:
    return text.startswith("--") and len(text) > 2


def _value(values: list[str]) -> Any:
    if not values:
        return True
    found = [_one(text) for text in values]
    return found[0] if len(found) == 1 else found


def _one(text: str) -> Any:
    why = unknown_in(text)
    if why is not None:
        return Unknown(why)
    body = text.lstrip("+-")
    if body.isascii() and body.isdigit():
        return int(text)
    if body[:1].isdigit() or body[:1] == ".":
        try:
            return float(text)
        except ValueError:
            pass
    return text
