"""Read and write zip archives member by member, copying what is untouched without recompressing it.

``zipfile`` reads the central directory (so zip64 and comments are its business); everything written here is
written by this module, because ``zipfile`` cannot take over a member's compressed bytes. A member is copied
as its compressed bytes, its CRC, sizes, time and mode; a data descriptor becomes a plain local header and
extra fields (owner, finer times) are left out. New members are stored, not deflated: zlib builds differ in
what they make of the same input, and the same wheel must come out byte for byte the same on every machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
import re
import stat
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from ..errors import EvidenceError, UnfinishedError

CHUNK = 1 << 20
#: The earliest time a zip member can have: 1980-01-01T00:00:00, as seconds since the epoch.
DOS_EPOCH = 315532800
REGULAR_FILE = (stat.S_IFREG | 0o644) << 16

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_LIMIT32 = 0xFFFFFFFF
_LIMIT16 = 0xFFFF
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x1, 0x8, 0x800
_UNREADABLE = (zipfile.BadZipFile, OSError, EOFError, NotImplementedError)
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True)
class Member:
    """What the directories of an archive say about one member.

    ``date`` and ``time`` are in DOS form; ``size`` and ``packed`` are bytes before and after compression.
    """

    name: str
    method: int
    crc: int
    packed: int
    size: int
    date: int
    time: int
    attributes: int
    system: int = 3

    @property
    def is_dir(self) -> bool:
        """True for a folder's own entry."""
        return self.name.endswith("/")

    @property
    def mode(self) -> int:
        """The Unix permission bits, 0 where the archive has none."""
        return stat.S_IMODE(self.attributes >> 16)


def dos_time(seconds: int) -> tuple[int, int]:
    """Seconds since the epoch (UTC) as a zip header's DOS date and time: even seconds, 1980 to 2107."""
    moment = time.gmtime(min(max(seconds, DOS_EPOCH), 4354819198))
    date = (moment.tm_year - 1980) << 9 | moment.tm_mon << 5 | moment.tm_mday
    return date, moment.tm_hour << 11 | moment.tm_min << 5 | moment.tm_sec // 2


def source_date_epoch() -> int | None:
    """``SOURCE_DATE_EPOCH`` of the environment as a number, ``None`` where it is unset or empty.

    Raises:
        EvidenceError: it is set to something that is not a number of seconds.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    if not text:
        return None
    if not text.isdigit():
        raise EvidenceError(f"SOURCE_DATE_EPOCH is {text!r}", "give whole seconds since 1970, or unset it")
    return int(text)


def file_digest(path: Path) -> str:
    """The sha256 of a file, in hex.

    Raises:
        EvidenceError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror or error}") from None


class ArchiveReader:
    """An archive opened for reading; every member was looked at and found harmless.

    Raises (on opening):
        EvidenceError: it is no complete zip archive, or holds a member that climbs out of its folder, occurs
            twice, is encrypted, or is a symbolic link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[str, int] = {}
        self.members: dict[str, Member] = {}
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise EvidenceError(f"{path}: {error.strerror or error}") from None
        try:
            self._zip = zipfile.ZipFile(self._file)
            for info in self._zip.infolist():
                self._take(info)
            self._check_extents(self._zip.start_dir)
        except (*_UNREADABLE, struct.error, UnicodeError) as error:
            self._file.close()
            raise self._broken(str(error)) from None
        except BaseException:
            self._file.close()
            raise

    def _broken(self, why: str) -> EvidenceError:
        return EvidenceError(f"{self.path}: not a complete zip archive ({why or 'unreadable'})", "download it again")

    def _take(self, info: zipfile.ZipInfo) -> None:
        name = info.orig_filename
        complaint = _harm(name, info.external_attr >> 16)
        if info.filename != name and not complaint:
            complaint = "has two names"
        if name in self.members:
            complaint = "occurs twice"
        if info.flag_bits & _ENCRYPTED:
            complaint = "is encrypted"
        if complaint:
            raise EvidenceError(
                f"{self.path}: member {name!r} {complaint}", "do not use it; get it from its source again"
            )
        year, month, day, hour, minute, second = info.date_time
        self._offsets[name] = info.header_offset
        self.members[name] = Member(
            name=name,
            method=info.compress_type,
            crc=info.CRC,
            packed=info.compress_size,
            size=info.file_size,
            date=(year - 1980) << 9 | month << 5 | day,
            time=hour << 11 | minute << 5 | second // 2,
            attributes=info.external_attr,
            system=info.create_system,
        )

    def _check_extents(self, end: int) -> None:
        """Every member's bytes lie in the file, and no two members share any."""
        for name, offset in sorted(self._offsets.items(), key=lambda item: item[1], reverse=True):
            start = self._data_start(name)
            if start + self.members[name].packed > end:
                raise zipfile.BadZipFile(f"member {name!r} is cut off or overlaps another")
            end = offset

    def _data_start(self, name: str) -> int:
        offset = self._offsets[name]
        self._file.seek(offset)
        fields = _LOCAL.unpack(_exactly(self._file, _LOCAL.size))
        if fields[0] != b"PK\x03\x04":
            raise zipfile.BadZipFile(f"no local header for {name!r}")
        raw = _exactly(self._file, fields[9])
        if raw.decode("utf-8" if fields[2] & _UTF8 else "cp437", "replace") != name:
            raise zipfile.BadZipFile(f"the local header of {name!r} has another name")
        return offset + _LOCAL.size + len(raw) + int(fields[10])

    def raw(self, name: str) -> Iterator[bytes]:
        """The compressed bytes of a member, in pieces."""
        self._file.seek(self._data_start(name))
        left = self.members[name].packed
        while left:
            piece = self._file.read(min(left, CHUNK))
            if not piece:
                raise self._broken(f"member {name!r} is cut off")
            left -= len(piece)
            yield piece

    def content(self, name: str) -> Iterator[bytes]:
        """The bytes of a member, in pieces, checked against its size and CRC.

        Raises:
            EvidenceError: they do not decompress, or are not what the directory says.
        """
        try:
            with self._zip.open(name) as file:
                while piece := file.read(CHUNK):
                    yield piece
        except (*_UNREADABLE, zlib.error, RuntimeError) as error:
            raise self._broken(f"member {name!r}: {error}") from None

    def read(self, name: str) -> bytes:
        """The bytes of a member; ``EvidenceError`` as :meth:`content`, or where there is no such member."""
        if name not in self.members:
            raise EvidenceError(f"{self.path}: no member {name!r}", "get the archive from its source again")
        return b"".join(self.content(name))

    def close(self) -> None:
        """Close the file; nothing can be read after that."""
        self._zip.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _harm(name: str, mode: int) -> str:
    """What is wrong with a member's name or kind, or nothing."""
    parts = name.rstrip("/").split("/")
    if name.startswith("/") or "\\" in name or _DRIVE.match(name) or ".." in parts:
        return "climbs out of the folder it is unpacked to"
    if not name or "" in parts or "." in parts or any(ord(char) < ord(" ") for char in name):
        return "has no usable name"
    if stat.S_ISLNK(mode):
        return "is a symbolic link"
    return ""


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError("it ends too early")
    return data


class ArchiveWriter:
    """Writes a zip archive to a file opened by :func:`replacing`; ``digest`` is its sha256 once closed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._position = 0
        self._central: list[tuple[Member, int]] = []
        self._names: set[str] = set()

    def copy(self, source: ArchiveReader, name: str, new_name: str | None = None) -> None:
        """Take a member over as it is compressed, under ``new_name`` if given."""
        member = source.members[name]
        self._begin(member if new_name is None else _renamed(member, new_name))
        for piece in source.raw(name):
            self._write(piece)

    def add(self, name: str, data: bytes, when: tuple[int, int], attributes: int = REGULAR_FILE) -> None:
        """Store ``data`` as a member with the DOS date and time ``when``."""
        crc, size = zlib.crc32(data), len(data)
        self._begin(Member(name, zipfile.ZIP_STORED, crc, size, size, when[0], when[1], attributes))
        self._write(data)

    def close(self) -> str:
        """Write the central directory; returns the sha256 of the whole file, in hex."""
        start = self._position
        for member, offset in self._central:
            self._write(_central_header(member, offset))
        size, count = self._position - start, len(self._central)
        if count >= _LIMIT16 or size >= _LIMIT32 or start >= _LIMIT32:
            end64 = self._position
            self._write(_END64.pack(b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start))
            self._write(_LOCATOR64.pack(b"PK\x06\x07", 0, end64, 1))
        count, size, start = min(count, _LIMIT16), min(size, _LIMIT32), min(start, _LIMIT32)
        self._write(_END.pack(b"PK\x05\x06", 0, 0, count, count, size, start, 0))
        return self._hash.hexdigest()

    def _begin(self, member: Member) -> None:
        if member.name in self._names:
            raise EvidenceError(f"member {member.name!r} would be written twice")
        self._names.add(member.name)
        self._central.append((member, self._position))
        name, flags = _encoded(member.name)
        extra, packed, size = b"", member.packed, member.size
        if _is_large(member):
            extra = struct.pack("<2H2Q", 1, 16, size, packed)
            packed = size = _LIMIT32
        head = (45 if extra else 20, flags, member.method, member.time, member.date, member.crc, packed, size)
        self._write(_LOCAL.pack(b"PK\x03\x04", *head, len(name), len(extra)) + name + extra)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._position += len(data)


def _is_large(member: Member) -> bool:
    return member.size >= _LIMIT32 or member.packed >= _LIMIT32


def _encoded(name: str) -> tuple[bytes, int]:
    try:
        return name.encode("ascii"), 0
    except UnicodeEncodeError:
        return name.encode("utf-8"), _UTF8


def _renamed(member: Member, name: str) -> Member:
    return dataclasses.replace(member, name=name)


def _central_header(member: Member, offset: int) -> bytes:
    name, flags = _encoded(member.name)
    packed, size, position = member.packed, member.size, offset
    large: list[int] = []
    if _is_large(member):
        large += [size, packed]
        packed = size = _LIMIT32
    if position >= _LIMIT32:
        large.append(position)
        position = _LIMIT32
    extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
    version = 45 if large else 20
    head = (version, member.system, version, 0, flags, member.method, member.time, member.date, member.crc)
    tail = (packed, size, len(name), len(extra), 0, 0, 0, member.attributes, position)
    return _CENTRAL.pack(b"PK\x01\x02", *head, *tail) + name + extra


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file beside ``path`` that takes its place when the block ends well, and is gone when it does not.

    Raises:
        UnfinishedError: the disk is full, or the folder cannot be written to.
    """
    part: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(part).chmod(0o644)
        Path(part).replace(path)
        part = None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        mend = "make room and run it again" if full else "see that the folder can be written to"
        raise UnfinishedError(f"{path}: not written: {error.strerror or error}", mend) from None
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                Path(part).unlink()
