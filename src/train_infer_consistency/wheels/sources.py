"""Where the pristine wheel of a pin comes from: the registry, a commit of a git repository, or a checkout.

Every way ends in a wheel of the upstream's own, which is then woven and repacked; there is one path for all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConsistencyError, EvidenceError, FoundError
from ..overlay.inspect import inspect_upstream
from ..overlay.lock import Artifact, Lock, Pin
from ..overlay.model import Upstream
from ..overlay.trees import DirectoryTree
from . import checkouts
from .archive import file_digest, replacing
from .checkouts import fetch_commit
from .complete import complete
from .registry import cache_dir, fetch_artifact

#: The folder of built wheels in the cache; its number goes up whenever a build is mended in another way.
_BUILT = "built-1"
_ADDED = "added.txt"


@dataclass(frozen=True)
class Source:
    """A pristine wheel and where it came from.

    Attributes:
        wheel: the file.
        sha256: its digest, in hex.
        pin: the pin it is taken for.
        origin: one phrase for the table: ``registry``, ``commit b7dabd83ac7c`` or ``checkout PATH``.
        vouched: its digest is the locked one.
        commit: the commit it was built from, where that is certain.
        added: modules that its own build left out and :mod:`.complete` put in.
    """

    wheel: Path
    sha256: str
    pin: Pin
    origin: str
    vouched: bool
    commit: str | None = None
    added: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """What the provenance says of it; no path of this machine is in it."""
        record: dict[str, Any] = {
            "file": self.wheel.name,
            "sha256": self.sha256,
            "version": self.pin.built_version,
            "source": "registry" if self.vouched else "git" if self.commit else "checkout",
        }
        if self.vouched:
            record["requirement"] = self.pin.requirement
        if self.commit:
            record |= {"git": self.pin.git, "commit": self.commit}
        if self.added:
            record["added"] = list(self.added)
        return record


def from_registry(pin: Pin, artifact: Artifact, *, given: Sequence[Path] = ()) -> Source:
    """The locked registry file of a pin; raises as :func:`.registry.fetch_artifact`."""
    assert pin.requirement is not None  # only a registry pin has artifacts
    path = fetch_artifact(pin.requirement, artifact.file, artifact.sha256, given=given)
    return Source(path, artifact.sha256, pin, "registry", vouched=True)


@contextmanager
def from_git(
    upstream: Upstream, pin: Pin, lock: Lock, say: Callable[[str], None], given: Path | None = None
) -> Iterator[Source]:
    """The pristine wheel of a commit, built from the user's checkout if there is one, else from a fetch.

    Args:
        upstream, pin, lock: what is wanted, and how a tree is recognised.
        say: told what is going on.
        given: the user's checkout.

    The wheel lasts as long as the block. A wheel built from the commit itself is kept in the cache for the
    next run.

    Raises:
        EvidenceError: the commit or the backend cannot be had, or the checkout is of another version.
        UnfinishedError: no room for it.
    """
    assert pin.git is not None
    assert pin.commit is not None
    with checkouts.workshop() as folder:
        tree = folder / "tree"
        if given is not None and not _stands_at(given, pin.commit):
            woven = _recognise(upstream, given, lock, pin)
            if woven is not None and pin.version in (woven.version, woven.variant_of):
                say(f"{upstream.name} {woven.version}: building a copy of {given}")
                checkouts.copy_tree(given, tree)
                wheel, added = _build(upstream, woven, tree, folder)
                origin = f"checkout {given}"
                yield Source(wheel, file_digest(wheel), woven, origin, vouched=False, added=added)
                return
            if not checkouts.has_commit(given, pin.commit):
                raise _other_version(upstream, pin, given, woven)
            say(f"{upstream.name} {pin.version}: the commit is taken from {given}, not the files there")
        origin = f"commit {pin.commit[:12]}"
        kept = _kept(pin.commit)
        if kept is None:
            url = given.as_uri() if given is not None else pin.git
            say(f"{upstream.name} {pin.version}: building {pin.commit[:12]} from {given or pin.git}")
            fetch_commit(url, pin.commit, tree, upstream=upstream.name)
            kept = _keep(*_build(upstream, pin, tree, folder), pin.commit)
        wheel, added = kept
        yield Source(wheel, wheel.parent.name, pin, origin, vouched=False, commit=pin.commit, added=added)


def _stands_at(tree: Path, commit: str) -> bool:
    return checkouts.head(tree) == commit and checkouts.is_clean(tree)


def _recognise(upstream: Upstream, tree: Path, lock: Lock, wanted: Pin) -> Pin | None:
    """The pin whose pristine files a tree has, known by their digests; None where they are no pin's."""
    try:
        found = inspect_upstream(upstream, DirectoryTree(tree, upstream.package), lock)
    except (FoundError, EvidenceError):
        return None
    if found.problems or found.base == "unknown" or any(file.already for file in found.files):
        return None
    after = {file.path: file.after_sha256 for file in found.files}
    if after == {path: file.after for path, file in wanted.files.items()}:
        return wanted  # also where another pin's edited files are the same
    return lock.pin(upstream.name, found.pin)


def _other_version(upstream: Upstream, pin: Pin, given: Path, found: Pin | None) -> ConsistencyError:
    is_what = f"is {upstream.name} {found.version}" if found else f"is no known pristine {upstream.name}"
    return EvidenceError(
        f"{checkouts.source_variable(upstream.name)}={given} {is_what}, and {pin.version} is wanted",
        f"give a checkout of commit {pin.commit}, or unset it and run where git reaches {pin.git}",
    )


def _build(upstream: Upstream, pin: Pin, tree: Path, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The tree's own wheel, mended where its build leaves something out; and what was added to it."""
    wheels = folder / "wheels"
    wheels.mkdir()
    label = f"{upstream.name} {pin.version}"
    wheel = checkouts.build_wheel(tree, wheels, label=label, moment=checkouts.commit_time(tree))
    return complete(wheel, tree, upstream.package, folder / "complete")


def _kept(commit: str) -> tuple[Path, tuple[str, ...]] | None:
    """What an earlier run built from a commit, and what was added to it; its folder is named by its digest."""
    for path in sorted((cache_dir() / _BUILT / commit).glob("*/*.whl")):
        added = path.with_name(_ADDED)
        if file_digest(path) == path.parent.name and added.is_file():
            return path, tuple(added.read_text(encoding="utf-8").splitlines())
    return None


def _keep(wheel: Path, added: tuple[str, ...], commit: str) -> tuple[Path, tuple[str, ...]]:
    kept = cache_dir() / _BUILT / commit / file_digest(wheel) / wheel.name
    with replacing(kept.with_name(_ADDED)) as file:
        file.write("".join(f"{name}\n" for name in added).encode())
    with replacing(kept) as file, wheel.open("rb") as built:
        shutil.copyfileobj(built, file)
    return kept, added
