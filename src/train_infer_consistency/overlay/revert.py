"""Take an overlay off an installed package again, and refuse what must not be written to.

Putting the originals back is one function for three uses: ``revert``, the roll-back of an ``apply`` that
met an error, and what a killed run left. It can be stopped anywhere and done again.
"""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import EvidenceError, FoundError, UnfinishedError
from .journal import FOLDER, Journal, Store, digest_of, hold, holder, settle, stage, temporary, with_state
from .locate import Location, environment, locate_all, locate_one
from .model import Upstream
from .status import woven_wheel
from .weave import read_notice

RESTART = "running workers keep the code they have loaded: restart them, and a running Ray cluster too"

Action = Literal["applied", "already", "reverted", "rolled-back", "nothing"]


@dataclass(frozen=True)
class Outcome:
    """What was done to one package.

    ``action`` is ``applied``, ``already`` (woven by this version before: left), ``reverted``, ``rolled-back``
    (an interrupted apply was undone) or ``nothing`` (there was nothing to take off).
    """

    upstream: str
    root: str
    version: str | None
    action: Action
    revision: int | None
    pin: str | None
    base: str | None
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON can hold it."""
        return asdict(self)


def revert(
    upstreams: Mapping[str, Upstream], names: Sequence[str] | None, *, site: Path | None = None
) -> list[Outcome]:
    """Put the originals back, byte for byte.

    Args:
        upstreams: every known upstream.
        names: which upstreams; None for every one that is found with an overlay.
        site: see :func:`.locate.environment`.

    Raises:
        FoundError: a file was changed since, or the package came from a woven wheel; no package was touched.
        EvidenceError: no such package is there, or an original is missing.
        UnfinishedError: another run is at work, or writing failed half-way; run it again.
    """
    where = environment(site)
    if names is None:
        found = locate_all(upstreams, where)
        found = {name: at for name, at in found.items() if Store(at.root, name).folder.is_dir()}
    else:
        found = {name: locate_one(upstreams, where, name) for name in names}
    journals: dict[str, Journal | None] = {}
    for name, location in found.items():
        refuse_while_held(location.root)
        store = Store(location.root, name)
        journals[name] = store.read()
        if (journal := journals[name]) is not None:
            check_put_back(store, journal)
            for file in journal.files:
                check_target(location, file.path)
        else:
            _refuse_without_journal(upstreams[name], location)
    try:
        # Where a run was killed early there may be a state folder without a journal: it goes, too.
        with hold(at.root for at in found.values() if (at.root / FOLDER).is_dir()):
            for name, location in found.items():
                _revert_one(Store(location.root, name), journals[name])
    except OSError as error:
        where_ = f" ({error.filename})" if error.filename else ""
        raise UnfinishedError(
            f"the originals could not all be put back{where_}: {error.strerror or error}",
            "free space or mend permissions, then run 'consistency overlay revert' again",
        ) from None
    return [_reverted(name, location, journals[name]) for name, location in found.items()]


def _revert_one(store: Store, journal: Journal | None) -> None:
    if store.read() != journal:
        raise UnfinishedError(f"{store.upstream} in {store.root} was changed by another run meanwhile", "run it again")
    if journal is None:
        store.remove()
    else:
        put_back(store, journal)


def _reverted(name: str, location: Location, journal: Journal | None) -> Outcome:
    action: Action = "nothing"
    if journal is not None:
        action = "rolled-back" if journal.state == "applying" else "reverted"
    return Outcome(
        upstream=name,
        root=str(location.root),
        version=location.version,
        action=action,
        revision=None if journal is None else journal.revision,
        pin=None if journal is None else journal.pin,
        base=None if journal is None else journal.base,
        files=() if journal is None else tuple(file.path for file in journal.files),
        notes=() if journal is None else (RESTART,),
    )


def _refuse_without_journal(upstream: Upstream, location: Location) -> None:
    mend = f"reinstall the upstream wheel of {upstream.distribution} (pip install --no-deps --force-reinstall)"
    if (wheel := woven_wheel(location)) is not None:
        raise FoundError(
            f"{upstream.name} in {location.root} came from a wheel woven by consistency.{wheel.revision},"
            " so there are no originals to put back",
            mend,
        )
    for file in upstream.files:
        path = location.root / file.path
        if not file.lays and path.is_file() and (notice := read_notice(path.read_bytes())) is not None:
            raise FoundError(
                f"{path} is woven by consistency.{notice.revision}, and no journal and originals are there",
                mend,
            )


def check_put_back(store: Store, journal: Journal) -> None:
    """Make sure that every file is either woven or original, and that the originals needed are there.

    Raises:
        FoundError: a file is neither.
        EvidenceError: an original is missing or was changed.
    """
    for file in journal.files:
        have = digest_of(store.root / file.path)
        if have == file.before_sha256:
            continue
        if have != file.after_sha256:
            what = "is gone" if have is None else "was changed"
            raise FoundError(
                f"{store.root / file.path} {what} since the overlay of {journal.upstream} was applied",
                f"put it back ({store.original(file.path)} is its original), or reinstall the upstream"
                f" package and delete {store.folder}",
            )
        if file.before_sha256 is not None and digest_of(store.original(file.path)) != file.before_sha256:
            raise EvidenceError(
                f"the original {store.original(file.path)} is missing or was changed",
                f"reinstall the upstream package of {journal.upstream}, then delete {store.folder}",
            )


def put_back(store: Store, journal: Journal) -> None:
    """Put every original back and remove the state folder. It can be stopped anywhere and done again.

    Raises:
        FoundError, EvidenceError: see :func:`check_put_back`; nothing was touched.
        OSError: writing failed; the journal is still there.
    """
    for file in journal.files:
        temporary(store.root / file.path).unlink(missing_ok=True)
    check_put_back(store, journal)
    todo = [file for file in journal.files if digest_of(store.root / file.path) != file.before_sha256]
    if journal.state == "applied":
        store.write(with_state(journal, "reverting"))
    try:
        for file in todo:
            if file.before_sha256 is not None:
                data = store.original(file.path).read_bytes()
                stage(store.root / file.path, data, mode=file.mode, uid=file.uid, gid=file.gid)
    except BaseException:  # nothing is renamed yet: leave it as it was
        for file in todo:
            temporary(store.root / file.path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            store.write(journal)
        raise
    for file in todo:
        if file.before_sha256 is None:
            (store.root / file.path).unlink()
        else:
            settle(store.root / file.path)
    for file in journal.files:
        drop_bytecode(store.root / file.path)
    store.remove()


def drop_bytecode(source: Path) -> None:
    """Remove the compiled forms of a source file, for every interpreter that made one."""
    folder = source.parent / "__pycache__"
    for compiled in folder.glob(f"{glob.escape(source.stem)}.*.pyc"):
        compiled.unlink(missing_ok=True)


def check_target(location: Location, path: str) -> None:
    """Refuse a file that must not be replaced.

    Raises:
        FoundError: it, or a folder on the way from the package down, is a symbolic link or read-only.
        EvidenceError: its folder is not there.
    """
    target = location.root / path
    steps = [target, *list(target.parents)[: len(Path(path).parts) - 1]]
    for step in reversed(steps):
        if step.is_symlink():
            raise FoundError(
                f"{step} is a symbolic link (to {step.readlink()}), so something else may use what is there",
                "give the folder that really holds the package with --site",
            )
    if not target.parent.is_dir():
        raise EvidenceError(f"the folder {target.parent} is missing", "reinstall the upstream package")
    for step in (location.root, target.parent, target):
        if not os.path.lexists(step):
            continue
        info = step.stat()
        if step == target and not stat.S_ISREG(info.st_mode):
            raise FoundError(f"{step} is no regular file", "reinstall the upstream package")
        filesystem = os.statvfs(step).f_flag & os.ST_RDONLY
        if filesystem or not info.st_mode & stat.S_IWUSR or not os.access(step, os.W_OK):
            why = "on a read-only filesystem" if filesystem else "read-only"
            raise FoundError(f"{step} is {why}", "make it writable for you")


def refuse_while_held(root: Path) -> None:
    """Raise :class:`UnfinishedError` while another run is at work on the packages in ``root``."""
    if (who := holder(root)) is not None:
        raise UnfinishedError(f"{who} is at work on the packages in {root}", "wait until it is done")
