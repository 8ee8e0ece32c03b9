"""What a release needs: is everything ready for this tag, which images can be made, what is new.

``python build/release.py ready v1.2.3 | revision | images | notes v1.2.3``; the workflows call it, and so can anybody.
Statuses are those of ``consistency``: 0 done, 1 a reason not to release, 2 wrong command line, 3 something unreadable.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train_infer_consistency import __version__
from train_infer_consistency.errors import ConsistencyError, EvidenceError, UsageError
from train_infer_consistency.overlay.lock import Lock, load_lock
from train_infer_consistency.overlay.locking import check_lock
from train_infer_consistency.wheels.registry import MACHINES

ROOT = Path(__file__).resolve().parents[1]
LOCK, CHANGES = "VERSIONS.lock", "CHANGELOG.md"
_TAG = re.compile(r"v\d+\.\d+\.\d+")
#: What of a pin, besides its woven files, makes the wheel that carries `consistency.N`.
_MADE_OF = ("requirement", "commit", "built-version", "wheel-version")


def git(root: Path, *arguments: str) -> str:
    """What git says in a checkout.

    Raises:
        EvidenceError: it says no.
    """
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EvidenceError(
            f"git {arguments[0]}: {reason.removeprefix('fatal: ')}", "run it in a checkout with its tags"
        )
    return done.stdout


# ------------------------------------------------------------------------------------------------------------ revision


def revision_problems(root: Path, lock: str | None = None) -> tuple[list[str], int]:
    """Compare the lock with those of all releases of its revision: what was released is never made anew in other bytes.

    Args:
        root: the checkout; its tags ``v1.2.3`` are the releases.
        lock: the lock's text, the checkout's by default.

    Returns:
        the problems, and how many releases there are of this revision.

    Raises:
        EvidenceError: git or a lock cannot be read.
    """
    here = _read(lock or (root / LOCK).read_text(encoding="utf-8"), LOCK)
    problems, compared = [], 0
    for tag in git(root, "tag", "--list", "v[0-9]*").split():
        if not _TAG.fullmatch(tag):
            continue
        there = _read(git(root, "show", f"{tag}:{LOCK}"), f"{LOCK} of {tag}")
        if there["revision"] == here["revision"]:
            compared += 1
            problems += [f"{words} than in {tag}" for words in _changed(there, here)]
    return problems, compared


def _read(text: str, name: str) -> dict[str, Any]:
    """A lock as plain TOML: one of an earlier release may be of another schema than this version reads."""
    try:
        data = tomllib.loads(text)
        return {"revision": int(data["revision"]), "upstream": dict(data["upstream"])}
    except (tomllib.TOMLDecodeError, LookupError, TypeError, ValueError) as error:
        raise EvidenceError(f"{name} cannot be read: {error}", "restore it") from None


def _changed(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The pins that both locks have and that give other wheels, one line for each difference."""
    found = []
    for upstream, pins in there["upstream"].items():
        for version, old in pins.items():
            new = here["upstream"].get(upstream, {}).get(version)
            if new is None:
                continue
            found += [f"{upstream} {version}: another {key}" for key in _MADE_OF if old.get(key) != new.get(key)]
            before = {path: file["after"] for path, file in old.get("file", {}).items()}
            after = {path: file["after"] for path, file in new.get("file", {}).items()}
            for path in sorted({*before, *after}):
                if before.get(path) != after.get(path):
                    found.append(f"{upstream} {version}: {path} is woven to other bytes")
    return found


# --------------------------------------------------------------------------------------------------------------- ready


def ready_problems(root: Path, tag: str) -> list[str]:
    """Every reason not to release a checkout under a tag, one line each.

    Raises:
        UsageError: no release has such a tag.
        EvidenceError: git, the lock or the changelog cannot be read.
    """
    version = _version(tag)
    problems = []
    if version != __version__:
        problems.append(f"the tag says {version}, the package is {__version__}")
    dirty = git(root, "status", "--porcelain").splitlines()
    problems += [f"{len(dirty)} files are not as they were committed, {dirty[0][3:]} is one"] if dirty else []
    problems += [f"{LOCK}: {problem}" for problem in check_lock(load_lock())]
    problems += revision_problems(root)[0]
    heading, text = changes(root, version)
    if "unreleased" in heading or not re.search(r"\d{4}-\d\d-\d\d", heading):
        problems.append(f"{CHANGES}: '## {heading}' has no date")
    if not text:
        problems.append(f"{CHANGES}: nothing is written below '## {heading}'")
    return problems


def _version(tag: str) -> str:
    if not _TAG.fullmatch(tag):
        raise UsageError(f"'{tag}' is no release's tag", "it is v and three numbers, such as v0.1.0")
    return tag[1:]


def changes(root: Path, version: str) -> tuple[str, str]:
    """The heading and the text of a version's part of the changelog.

    Raises:
        EvidenceError: it has none.
    """
    parts = re.split(r"^## ", (root / CHANGES).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for part in parts:
        heading, _, text = part.partition("\n")
        if heading.split()[:1] == [version]:
            return heading, text.strip()
    raise EvidenceError(f"{CHANGES} has nothing of {version}", f"write '## {version} (YYYY-MM-DD)' and what is new")


# -------------------------------------------------------------------------------------------------------------- images


def images(lock: Lock) -> tuple[list[dict[str, str]], list[str]]:
    """The images that a release makes, for a job's matrix, and one line for each that it does not make."""
    made, skipped = [], []
    for stack in lock.stacks.values():
        if not stack.images:
            skipped.append(f"{stack.name}: no image is made of this stack")
        for chip, base in stack.images.items():
            if not base.image:
                skipped.append(f"{stack.name} {chip}: its base is the user's, none is published")
            elif not base.digest:
                skipped.append(f"{stack.name} {chip}: VERSIONS.lock has no digest of {base.image}")
            else:
                image = {"stack": stack.name, "chip": chip, "name": stack.image_name}
                made += [{**image, "machine": machine} for machine in MACHINES]
    return made, skipped


# ------------------------------------------------------------------------------------------------------------- command


def _ready(options: argparse.Namespace) -> int:
    problems = ready_problems(ROOT, options.tag)
    print("\n".join(problems or [f"{options.tag}: ready"]))
    return 1 if problems else 0


def _revision(_options: argparse.Namespace) -> int:
    problems, compared = revision_problems(ROOT)
    for problem in problems:
        print(f"{problem}: raise the revision in overlays/overlays.toml")
    print(f"overlay revision: {len(problems)} differences from {compared} releases of the same revision")
    return 1 if problems else 0


def _images(_options: argparse.Namespace) -> int:
    made, skipped = images(load_lock())
    for line in skipped:
        print(f"no image: {line}", file=sys.stderr)
    print(json.dumps({"include": made, "skipped": skipped}))
    return 0


def _notes(options: argparse.Namespace) -> int:
    print(changes(ROOT, _version(options.tag))[1])
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(prog="release", description="What a release needs.")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, work, text in (
        ("ready", _ready, "is everything ready for this tag?"),
        ("revision", _revision, "does the overlay's revision have to be raised?"),
        ("images", _images, "the images that a release makes, as a matrix; on standard error those it does not"),
        ("notes", _notes, "what is new, from the changelog"),
    ):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.set_defaults(work=work)
        if name in ("ready", "notes"):
            verb.add_argument("tag", metavar="TAG", help="such as v0.1.0")
    options = parser.parse_args(arguments)
    try:
        return int(options.work(options))
    except ConsistencyError as error:
        print(f"release: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
