"""Tell what an installed package is: absent, pristine, woven, changed by someone else, or interrupted.

What is recorded is compared with what is there: the journal of an in-place overlay, or the provenance in a
woven wheel's ``*.dist-info``. Without either, the pins' digests, the notice in a woven file and the wheel's
RECORD are asked.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ..errors import EvidenceError, FoundError
from .inspect import Inspection, inspect_upstream
from .journal import Journal, Store, digest_of, holder
from .locate import Environment, Location, locate_all
from .lock import Lock
from .model import FileOverlay, Upstream
from .provenance import FILE_NAME
from .trees import DirectoryTree
from .weave import read_notice

FileState = Literal["absent", "pristine", "woven", "changed", "interrupted"]


@dataclass(frozen=True)
class FileStatus:
    """One file: ``revision`` is N of the overlay it is woven by; ``note`` says more where there is more."""

    path: str
    state: FileState
    revision: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class UpstreamStatus:
    """One upstream in an environment.

    Attributes:
        state: ``absent`` where the package is not there; ``changed`` also where it is only partly woven.
        revision: N of the overlay it is woven by, or None.
        this_version: whether that is the overlay of this version.
        record: what the files were compared with, or None where there is no record.
        pin: the pin that the record names, or that the files are recognised as.
    """

    upstream: str
    state: FileState
    root: str | None = None
    distribution: str | None = None
    version: str | None = None
    kind: str | None = None
    revision: int | None = None
    this_version: bool = False
    record: Literal["journal", "wheel"] | None = None
    pin: str | None = None
    files: tuple[FileStatus, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON can hold it."""
        return asdict(self)


@dataclass(frozen=True)
class WovenWheel:
    """The provenance in a woven wheel's ``*.dist-info``; ``files`` has the sha256 of each woven file."""

    revision: int
    pin: str
    files: Mapping[str, str]


def woven_wheel(location: Location) -> WovenWheel | None:
    """Read the provenance of the wheel that a package was installed from; None where it was not a woven one.

    Raises:
        EvidenceError: it is there and is not what this version writes.
    """
    if location.kind != "regular" or location.dist_info is None:
        return None
    path = location.dist_info / FILE_NAME
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        prefix, revision = record["overlay"].rsplit(".", 1)
        if record["schema"] != 1 or prefix != "consistency":
            raise ValueError(f"schema {record['schema']}, overlay {record['overlay']}")
        files = {file["path"]: file["sha256_after"] for file in record["files"]}
        return WovenWheel(int(revision), record["pin"], files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvidenceError(f"the provenance {path} cannot be used: {error}", "install the wheel again") from None


def status(
    upstreams: Mapping[str, Upstream], lock: Lock, where: Environment, names: list[str] | None = None
) -> list[UpstreamStatus]:
    """Look at the named upstreams, or at all that are known; one that is not there is ``absent``."""
    found = locate_all(upstreams, where)
    wanted = list(upstreams) if names is None else names
    return [
        status_of(upstreams[name], found[name], lock) if name in found else UpstreamStatus(name, "absent")
        for name in wanted
    ]


def status_of(upstream: Upstream, location: Location, lock: Lock) -> UpstreamStatus:
    """Look at one installed upstream, without writing. What cannot be read is said in ``notes``."""
    base = UpstreamStatus(
        upstream=upstream.name,
        state="pristine",
        root=str(location.root),
        distribution=location.distribution,
        version=location.version,
        kind=location.kind,
    )
    try:
        journal = Store(location.root, upstream.name).read()
        if journal is not None:
            return _by_journal(base, location, journal, lock)
        wheel = woven_wheel(location)
        if wheel is not None:
            return _by_wheel(base, location, wheel, lock)
        return _by_files(base, upstream, location, lock)
    except EvidenceError as error:
        return replace(base, state="changed", notes=(str(error),))


def _by_journal(base: UpstreamStatus, location: Location, journal: Journal, lock: Lock) -> UpstreamStatus:
    files = []
    for file in journal.files:
        have = digest_of(location.root / file.path)
        if have == file.after_sha256:
            state = FileStatus(file.path, "woven", journal.revision)
        elif have == file.before_sha256:
            state = FileStatus(file.path, "pristine", note="the original was put back, and not by 'overlay revert'")
        elif have is None:
            state = FileStatus(file.path, "absent", note="it was removed since")
        else:
            state = FileStatus(file.path, "changed", note="changed by someone else since")
        files.append(state)
    notes: tuple[str, ...] = ()
    if journal.state != "applied":
        verb = "apply" if journal.state == "applying" else "revert"
        files = [replace(file, state="interrupted", note=f"now {file.state}") for file in files]
        notes = (f"an 'overlay {verb}' was stopped half-way: run 'consistency overlay revert {base.upstream}'",)
        if (who := holder(location.root)) is not None:
            notes = (f"{who} is at work on it",)
    return _summed(replace(base, record="journal", pin=journal.pin), files, journal.revision, lock, notes)


def _by_wheel(base: UpstreamStatus, location: Location, wheel: WovenWheel, lock: Lock) -> UpstreamStatus:
    files = []
    for path, digest in wheel.files.items():
        have = digest_of(location.root / path)
        if have == digest:
            files.append(FileStatus(path, "woven", wheel.revision))
        elif have is None:
            files.append(FileStatus(path, "absent", note="it was removed since"))
        else:
            files.append(FileStatus(path, "changed", note="changed by someone else since the wheel was installed"))
    return _summed(replace(base, record="wheel", pin=wheel.pin), files, wheel.revision, lock, ())


def _by_files(base: UpstreamStatus, upstream: Upstream, location: Location, lock: Lock) -> UpstreamStatus:
    notes: tuple[str, ...] = ()
    seen: Inspection | None = None
    try:
        seen = inspect_upstream(upstream, DirectoryTree(location.root, upstream.package), lock)
    except FoundError as error:  # a version that is refused by name
        notes = (str(error),)
    pin = None if seen is None or seen.base == "unknown" else seen.pin
    by_scopes = {file.path for file in seen.files if file.base == "scopes"} if seen else set()
    record = _recorded(location)
    files = []
    for file in upstream.files:
        if pin is not None and not file.edits_for(pin):
            continue
        files.append(_by_content(file, location, upstream, lock, record.get(file.path), file.path in by_scopes))
    revisions = {file.revision for file in files if file.revision is not None}
    revision = revisions.pop() if len(revisions) == 1 else None
    if not any(file.state == "woven" for file in files):
        revision = None
    elif all(file.state == "woven" for file in files):
        notes += ("woven, but no journal and no provenance is there: it cannot be reverted",)
    # Where one file is unknown, or cannot be woven, the tree is not that pin, however many others are.
    known = pin if seen is not None and not seen.problems else None
    return _summed(replace(base, pin=known), files, revision, lock, notes)


def _by_content(
    file: FileOverlay,
    location: Location,
    upstream: Upstream,
    lock: Lock,
    recorded: str | None,
    by_scopes: bool,
) -> FileStatus:
    path = location.root / file.path
    digest = digest_of(path)
    every = lock.upstreams.get(upstream.name, {}).values()
    pins = [pin.files[file.path] for pin in every if file.path in pin.files]
    if file.lays:
        if digest is None:
            return FileStatus(file.path, "pristine")
        if digest in {pin.after for pin in pins}:
            return FileStatus(file.path, "woven", lock.revision)
        return FileStatus(file.path, "changed", note="not the file that this version lays")
    if digest is None:
        return FileStatus(file.path, "absent", note="the installed package does not have it")
    if (notice := read_notice(path.read_bytes())) is not None:
        if notice.intact:
            return FileStatus(file.path, "woven", notice.revision)
        note = f"woven by consistency.{notice.revision} and changed since"
        return FileStatus(file.path, "changed", notice.revision, note)
    if digest in {pin.before for pin in pins}:
        return FileStatus(file.path, "pristine")
    state: FileState = "pristine"
    if digest == recorded:
        note = "as its wheel has it, which is no pinned version"
    elif by_scopes:
        note = "no pinned file, but what is edited in it is as pinned"
    else:
        state, note = "changed", "no pinned file: changed by someone else, or another version"
    return FileStatus(file.path, state, note=note)


def _summed(
    base: UpstreamStatus, files: list[FileStatus], revision: int | None, lock: Lock, notes: tuple[str, ...]
) -> UpstreamStatus:
    states = {file.state for file in files}
    state: FileState = "changed"
    if "interrupted" in states:
        state = "interrupted"
    elif states == {"woven"}:
        state = "woven"
    elif states == {"pristine"}:
        state = "pristine"
    elif states == {"woven", "pristine"}:
        notes += ("only some of its files are woven",)
    return replace(
        base,
        state=state,
        revision=revision,
        this_version=state == "woven" and revision == lock.revision,
        files=tuple(files),
        notes=base.notes + notes,
    )


def _recorded(location: Location) -> dict[str, str]:
    """Read the sha256 that the wheel's RECORD has for each file, as hexadecimal."""
    if location.kind != "regular" or location.dist_info is None:
        return {}
    digests = {}
    try:
        with (location.dist_info / "RECORD").open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                if len(row) == 3 and row[1].startswith("sha256="):
                    digest = row[1].removeprefix("sha256=")
                    digests[row[0]] = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    except (OSError, ValueError, csv.Error):
        return {}
    return digests


def table(rows: list[UpstreamStatus], *, indent: str = "") -> str:
    """Return statuses as lines for a terminal: one per upstream, below it the files that deserve a word."""
    width = max((len(row.upstream) for row in rows), default=0)
    lines = []
    for row in rows:
        where = f"{row.version or 'unknown version'}, {row.kind}, {row.root}" if row.root else ""
        lines.append(f"{indent}{row.upstream:<{width}}  {describe(row):<32}  {where}".rstrip())
        for file in row.files:
            said = f" ({file.note})" if file.note else ""
            if said or file.state not in (row.state, "pristine"):
                lines += [f"{indent}  {file.path}: {file.state}{said}"]
        lines += [f"{indent}  {note}" for note in row.notes]
    return "\n".join(lines)


def describe(row: UpstreamStatus) -> str:
    """Return an upstream's state in words."""
    if row.state == "woven":
        whose = "this version" if row.this_version else "another version"
        return f"woven by consistency.{row.revision} ({whose})"
    if row.state == "changed":
        return "changed by someone else" if any(file.state == "changed" for file in row.files) else "incomplete"
    return row.state


def exit_status(rows: list[UpstreamStatus]) -> int:
    """Return 0 where all is well, 1 where something is changed or interrupted, 3 where nothing is there."""
    if any(row.state in ("changed", "interrupted") for row in rows):
        return 1
    return 3 if all(row.state == "absent" for row in rows) else 0
