"""What an in-place overlay keeps outside the package: the originals and a journal that survives a kill.

They lie in ``.train-infer-consistency/<upstream>/`` in the folder that contains the package, so that any
interpreter finds them again from the package's location alone. The journal is on the disk before the first
file of the package is renamed; its state says what was going on: ``applying``, ``applied`` or
``reverting``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from ..errors import EvidenceError, UnfinishedError
from .digests import sha256

SCHEMA = 1
FOLDER = ".train-infer-consistency"
State = Literal["applying", "applied", "reverting"]
_TEMPORARY = ".train-infer-consistency.tmp"


@dataclass(frozen=True)
class JournalFile:
    """One file of the package.

    Attributes:
        path: as in site-packages, with forward slashes.
        before_sha256: of the original; None for a laid file.
        after_sha256: of the woven file.
        mode, uid, gid: permission bits and owner, of the original or given to a laid file.
        edits: ids of the edits.
    """

    path: str
    before_sha256: str | None
    after_sha256: str
    mode: int
    uid: int
    gid: int
    edits: tuple[str, ...]


@dataclass(frozen=True)
class Journal:
    """What was laid over one package, by which version, and what is going on with it."""

    state: State
    upstream: str
    package: str
    revision: int
    project_version: str
    pin: str
    base: str
    files: tuple[JournalFile, ...]


class Store:
    """The state folder of one upstream: ``<root>/.train-infer-consistency/<upstream>``."""

    def __init__(self, root: Path, upstream: str) -> None:
        self.root = root
        self.upstream = upstream
        self.folder = root / FOLDER / upstream
        self._journal = self.folder / "journal.json"

    def original(self, path: str) -> Path:
        """Where the original of a file of the package is kept."""
        return self.folder / "originals" / path

    def read(self) -> Journal | None:
        """Read the journal; None where there is none.

        Raises:
            EvidenceError: it is there and is not what this version writes.
        """
        try:
            data = json.loads(self._journal.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise self._unusable(str(error)) from None
        try:
            if data["schema"] != SCHEMA:
                raise self._unusable(f"its schema is {data['schema']}, this version knows {SCHEMA}")
            files = tuple(JournalFile(**{**file, "edits": tuple(file["edits"])}) for file in data["files"])
            journal = Journal(files=files, **{key: data[key] for key in _JOURNAL_KEYS})
        except (KeyError, TypeError) as error:
            raise self._unusable(f"{type(error).__name__} {error}") from None
        for file in files:
            parts = PurePosixPath(file.path).parts
            # What is read here is written to: nothing outside the package may be named.
            if not parts or parts[0] != journal.package or ".." in parts or journal.package in ("", ".", "/"):
                raise self._unusable(f"{file.path} is not in {journal.package}")
            if not all(isinstance(number, int) for number in (file.mode, file.uid, file.gid)):
                raise self._unusable(f"mode or owner of {file.path} are no numbers")
        if journal.state not in ("applying", "applied", "reverting"):
            raise self._unusable(f"its state is {journal.state}")
        return journal

    def write(self, journal: Journal) -> None:
        """Write the journal, through to the disk."""
        make_folder(self.folder)
        data = {"schema": SCHEMA, **asdict(journal)}
        put(self._journal, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode(), mode=0o644)

    def keep(self, path: str, data: bytes) -> None:
        """Keep the original of a file, through to the disk."""
        target = self.original(path)
        make_folder(target.parent)
        put(target, data, mode=0o600)

    def remove(self) -> None:
        """Remove the folder: the originals first, the journal last, so that a kill in between is seen."""
        if not self.folder.is_dir():
            return
        shutil.rmtree(self.folder / "originals", ignore_errors=True)
        self._journal.unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def _unusable(self, reason: str) -> EvidenceError:
        return EvidenceError(
            f"the journal {self._journal} cannot be used: {reason}",
            f"reinstall {self.upstream}'s upstream package, then delete {self.folder}",
        )


_JOURNAL_KEYS = ("state", "upstream", "package", "revision", "project_version", "pin", "base")


def with_state(journal: Journal, state: State) -> Journal:
    """Return the journal with another state."""
    return replace(journal, state=state)


def digest_of(path: Path) -> str | None:
    """Return a file's sha256, or None where there is nothing by that name.

    Raises:
        EvidenceError: it cannot be read.
    """
    try:
        return sha256(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read: {error.strerror}", "mend its permissions") from None


def temporary(target: Path) -> Path:
    """The name of a file's new content before it is renamed: always the same, so that it is found."""
    return target.with_name(f".{target.name}{_TEMPORARY}")


def stage(target: Path, data: bytes, *, mode: int, uid: int | None = None, gid: int | None = None) -> None:
    """Write a file's new content beside it, through to the disk. Mode and owner are set before it is renamed.

    Raises:
        OSError: it cannot be written or given that owner; nothing is left behind.
    """
    path = temporary(target)
    path.unlink(missing_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
            file.flush()
            made = os.fstat(descriptor)
            if uid is not None and gid is not None and (made.st_uid, made.st_gid) != (uid, gid):
                os.fchown(descriptor, uid, gid)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def settle(target: Path) -> None:
    """Rename a staged file over the old one, through to the disk; a hard link to the old one keeps it."""
    os.replace(temporary(target), target)  # noqa: PTH105 - one name for every rename
    sync_folder(target.parent)


def put(target: Path, data: bytes, *, mode: int) -> None:
    """Write one file of our own: the old content or the new one, never half of it."""
    stage(target, data, mode=mode)
    try:
        settle(target)
    except BaseException:
        temporary(target).unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """Make a folder below the state folder, and in that one the file that keeps it out of git."""
    folder.mkdir(parents=True, exist_ok=True)
    top = next((parent for parent in (folder, *folder.parents) if parent.name == FOLDER), None)
    if top is not None and not (top / ".gitignore").exists():
        (top / ".gitignore").write_text("*\n", encoding="ascii")


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power failure, where the filesystem can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network filesystems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def holder(root: Path) -> str | None:
    """Return who is working on the packages in ``root`` right now (``pid 12 on host``), or None."""
    try:
        descriptor = os.open(root / FOLDER / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another run"
    finally:
        os.close(descriptor)
    return None


@contextlib.contextmanager
def hold(roots: Iterable[Path]) -> Iterator[None]:
    """Be the only run that changes packages in these folders.

    Raises:
        UnfinishedError: another run is at work there; the message says which.
        OSError: the state folder cannot be made.
    """
    with contextlib.ExitStack() as stack:
        for root in sorted(set(roots)):
            stack.enter_context(_hold_one(root))
        yield


@contextlib.contextmanager
def _hold_one(root: Path) -> Iterator[None]:
    path = root / FOLDER / "lock"
    while True:
        make_folder(path.parent)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # the last holder removed the folder just now
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another run"
            os.close(descriptor)
            raise UnfinishedError(f"{who} is at work on the packages in {root}", "wait until it is done") from None
        # The file may have been removed by its last holder between open and flock: then it locks nothing.
        if _same_file(descriptor, path):
            break
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        _remove_if_unused(path.parent)
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _remove_if_unused(folder: Path) -> None:
    """Remove the top state folder where nothing but its ``.gitignore`` is left."""
    with contextlib.suppress(OSError):
        if set(os.listdir(folder)) <= {".gitignore"}:  # noqa: PTH208 - names only
            (folder / ".gitignore").unlink(missing_ok=True)
            folder.rmdir()
