"""The bookkeeping of a wheel: its file name, its ``*.dist-info``, RECORD, and the version in METADATA.

File names and RECORD follow the binary distribution format of the Python packaging specifications.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import EvidenceError
from .archive import ArchiveReader

_STRONG = ("sha256", "sha384", "sha512")
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_VERSION_LINE = re.compile(rb"^Version:[ \t]*([^\r\n]*?)[ \t]*(?=\r?$)", re.MULTILINE)


@dataclass(frozen=True)
class WheelName:
    """A wheel's file name, taken apart; the tag fields keep their dots (``py2.py3``)."""

    distribution: str
    version: str
    build: str
    python: str
    abi: str
    platform: str

    @classmethod
    def parse(cls, filename: str) -> WheelName:
        """Take a file name apart.

        Raises:
            EvidenceError: it is no wheel's file name.
        """
        parts = filename.removesuffix(".whl").split("-")
        if not filename.endswith(".whl") or len(parts) not in (5, 6) or not all(parts):
            raise EvidenceError(f"{filename}: not a wheel's file name", "name it as its index does")
        build = parts[2] if len(parts) == 6 else ""
        return cls(parts[0], parts[1], build, *parts[-3:])

    def with_version(self, version: str) -> WheelName:
        """The same wheel under another version."""
        return dataclasses.replace(self, version=version.replace("-", "_"))

    def fits_platform(self, machine: str) -> bool:
        """Whether it serves Linux on a machine such as ``aarch64``."""
        return any(tag == "any" or tag.endswith(f"_{machine}") for tag in self.platform.split("."))

    def fits_python(self, python: str) -> bool:
        """Whether it serves a CPython 3 such as ``3.11``: its own, an older one of the stable ABI, or any."""
        minor = int(python.partition(".")[2])
        for tag in self.python.split("."):
            oldest = _minor(tag)
            stable = oldest is not None and self.abi in ("none", "abi3") and oldest <= minor
            if tag == "py3" or oldest == minor or stable:
                return True
        return False

    def __str__(self) -> str:
        build = [self.build] if self.build else []
        tags = [self.python, self.abi, self.platform]
        return "-".join([self.distribution, self.version, *build, *tags]) + ".whl"


def _minor(tag: str) -> int | None:
    """11 for ``cp311`` and ``py311``, None for a tag without a minor version."""
    found = re.fullmatch(r"(?:cp|py)3(\d+)", tag)
    return int(found[1]) if found else None


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def encoded_digest(data: bytes) -> str:
    """``sha256=...`` as RECORD has it: url-safe base64 without padding."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def metadata_version(metadata: bytes) -> str:
    """The ``Version`` of a METADATA file; raises EvidenceError where there is none or more than one."""
    return _version_line(metadata).group(1).decode("utf-8", "replace")


def with_version(metadata: bytes, version: str) -> bytes:
    """METADATA with another ``Version``; every other byte stays."""
    line = _version_line(metadata)
    return metadata[: line.start(1)] + version.encode() + metadata[line.end(1) :]


def _version_line(metadata: bytes) -> re.Match[bytes]:
    end = re.search(rb"\r?\n\r?\n", metadata)
    found = list(_VERSION_LINE.finditer(metadata, 0, end.start() if end else len(metadata)))
    if len(found) != 1:
        raise EvidenceError(f"METADATA has {len(found)} Version lines, not one", "get the wheel from its source")
    return found[0]


@dataclass(frozen=True)
class Row:
    """One line of RECORD; ``digest`` and ``size`` are empty for RECORD itself."""

    path: str
    digest: str
    size: str

    @classmethod
    def of(cls, path: str, data: bytes) -> Row:
        """The line that belongs to a member's content."""
        return cls(path, encoded_digest(data), str(len(data)))


class WheelReader(ArchiveReader):
    """A wheel opened for reading, its RECORD held against its members.

    Attributes:
        name: its file name, taken apart.
        dist_info: name of its ``*.dist-info`` folder, without a slash.
        rows: RECORD's lines by path, in RECORD's order.

    Raises (on opening):
        EvidenceError: as :class:`ArchiveReader`; there is not exactly one ``*.dist-info`` of the wheel's
        name;
            RECORD or METADATA is missing; RECORD names other members than there are, or one without a digest.
    """

    def __init__(self, path: Path) -> None:
        self.name = WheelName.parse(path.name)
        super().__init__(path)
        try:
            self.dist_info = self._find_dist_info()
            for name in ("RECORD", "METADATA"):
                if f"{self.dist_info}/{name}" not in self.members:
                    raise self.wrong(f"has no {self.dist_info}/{name}")
            self.rows = self._parse_record()
            self._check_names()
        except BaseException:
            self.close()
            raise

    def wrong(self, what: str) -> EvidenceError:
        """The error for a wheel that is not what a wheel must be."""
        return EvidenceError(f"{self.path}: the wheel {what}", "get it from its source again")

    @property
    def record_path(self) -> str:
        """RECORD's own path in the wheel."""
        return f"{self.dist_info}/RECORD"

    def installed_as(self, path: str) -> str | None:
        """The member that is installed as ``path`` in site-packages, None where there is none.

        A wheel may keep packages at its top or below ``*.data/purelib`` and ``*.data/platlib``.
        """
        data = self.dist_info.removesuffix("dist-info") + "data"
        members = (path, f"{data}/purelib/{path}", f"{data}/platlib/{path}")
        return next((member for member in members if member in self.rows), None)

    def is_signature(self, path: str) -> bool:
        """True for a signature over RECORD, which no changed wheel can keep."""
        return path in [f"{self.dist_info}/{name}" for name in _SIGNATURES]

    def _find_dist_info(self) -> str:
        folders = sorted({path.split("/")[0] for path in self.members if ".dist-info/" in path})
        folders = [folder for folder in folders if folder.endswith(".dist-info")]
        wanted = canonical(self.name.distribution)
        if len(folders) != 1 or canonical(folders[0].removesuffix(".dist-info").split("-")[0]) != wanted:
            found = ", ".join(folders) or "none"
            raise self.wrong(f"must have one .dist-info folder of {self.name.distribution} (found: {found})")
        return folders[0]

    def _parse_record(self) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        try:
            text = self.read(self.record_path).decode("utf-8")
            for fields in csv.reader(io.StringIO(text, newline=""), strict=True):
                if not fields:
                    continue
                path, digest, size = fields
                if path in rows:
                    raise self.wrong(f"has a RECORD that names {path} twice")
                rows[path] = Row(path, digest, size)
        except (UnicodeDecodeError, csv.Error, ValueError):
            raise self.wrong("has a RECORD that cannot be read") from None
        return rows

    def _check_names(self) -> None:
        files = {path for path, member in self.members.items() if not member.is_dir}
        unsigned = {self.record_path, *(path for path in files if self.is_signature(path))}
        if missing := sorted(files - set(self.rows) - unsigned):
            raise self.wrong(f"has a RECORD that leaves out {_some(missing)}")
        if extra := sorted(set(self.rows) - files):
            raise self.wrong(f"has a RECORD that names {_some(extra)}, which it does not hold")
        for path, row in self.rows.items():
            if row.digest.partition("=")[0] not in _STRONG and path not in unsigned:
                raise self.wrong(f"has a RECORD without a usable digest of {path}")

    def verified(self, path: str) -> bytes:
        """A member's bytes, once they agree with RECORD.

        Raises:
            EvidenceError: they do not, or cannot be read.
        """
        data = self.read(path)
        self._compare(path, hashlib.new(self._algorithm(path), data).digest(), len(data))
        return data

    def verify_all(self) -> None:
        """Hold every member against RECORD, as one does for a wheel whose own digest nobody vouches for.

        Raises:
            EvidenceError: a member's digest or size is another than RECORD says.
        """
        for path, row in self.rows.items():
            if not row.digest:
                continue
            digest, size = hashlib.new(self._algorithm(path)), 0
            for piece in self.content(path):
                digest.update(piece)
                size += len(piece)
            self._compare(path, digest.digest(), size)

    def _algorithm(self, path: str) -> str:
        return self.rows[path].digest.partition("=")[0]

    def _compare(self, path: str, digest: bytes, size: int) -> None:
        row = self.rows[path]
        found = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if row.digest.partition("=")[2].rstrip("=") != found or row.size not in ("", str(size)):
            raise self.wrong(f"has a RECORD that does not agree with {path}")


def write_record(rows: Iterable[Row], record_path: str) -> bytes:
    """RECORD's bytes: the given lines in their order, its own line last."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow((row.path, row.digest, row.size))
    writer.writerow((record_path, "", ""))
    return out.getvalue().encode("utf-8")


def renames(dist_info: str, version: str) -> Mapping[str, str]:
    """Old to new names of the top-level folders that carry the version, ``*.dist-info`` and ``*.data``."""
    stem = dist_info.removesuffix(".dist-info")
    new_stem = f"{stem.partition('-')[0]}-{version.replace('-', '_')}"
    return {f"{stem}.{kind}": f"{new_stem}.{kind}" for kind in ("dist-info", "data")}


def _some(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
