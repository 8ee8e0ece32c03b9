"""What can change an image, as one hash: two equal hashes mean that nothing has to be built again.

Taken from the bytes of the checkout's files, never from their times, owners or places, so that it is the same in every
clone. The commit and its time are labels of an image and no inputs: a commit that changes no input changes no hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.overlay.lock import Lock, Stack

#: All that this distribution's own wheel is made of, which goes into every image; overlays and lock are in it.
OWN = ("src", "overlays", "VERSIONS.lock", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE")
#: What puts the context and the image together. The builder's flags are in image_builder.py.
RECIPE = (
    "docker/Dockerfile",
    "docker/install.sh",
    "docker/consistency",
    "requirements/tools.txt",
    "build/image.py",
    "build/image_builder.py",
    "build/image_context.py",
    "build/image_inputs.py",
    "build/image_sbom.py",
)
_BACKEND = re.compile(r"^hatchling==\S+$", re.MULTILINE)


def inputs_digest(root: Path, choices: Mapping[str, str]) -> str:
    """The sha256, in hex, of all inputs of an image.

    Args:
        root: the checkout.
        choices: what is asked for besides: stack, chip, platform, base and its digest.

    Raises:
        EvidenceError: an input is missing or cannot be read.
    """
    digest = hashlib.sha256()
    for name, value in sorted([*choices.items(), ("build backend", _backend(root))]):
        digest.update(f"{name}={value}\0".encode())
    for path in sorted(input_files(root)):
        file = root / path
        try:
            content, runs = hashlib.sha256(file.read_bytes()).hexdigest(), bool(file.stat().st_mode & 0o100)
        except OSError as error:
            raise EvidenceError(f"{path}: {error.strerror or error}", "restore it: git checkout") from None
        digest.update(f"{path}\0{runs:d}\0{content}\0".encode())
    return digest.hexdigest()


def input_files(root: Path) -> Iterator[str]:
    """The inputs' paths below the checkout; what Python leaves behind when it runs is none."""
    for name in (*OWN, *RECIPE):
        top = root / name
        if not top.is_dir():
            yield name
            continue
        for file in top.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(root).as_posix()


def _backend(root: Path) -> str:
    """The line that pins what builds the wheel, which writes its own version into it."""
    path = root / "requirements" / "dev.txt"
    try:
        found = _BACKEND.search(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(f"{path}: {error.strerror or error}", "restore it: git checkout") from None
    if found is None:
        raise EvidenceError(f"{path} pins no hatchling", "restore the line: hatchling==VERSION")
    return found[0]


def overlay_digest(lock: Lock, stack: Stack) -> str:
    """The sha256, in hex, of the digests of a stack's overlay files, for the label of that name."""
    of_stack = {path: digest for path, digest in lock.overlays.items() if path.split("/")[0] in stack.pins}
    text = "".join(f"{path} {digest}\n" for path, digest in sorted(of_stack.items()))
    return hashlib.sha256(text.encode()).hexdigest()
