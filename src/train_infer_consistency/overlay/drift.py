"""Say for each edit how it would fare on another upstream version: clean, moved, ambiguous or gone."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from .anchors import find, find_anywhere, find_scopes, nearest, parse_anchor
from .lock import Lock
from .model import Edit, FileOverlay, Upstream
from .trees import Tree
from .weave import MODULE, Problem, parse, scope_digests, weave

Verdict = Literal["clean", "moved", "ambiguous", "gone"]


@dataclass(frozen=True)
class Drift:
    """How one edit would fare.

    Attributes:
        path: the upstream file.
        edit: the edit's id.
        verdict: ``clean``: it weaves as declared; ``moved``: its anchor stands in another scope; ``ambiguous``: the
            anchor matches more or less often than declared, or its scope is defined twice; ``gone``: nothing matches,
            or a name that the inserted lines need is not bound there any more.
        known_scope: whether the edited scope's digest is that of a pin: then not even its neighbourhood changed.
        detail: where the anchor is now, or what is wrong, one line; may be empty.
    """

    path: str
    edit: str
    verdict: Verdict
    known_scope: bool
    detail: str


def drift(upstream: Upstream, tree: Tree, lock: Lock) -> list[Drift]:
    """Judge every edit of an upstream on a tree of any version, which is only read.

    The counts and edits of the newest pin hold, because the tree is taken for a later version.
    """
    pin = next(pin.version for pin in reversed(upstream.pins) if pin.variant_of is None)
    return [
        row
        for file in upstream.files
        if (edits := file.edits_for(pin))
        for row in _file(upstream.name, file, edits, tree, lock, pin)
    ]


def _file(upstream: str, file: FileOverlay, edits: tuple[Edit, ...], tree: Tree, lock: Lock, pin: str) -> list[Drift]:
    source = tree.read(file.path)
    if file.lays:
        if source is None:
            return [Drift(file.path, edits[0].id, "clean", True, "")]
        return [Drift(file.path, edits[0].id, "ambiguous", False, "the upstream has a file of this name")]
    if source is None:
        return [Drift(file.path, edit.id, "gone", False, "the file is gone") for edit in edits]
    try:
        module = parse(source)
    except (SyntaxError, ValueError) as error:
        return [Drift(file.path, edit.id, "gone", False, f"the file does not parse: {error}") for edit in edits]
    known = _known_scopes(upstream, file, lock)
    digests = scope_digests(source, sorted({edit.scope or MODULE for edit in edits}))
    woven = weave(file.path, source, edits, pin, lock.revision)
    rows = []
    for edit in edits:
        problem = next((problem for problem in woven.problems if problem.edit in (edit.id, None)), None)
        verdict, detail = _verdict(edit, module, pin, problem)
        name = edit.scope or MODULE
        rows.append(Drift(file.path, edit.id, verdict, digests[name] in known.get(name, set()), detail))
    return rows


def _known_scopes(upstream: str, file: FileOverlay, lock: Lock) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for pin in lock.upstreams.get(upstream, {}).values():
        if file.path in pin.files:
            for name, (before, _) in pin.files[file.path].scopes.items():
                known.setdefault(name, set()).add(before)
    return known


def _verdict(edit: Edit, module: ast.Module, pin: str, problem: Problem | None) -> tuple[Verdict, str]:
    scopes = find_scopes(module, edit.scope)
    found = [node for scope in scopes for node in find(scope, parse_anchor(edit))]
    if problem is None:
        return "clean", "line " + ", ".join(str(node.lineno) for node in found)
    if len(scopes) == 1 and len(found) == edit.count(pin):  # in place, but what the lines need is not there
        return "gone", problem.reason
    if found:
        return "ambiguous", f"{len(found)} matches, {edit.count(pin)} expected"
    elsewhere = find_anywhere(module, parse_anchor(edit), edit.scope)
    if elsewhere:
        return "moved", "now in " + ", ".join(f"{name or 'the module'} line {line}" for name, line in elsewhere[:3])
    return "gone", nearest(module, edit)
