"""``consistency overlay``: list, check, diff and drift of the declared edits; apply, revert, status in place."""

from __future__ import annotations

import argparse
import difflib
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EvidenceError, UsageError
from .output import paint, print_json, table

if TYPE_CHECKING:
    from ..overlay.inspect import Inspection
    from ..overlay.model import Upstream
    from ..overlay.trees import Tree


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the sub-verbs."""
    from . import overlay_in_place as in_place

    verbs = parser.add_subparsers(dest="overlay_verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="every edit, as a table")
    listing.add_argument("--upstream", metavar="NAME", help="only this upstream")
    listing.set_defaults(work=_list)
    for name, work, text in (
        ("check", _check, "weave in memory and report every edit"),
        ("diff", _diff, "weave in memory and print a unified diff"),
    ):
        verb = verbs.add_parser(name, help=text, description=text + "; nothing is written")
        verb.add_argument("--upstream", metavar="NAME", action="append", help="only this upstream (may be repeated)")
        verb.add_argument("--source", metavar="NAME=PATH", action="append", help="a checkout, a plain tree or a wheel")
        verb.add_argument(
            "--allow-unknown-base", action="store_true", help="weave also where neither file nor scope is known"
        )
        verb.set_defaults(work=work)
    drifting = verbs.add_parser("drift", help="how each edit would fare on another upstream version")
    drifting.add_argument("--wheel", metavar="FILE", type=Path, action="append", help="a wheel of the other version")
    drifting.add_argument("--source", metavar="NAME=PATH", action="append", help="a checkout, a plain tree or a wheel")
    drifting.set_defaults(work=_drift)
    for verb in (listing, verbs.choices["check"], verbs.choices["diff"], drifting):
        verb.add_argument("--json", action="store_true", help="print one JSON object")
    in_place.add_verbs(verbs)


def run(options: argparse.Namespace) -> int:
    """Run the sub-verb."""
    return int(options.work(options))


def _upstreams(names: list[str] | None) -> dict[str, Upstream]:
    from ..overlay.reading import load_upstreams

    every = load_upstreams()
    for name in names or []:
        if name not in every:
            raise UsageError(f"unknown upstream '{name}'", f"use one of {', '.join(every)}")
    return {name: every[name] for name in names} if names else every


def parse_sources(sources: list[str] | None) -> dict[str, Path]:
    """Read ``NAME=PATH`` words.

    Raises:
        UsageError: a word is not of that form, or names an upstream twice.
    """
    parsed: dict[str, Path] = {}
    for word in sources or []:
        name, sign, path = word.partition("=")
        if not sign or not name or not path:
            raise UsageError(f"'--source {word}' is not NAME=PATH", "write for example --source verl=PATH")
        if name in parsed:
            raise UsageError(f"'--source {name}=' is given twice", "give one")
        parsed[name] = Path(path)
    return parsed


def _list(options: argparse.Namespace) -> int:
    rows = [
        (upstream, file, edit)
        for upstream in _upstreams([options.upstream] if options.upstream else None).values()
        if upstream.overlays == upstream.name or options.upstream
        for file in upstream.files
        for edit in file.edits
    ]
    if options.json:
        edits = [
            {
                "upstream": upstream.name,
                "pins": [pin.version for pin in upstream.pins if file.edits_for(pin.version)],
                "path": file.path,
                "switch": file.switch,
                "upstream_status": file.status,
                "until": file.until,
                "edit": edit.id,
                "kind": edit.kind,
                "scope": edit.scope,
                "anchor": edit.anchor,
                "counts": dict(edit.counts),
                "why": edit.why,
            }
            for upstream, file, edit in rows
        ]
        print_json({"edits": edits})
        return 0
    header = ("UPSTREAM", "FILE", "EDIT", "KIND", "SCOPE", "SWITCH")
    print(table(header, [(u.name, f.path, e.id, e.kind, e.scope or "-", f.switch) for u, f, e in rows]))
    return 0


def _trees(options: argparse.Namespace) -> list[tuple[Upstream, Tree]]:
    """Return the trees to look at: the given sources and the named upstreams, else all that is installed here."""
    from ..overlay.locate import environment, locate_all, locate_one
    from ..overlay.trees import DirectoryTree, open_tree

    sources = parse_sources(options.source)
    upstreams = _upstreams([*(options.upstream or []), *sources])
    trees = [(upstreams[name], open_tree(path, upstreams[name].package)) for name, path in sources.items()]
    named = [name for name in options.upstream or [] if name not in sources]
    if sources and not named:
        return trees
    every, where = _upstreams(None), environment(None)
    places = {} if named else locate_all(every, where)
    for name in named:
        try:
            places[name] = locate_one(every, where, name)
        except EvidenceError as error:
            raise EvidenceError(error.what, f"give --source {name}=PATH, or install it") from None
    trees += [(every[name], DirectoryTree(place.root, every[name].package)) for name, place in places.items()]
    if not trees:
        raise EvidenceError("none of the upstream packages is installed here", "give --source NAME=PATH")
    return trees


def _inspect(options: argparse.Namespace) -> list[Inspection]:
    from ..overlay.inspect import inspect_upstream
    from ..overlay.lock import load_lock

    lock = load_lock()
    return [
        inspect_upstream(upstream, tree, lock, allow_unknown_base=options.allow_unknown_base)
        for upstream, tree in _trees(options)
    ]


def _check(options: argparse.Namespace) -> int:
    found = _inspect(options)
    if options.json:
        print_json({"upstreams": [_inspection_json(item) for item in found]})
    for item in [] if options.json else found:
        base = {"known": "known file digests", "scopes": "known scope digests", "unknown": "an unknown base"}[item.base]
        print(f"{item.upstream.name} in {item.label}: nearest pin {item.pin}, {base}")
        rows = [row[:5] for row in _edit_rows(item)]
        print(table(("FILE", "EDIT", "SCOPE", "RESULT", "LINES"), rows))
        for problem in item.problems:
            print(paint(f"  {problem}", "bad"))
        words = paint("all edits are clean", "good") if not item.problems else paint("not woven", "bad")
        print(f"{item.upstream.name}: {words}\n")
    return 1 if any(item.problems for item in found) else 0


def _edit_rows(item: Inspection) -> list[tuple[str, str, str, str, str]]:
    """Return (file, edit, scope, result, lines) for every edit of the pin."""
    woven = {file.path: file for file in item.files}
    rows = []
    for file in item.upstream.files:
        for edit in file.edits_for(item.pin):
            problem = next((p for p in item.problems if p.path == file.path and p.edit in (edit.id, None)), None)
            result, lines = "clean", "-"
            if problem is not None or file.path not in woven:
                result = "problem" if problem else "not woven: another edit of the file failed"
            elif woven[file.path].already:
                result = "already woven"
            elif edit.id in woven[file.path].lines:
                lines = ",".join(str(line) for line in woven[file.path].lines[edit.id])
            rows.append((file.path, edit.id, edit.scope or "-", result, lines))
    return rows


def _inspection_json(item: Inspection) -> dict[str, object]:
    return {
        "upstream": item.upstream.name,
        "source": item.label,
        "pin": item.pin,
        "base": item.base,
        "overlay": f"consistency.{item.revision}",
        "edits": [
            dict(zip(("path", "edit", "scope", "result", "lines"), row, strict=True)) for row in _edit_rows(item)
        ],
        "problems": [vars(problem) for problem in item.problems],
        "files": [
            {"path": file.path, "sha256_before": file.before_sha256, "sha256_after": file.after_sha256}
            for file in item.files
        ],
    }


def _diff(options: argparse.Namespace) -> int:
    found = _inspect(options)
    diffs = {
        f"{item.upstream.name}:{file.path}": _unified(file.path, file.before, file.after)
        for item in found
        for file in item.files
        if not file.already
    }
    if options.json:
        print_json({"diffs": diffs, "problems": [str(problem) for item in found for problem in item.problems]})
    else:
        sys.stdout.write("".join(diffs.values()))
        for item in found:
            for problem in item.problems:
                print(f"consistency: {problem}", file=sys.stderr)
    return 1 if any(item.problems for item in found) else 0


def _unified(path: str, before: bytes | None, after: bytes) -> str:
    """Return a diff that patch and git can apply: only a line feed ends a line, and a missing one is said."""
    old, new = (list(io.StringIO((text or b"").decode(), newline="\n")) for text in (before, after))
    lines = difflib.unified_diff(old, new, "/dev/null" if before is None else f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _drift(options: argparse.Namespace) -> int:
    from ..overlay.drift import drift
    from ..overlay.inspect import refusal_of
    from ..overlay.lock import load_lock
    from ..overlay.trees import open_tree

    upstreams, lock = _upstreams(None), load_lock()
    paths = [(_of_wheel(path, upstreams), path) for path in options.wheel or []]
    for name, path in parse_sources(options.source).items():
        paths.append((_upstreams([name])[name], path))
    if not paths:
        raise UsageError("nothing to look at", "give --wheel FILE or --source NAME=PATH")
    trees = [(upstream, path, open_tree(path, upstream.package)) for upstream, path in paths]
    results = [(u, path, refusal_of(u, tree), drift(u, tree, lock)) for u, path, tree in trees]
    if options.json:
        reports = [
            {
                "upstream": upstream.name,
                "source": str(path),
                "refused": {"name": refusal.name, "why": refusal.why, "mend": refusal.mend} if refusal else None,
                "edits": [vars(row) for row in rows],
            }
            for upstream, path, refusal, rows in results
        ]
        print_json({"upstreams": reports})
    for upstream, path, refusal, rows in [] if options.json else results:
        print(f"{upstream.name} in {path}")
        if refusal:
            print(paint(f"this is {refusal.name}, which is refused: {refusal.why}; {refusal.mend}", "bad"))
        header = ("FILE", "EDIT", "VERDICT", "SCOPE", "DETAIL")
        cells = [(r.path, r.edit, r.verdict, "known" if r.known_scope else "changed", r.detail) for r in rows]
        print(table(header, cells) + "\n")
    return 1 if any(refusal or any(r.verdict != "clean" for r in rows) for _, _, refusal, rows in results) else 0


def _of_wheel(path: Path, upstreams: dict[str, Upstream]) -> Upstream:
    name = path.name.split("-")[0].replace("_", "-").lower()
    for upstream in upstreams.values():
        if upstream.distribution.replace("_", "-").lower() == name:
            return upstream
    raise UsageError(f"{path.name} is a wheel of no upstream known here", f"known are {', '.join(upstreams)}")
