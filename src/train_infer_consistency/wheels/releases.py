"""Ask the user's package registry, through pip, which files a release has; used while the lock is written.

pip is asked rather than an index by its address, so that the user's own configuration (mirrors, certificates,
credentials) holds and no host is named here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from urllib.parse import unquote

from ..errors import EvidenceError
from ..overlay.lock import Artifact
from .registry import MACHINES, fetch_artifact

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# glibc versions of the manylinux tags (PEP 600) that the pinned upstreams use or may come to use.
_GLIBC = range(17, 40)


def registry_artifacts(requirement: str) -> list[Artifact]:
    """Return every wheel of a release for Linux on x86-64 and Arm, Python 3.11 and later.

    Each is downloaded once into the cache, because the registry's answer has no size.

    Args:
        requirement: ``name==version``.

    Raises:
        EvidenceError: the registry has no such release, or cannot be reached.
    """
    found: dict[str, str] = {}
    for machine in MACHINES:
        for python in PYTHONS:
            if answer := ask_registry(requirement, machine, python):
                found[answer[0]] = answer[1]
    if not found:
        raise EvidenceError(
            f"the registry gives no wheel of {requirement} for Linux and Python >= 3.11",
            "check the name, or the registry that pip is configured for",
        )
    artifacts = []
    for file, sha256 in sorted(found.items()):
        tag = re.search(r"-cp3(\d\d)-cp3\1-", file)
        path = fetch_artifact(requirement, file, sha256, python=f"3.{tag[1]}" if tag else PYTHONS[0])
        artifacts.append(Artifact(file, sha256, path.stat().st_size))
    return artifacts


def ask_registry(requirement: str, machine: str, python: str) -> tuple[str, str] | None:
    """Return (file name, sha256) of the wheel that pip would take, or None where there is none.

    Args:
        requirement: ``name==version``; a bare name asks for the newest release that is no pre-release.
        machine: ``x86_64`` or ``aarch64``.
        python: such as ``3.11``.
    """
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
    command += ["--ignore-requires-python", "--only-binary=:all:", "--target", "unused", "--report", "-"]
    command += ["--python-version", python, "--implementation", "cp"]
    for minor in reversed(_GLIBC):
        command += ["--platform", f"manylinux_2_{minor}_{machine}"]
    command += ["--platform", f"manylinux2014_{machine}", "--platform", f"linux_{machine}"]
    answer = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
    if answer.returncode:
        return None
    info = json.loads(answer.stdout)["install"][0]["download_info"]
    return unquote(info["url"].rsplit("/", 1)[1]), info["archive_info"]["hashes"]["sha256"]
