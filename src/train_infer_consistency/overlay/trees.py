"""Where an upstream's files are read from: a folder (checkout, site-packages, plain tree) or a wheel.

Paths are those in site-packages; a checkout may keep its package below ``python/`` or ``src/``.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Protocol

from ..errors import EvidenceError

_PREFIXES = ("", "python", "src")


class Tree(Protocol):
    """Something that an upstream's files can be read from."""

    @property
    def label(self) -> str:
        """What to call it in a message."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, or None where there is no such file.

        Raises:
            EvidenceError: it is there and cannot be read.
        """
        ...


class DirectoryTree:
    """A folder that holds the import package, directly or below ``python/`` or ``src/``.

    Args:
        root: the folder.
        package: the import package's name.

    Raises:
        EvidenceError: there is no such folder, or the package is not in it.
    """

    def __init__(self, root: Path, package: str) -> None:
        if not root.is_dir():
            raise EvidenceError(f"{root} is no folder", "give a checkout or a plain tree of the upstream")
        for prefix in _PREFIXES:
            if (root / prefix / package).is_dir():
                self.root = root / prefix
                break
        else:
            raise EvidenceError(f"{root} holds no package '{package}'", "give the folder that contains it")
        self.label = str(root)

    def read(self, path: str) -> bytes | None:
        """See :class:`Tree`."""
        target = self.root / path
        try:
            return target.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EvidenceError(f"{target} cannot be read: {error.strerror}", "mend its permissions") from None


class WheelTree:
    """A wheel's files, read without unpacking it.

    Raises:
        EvidenceError: the file is no readable zip archive.
    """

    def __init__(self, wheel: Path) -> None:
        self.label = wheel.name
        try:
            self._archive = zipfile.ZipFile(wheel)
        except (OSError, zipfile.BadZipFile) as error:
            raise EvidenceError(f"{wheel} is no readable wheel: {error}", "download it again") from None

    def read(self, path: str) -> bytes | None:
        """See :class:`Tree`."""
        try:
            return self._archive.read(path)
        except KeyError:
            return None
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
            raise EvidenceError(f"{self.label}: {path} cannot be read: {error}", "download the wheel again") from None


class MappingTree:
    """Files held in memory, for trees that a caller has already read."""

    def __init__(self, label: str, files: dict[str, bytes]) -> None:
        self.label = label
        self._files = files

    def read(self, path: str) -> bytes | None:
        """See :class:`Tree`."""
        return self._files.get(path)


def open_tree(path: Path, package: str) -> Tree:
    """Open a wheel or a folder."""
    if path.is_file():
        return WheelTree(path)
    return DirectoryTree(path, package)
