"""Copies files from hosts to here: each whole or not at all, and none that is there already."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConsistencyError, UnfinishedError
from .sources import Source
from .survey import File


class Item(NamedTuple):
    """A file to copy and its place in the collection."""

    source: Source
    file: File
    place: Path


@contextmanager
def held(part: Path) -> Iterator[None]:
    """Have a workplace alone.

    Raises:
        UnfinishedError: another run is at work there, or it cannot be made.
    """
    try:
        part.mkdir(parents=True, exist_ok=True)
        handle = os.open(part, os.O_RDONLY)
    except OSError as error:
        raise UnfinishedError(f"{part} cannot be made ({error.strerror or error})", "name another folder") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UnfinishedError(f"another run is at work in {part}", "wait for it, or name another folder") from None
        yield
    finally:
        os.close(handle)


def bring_logs(sources: Iterable[Source], part: Path) -> list[dict[str, Any]]:
    """Copy all logs to their places below a folder, and return a record of each.

    Raises:
        EvidenceError: a host does not answer, or one cannot be read.
        UnfinishedError: there is no room.
    """
    logs = [
        Item(source, log, source.to / log.path.relative_to(source.root))
        for source in sources
        for log in source.found.survey.logs
    ]
    return list(copied(logs, part, lambda _: None))


def copied(items: list[Item], part: Path, tell: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    """Copy what is not there, a file whole or not at all; yield a record of each."""
    done = 0
    by_source: dict[int, list[Item]] = {}
    for item in items:
        by_source.setdefault(id(item.source), []).append(item)
    for own in by_source.values():
        lacking: dict[Path, Item] = {}
        for item in own:
            if is_there(part / item.place, item.file):
                yield _file_record(item, _digest(part / item.place))
                tell(done := done + item.file.size)
            else:
                lacking[item.file.path] = item
        writer: _Writer | None = None
        try:
            for file, piece in own[0].source.found.host.chunks([item.file for item in lacking.values()]):
                item = lacking[file.path]
                if writer is None:
                    writer = _Writer(part / item.place, file)
                writer.write(piece)
                tell(done := done + len(piece))
                if writer.whole:
                    yield _file_record(item, writer.finish())
                    writer = None
        except OSError as error:
            raise UnfinishedError(
                f"{part}: {error.strerror or error}",
                "mend that and run it again: what is there whole is not copied twice",
            ) from None
        finally:
            if writer is not None:
                writer.give_up()


class _Writer:
    """A file on its way, under a name that nothing reads."""

    def __init__(self, path: Path, file: File) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._file, self._hash, self._size = path, file, hashlib.sha256(), 0
        self._new = path.with_name(f".{path.name}.new")
        self._open = self._new.open("wb")

    @property
    def whole(self) -> bool:
        return self._size == self._file.size

    def write(self, piece: bytes) -> None:
        self._open.write(piece)
        self._hash.update(piece)
        self._size += len(piece)

    def finish(self) -> str:
        self._open.close()
        os.utime(self._new, ns=(self._file.modified, self._file.modified))
        self._new.replace(self._path)
        return self._hash.hexdigest()

    def give_up(self) -> None:
        with suppress(OSError):
            self._open.close()
        self._new.unlink(missing_ok=True)


def is_there(path: Path, file: File) -> bool:
    """Whether a file was copied before: it has the size and the time of its original."""
    try:
        status = path.stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size, file.modified)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_record(item: Item, digest: str) -> dict[str, Any]:
    return {"path": item.place.as_posix(), "bytes": item.file.size, "sha256": digest}


def forget_others(part: Path, wanted: set[str]) -> None:
    """Delete what an earlier, unfinished run with another choice left."""
    for above, _, names in os.walk(part, topdown=False):
        folder = Path(above)
        for name in names:
            if (folder / name).relative_to(part).as_posix() not in wanted:
                (folder / name).unlink()
        with suppress(OSError):  # it has something in it, or is the part itself
            folder.rmdir()


def write_whole(path: Path, text: str) -> None:
    """Write a text file, or none.

    Raises:
        UnfinishedError: there is no room.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise UnfinishedError(f"{path}: {error.strerror or error}", "mend that and run it again") from None


def failed(error: ConsistencyError, part: Path) -> ConsistencyError:
    """The same error, which says where what is whole is kept."""
    for above, _, _ in os.walk(part, topdown=False):
        with suppress(OSError):
            Path(above).rmdir()
    if not part.exists():
        return error
    return type(error)(error.what, f"{error.mend or 'mend that and run it again'}; {part} has what was copied so far")
