"""The folder that wheels are built into: one run at a time, with digests and requirements beside them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import UnfinishedError
from .archive import file_digest, replacing
from .record import canonical
from .repack import BuiltWheel

SUMS = "SHA256SUMS"
#: The requirements file with this distribution's own wheel alone, for ``consistency overlay apply`` in place.
ALONE = "overlay"


def requirements_path(dest: Path, stack: str) -> Path:
    """Where a stack's requirements file lies."""
    return dest / f"requirements-{stack}.txt"


def write_requirements(path: Path, stack: str, wheels: Sequence[BuiltWheel]) -> None:
    """The file that installs a stack from the folder it lies in, by digest and without an index.

    pip takes a relative ``--find-links`` of a requirements file from the file's own folder.
    """
    lines = [
        f"# Stack {stack}. Install it over what is there, dependencies left alone:",
        f"#   pip install --no-deps --require-hashes -r {path.name}",
        "--no-index",
        "--find-links .",
    ]
    lines += sorted(
        f"{canonical(wheel.distribution)}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in wheels
    )
    with replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def clear(dest: Path, stacks: Sequence[str]) -> None:
    """Take away what an earlier run said of wheels that are about to be replaced; it is written anew at the end."""
    for path in (dest / SUMS, *(requirements_path(dest, stack) for stack in stacks)):
        path.unlink(missing_ok=True)


def write_sums(dest: Path) -> None:
    """``SHA256SUMS`` over every wheel and requirements file in the folder, as ``sha256sum -c`` reads it."""
    paths = sorted([*dest.glob("*.whl"), *dest.glob("requirements-*.txt")])
    with replacing(dest / SUMS) as file:
        file.write("".join(f"{file_digest(path)}  {path.name}\n" for path in paths).encode())


@contextmanager
def alone(dest: Path) -> Iterator[None]:
    """Hold a folder against a second run, and clear away what a killed one left in it.

    Raises:
        UnfinishedError: another run holds it, or it cannot be made.
    """
    try:
        dest.mkdir(parents=True, exist_ok=True)
        handle = os.open(dest, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UnfinishedError(f"{dest}: {error.strerror or error}", "choose another --dest") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnfinishedError(f"another run is writing to {dest}", "wait, or choose another --dest") from None
        except OSError:
            pass  # a network file system without locks: the renames still keep each file whole
        for left in dest.glob(".*.part"):
            left.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)
