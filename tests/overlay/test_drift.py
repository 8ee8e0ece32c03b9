"""How an edit would fare on another version: clean, moved, ambiguous or gone, and never a wrong clean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train_infer_consistency.overlay.drift import Drift, drift
from train_infer_consistency.overlay.inspect import inspect_upstream
from train_infer_consistency.overlay.lock import Lock
from train_infer_consistency.overlay.trees import MappingTree

from .mutants import BROKEN, KEPT
from .test_inspect import LOCK, ONE, TWO, UPSTREAM
from .trees import edits_of, skeleton, skeleton_lock, upstreams

VERDICTS = {"renamed": {"gone", "moved"}, "doubled": {"ambiguous"}, "removed": {"gone", "moved"}, "nested": {"moved"}}


def rows(files: dict[str, bytes], lock: Lock = LOCK) -> dict[str, Drift]:
    found = drift(UPSTREAM, MappingTree("tree", files), lock)
    return {row.edit: row for row in found}


def one(run: bytes) -> Drift:
    return rows({**TWO, "pkg/run.py": run})["one"]


def test_pristine_tree_is_clean_and_the_newest_pins_edits_are_asked() -> None:
    found = rows(TWO)
    assert {name: row.verdict for name, row in found.items()} == {"lay": "clean", "three": "clean", "one": "clean"}
    assert all(row.known_scope for row in found.values())
    assert found["one"].detail == "line 5, 6"


def test_change_around_the_anchor_is_clean_but_not_known() -> None:
    row = one(TWO["pkg/run.py"].replace(b"return 2", b"return 3"))
    assert (row.verdict, row.known_scope) == ("clean", False)
    row = one(TWO["pkg/run.py"] + b"\nx = 1\n")
    assert (row.verdict, row.known_scope) == ("clean", True)


@pytest.mark.parametrize(
    ("run", "verdict", "detail"),
    [
        (b"def run():\n    start()\n", "ambiguous", "1 matches, 2 expected"),
        (b"def run():\n    start()\n    start()\n    start()\n", "ambiguous", "3 matches, 2 expected"),
        (b"def run():\n    start()\n\ndef run():\n    start()\n", "ambiguous", "2 matches, 2 expected"),
        (b"def walk():\n    start()\n    start()\n", "moved", "now in walk line 2, walk line 3"),
        (
            b"def run():\n    def inner():\n        start()\n        start()\n",
            "moved",
            "now in run.inner line 3, run.inner line 4",
        ),
        (b"start()\ndef run(): pass\n", "moved", "now in the module line 1"),
        (b"def run():\n    stars()\n", "gone", "nearest candidate is line 2"),
        (b"def runs():\n    stop()\n", "gone", "no scope run, nearest is runs"),
        (b"x = 1\n", "gone", "no scope run"),
        (b"def run(:\n", "gone", "the file does not parse"),
        (b"# coding: latin-1\ndef run():\n    start()\n    start()\n", "gone", "its encoding is latin-1"),
        (b"def run():\n    x = start(); start()\n    start()\n", "gone", "shares its line"),
    ],
)
def test_verdicts(run: bytes, verdict: str, detail: str) -> None:
    row = one(run)
    assert (row.path, row.edit, row.verdict, row.known_scope) == ("pkg/run.py", "one", verdict, False)
    assert row.detail.startswith(detail) or detail in row.detail
    assert "\n" not in row.detail


def test_missing_file_and_upstreams_own_file() -> None:
    found = rows({"pkg/more.py": TWO["pkg/more.py"], "pkg/laid.py": b"THEIRS = 1\n"})
    assert (found["one"].verdict, found["one"].detail) == ("gone", "the file is gone")
    assert (found["lay"].verdict, found["lay"].detail) == ("ambiguous", "the upstream has a file of this name")
    assert found["three"].verdict == "clean"


def test_name_that_the_lines_need_is_gone() -> None:
    (file,) = [file for file in UPSTREAM.files if file.path == "pkg/more.py"]
    needs = replace(file, edits=(replace(file.edits[0], lines="print(helper)\n"),))
    upstream = replace(UPSTREAM, files=(needs,))
    good = b"helper = 1\n" + TWO["pkg/more.py"]
    assert drift(upstream, MappingTree("t", {"pkg/more.py": good}), LOCK)[0].verdict == "clean"
    (row,) = drift(upstream, MappingTree("t", {"pkg/more.py": TWO["pkg/more.py"]}), LOCK)
    assert (row.verdict, row.detail) == ("gone", "the inserted lines use helper, not bound there")


def test_one_broken_edit_leaves_the_others_clean() -> None:
    upstream = replace(UPSTREAM, pins=UPSTREAM.pins[:1])
    files = {**ONE, "pkg/run.py": ONE["pkg/run.py"].replace(b"start()", b"begin()")}
    found = {row.edit: row.verdict for row in drift(upstream, MappingTree("t", files), LOCK)}
    assert found == {"lay": "clean", "three": "clean", "one": "gone", "two": "clean"}


def test_upstreams_own_warnings_stay_quiet() -> None:
    assert one(TWO["pkg/run.py"] + b'\nPATTERN = "\\d"\n').verdict == "clean"


@pytest.mark.parametrize("name", upstreams())
def test_every_skeleton_is_clean_and_known(name: str) -> None:
    """Also for an upstream that shares another's overlays: its own pins count."""
    for row in drift(upstreams()[name], MappingTree("t", skeleton(name)), skeleton_lock(name)):
        assert (row.verdict, row.known_scope) == ("clean", True), row


@pytest.mark.parametrize("how", VERDICTS)
@pytest.mark.parametrize("name", upstreams())
def test_mutants_of_every_edit(name: str, how: str) -> None:
    upstream, lock = upstreams()[name], skeleton_lock(name)
    asked = {(row.path, row.edit) for row in drift(upstream, MappingTree("t", skeleton(name)), lock)}
    for file, edit in edits_of(name):
        if (file.path, edit.id) not in asked:
            # Not of the newest pin.
            continue
        data = skeleton(name)[file.path]
        files = {**skeleton(name), file.path: BROKEN[how](data, edit)}
        found = {(row.path, row.edit): row for row in drift(upstream, MappingTree("t", files), lock)}
        row = found[file.path, edit.id]
        assert row.verdict in VERDICTS[how], row
        assert row.detail
        assert {key[0] for key, item in found.items() if item.verdict != "clean"} == {file.path}
        # drift and check never disagree about what is clean
        broken = inspect_upstream(upstream, MappingTree("t", files), lock, allow_unknown_base=True).problems
        assert {key for key, item in found.items() if item.verdict != "clean"} == {(p.path, p.edit) for p in broken}


@pytest.mark.parametrize("how", KEPT)
@pytest.mark.parametrize("name", upstreams())
def test_reformatted_trees_are_clean_and_known(name: str, how: str) -> None:
    files = {path: KEPT[how](data) for path, data in skeleton(name).items()}
    for row in drift(upstreams()[name], MappingTree("t", files), skeleton_lock(name)):
        assert (row.verdict, row.known_scope) == ("clean", True), row
