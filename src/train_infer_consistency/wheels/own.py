"""This distribution's own wheel: built from its checkout, or put together from its installed files."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..errors import EvidenceError
from .archive import DOS_EPOCH, ArchiveWriter, dos_time, file_digest, replacing, source_date_epoch
from .checkouts import build_wheel, workshop
from .record import Row, WheelName, write_record
from .repack import BuiltWheel

NAME = "train-infer-consistency"
_MEND = f"install {NAME} again from its wheel"
_ROOT = Path(__file__).resolve().parents[3]
#: 2020-02-02, what hatchling stamps a reproducible build with where SOURCE_DATE_EPOCH is not set.
_MOMENT = 1580601600
#: Written by the installer, or by Python when it runs: no part of the wheel.
_NOT_OURS = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", "uv_build.json")


def build_own(dest: Path) -> BuiltWheel:
    """Put this distribution's wheel into a folder.

    Raises:
        EvidenceError: it can neither be built nor put together; the message says how.
        UnfinishedError: it cannot be written.
    """
    if (_ROOT / "pyproject.toml").is_file():
        return _from_checkout(_ROOT, dest)
    return _from_installed(dest)


def _from_checkout(root: Path, dest: Path) -> BuiltWheel:
    with workshop() as folder:
        wheel = build_wheel(
            root, folder, label=NAME, moment=source_date_epoch() or _MOMENT, isolated=not _has_backend()
        )
        path = dest / wheel.name
        with replacing(path) as file, wheel.open("rb") as built:
            shutil.copyfileobj(built, file)
    return BuiltWheel(path, NAME, WheelName.parse(path.name).version, file_digest(path), path.stat().st_size)


def _has_backend() -> bool:
    try:
        return metadata.version("hatchling") >= "1.27"
    except metadata.PackageNotFoundError:
        return False


def _from_installed(dest: Path) -> BuiltWheel:
    """The files that RECORD names, each held against it; the time is the one hatchling gives."""
    found = metadata.distribution(NAME)
    stem = f"{NAME.replace('-', '_')}-{found.version}"
    path = dest / f"{stem}-py3-none-any.whl"
    when = dos_time(max(source_date_epoch() or _MOMENT, DOS_EPOCH))
    rows = []
    with replacing(path) as file:
        writer = ArchiveWriter(file)
        for entry in sorted(found.files or (), key=_dist_info_last):
            if ".." in entry.parts or "__pycache__" in entry.parts or entry.name in _NOT_OURS:
                continue
            row = Row.of(entry.as_posix(), _read(Path(str(entry.locate()))))
            if entry.hash is None or row.digest != f"{entry.hash.mode}={entry.hash.value}":
                raise EvidenceError(f"{entry.locate()} was changed since it was installed", _MEND)
            writer.add(row.path, _read(Path(str(entry.locate()))), when)
            rows.append(row)
        if not rows:
            raise EvidenceError(f"{NAME} {__version__} is installed without a RECORD", _MEND)
        writer.add(f"{stem}.dist-info/RECORD", write_record(rows, f"{stem}.dist-info/RECORD"), when)
        digest = writer.close()
    return BuiltWheel(path, NAME, found.version, digest, path.stat().st_size)


def _dist_info_last(entry: metadata.PackagePath) -> tuple[bool, str]:
    return ".dist-info" in entry.parts[0], entry.as_posix()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror or error}", _MEND) from None
