"""Reads a ``dump.json`` as a stream: what is in memory is the records and a window of the text, never the whole.

A file that ends too early or is damaged gives what stands before the damage, and says so.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ..errors import EvidenceError
from .entries import COMMON, EntryReader
from .records import Call, RankDump

DUMP = "dump.json"
_WINDOW = 1 << 16
# Longer than any entry of the common form.
_LONG = 1 << 13
_CUT = "the file ends too early"
_SPACE = re.compile(r"[ \t\n\r]*")
_STEP = re.compile(r"step_?([0-9]{1,9})")
_RANK = re.compile(r"rank_?([0-9]{1,9})")


def read_rank(path: Path) -> RankDump:
    """Read all that a rank dumped in a step.

    Args:
        path: a ``dump.json``, or the folder it is in.

    Raises:
        EvidenceError: there is no such file, or it is no msprobe dump at all.
    """
    return _read(path, None)


def peek(path: Path, calls: int = 40) -> RankDump:
    """Read the first calls only: whether anything was dumped, and of how many tokens.

    Raises:
        EvidenceError: as :func:`read_rank`.
    """
    return _read(path, calls)


def _read(path: Path, limit: int | None) -> RankDump:
    path = dump_file(path)
    entries = EntryReader()
    calls: list[Call] = []
    try:
        # An invalid byte becomes an escape that JSON does not know, so it is reported at its place.
        with path.open(encoding="utf-8", errors="backslashreplace", newline="") as file, paused_collector():
            stream = _Stream(file, entries, calls, limit)
            stream.read()
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror or error})") from None
    if stream.broken is not None:
        entries.problems.append(stream.broken)
    if not stream.found_data:
        why = stream.broken or "it has no 'data'"
        raise EvidenceError(f"{path} is no msprobe dump: {why}", "dump the step again, or leave it out")
    return RankDump(
        path=path,
        step=_number(_STEP, path.parent.parent.name),
        rank=_number(_RANK, path.parent.name),
        task=stream.text_of("task"),
        level=stream.text_of("level"),
        calls=tuple(calls),
        complete=not entries.problems,
        problems=tuple(entries.problems),
    )


def dump_file(path: Path) -> Path:
    """The ``dump.json`` that a path means: itself, or the one in the folder."""
    return path / DUMP if path.is_dir() else path


class _Stream:
    """The top-level object of one file, read entry by entry."""

    def __init__(self, file: TextIO, entries: EntryReader, calls: list[Call], limit: int | None) -> None:
        self.found_data = False
        self.broken: str | None = None
        self._file, self._entries, self._calls, self._limit = file, entries, calls, limit
        self._head: dict[str, Any] = {}
        self._text, self._at, self._ended = "", 0, False
        self._gone = 0  # characters before the window
        self._decode = json.JSONDecoder(object_pairs_hook=entries.pairs).raw_decode

    def read(self) -> None:
        """Read to the end, to the limit, or to the first place that is no JSON."""
        try:
            for name in self._names():
                if name == "data":
                    self.found_data = self._sees("{")
                    if self._data():
                        return
                else:
                    self._head[name] = self._value()
            self._skip_space()
            if self._at < len(self._text):
                raise _BrokenError("something follows the end of the dump")
        except _BrokenError as error:
            line = self._lines_before()
            self.broken = f"line {line}: {error}; {len(self._calls)} entries before it were read"

    def _lines_before(self) -> int:
        """The number of the line at the cursor; to count on the way would cost every whole file its time."""
        self._file.seek(0)
        lines, left = 1, self._gone + self._at
        while left and (text := self._file.read(min(left, _WINDOW))):
            lines, left = lines + text.count("\n"), left - len(text)
        return lines

    def text_of(self, name: str) -> str:
        """A header field; empty where it is missing or no text."""
        value = self._head.get(name)
        return value if isinstance(value, str) else ""

    def _data(self) -> bool:
        """Read the entries; True where the limit ended it."""
        seen: set[str] = set()
        for name in self._names(lambda: self._common(seen)):
            if len(self._calls) == self._limit:
                return True
            value = self._value()
            if name in seen:
                self._entries.problems.append(f"{name[:120]!a}: is there twice")
                continue
            call = self._entries.decoded(name, value, len(seen))
            seen.add(name)
            if call is not None:
                self._calls.append(call)
        return False

    def _common(self, seen: set[str]) -> bool:
        """Read the entries of the common form behind a brace or comma; True where no comma followed the last one."""
        calls, limit, match_at, call_of = self._calls, self._limit, COMMON.match, self._entries.common
        text, at, close = self._text, self._at, self._close()
        more = True
        while more and len(calls) != limit:
            if at > close:
                self._at = at
                self._fill(_WINDOW)
                text, at, close = self._text, 0, self._close()
            match = match_at(text, at)
            call = None if match is None else call_of(match, len(seen))
            if match is None or call is None or call[0] in seen:
                break
            calls.append(call)
            seen.add(call[0])
            at = match.end()
            if more := text.startswith(",", at):
                at += 1
        self._at = at
        return not more

    def _close(self) -> int:
        """From where on an entry may reach beyond the window."""
        return len(self._text) if self._ended else len(self._text) - _LONG

    def _names(self, quick: Callable[[], bool] = lambda: False) -> Iterator[str]:
        """Yield each key of the object at the cursor, whose value stands at the cursor then.

        Args:
            quick: reads what it can behind the brace and behind each comma; True where no comma followed that.
        """
        self._expect("{")
        if not quick():
            if self._sees("}"):
                self._at += 1
                return
            yield self._name()
        while not self._sees("}"):
            self._expect(",")
            if not quick():
                yield self._name()
        self._at += 1

    def _name(self) -> str:
        if not self._sees('"'):
            raise _BrokenError("a key is missing" if self._at < len(self._text) else _CUT)
        name = self._value()
        assert isinstance(name, str)
        self._expect(":")
        self._skip_space()
        return name

    def _value(self) -> Any:
        """The JSON value at the cursor, and the cursor behind it."""
        size = _WINDOW
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except RecursionError:
                raise _BrokenError("it is nested too deeply") from None
            except ValueError as error:
                if self._ended:
                    raise _BrokenError(f"{_CUT} or is damaged") from error
            else:
                # A number at the window's end may go on.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            self._entries.forget()
            self._fill(size)
            size *= 2

    def _expect(self, sign: str) -> None:
        if not self._sees(sign):
            raise _BrokenError(f"'{sign}' is missing" if self._at < len(self._text) else _CUT)
        self._at += 1

    def _sees(self, sign: str) -> bool:
        self._skip_space()
        return self._text.startswith(sign, self._at)

    def _skip_space(self) -> None:
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text) or self._ended:
                return
            self._fill(_WINDOW)

    def _fill(self, size: int) -> None:
        more = self._file.read(size)
        self._ended = not more
        self._gone += self._at
        self._text, self._at = self._text[self._at :] + more, 0


class _BrokenError(Exception):
    """The text is no JSON from here on."""


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the cyclic garbage collector: a hundred thousand new records without a cycle make it search in vain.

    Afterwards they count as old, or the very next allocation would make it search through all of them at once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None
