"""What is known of a collection run, in one form, whatever it was read from.

A rule sees nothing but a :class:`Run`. What cannot be known from the files (``$1``, ``$(hostname)``) is an
:class:`Unknown`: asking for such a value raises :class:`UnknownValueError`, which the engine turns into
"not checked"; so no rule can take it for fine.
"""

from __future__ import annotations

import os

from .unknown import unknown_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .words import Said

VERL_HYBRID = "verl-hybrid"
VERL_FULLY_ASYNC = "verl-fully-async"
SLIME = "slime"
VERL = (VERL_HYBRID, VERL_FULLY_ASYNC)
SCENARIOS = (VERL_HYBRID, VERL_FULLY_ASYNC, SLIME)

#: Where a variable is set: in the script without ``export``, in the script's environment, in the job's
#: ``runtime_env``, or in verl's ``ray_kwargs.ray_init.runtime_env.env_vars``. The last two reach Ray's workers.
SHELL, EXPORT, RUNTIME_ENV, RAY_KWARGS = "shell", "export", "runtime_env", "ray_kwargs"


class Origin:
    """Where something stands: a file and a line (1-based; 0 where there is no line)."""

    __slots__ = ("file", "line")

    def __init__(self, file: str, line: int = 0) -> None:
        self.file = file
        self.line = line

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Unknown:
    """A value that reading cannot know. ``why`` is what stands there, such as ``$1`` or ``$(hostname)``."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class UnknownValueError(Exception):
    """A rule asked for a value that is unknown; the engine says so instead of calling the rule kept.

    ``given``: the key is set, to what cannot be known; else an unknown word may set it.
    """

    def __init__(self, key: str, why: str, origin: Origin | None, given: bool = True) -> None:
        super().__init__(f"{key}: {why}")
        self.given = given
        self.key = key
        self.why = why
        self.origin = origin


class Setting:
    """One setting as it was given.

    ``key`` as in the dictionary it stands in; ``raw`` the word as written after the shell's quoting; ``value`` its
    Python value; ``scope`` for a variable alone (:data:`SHELL` and its neighbours).
    """

    __slots__ = ("_value", "key", "origin", "raw", "scope")

    def __init__(self, key: str, value: Any, raw: str, origin: Origin, scope: str = "") -> None:
        self.key = key
        self._value = value
        self.raw = raw
        self.origin = origin
        self.scope = scope

    @property
    def stored(self) -> Any:
        """The value, or its :class:`Unknown`; for readers. A rule asks for :attr:`value`."""
        return self._value

    @property
    def known(self) -> bool:
        """Whether :attr:`value` can be asked for."""
        return not isinstance(self._value, Unknown)

    @property
    def value(self) -> Any:
        """The Python value.

        Raises:
            UnknownValueError: it cannot be known from what was read.
        """
        if isinstance(self._value, Unknown):
            raise UnknownValueError(self.key, self._value.why, self.origin)
        return self._value


class MsprobeFile:
    """An msprobe configuration.

    ``side`` is "generate", "actor" or "" where nothing says which; ``path`` as the run names it (the target's path);
    ``content`` the parsed object; ``text`` the file's text, which begins behind the line of ``origin``.
    """

    __slots__ = ("content", "origin", "path", "side", "text")

    def __init__(self, side: str, path: str, content: dict[str, Any], text: str, origin: Origin) -> None:
        self.side = side
        self.path = path
        self.content = content
        self.text = text
        self.origin = origin

    def value(self, key: str, default: Any = None) -> Any:
        """A key's value.

        Raises:
            UnknownValueError: a part of it is unknown (``"$ROOT/generate"`` in a file that the script writes).
        """
        found = self.content.get(key, default)
        for text in found if isinstance(found, list) else (found,):
            why = unknown_in(text) if isinstance(text, str) else None
            if why is not None:
                raise UnknownValueError(key, why, self.at(key))
        return found

    def at(self, key: str) -> Origin:
        """The line where a key stands; the file itself where it does not."""
        for number, line in enumerate(self.text.splitlines(), 1):
            if f'"{key}"' in line:
                return Origin(self.origin.file, self.origin.line + number)
        return self.origin


def list_folder(path: str) -> list[str] | None:
    """The names in a folder; None where it is not here or cannot be looked into."""
    try:
        return os.listdir(path)
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return None


class Run:
    """What was read.

    Attributes:
        scenario: one of :data:`SCENARIOS`, or "" where only parts of a run were given (an msprobe file alone).
        hydra: verl's settings, dotted key without ``+`` -> Setting. A missing key is upstream's default.
        slime: slime's, Megatron's and SGLang's flags by dest: ``sglang_chunked_prefill_size`` -> Setting; a flag
            without a value has True.
        env: variables by name -> the settings of that name, in the order read.
        msprobe: msprobe's files that were read.
        stack: upstream -> version, as far as known ("verl" -> "0.8.0").
        submitted: the command goes through ``ray job submit``: what the script exports stays behind.
        entry: where the run's own command stands; where a missing setting is reported.
        open_ended: words that are whole and unknown (``$EXTRA``): a missing setting may be in one of them.
        unread: (where, why) of what could not be read: status 3.
        target_only: what only the target machine can show; said, and the status is left alone.
        texts: file -> its text, of each file that was read; for ``--diff``.
        listing: a folder -> the names in it; None where it is not here.
    """

    def __init__(self, scenario: str = "") -> None:
        self.scenario = scenario
        self.hydra: dict[str, Setting] = {}
        self.slime: dict[str, Setting] = {}
        self.env: dict[str, list[Setting]] = {}
        self.msprobe: list[MsprobeFile] = []
        self.stack: dict[str, str] = {}
        self.submitted = False
        self.entry: Origin | None = None
        self.open_ended: list[tuple[Origin, str]] = []
        self.unread: list[tuple[Origin, Said]] = []
        self.target_only: list[Said] = []
        self.texts: dict[str, str] = {}
        self.listing: Callable[[str], list[str] | None] = list_folder

    def override(self, key: str, default: Any = None) -> Any:
        """The value of a Hydra key; ``default`` (upstream's, which the rule knows) where it is not set.

        Raises:
            UnknownValueError: it is unknown, or not set while an unknown word may set it.
        """
        return self._get(self.hydra, key, default)

    def flag(self, dest: str, default: Any = None) -> Any:
        """The value of a slime flag by its dest; ``default`` where it is not given.

        Raises:
            UnknownValueError: as :meth:`override`.
        """
        return self._get(self.slime, dest, default)

    def variable(self, name: str, default: str | None = None, scopes: Iterable[str] = ()) -> str | None:
        """A variable's text; the last one set in one of ``scopes`` (all scopes where none is given).

        Raises:
            UnknownValueError: it is unknown.
        """
        wanted = tuple(scopes)
        for setting in reversed(self.env.get(name, ())):
            if not wanted or setting.scope in wanted:
                return str(setting.value)
        return default

    def where(self, *keys: str) -> Origin:
        """The place of the first of these keys that is set (Hydra key, slime dest or variable), else of the command."""
        for key in keys:
            setting = self.hydra.get(key) or self.slime.get(key) or next(iter(self.env.get(key, ())), None)
            if setting is not None:
                return setting.origin
        return self.entry or Origin("")

    def msprobe_of(self, side: str) -> MsprobeFile | None:
        """The msprobe file of a side ("generate" or "actor"), if it was read."""
        return next((file for file in self.msprobe if file.side == side), None)

    def _get(self, settings: dict[str, Setting], key: str, default: Any) -> Any:
        setting = settings.get(key)
        if setting is not None:
            return setting.value
        if self.open_ended:
            origin, word = self.open_ended[0]
            raise UnknownValueError(key, word, origin, False)
        return default
