"""A setting of a plan, and why it is there."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

#: A word that Hydra takes for a text; one that begins with a digit may be a number to it.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./\-]*")


@dataclass(frozen=True)
class Given:
    """Some settings for one reason.

    Attributes:
        settings: verl's Hydra keys, or slime's flags, with their values; True for a flag that takes none.
        en, zh: the reason, one sentence without a full stop.
    """

    settings: dict[str, Any]
    en: str
    zh: str

    def why(self, language: str) -> str:
        """The reason in a language."""
        return self.zh if language == "zh" else self.en


def hydra(key: str, value: Any) -> str:
    """A Hydra override, before the shell's quoting. A text that Hydra would read otherwise is quoted for it."""
    if not isinstance(value, str):
        return f"{key}={'null' if value is None else value}"
    plain = _PLAIN.fullmatch(value) and value.lower() not in ("true", "false", "null", "inf", "nan")
    sign = '"' if "'" in value else "'"
    quoted = sign + value.replace("\\", "\\\\").replace(sign, "\\" + sign) + sign
    return f"{key}={value if plain else quoted}"


def shell(word: str) -> str:
    """A word as a shell's script has it: with double quotes where it has single ones of its own."""
    if "'" in word and not any(sign in word for sign in '"$`\\!'):
        return f'"{word}"'
    return shlex.quote(word)
