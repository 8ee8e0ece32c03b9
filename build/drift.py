"""How the overlays fare on the newest release of every upstream, as one Markdown table: ``python build/drift.py``.

A registry upstream's newest release is asked of pip; of one that is only in git, the newest version tag is taken. The
verdicts are those of ``consistency overlay drift``. Status 0: every newest release is a pin already; 1: one is not, and
the table says how it fares; 3: one could not be had, and the table says which.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from train_infer_consistency.errors import ConsistencyError, EvidenceError, UsageError
from train_infer_consistency.overlay.drift import Drift, drift
from train_infer_consistency.overlay.inspect import refusal_of
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.model import Upstream
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import open_tree
from train_infer_consistency.wheels.checkouts import fetch_commit
from train_infer_consistency.wheels.record import WheelName
from train_infer_consistency.wheels.registry import fetch_artifact
from train_infer_consistency.wheels.releases import PYTHONS, ask_registry

MACHINE = "x86_64"
_TAG = re.compile(r"^([0-9a-f]{40})\trefs/tags/v(\d+(?:\.\d+)+)(?:\^\{\})?$", re.MULTILINE)
_VERDICTS = ("clean", "moved", "ambiguous", "gone")


@dataclass(frozen=True)
class Fare:
    """How one upstream's newest release fares.

    Attributes:
        upstream: its name.
        pins: its pins, oldest first, variants left out.
        newest: the newest release's version; empty where it could not be had.
        without_wheel: releases after it, of which the registry has no wheel.
        refused: the name of the refusal it falls under, and why; empty where it is not refused.
        rows: every edit's verdict.
        failure: why the release could not be had; empty where it was.
    """

    upstream: str
    pins: tuple[str, ...]
    newest: str = ""
    without_wheel: tuple[str, ...] = ()
    refused: str = ""
    rows: tuple[Drift, ...] = field(default=())
    failure: str = ""

    @property
    def pinned(self) -> bool:
        """Whether the newest release is a pin."""
        return self.newest in self.pins and not self.without_wheel


def listed(distribution: str) -> list[str]:
    """All versions that the registry lists, newest first, pre-releases left out.

    Raises:
        EvidenceError: it lists none, or cannot be reached.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions"]
    done = subprocess.run(
        [*command, "--ignore-requires-python", distribution], capture_output=True, text=True, check=False
    )
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if found is None:
        raise EvidenceError(f"the registry lists no version of {distribution}", "see that pip reaches its index")
    return found[1].split(", ")


def newest_wheel(upstream: Upstream) -> tuple[str, Path, tuple[str, ...]]:
    """The newest release that has a wheel: its version and that wheel; and the releases after it, which have none.

    Raises:
        EvidenceError: there is none for Linux on x86-64, or the registry cannot be reached.
    """
    name = upstream.distribution
    versions = listed(name)
    best: tuple[int, str, str] | None = None
    for python in PYTHONS:  # a release may be for a later Python alone
        answer = ask_registry(name, MACHINE, python)
        version = WheelName.parse(answer[0]).version if answer else ""
        if answer and version in versions and (best is None or versions.index(version) < best[0]):
            best = (versions.index(version), *answer)
        if best is not None and best[0] == 0:
            break
    if best is None:
        raise EvidenceError(f"the registry gives no wheel of {name}", "see that pip reaches its index")
    place, file, sha256 = best
    wheel = fetch_artifact(f"{name}=={versions[place]}", file, sha256)
    return versions[place], wheel, tuple(versions[:place])


def newest_tag(url: str) -> tuple[str, str]:
    """The version and the commit of a repository's newest tag of the form ``v1.2.3``; others are left alone.

    Raises:
        EvidenceError: it has none, or cannot be reached.
    """
    command = ["git", "ls-remote", "--tags", url]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    except subprocess.TimeoutExpired:
        raise EvidenceError(f"{url} gives no answer", "run it again") from None
    # An annotated tag is listed twice: itself, and behind it the commit that it stands for.
    tags = {tuple(map(int, version.split("."))): commit for commit, version in _TAG.findall(done.stdout)}
    if not tags:
        raise EvidenceError(f"{url} has no version tag that git can list", "run it where git reaches that host")
    newest = max(tags)
    return ".".join(map(str, newest)), tags[newest]


def pins_of(upstream: Upstream) -> tuple[str, ...]:
    """The versions that are pinned, oldest first; a variant is no version of its own."""
    return tuple(pin.version for pin in upstream.pins if pin.variant_of is None)


def look(upstream: Upstream, folder: Path) -> Fare:
    """Get the newest release of an upstream and judge every edit on it; ``folder`` is for a checkout.

    Raises:
        ConsistencyError: it cannot be had.
    """
    if any(pin.registry for pin in upstream.pins):
        version, path, without = newest_wheel(upstream)
    else:
        url = next(pin.git for pin in reversed(upstream.pins) if pin.git)
        (version, commit), without = newest_tag(url), ()
        path = folder / upstream.name
        fetch_commit(url, commit, path, upstream=upstream.name)
    tree = open_tree(path, upstream.package)
    refusal = refusal_of(upstream, tree)
    refused = f"{refusal.name}: {refusal.why}" if refusal else ""
    return Fare(upstream.name, pins_of(upstream), version, without, refused, tuple(drift(upstream, tree, load_lock())))


def judge(names: Sequence[str]) -> list[Fare]:
    """Judge these upstreams, or all; one that cannot be had does not keep the others from being judged.

    Raises:
        UsageError: a name is no upstream's.
    """
    every = {name: item for name, item in load_upstreams().items() if item.overlays == name}
    for name in names:
        if name not in every:
            raise UsageError(f"'{name}' is no upstream with overlays of its own", f"they are {', '.join(every)}")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names or every:
            print(f"drift: {name}", file=sys.stderr, flush=True)
            try:
                found.append(look(every[name], Path(folder)))
            except ConsistencyError as error:
                found.append(Fare(name, pins_of(every[name]), failure=str(error)))
    return found


def word(fare: Fare) -> str:
    """The last column: what this release asks for."""
    if fare.failure:
        return "not looked at"
    if fare.pinned:
        return "pinned"
    if fare.refused:
        return "refused by name"
    if all(row.verdict == "clean" for row in fare.rows):
        return "every edit fits: add a pin, and test it"
    return "edits to mend"


def page(fares: Sequence[Fare]) -> str:
    """The Markdown: a table with a line for each upstream, then the edits that do not fit and what was refused."""
    lines = [
        "How the overlays fare on the newest release of each upstream (`consistency overlay drift`).",
        "",
        f"| upstream | newest pin | newest release | {' | '.join(_VERDICTS)} | in a known scope | |",
        "|---|---|---|" + "--:|" * (len(_VERDICTS) + 1) + "---|",
    ]
    for fare in fares:
        counts = [sum(row.verdict == verdict for row in fare.rows) for verdict in _VERDICTS]
        known = sum(row.known_scope for row in fare.rows)
        numbers = [str(number) if fare.newest else "" for number in (*counts, known)]
        newest = code(fare.newest) + (
            f" (no wheel: {code(', '.join(fare.without_wheel))})" if fare.without_wheel else ""
        )
        cells = [code(fare.upstream), code(fare.pins[-1]), newest, *numbers, word(fare)]
        lines.append(f"| {' | '.join(cells)} |")
    for fare in fares:
        lines += details(fare)
    lines += ["", "CONTRIBUTING.md has the way to add an upstream version."]
    return "\n".join(lines) + "\n"


def details(fare: Fare) -> list[str]:
    """What the table has no room for; nothing for a release that is pinned."""
    if fare.failure:
        return ["", f"**{fare.upstream}** was not looked at: {code(fare.failure)}"]
    broken = [row for row in fare.rows if row.verdict != "clean"]
    if fare.pinned or not (broken or fare.refused):
        return []
    lines = ["", f"**{fare.upstream} {fare.newest}**"]
    if fare.refused:
        lines += ["", f"Refused, {code(fare.refused)}."]
    if broken:
        lines += ["", "| file | edit | verdict | |", "|---|---|---|---|"]
        lines += [f"| {code(row.path)} | {code(row.edit)} | {row.verdict} | {code(row.detail)} |" for row in broken]
    return lines


def code(text: str) -> str:
    """A code span, so that nothing in it is Markdown, a mention or the end of a cell."""
    clean = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{clean}`" if clean else ""


def status_of(fares: Sequence[Fare]) -> int:
    """See the module's words."""
    if any(fare.failure for fare in fares):
        return EvidenceError.status
    return 0 if all(fare.pinned for fare in fares) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it to ``--output``."""
    parser = argparse.ArgumentParser(prog="drift", description="The overlays on every upstream's newest release.")
    parser.add_argument("--upstream", metavar="NAME", action="append", default=[], help="only this one, or these")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the page here instead of printing it")
    options = parser.parse_args(arguments)
    try:
        fares = judge(options.upstream)
    except ConsistencyError as error:
        print(f"drift: {error}", file=sys.stderr)
        return error.status
    text = page(fares)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return status_of(fares)


if __name__ == "__main__":
    sys.exit(main())
