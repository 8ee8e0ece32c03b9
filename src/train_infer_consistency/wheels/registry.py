"""Get a locked registry file: from the own cache, from a file the user gives, or through pip.

pip is asked, and no index address is known here, so that the user's own index configuration holds (a mirror,
a proxy, a folder of wheels). Whatever a file comes from, it is used only once its sha256 is the locked one.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import EvidenceError, UnfinishedError
from .archive import file_digest
from .record import WheelName

OLDEST = "3.11"
MACHINES = ("x86_64", "aarch64")
_DOWNLOAD = ("download", "--no-deps", "--only-binary=:all:")


def cache_dir() -> Path:
    """The folder where downloads are kept: ``$XDG_CACHE_HOME/train-infer-consistency``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "train-infer-consistency"


def fetch_artifact(
    requirement: str,
    filename: str,
    sha256: str,
    *,
    python: str | None = None,
    given: Sequence[Path] = (),
    cache: Path | None = None,
) -> Path:
    """The path of a registry file whose digest was checked just now.

    Args:
        requirement: ``name==version``.
        filename: the wheel's file name; its tags say which platform is asked for.
        sha256: the locked digest, in hex.
        python: the Python that the file must fit, such as ``3.11``; by default what its tags say.
        given: files of the user's own; one with this file name is taken instead of the cache or the registry.
        cache: the cache folder, :func:`cache_dir` by default.

    Raises:
        EvidenceError: it cannot be had, or what was found under its name is something else.
        UnfinishedError: the cache cannot be written to.
    """
    for path in given:
        if path.name == filename:
            return _checked(path, sha256, f"give the file that {requirement} has in its registry")
    kept = (cache or cache_dir()) / "artifacts" / sha256 / filename
    if kept.exists():
        return _checked(kept, sha256, "remove it; the next run fetches it again")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=kept.parent) as folder:
            _download(requirement, filename, sha256, python, Path(folder), kept)
            _checked(Path(folder, filename), sha256, "run it again").replace(kept)
    except OSError as error:
        raise UnfinishedError(
            f"{kept}: not written: {error.strerror or error}", "make room, or set XDG_CACHE_HOME"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            kept.parent.rmdir()  # only where nothing came of it: a folder with the file in it stays
    return kept


def _checked(path: Path, sha256: str, mend: str) -> Path:
    found = file_digest(path)
    if found != sha256:
        raise EvidenceError(f"{path}: sha256 is {found[:12]}…, the locked one is {sha256[:12]}…", mend)
    return path


def _download(requirement: str, filename: str, sha256: str, python: str | None, folder: Path, kept: Path) -> None:
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    name = WheelName.parse(filename)
    own = re.fullmatch(r"cp3(\d+)", name.abi)  # a file of the stable ABI, or of none, serves OLDEST too
    target = _target(python or (f"3.{own[1]}" if own else OLDEST), name.platform.split("."))
    options = ["--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
    failure = run_pip([*_DOWNLOAD, *options, *target])
    if failure is None and not (folder / filename).exists():
        failure = "pip brought a file of another name"
    if failure is not None:
        raise EvidenceError(
            f"{requirement}: pip could not get {filename} ({failure})",
            f"configure pip with an index that has it, or give the file by --artifact or as {kept}",
        )


def _target(python: str, platforms: Sequence[str]) -> list[str]:
    """pip's options for files of another Python and platform than its own."""
    options = ["--implementation", "cp", "--python-version", python, "--abi", f"cp{python.replace('.', '')}"]
    return options + [f"--platform={platform}" for platform in platforms if platform != "any"]


def run_pip(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str | None:
    """Run this interpreter's pip, its progress on our standard error where that is a terminal.

    Args:
        arguments: the command and its arguments.
        environment: variables to add.

    Returns:
        None where it went well, else why not, in a few words and without any address.
    """
    terminal = sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += [] if terminal else ["--quiet"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if terminal else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **(environment or {})},
            umask=0o022,  # a built wheel has its files' modes, which must not depend on the user's umask
        )
    except OSError as error:
        return f"{sys.executable} cannot be run: {error.strerror}"
    return None if done.returncode == 0 else _reason(done.stderr)


def _reason(output: str) -> str:
    """pip's own word for a failure, short, without addresses (an index address may carry a password)."""
    known = {
        "No module named pip": "this Python has no pip; install it, for example by 'python -m ensurepip'",
        "DO NOT MATCH THE HASHES": "what the index has under this name has another digest",
        "No matching distribution found": "no configured index has it",
        "No space left on device": "no space left on the disk",
    }
    for sign, words in known.items():
        if sign in output:
            return words
    lines = [line for line in output.splitlines() if line.strip()]
    if "[end of output]" in output:  # a build's output is framed; the line before its end is what it died of
        lines = output.partition("[end of output]")[0].strip().splitlines()[-1:]
    errors = [line for line in lines if line.lower().lstrip(" ×╰─>").startswith("error")]
    line = (errors or lines or ["no reason given"])[0].strip()
    if line == "ERROR: Exception:":  # pip's own traceback follows
        line = lines[-1].strip()
    return re.sub(r"\w+://\S+", "…", line)[:160]
