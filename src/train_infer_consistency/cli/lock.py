"""``consistency lock``: check that overlays, digests and VERSIONS.lock agree, or write the lock anew."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConsistencyError, EvidenceError, UsageError
from .output import note, paint, print_json

if TYPE_CHECKING:
    from ..overlay.lock import Artifact, Lock, Pin
    from ..overlay.model import PinSource, Upstream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-verbs."""
    verbs = parser.add_subparsers(dest="lock_verb", metavar="VERB", required=True)
    check = verbs.add_parser("check", help="overlays, digests, stacks and lock agree")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(work=_check)
    write = verbs.add_parser(
        "write",
        help="write VERSIONS.lock anew from the overlays and the upstream sources",
        description="Weave every pin and write the lock. A registry pin is downloaded, a commit is fetched; "
        "a source that cannot be reached, and a variant, is given as a tree.",
    )
    write.add_argument("--source", metavar="NAME@PIN=PATH", action="append", help="the pristine tree or wheel of a pin")
    write.add_argument("--refresh", action="store_true", help="ask the registry for the artifacts' digests again")
    write.add_argument("--json", action="store_true", help="print one JSON object")
    write.set_defaults(work=_write)


def run(options: argparse.Namespace) -> int:
    """Run the sub-verb."""
    return int(options.work(options))


def _check(options: argparse.Namespace) -> int:
    from ..overlay.lock import load_lock
    from ..overlay.locking import check_lock
    from ..overlay.requirements import judge

    lock = load_lock()
    problems = check_lock(lock)
    contradictions = {name: judge(stack) for name, stack in lock.stacks.items()}
    unchecked = [name for name, (_, checked) in contradictions.items() if not checked]
    if options.json:
        waived = [str(item) for found, _ in contradictions.values() for item in found if item.waiver]
        print_json({"problems": problems, "waived": waived, "requirements_not_checked": unchecked})
        return 1 if problems else 0
    for problem in problems:
        print(paint(problem, "bad"))
    for name, (found, _) in contradictions.items():
        for item in found:
            if item.waiver:
                print(f"stack {name}: {item}: waived, {item.waiver.wins} wins ({item.waiver.why})")
    if unchecked:
        print(f"requirements of {', '.join(unchecked)}: not checked, because 'packaging' is not installed here")
    print(paint(f"{len(problems)} problems", "bad") if problems else paint("overlays, stacks and lock agree", "good"))
    return 1 if problems else 0


def _write(options: argparse.Namespace) -> int:
    from ..overlay.lock import Lock, load_lock
    from ..overlay.locking import check_lock, empty_lock, render_lock
    from ..overlay.reading import load_upstreams
    from ..resources import overlays_dir
    from ..wheels.archive import replacing

    target = overlays_dir().parent / "VERSIONS.lock"
    old = load_lock(target) if target.exists() else None
    sources = _sources(options.source)
    new = empty_lock()
    pins: dict[str, dict[str, Pin]] = {}
    failures: list[ConsistencyError] = []
    for upstream in load_upstreams().values():
        pins[upstream.name] = {}
        for source in upstream.pins:
            given = sources.pop((upstream.name, source.version), None)
            note(f"{upstream.name} {source.version}")
            try:
                pins[upstream.name][source.version] = _pin(upstream, source, given, old, new, options.refresh)
            except EvidenceError as error:
                failures.append(error)
    if sources:
        name, version = next(iter(sources))
        raise UsageError(f"'--source {name}@{version}=': there is no such pin", "see 'consistency overlay list --json'")
    for failure in failures:
        note(paint(f"consistency: {failure}", "bad"))
    if failures:
        raise EvidenceError(f"{len(failures)} pins have no source, so VERSIONS.lock is left as it was", "see above")
    lock = Lock(new.revision, new.overlays, pins, new.stacks)
    with replacing(target) as file:
        file.write(render_lock(lock).encode())
    problems = check_lock(load_lock(target))
    if options.json:
        print_json(
            {"written": str(target), "pins": {name: list(found) for name, found in pins.items()}, "problems": problems}
        )
    for problem in [] if options.json else problems:
        print(paint(problem, "bad"))
    note(f"written: {target}")
    return 1 if problems else 0


def _sources(words: Iterable[str] | None) -> dict[tuple[str, str], Path]:
    parsed = {}
    for word in words or []:
        name, sign, path = word.partition("=")
        upstream, at, version = name.partition("@")
        if not (sign and at and upstream and version and path):
            raise UsageError(f"'--source {word}' is not NAME@PIN=PATH", "write for example --source verl@0.8.0=PATH")
        parsed[upstream, version] = Path(path)
    return parsed


def _pin(upstream: Upstream, source: PinSource, given: Path | None, old: Lock | None, new: Lock, refresh: bool) -> Pin:
    """Weave one pin; where neither a tree nor a registry has it, keep what the lock knew if no overlay changed."""
    from ..overlay.locking import make_pin
    from ..overlay.trees import open_tree
    from ..wheels.checkouts import fetch_commit
    from ..wheels.registry import fetch_artifact
    from ..wheels.releases import registry_artifacts

    known = old.upstreams.get(upstream.name, {}).get(source.version) if old else None
    artifacts: list[Artifact] = []
    if source.registry:
        same = known is not None and known.requirement == source.registry and bool(known.artifacts)
        artifacts = (
            list(known.artifacts.values()) if known and same and not refresh else registry_artifacts(source.registry)
        )
    if given is not None:
        return make_pin(upstream, source, open_tree(given, upstream.package), artifacts, new)
    if source.registry:
        wheel = fetch_artifact(source.registry, artifacts[0].file, artifacts[0].sha256)
        return make_pin(upstream, source, open_tree(wheel, upstream.package), artifacts, new)
    if known is not None and _unchanged(upstream, source, known, old, new):
        return known
    if source.git and source.commit:
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / upstream.name
            fetch_commit(source.git, source.commit, tree, upstream=upstream.name)
            return make_pin(upstream, source, open_tree(tree, upstream.package), [], new)
    raise EvidenceError(
        f"{upstream.name} {source.version} has no source of its own",
        f"give --source {upstream.name}@{source.version}=PATH",
    )


def _unchanged(upstream: Upstream, source: PinSource, known: Pin, old: Lock | None, new: Lock) -> bool:
    """Tell whether nothing that the woven bytes depend on changed since the old lock was written."""
    if old is None or old.revision != new.revision or known.commit != source.commit:
        return False
    files = [file for file in upstream.files if file.edits_for(source.version)]
    return {file.path for file in files} == set(known.files) and all(
        old.overlays.get(file.origin) == file.digest for file in files
    )
