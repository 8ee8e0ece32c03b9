"""Lay an upstream's edits over its installed package, in place.

Everything is checked before anything is written: the weaving (in memory), the targets (no symbolic link,
not read-only) and what an earlier run left. Then the journal and the originals go to the disk, then every
new file is written beside its target, and only then are they renamed over the old ones. An error on the way
puts back what was renamed; a kill leaves a journal from which the next ``apply`` or ``revert`` does the
same. A package has all of its edits or none.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..errors import ConsistencyError, EvidenceError, FoundError, UnfinishedError
from .inspect import UpstreamWeave, weave_upstream
from .journal import Journal, JournalFile, Store, digest_of, hold, settle, stage, with_state
from .locate import Location, environment, locate_all, locate_one
from .lock import Lock
from .model import Upstream
from .revert import RESTART, Outcome, check_put_back, check_target, drop_bytecode, put_back, refuse_while_held
from .status import woven_wheel
from .trees import DirectoryTree


@dataclass(frozen=True)
class Plan:
    """What ``apply`` would do to one package; made without writing.

    Attributes:
        undo: the journal that must be undone first: an interrupted run's, or one whose files the upstream was
            installed over.
        weave: None where the package is woven by this version already.
    """

    upstream: Upstream
    location: Location
    undo: Journal | None
    weave: UpstreamWeave | None
    notes: tuple[str, ...] = ()

    @property
    def store(self) -> Store:
        """The state folder."""
        return Store(self.location.root, self.upstream.name)


def apply(
    upstreams: Mapping[str, Upstream],
    lock: Lock,
    names: Sequence[str] | None,
    *,
    site: Path | None = None,
    allow_unknown_base: bool = False,
) -> list[Outcome]:
    """Lay the edits over installed packages.

    Args:
        upstreams: every known upstream.
        lock: the known digests.
        names: which upstreams; None for every one that is found.
        site: see :func:`.locate.environment`.
        allow_unknown_base: see :func:`.inspect.weave_upstream`.

    Returns:
        One outcome for each package, in the order of ``names``.

    Raises:
        FoundError: a package cannot be woven or must not be written to; no package was touched.
        EvidenceError: no such package is there.
        UnfinishedError: another run is at work, or writing failed; every package is as it was.
    """
    plans = plan(upstreams, lock, names, site=site, allow_unknown_base=allow_unknown_base)
    return carry_out(plans, lock.revision)


def plan(
    upstreams: Mapping[str, Upstream],
    lock: Lock,
    names: Sequence[str] | None,
    *,
    site: Path | None = None,
    allow_unknown_base: bool = False,
) -> list[Plan]:
    """Check and weave every package, writing nothing; arguments and errors as in :func:`apply`."""
    where = environment(site)
    if names is None:
        found = locate_all(upstreams, where)
        if not found:
            raise EvidenceError(
                f"none of the upstreams ({', '.join(upstreams)}) is in {where.label}",
                "give a site-packages folder or checkout with --site",
            )
    else:
        found = {name: locate_one(upstreams, where, name) for name in names}
    plans: list[Plan] = []
    for name, location in found.items():
        try:
            plans.append(_plan_one(upstreams[name], location, lock, allow_unknown_base=allow_unknown_base))
        except ConsistencyError as error:
            if len(found) == 1:
                raise
            raise type(error)(f"{error.what} (no package was touched)", error.mend) from None
    return plans


def carry_out(plans: Sequence[Plan], revision: int) -> list[Outcome]:
    """Do what was planned: all of the packages or none. Errors are those of :func:`apply`."""
    to_do = [item for item in plans if item.weave is not None]
    if to_do:
        try:
            with hold(item.location.root for item in to_do):
                _carry_out(to_do)
        except OSError as error:  # only the state folders are made outside _commit
            raise _failed(f"the overlay of {to_do[0].upstream.name}", error) from None
    return [_outcome(item, revision) for item in plans]


def _carry_out(plans: Sequence[Plan]) -> None:
    done: list[Plan] = []
    try:
        for item in plans:
            _commit(item)
            done.append(item)
    except BaseException as error:
        for item in reversed(done):
            if (journal := item.store.read()) is not None:
                _undo_after(error, item.store, journal)
        raise


def _outcome(item: Plan, revision: int) -> Outcome:
    weave = item.weave
    notes = item.notes
    if weave is not None:
        notes += (RESTART,)
    return Outcome(
        upstream=item.upstream.name,
        root=str(item.location.root),
        version=item.location.version,
        action="already" if weave is None else "applied",
        revision=revision,
        pin=None if weave is None else weave.pin,
        base=None if weave is None else weave.base,
        files=() if weave is None else tuple(file.path for file in weave.files),
        notes=notes,
    )


def _plan_one(upstream: Upstream, location: Location, lock: Lock, *, allow_unknown_base: bool) -> Plan:
    store = Store(location.root, upstream.name)
    journal = store.read()
    if (left := _left_alone(upstream, location, journal, lock)) is not None:
        return left
    notes: tuple[str, ...] = ()
    if journal is not None:
        refuse_while_held(location.root)
        check_put_back(store, journal)
        was = "interrupted" if journal.state != "applied" else "overwritten by an installation of the upstream"
        notes = (f"an earlier overlay was {was}: its remains were taken off first",)
    tree = _PutBackTree(location, upstream.package, store, journal)
    weave = weave_upstream(upstream, tree, lock, allow_unknown_base=allow_unknown_base)
    if weave.already:
        return Plan(upstream, location, None, None, ("woven by this version before, and its journal is gone",))
    for file in weave.files:
        check_target(location, file.path)
    return Plan(upstream, location, journal, weave, notes)


def _left_alone(upstream: Upstream, location: Location, journal: Journal | None, lock: Lock) -> Plan | None:
    """Return the plan for a package that is woven already; None where there is something to do.

    Raises:
        FoundError: it is woven by another version, or its woven wheel's files were changed.
    """
    name, root = upstream.name, location.root
    mend = f"run 'consistency overlay revert {name}' first"
    if journal is not None:
        if journal.state != "applied" or not _all_woven(Store(root, name), journal):
            return None
        revision, how = journal.revision, "woven by this version before"
    elif (wheel := woven_wheel(location)) is not None:
        revision, how = wheel.revision, f"installed from a wheel woven by consistency.{wheel.revision}"
        mend = f"install this version's wheel, or the upstream wheel and then 'consistency overlay apply {name}'"
        for path, digest in wheel.files.items():
            if digest_of(root / path) != digest:
                what = f"{path} in {root} was changed since its woven wheel was installed"
                raise FoundError(what, "install the wheel again")
    else:
        return None
    if revision != lock.revision:
        what = f"{name} in {root} is already woven by consistency.{revision}"
        raise FoundError(f"{what}, this is consistency.{lock.revision}", mend)
    return Plan(upstream, location, None, None, (how,))


class _PutBackTree:
    """A package's folder as it will be once a journal is undone."""

    def __init__(self, location: Location, package: str, store: Store, journal: Journal | None) -> None:
        self._tree = DirectoryTree(location.root, package)
        self._store = store
        self._files = {file.path: file for file in journal.files} if journal else {}
        self.label = str(location.root)

    def read(self, path: str) -> bytes | None:
        """See :class:`.trees.Tree`."""
        data = self._tree.read(path)
        file = self._files.get(path)
        if file is None or data is None or digest_of(self._store.root / path) != file.after_sha256:
            return data
        return None if file.before_sha256 is None else self._store.original(path).read_bytes()


def _commit(item: Plan) -> None:
    """Write one package's woven files. On an error the package is as it was, and nothing of ours is left."""
    assert item.weave is not None
    store, root = item.store, item.location.root
    name = item.upstream.name
    if store.read() != item.undo:
        raise UnfinishedError(f"{name} in {root} was changed by another run meanwhile", "run the command again")
    if item.undo is not None:
        put_back(store, item.undo)
    store.remove()
    journal = _journal(item, item.weave)
    try:
        store.write(journal)
        for file in item.weave.files:
            if digest_of(root / file.path) != file.before_sha256:
                raise UnfinishedError(f"{root / file.path} was changed meanwhile", "run the command again")
            if file.before is not None:
                store.keep(file.path, file.before)
        for file, entry in zip(item.weave.files, journal.files, strict=True):
            stage(root / file.path, file.after, mode=entry.mode, uid=entry.uid, gid=entry.gid)
        for file in item.weave.files:
            settle(root / file.path)
            drop_bytecode(root / file.path)
        store.write(with_state(journal, "applied"))
    except BaseException as error:
        _undo_after(error, store, journal)
        if isinstance(error, OSError):
            raise _failed(f"the overlay of {name}", error) from None
        raise


def _undo_after(error: BaseException, store: Store, journal: Journal) -> None:
    try:
        put_back(store, journal)
    except (OSError, ConsistencyError) as again:
        raise UnfinishedError(
            f"the overlay of {journal.upstream} in {store.root} stopped half-way ({error})"
            f" and could not be taken off: {again}",
            f"mend that, then run 'consistency overlay revert {journal.upstream}'",
        ) from None


def _failed(what: str, error: OSError) -> ConsistencyError:
    where = f" ({error.filename})" if error.filename else ""
    return UnfinishedError(
        f"{what} could not be written{where}: {error.strerror or error}; every file is as it was",
        "free space or mend permissions, then run it again",
    )


def _journal(item: Plan, weave: UpstreamWeave) -> Journal:
    root = item.location.root
    files = []
    for file in weave.files:
        if file.before is None:  # a laid file gets the owner of its folder, and is no secret
            folder = (root / file.path).parent.stat()
            mode, uid, gid = 0o644, folder.st_uid, folder.st_gid
        else:
            info = (root / file.path).stat()
            mode, uid, gid = stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid
        files.append(JournalFile(file.path, file.before_sha256, file.after_sha256, mode, uid, gid, file.edits))
    return Journal(
        state="applying",
        upstream=item.upstream.name,
        package=item.upstream.package,
        revision=weave.revision,
        project_version=__version__,
        pin=weave.pin,
        base=weave.base,
        files=tuple(files),
    )


def _all_woven(store: Store, journal: Journal) -> bool:
    return all(digest_of(store.root / file.path) == file.after_sha256 for file in journal.files)
