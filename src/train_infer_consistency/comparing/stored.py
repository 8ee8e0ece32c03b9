"""Results of many pairs without the memory of many pairs: each is kept bare, and whole on disk where it is needed."""

from __future__ import annotations

import copyreg
import io
import pickle
import tempfile
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, NamedTuple, Self

from ..dumps.records import Call, RankDump
from ..errors import UnfinishedError
from .dialect import Dialect
from .quantity import Side
from .record import PairResult

# Results beyond this are kept in a file.
_IN_MEMORY = 32 << 20


class Packed(NamedTuple):
    """A result on its way from the process that compared.

    Attributes:
        number: which pair.
        bare: the result without its modules.
        whole: all of it; None where nobody will ask for it.
    """

    number: int
    bare: bytes
    whole: bytes | None


def pack(index: int, result: PairResult, *, whole: bool) -> Packed:
    """A result as bytes. Of the dumps only names and places go with it, not their other entries."""
    sides = [None if side is None else _bare(side) for side in (result.inference, result.training)]
    bare = replace(result, modules=[], inference=sides[0], training=sides[1])
    return Packed(index, _pickled(bare), _pickled(result) if whole else None)


def unpack(data: bytes) -> PairResult:
    """The result that :func:`pack` made bytes of; such bytes come from this program's own processes alone."""
    result = pickle.loads(data)
    assert isinstance(result, PairResult)
    return result


class Store:
    """Whole results in one unnamed temporary file, which is gone when the process is."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (closed below)
        self._places: dict[int, tuple[int, int]] = {}
        self._last: tuple[int, PairResult] | None = None

    def add(self, index: int, data: bytes) -> None:
        """Keep a result.

        Raises:
            UnfinishedError: there is no room for it.
        """
        try:
            start = self._file.seek(0, io.SEEK_END)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise UnfinishedError(
                f"{tempfile.gettempdir()}: {error.strerror or error}, and the results of all pairs are kept there",
                "make room there, or name another folder in TMPDIR",
            ) from None
        self._places[index] = (start, len(data))

    def load(self, index: int) -> PairResult:
        """A result that was added; the one that was asked for last is at hand."""
        if self._last is None or self._last[0] != index:
            self._last = None
            start, size = self._places[index]
            self._file.seek(start)
            self._last = index, unpack(self._file.read(size))
        return self._last[1]

    def __enter__(self) -> Self:
        """At the end of the context the room is given back."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the room back."""
        self._file.close()


def _bare(side: Side) -> Side:
    return replace(side, modules={}, ids=None, positions=[])


def _pickled(result: PairResult) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(result)
    return buffer.getvalue()


def _call(call: Call) -> tuple[Any, ...]:
    return Call, call._replace(inputs=(), kwargs={}, outputs=(), parameters={})[:]


def _dump(dump: RankDump) -> tuple[Any, ...]:
    return RankDump, _values(replace(dump, calls=()))


def _dialect(dialect: Dialect) -> tuple[Any, ...]:
    return Dialect, _values(replace(dialect, rules={}, prefixes=(), _plans={}))


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, item.name) for item in fields(record))


def _plain(types: Iterable[tuple[type, Any]]) -> dict[type, Any]:
    return {**copyreg.dispatch_table, **dict(types)}


class _Pickler(pickle.Pickler):
    """Leaves out what no report asks for: it is most of the bytes."""

    dispatch_table = _plain([(Call, _call), (RankDump, _dump), (Dialect, _dialect)])
