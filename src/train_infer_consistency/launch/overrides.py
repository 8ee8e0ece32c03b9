"""Read Hydra's command-line overrides: ``key=value``, ``+key=…``, ``++key=…``, ``~key``, and the values' grammar.

Checked against Hydra 1.3 itself where it is installed. What Hydra resolves later (``${…}``) and its functions and
sweeps are unknown values here.
"""

from __future__ import annotations

from .run import Setting, Unknown
from .unknown import is_mark, plain, unknown_in
from .words import Said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .shell_values import Field

_WORDS = {"true": True, "false": False, "null": None}
_FLOATS = ("inf", "nan")
_SPACE = " \t\n"
_UNQUOTED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/-\\+.$%*@?|: \t\n")


class OverrideError(Exception):
    """A word that Hydra would refuse; ``said`` is why."""

    def __init__(self, text: str, sign: str = "") -> None:
        self.said = Said("hydra", text=plain(text), sign=sign) if sign else Said("no-override", word=plain(text))
        super().__init__(str(self.said))


def apply(field: Field, settings: dict[str, Setting]) -> None:
    """Put one override among the settings, as Hydra would: a later one wins, a parent takes its children along.

    A dictionary's entries are settings too: ``a={b:1}`` is also ``a.b=1``.

    Raises:
        OverrideError: Hydra would refuse the word.
    """
    key, sign, text = field.text.partition("=")
    bare = key.strip().lstrip("+").lstrip("~").partition("@")[0]
    if not bare or not all(
        part.replace("-", "_").replace("/", "_").isidentifier() or part.isdigit() for part in bare.split(".")
    ):
        raise OverrideError(field.text)
    if key.startswith("~"):
        _put(Setting(bare, None, text, field.origin), settings)
        return
    if not sign:
        raise OverrideError(field.text)
    _put(Setting(bare, value_of(text), text, field.origin), settings)


def _put(setting: Setting, settings: dict[str, Setting]) -> None:
    value = setting.stored
    if not isinstance(value, dict):
        under = setting.key + "."
        for key in [key for key in settings if key.startswith(under)]:
            del settings[key]
    settings[setting.key] = setting
    if isinstance(value, dict):
        for name, inner in value.items():
            _put(Setting(f"{setting.key}.{name}", inner, text_of(inner), setting.origin), settings)


def value_of(text: str) -> Any:
    """A value as Hydra reads it; an :class:`Unknown` where it cannot be known.

    Raises:
        OverrideError: Hydra would refuse it.
    """
    reader = _Values(text)
    found = reader.element(top=True)
    reader.blanks()
    if reader.at < len(text):
        if text[reader.at] == ",":
            return Unknown(f"{plain(text)} (a sweep)")
        raise OverrideError(text, text[reader.at])
    return found


def text_of(value: Any) -> str:
    """A value as it is written in an override."""
    if isinstance(value, Unknown):
        return value.why
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{text_of(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return "null" if value is None else str(value)


class _Values:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in _SPACE:
            self.at += 1

    def element(self, top: bool = False) -> Any:
        self.blanks()
        sign = self.text[self.at : self.at + 1]
        if sign == "{":
            return self._dictionary()
        if sign == "[":
            return self._list()
        if sign in ("'", '"') and sign:
            return self._quoted(sign)
        return self._bare(top)

    def _dictionary(self) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        self.blanks()
        while not self._closes("}", bool(found)):
            self.blanks()
            key = self._key()
            self.blanks()
            if self.text[self.at : self.at + 1] != ":":
                raise OverrideError(self.text, ":")
            self.at += 1
            found[key] = self.element()
        return found

    def _key(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in ":,{}[]'\"=":
            self.at += 1
        key = self.text[start : self.at].strip()
        if not key:
            raise OverrideError(self.text, "key")
        return key

    def _list(self) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while not self._closes("]", bool(found)):
            found.append(self.element())
        return found

    def _closes(self, end: str, more: bool) -> bool:
        self.blanks()
        sign = self.text[self.at : self.at + 1]
        if sign == end:
            self.at += 1
            return True
        if not sign:
            raise OverrideError(self.text, end)
        if more:
            if sign != ",":
                raise OverrideError(self.text, ",")
            self.at += 1
        return False

    def _quoted(self, sign: str) -> str | Unknown:
        start = self.at
        signs: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            one = self.text[self.at]
            if one == "\\":  # backslashes are halved before a quote alone
                run = len(self.text) - self.at - len(self.text[self.at :].lstrip("\\"))
                quoted = self.text[self.at + run : self.at + run + 1] == sign
                signs.append("\\" * (run // 2 if quoted else run))
                self.at += run
                if quoted and run % 2:
                    signs.append(sign)
                    self.at += 1
                continue
            if one == sign:
                self.at += 1
                return _known("".join(signs))
            signs.append(one)
            self.at += 1
        raise OverrideError(self.text[start:], sign)

    def _bare(self, top: bool) -> Any:
        start = self.at
        signs: list[str] = []
        function = False
        while self.at < len(self.text):
            one = self.text[self.at]
            if self.text.startswith("${", self.at):
                self._interpolation()
                signs.append(self.text[self.at - 1])
                continue
            if one == "\\" and self.text[self.at + 1 : self.at + 2] in tuple("\\()[]{}:=, \t"):
                signs.append(self.text[self.at + 1])
                self.at += 2
                continue
            if one in ",]}[{'\"":
                break
            function = function or one == "("
            if not (one in _UNQUOTED or function or is_mark(one)):
                raise OverrideError(self.text, one)
            signs.append(one)
            self.at += 1
        raw = self.text[start : self.at]
        if not top and not raw:
            raise OverrideError(self.text, ",")
        if "${" in raw or function:
            return Unknown(plain(raw.strip()))
        if raw and self.at < len(self.text) and self.text[self.at] in "'\"[{":
            raise OverrideError(self.text, self.text[self.at])
        return _primitive("".join(signs).strip(), raw.strip())

    def _interpolation(self) -> None:
        depth = 0
        while self.at < len(self.text):
            depth += (self.text[self.at] == "{") - (self.text[self.at] == "}")
            self.at += 1
            if not depth and self.text[self.at - 1] == "}":
                return
        raise OverrideError(self.text, "}")


def _primitive(text: str, raw: str) -> Any:
    if unknown_in(text):
        return _known(text)
    lower = text.lower()
    if "\\" in raw:
        return text
    if lower in _WORDS:
        return _WORDS[lower]
    return _number(text)


def _number(text: str) -> int | float | str:
    body = text.lstrip("+-")
    if len(text) - len(body) > 1 or not body:
        return text
    digits = body.replace("_", "")
    if digits.isdigit() and body[0] != "_" and body[-1] != "_" and "__" not in body:
        return text if len(digits) > 1 and digits[0] == "0" else int(text)
    if body.lower() in _FLOATS or (set(body) <= set("0123456789._eE+-") and any(one.isdigit() for one in body)):
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _known(text: str) -> str | Unknown:
    why = unknown_in(text)
    return text if why is None else Unknown(why)
