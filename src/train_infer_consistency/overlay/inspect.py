"""Look at one upstream tree: which pin it is, whether each edit can be woven, and what the woven files are.

The pin is recognised by file and scope digests, never by a declared version or by git, because both lie. The tree is
only read. ``check``, ``diff``, ``apply`` and the wheels all stand on :func:`inspect_upstream`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..errors import EvidenceError, FoundError
from .anchors import find, find_scopes, parse_pattern
from .digests import sha256
from .lock import FilePin, Lock
from .model import Edit, FileOverlay, Refusal, Upstream
from .trees import Tree
from .weave import MODULE, Problem, parse, read_notice, scope_digests, weave

Base = Literal["known", "scopes", "unknown"]
_RANK: dict[Base, int] = {"known": 2, "scopes": 1, "unknown": 0}


@dataclass(frozen=True)
class FileWeave:
    """One woven file.

    Attributes:
        path: as in site-packages.
        before: the upstream bytes; None for a laid file.
        after: the woven bytes.
        edits: ids of the edits, in order.
        lines: for each edit's id the lines of its matches in the upstream file.
        edited: the edited scopes' names.
        base: how the upstream file was known: by its digest, by its edited scopes' digests, or not at all.
        already: the tree has the woven file of this version already (``before`` is then not known, and None).
    """

    path: str
    before: bytes | None
    after: bytes
    edits: tuple[str, ...]
    lines: Mapping[str, tuple[int, ...]]
    edited: tuple[str, ...]
    base: Base
    already: bool = False

    @property
    def before_sha256(self) -> str | None:
        """The digest of the upstream file, None for a laid file."""
        return None if self.before is None else sha256(self.before)

    @property
    def after_sha256(self) -> str:
        """The digest of the woven file."""
        return sha256(self.after)

    @cached_property
    def scopes(self) -> dict[str, tuple[str, str]]:
        """The digest of each edited scope before and after; both files are parsed for it."""
        if self.before is None:
            return {}
        before, after = scope_digests(self.before, self.edited), scope_digests(self.after, self.edited)
        return {name: (before[name], after[name]) for name in self.edited}


@dataclass(frozen=True)
class UpstreamWeave:
    """A whole upstream, woven in memory. ``base`` is the weakest of its files'."""

    upstream: Upstream
    pin: str
    base: Base
    revision: int
    files: tuple[FileWeave, ...]

    @property
    def already(self) -> bool:
        """Whether every file of the tree was woven by this version before."""
        return all(file.already for file in self.files)


@dataclass(frozen=True)
class Inspection:
    """What was found in a tree: the woven files that could be made, and every problem.

    ``pin`` is the recognised pin, or the nearest one where ``base`` is ``unknown``.
    """

    upstream: Upstream
    label: str
    pin: str
    base: Base
    revision: int
    files: tuple[FileWeave, ...]
    problems: tuple[Problem, ...]


def weave_upstream(upstream: Upstream, tree: Tree, lock: Lock, *, allow_unknown_base: bool = False) -> UpstreamWeave:
    """Weave all edits of an upstream over a tree, in memory.

    Raises:
        FoundError: a version that is refused by name, or any edit that cannot be woven; the message has the first
            problem and how many more there are.
        EvidenceError: the tree has none of the files, or one cannot be read.
    """
    found = inspect_upstream(upstream, tree, lock, allow_unknown_base=allow_unknown_base)
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise FoundError(
            f"{upstream.name} in {found.label}: {found.problems[0]}{more}",
            f"'consistency overlay check --source {upstream.name}=PATH' lists every edit",
        )
    return UpstreamWeave(upstream, found.pin, found.base, found.revision, found.files)


def inspect_upstream(
    upstream: Upstream, tree: Tree, lock: Lock, *, allow_unknown_base: bool = False, pin: str | None = None
) -> Inspection:
    """Look at a tree without writing anything.

    Args:
        upstream: what to lay over it.
        tree: where its files are.
        lock: the known digests.
        allow_unknown_base: weave also where neither file nor scope digest is known.
        pin: take this pin's edits and counts instead of recognising the tree (used while the lock is written).

    Raises:
        FoundError: the tree is of a version that is refused by name.
        EvidenceError: the tree has none of the files, or one cannot be read.
    """
    sources = {file.path: tree.read(file.path) for file in upstream.files}
    _refuse(upstream, tree)
    if not any(sources[file.path] for file in upstream.files if not file.lays):
        edited = next(file.path for file in upstream.files if not file.lays)
        raise EvidenceError(
            f"{tree.label} has none of {upstream.name}'s edited files (such as {edited})",
            "give the folder that contains the package",
        )
    if pin is None:
        pin, bases = _recognise(upstream, sources, lock)
    else:
        bases = dict.fromkeys(sources, "known")
    files: list[FileWeave] = []
    problems: list[Problem] = []
    for file in upstream.files:
        edits = file.edits_for(pin)
        if not edits:
            continue
        base = bases[file.path]
        if base == "unknown" and not allow_unknown_base and not file.lays:
            problems.append(_unknown(file, edits, sources[file.path], pin))
            continue
        outcome = _weave_file(file, edits, sources[file.path], pin, base, lock, upstream.name)
        if isinstance(outcome, FileWeave):
            files.append(outcome)
        else:
            problems += outcome
    problems += _partly_woven(files)
    base = min((file.base for file in files), key=_RANK.__getitem__, default="unknown")
    return Inspection(upstream, tree.label, pin, base, lock.revision, tuple(files), tuple(problems))


def _weave_file(
    file: FileOverlay, edits: tuple[Edit, ...], source: bytes | None, pin: str, base: Base, lock: Lock, name: str
) -> FileWeave | list[Problem]:
    revision = lock.revision
    locked = lock.upstreams.get(name, {}).get(pin)
    known = locked.files.get(file.path) if locked else None
    ids = tuple(edit.id for edit in edits)
    if file.lays:
        return _lay_file(file, source, known)
    if source is None:
        return [Problem(file.path, None, "the tree does not have this file")]
    notice = read_notice(source)
    if notice is not None:
        if notice.revision != revision:
            reason = f"already woven by overlay consistency.{notice.revision}, this is consistency.{revision}"
            return [Problem(file.path, None, reason, "revert it with the version that wove it")]
        if not notice.intact:
            return [Problem(file.path, None, "woven by this version and changed since")]
        return FileWeave(file.path, None, source, ids, {}, (), base, already=True)
    result = weave(file.path, source, edits, pin, lock.revision, known.after if known else None)
    if result.after is None:
        return list(result.problems)
    if known and known.before == sha256(source) and known.after != sha256(result.after):
        reason = "it is woven to other bytes than VERSIONS.lock has"
        return [Problem(file.path, None, reason, "overlays and lock disagree: run 'consistency lock check'")]
    edited = tuple(dict.fromkeys(edit.scope or MODULE for edit in edits))
    return FileWeave(file.path, source, result.after, ids, result.lines, edited, base)


def _lay_file(file: FileOverlay, source: bytes | None, known: FilePin | None) -> FileWeave | list[Problem]:
    edit = file.edits[0]
    after = edit.lines.encode()
    if known and known.after != sha256(after):
        reason = "the file to lay is another than VERSIONS.lock has"
        return [Problem(file.path, edit.id, reason, "overlays and lock disagree: run 'consistency lock check'")]
    if source is not None and source != after:
        reason = "the upstream has this file, and it is not the one that this version lays"
        return [Problem(file.path, edit.id, reason, "laid by another version, or changed since")]
    return FileWeave(file.path, None, after, (edit.id,), {}, (), "known", already=source is not None)


def _unknown(file: FileOverlay, edits: tuple[Edit, ...], source: bytes | None, pin: str) -> Problem:
    if source is None:
        return Problem(file.path, None, "the tree does not have this file")
    return Problem(
        file.path,
        None,
        f"digest {sha256(source)[:12]} is unknown, and so is that of an edited scope"
        f" ({', '.join(dict.fromkeys(edit.scope or MODULE for edit in edits))})",
        f"nearest pin is {pin}; --allow-unknown-base weaves it all the same",
    )


def _partly_woven(files: list[FileWeave]) -> list[Problem]:
    woven = [file for file in files if file.already]
    if not woven or len(woven) == len(files):
        return []
    missing = next(file for file in files if not file.already)
    reason = f"not woven, while {woven[0].path} is: the tree is only partly woven"
    return [Problem(missing.path, None, reason, "revert it, or start from a fresh copy")]


def _recognise(upstream: Upstream, sources: Mapping[str, bytes | None], lock: Lock) -> tuple[str, dict[str, Base]]:
    """Return the pin that fits best and how each file is known in it; later pins win over equal earlier ones.

    Scope digests are taken only where no pin has all the file digests: it costs a parse of every file.
    """
    digests = {path: sha256(source) for path, source in sources.items() if source is not None}
    pins = lock.upstreams.get(upstream.name, {})
    scopes: dict[str, dict[str, str]] = {}
    for deep in (False, True):
        if deep:
            scopes = {file.path: _scopes(file, sources[file.path]) for file in upstream.files if not file.lays}
        best: tuple[tuple[int, int, int, bool], str, dict[str, Base]] | None = None
        for source in upstream.pins:
            pin = pins.get(source.version)
            files = pin.files if pin else {}
            bases = {
                file.path: _base(files.get(file.path), digests.get(file.path), scopes.get(file.path, {}))
                for file in upstream.files
            }
            edited = [file for file in upstream.files if not file.lays and file.edits_for(source.version)]
            ranks = [_RANK[bases[file.path]] for file in edited]
            score = (min(ranks, default=0), ranks.count(2), ranks.count(1), not source.tested_only)
            if best is None or score >= best[0]:
                best = (score, source.version, bases)
        if best is not None and best[0][0] == _RANK["known"]:
            break
    assert best is not None  # the reader refuses an upstream without pins
    return best[1], best[2]


def _scopes(file: FileOverlay, source: bytes | None) -> dict[str, str]:
    try:
        names = sorted({edit.scope or MODULE for edit in file.edits})
        return scope_digests(source, names) if source is not None else {}
    except (SyntaxError, ValueError):
        return {}


def _base(known: FilePin | None, digest: str | None, scopes: Mapping[str, str]) -> Base:
    if known is None or digest is None:
        return "unknown"
    if digest in (known.before, known.after):
        return "known"
    for side in (0, 1):  # the upstream's scopes, or the woven ones
        if known.scopes and all(scopes.get(name) == pair[side] for name, pair in known.scopes.items()):
            return "scopes"
    return "unknown"


def refusal_of(upstream: Upstream, tree: Tree) -> Refusal | None:
    """Return the refusal that a tree falls under, None where it falls under none."""
    return next((refusal for refusal in upstream.refusals if _is_refused(refusal, tree)), None)


def _refuse(upstream: Upstream, tree: Tree) -> None:
    refusal = refusal_of(upstream, tree)
    if refusal is not None:
        raise FoundError(f"{tree.label} is {refusal.name}, which is refused: {refusal.why}", refusal.mend)


def _is_refused(refusal: Refusal, tree: Tree) -> bool:
    source = tree.read(refusal.file)
    if source is None or refusal.scope is None:
        return source is not None
    try:
        module = parse(source)
    except (SyntaxError, ValueError):
        return False
    scopes = find_scopes(module, refusal.scope)
    if refusal.anchor is None:
        return bool(scopes)
    for expression in (True, False):
        try:
            anchor = parse_pattern(refusal.anchor, expression=expression)
        except SyntaxError:
            continue
        if any(find(scope, anchor) for scope in scopes):
            return True
    return False
