"""Turn an upstream wheel and its weaving into the drop-in wheel: version, woven files, provenance, RECORD.

Whatever the overlay does not touch is copied as it is compressed, in the upstream's order and with its modes;
no compiler is needed and any platform's wheel can be made on any other. Changed and new members are stored
(see :mod:`.archive`), so that the same input gives the same bytes on every Python and zlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EvidenceError
from ..overlay.inspect import UpstreamWeave, weave_upstream
from ..overlay.lock import Lock
from ..overlay.model import Upstream
from ..overlay.provenance import FILE_NAME as PROVENANCE
from ..overlay.provenance import provenance, render
from . import sbom
from .archive import REGULAR_FILE, ArchiveWriter, dos_time, replacing, source_date_epoch
from .notice import notices
from .record import Row, WheelReader, renames, with_version, write_record


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel that was made; ``sha256`` in hex, ``size`` in bytes."""

    path: Path
    distribution: str
    version: str
    sha256: str
    size: int


class _VerifiedTree:
    """A wheel as an overlay's tree; what is read from it agrees with its RECORD."""

    def __init__(self, wheel: WheelReader) -> None:
        self.label = wheel.path.name
        self._wheel = wheel

    def read(self, path: str) -> bytes | None:
        member = self._wheel.installed_as(path)
        return None if member is None else self._wheel.verified(member)


def weave_wheel(upstream: Upstream, wheel: Path, lock: Lock, *, allow_unknown_base: bool = False) -> UpstreamWeave:
    """Weave an upstream over a wheel, in memory.

    Raises:
        EvidenceError: the wheel is broken, or was woven before, or an edited file does not agree with its
        RECORD. FoundError: an edit cannot be woven.
    """
    with WheelReader(wheel) as reader:
        if f"{reader.dist_info}/{PROVENANCE}" in reader.members:
            raise EvidenceError(f"{wheel}: the wheel is woven already", "give the upstream's own wheel")
        tree = _VerifiedTree(reader)
        return weave_upstream(upstream, tree, lock, allow_unknown_base=allow_unknown_base)


def repack(
    wheel: Path,
    weave: UpstreamWeave,
    version: str,
    dest: Path,
    *,
    artifact: Mapping[str, Any],
    vouched: bool = False,
) -> BuiltWheel:
    """Write the woven wheel into a folder.

    Args:
        wheel: the upstream's wheel.
        weave: its weaving, from :func:`weave_wheel`.
        version: the new version.
        dest: the folder; made if it is not there. The wheel appears in it complete or not at all.
        artifact: for the provenance: what the wheel is and where it came from (see :class:`.sources.Source`).
        vouched: the digest of the whole file is known to be right, so that members which are only copied need
        not
            be held against RECORD one by one.

    Raises:
        EvidenceError: the wheel is broken or disagrees with its RECORD.
        UnfinishedError: it could not be written.
    """
    with WheelReader(wheel) as reader:
        if not vouched:
            reader.verify_all()
        job = _Repack(reader, weave, version, artifact)
        path = dest / str(job.name)
        with replacing(path) as file:
            writer = ArchiveWriter(file)
            job.write(writer)
            digest = writer.close()
        return BuiltWheel(path, weave.upstream.distribution, version, digest, path.stat().st_size)


class _Repack:
    """One repacking: which member goes where, and with which bytes."""

    def __init__(self, wheel: WheelReader, weave: UpstreamWeave, version: str, artifact: Mapping[str, Any]) -> None:
        self.wheel = wheel
        self.name = wheel.name.with_version(version)
        self._renames = renames(wheel.dist_info, version)
        dist_info = self._renames[wheel.dist_info]
        self._record = f"{dist_info}/RECORD"
        metadata = f"{wheel.dist_info}/METADATA"
        members = {file.path: wheel.installed_as(file.path) for file in weave.files}
        self._changed = {name: file.after for file in weave.files if (name := members[file.path]) is not None}
        self._changed[metadata] = with_version(wheel.verified(metadata), version)
        folders = {name.removesuffix(path) for path, name in members.items() if name is not None}
        beside = min(folders, default="")  # laid files go where the package lies
        self._laid = {
            self._new_name(beside + file.path): file.after for file in weave.files if members[file.path] is None
        }
        self._notes = {
            f"{dist_info}/{PROVENANCE}": render(provenance(weave, artifact)),
            f"{dist_info}/{sbom.FILE_NAME}": sbom.sbom(weave, version, artifact),
        }
        licences = {path for path in wheel.rows if path.startswith(f"{wheel.dist_info}/")}
        for name, text in notices(weave, version, licences, artifact.get("added", ())).items():
            self._notes[f"{dist_info}/{name}"] = text

    def write(self, out: ArchiveWriter) -> None:
        """Code and laid files first, ``*.dist-info`` after them and RECORD last."""
        inside = f"{self.wheel.dist_info}/"
        kept = [name for name in self.wheel.members if not self._drops(name)]
        for name in kept:
            if not name.startswith(inside):
                self._take(out, name)
        self._add(out, self._laid)
        for name in kept:
            if name.startswith(inside):
                self._take(out, name)
        self._add(out, {**self._notes, self._record: self._new_record()})

    def _drops(self, name: str) -> bool:
        return name == self.wheel.record_path or self.wheel.is_signature(name)

    def _new_name(self, name: str) -> str:
        folder, slash, rest = name.partition("/")
        return self._renames.get(folder, folder) + slash + rest

    def _take(self, out: ArchiveWriter, name: str) -> None:
        if name not in self._changed:
            out.copy(self.wheel, name, self._new_name(name))
            return
        member = self.wheel.members[name]
        out.add(self._new_name(name), self._changed[name], self._time(name), member.attributes)

    def _add(self, out: ArchiveWriter, members: Mapping[str, bytes]) -> None:
        for name, data in members.items():
            out.add(name, data, self._time(self.wheel.record_path), REGULAR_FILE)

    def _time(self, name: str) -> tuple[int, int]:
        moment = source_date_epoch()
        member = self.wheel.members[name]
        return (member.date, member.time) if moment is None else dos_time(moment)

    def _new_record(self) -> bytes:
        rows = []
        for path, row in self.wheel.rows.items():
            if self._drops(path):
                continue
            name = self._new_name(path)
            changed = self._changed.get(path)
            rows.append(Row(name, row.digest, row.size) if changed is None else Row.of(name, changed))
        rows += [Row.of(path, data) for path, data in {**self._laid, **self._notes}.items()]
        return write_record(rows, self._record)
