"""Get an upstream's source tree at a commit, or a copy of a user's tree, and build its pristine wheel.

A tree of the user's is read and never written to: git only answers questions about it, and the build runs in
a copy.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import EvidenceError, UnfinishedError, UsageError
from .archive import DOS_EPOCH
from .registry import run_pip

#: What a copy leaves out: history, and leftovers of a build, which setuptools would pack again.
_NOT_COPIED = (".git", "__pycache__", "*.egg-info", "bdist.*", "dist", ".venv")
#: Nothing that a repository or the user configured for it may run or change what is checked out.
_SETTINGS = ("core.autocrlf=false", "core.hooksPath=/dev/null", "core.fsmonitor=false")
_GIT = ("git", *(word for setting in _SETTINGS for word in ("-c", setting)))
_FETCH_SECONDS = 900
#: Set inside a git hook, say: they would make git answer about another repository.
_ELSEWHERE = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
    "GIT_PREFIX",
)


def source_variable(upstream: str) -> str:
    """The environment variable that names a checkout of an upstream: ``SOURCE_vllm_ascend``."""
    return f"SOURCE_{upstream.replace('-', '_')}"


def given_source(upstream: str) -> Path | None:
    """The tree that the environment names for an upstream, None where it names none.

    Raises:
        EvidenceError: it names something that is no folder.
    """
    value = os.environ.get(source_variable(upstream), "")
    return _folder(f"{source_variable(upstream)}={value}", value) if value else None


def read_sources(words: Sequence[str], upstreams: Collection[str]) -> dict[str, Path]:
    """The trees that ``--source NAME=PATH`` and the environment name, by upstream; the command line wins.

    Raises:
        UsageError: a word is not NAME=PATH, or names no upstream.
        EvidenceError: a path is no folder.
    """
    found = {name: path for name in upstreams if (path := given_source(name)) is not None}
    for word in words:
        name, sign, value = word.partition("=")
        if name not in upstreams or not sign or not value:
            raise UsageError(
                f"--source {word} is not NAME=PATH with a known name", f"the names are {', '.join(upstreams)}"
            )
        found[name] = _folder(f"--source {word}", value)
    return found


def _folder(label: str, value: str) -> Path:
    path = Path(value).expanduser().resolve()
    if not path.is_dir():
        raise EvidenceError(f"{label}: there is no such folder", "give a checkout's path")
    return path


def fetch_commit(url: str, commit: str, dest: Path, *, upstream: str | None = None) -> None:
    """Fetch one commit, and nothing else of the history, into a new folder.

    Args:
        url: the repository.
        commit: the full commit; what arrives is checked to be this one.
        dest: the folder, made here.
        upstream: the upstream's name, for the message; the repository's name by default.

    Raises:
        EvidenceError: it cannot be had; the message names the two ways to supply it.
    """
    upstream = upstream or url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    try:
        for arguments in (
            ["init", "--quiet", str(dest)],
            ["-C", str(dest), "fetch", "--quiet", "--depth=1", "--no-tags", url, commit],
            ["-C", str(dest), "checkout", "--quiet", "--detach", "FETCH_HEAD"],
        ):
            done = _git(*arguments)
            if done.returncode:
                raise _unreachable(url, commit, upstream, _last(done.stderr))
    except subprocess.TimeoutExpired:
        raise _unreachable(url, commit, upstream, f"no answer in {_FETCH_SECONDS} seconds") from None
    found = head(dest)
    if found != commit:
        raise _unreachable(url, commit, upstream, f"it gave {found or 'nothing'} instead")


def _unreachable(url: str, commit: str, upstream: str, why: str) -> EvidenceError:
    return EvidenceError(
        f"{upstream}: commit {commit[:12]} of {url} cannot be had ({why})",
        f"run it where git reaches that host, or set {source_variable(upstream)}=PATH, a checkout of it",
    )


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "GIT_OPTIONAL_LOCKS": "0"}
    environment["LC_ALL"] = "C"
    try:
        return subprocess.run(
            [*_GIT, *arguments],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=_FETCH_SECONDS,
            umask=0o022,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess([], 127, "", "git is not installed")


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("fatal: ")[:160] if lines else "git gave no reason"


def head(tree: Path) -> str | None:
    """The commit a checkout stands at, None for a tree that is no checkout itself."""
    done = _git("-C", str(tree), "rev-parse", "--show-prefix", "HEAD")
    lines = done.stdout.split("\n")
    return lines[1] if done.returncode == 0 and lines[0] == "" else None


def is_clean(tree: Path) -> bool:
    """Whether no tracked file of a checkout differs from its commit."""
    done = _git("-C", str(tree), "status", "--porcelain", "--untracked-files=no")
    return done.returncode == 0 and not done.stdout.strip()


def has_commit(tree: Path, commit: str) -> bool:
    """Whether a checkout's history holds a commit."""
    if head(tree) is None:
        return False
    return _git("-C", str(tree), "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


def commit_time(tree: Path) -> int:
    """When a checkout's commit was made, in seconds since the epoch; 1980 where that is not known."""
    done = _git("-C", str(tree), "show", "--no-patch", "--format=%ct", "HEAD")
    text = done.stdout.strip()
    return max(int(text), DOS_EPOCH) if done.returncode == 0 and text.isdigit() else DOS_EPOCH


def copy_tree(tree: Path, dest: Path) -> None:
    """Copy a tree without its history and build leftovers, with plain modes.

    Raises:
        UnfinishedError: it cannot be copied.
    """
    try:
        shutil.copytree(tree, dest, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        shutil.rmtree(dest / "build" / "lib", ignore_errors=True)
        for path in dest.rglob("*"):
            if not path.is_symlink():
                runs = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
                path.chmod(0o755 if runs else 0o644)
    except (OSError, shutil.Error) as error:
        raise UnfinishedError(f"{tree}: cannot be copied: {_first(error)}", "make room, or mend its modes") from None


def _first(error: OSError) -> str:
    """``shutil.Error`` carries a list of (source, destination, reason)."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return str(error.args[0][0][-1])
    return error.strerror or str(error)


def build_wheel(tree: Path, dest: Path, *, label: str, moment: int, isolated: bool = True) -> Path:
    """Build a tree's wheel with its own backend, dependencies left out.

    Args:
        tree: the tree; the backend may write to it.
        dest: an empty folder for the wheel.
        label: what to call it in a message.
        moment: ``SOURCE_DATE_EPOCH`` for the backend, in seconds.
        isolated: let pip get the backend; otherwise it is installed already.

    Raises:
        EvidenceError: the backend cannot be had, or fails.
    """
    arguments = ["wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", str(dest)]
    arguments += [] if isolated else ["--no-build-isolation"]
    failure = run_pip([*arguments, str(tree)], {"SOURCE_DATE_EPOCH": str(moment), "PYTHONHASHSEED": "0"})
    wheels = sorted(dest.glob("*.whl"))
    if failure is None and len(wheels) != 1:
        failure = f"the build gave {len(wheels)} wheels"
    if failure is not None:
        raise EvidenceError(
            f"{label}: its wheel cannot be built by {sys.executable} ({failure})",
            "see that pip reaches an index with the build requirements in its pyproject.toml",
        )
    return wheels[0]


@contextmanager
def workshop() -> Iterator[Path]:
    """A temporary folder for trees and builds, gone afterwards.

    Raises:
        UnfinishedError: there is no place for one.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="train-infer-consistency-")
    except OSError as error:
        raise UnfinishedError(f"no temporary folder: {error.strerror or error}", "set TMPDIR to one") from None
    with folder as path:
        yield Path(path)
