"""Stacks: the right file for a machine and a Python, what lies beside the wheels, and what happens when one fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from train_infer_consistency.errors import EvidenceError, FoundError, UnfinishedError, UsageError
from train_infer_consistency.overlay.lock import Artifact, Demand, Lock, Pin, load_lock
from train_infer_consistency.wheels import folder, stacks
from train_infer_consistency.wheels.archive import file_digest
from train_infer_consistency.wheels.record import WheelName
from train_infer_consistency.wheels.repack import BuiltWheel
from train_infer_consistency.wheels.stacks import (
    Factory,
    Outcome,
    Target,
    choose_artifact,
    choose_stacks,
    wheel_version,
)

from .small import CORE, FILES, Small, make_checkout, make_wheel, members_of, small

WOVEN = "demo_pkg-1.0+consistency.7-py3-none-any.whl"
OWN = ("own-0-py3-none-any.whl", "requirements-overlay.txt")
HERE = Target("x86_64", None)


@pytest.fixture(autouse=True)
def no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds nothing, the cache is new."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def own_wheel(dest: Path) -> BuiltWheel:
    """Stands for this distribution's own wheel, which takes seconds to build."""
    metadata = b"Metadata-Version: 2.1\nName: own\nVersion: 0\n"
    path = make_wheel(dest, {"own.py": b""}, name="own", version="0", metadata=metadata)
    return BuiltWheel(path, "own", "0", file_digest(path), path.stat().st_size)


def run(case: Small, dest: Path, *names: str, given: bool = True, target: Target = HERE) -> Outcome:
    artifacts = [case.wheel] if given else []
    factory = Factory(case.lock, case.upstreams, dest, target, given=artifacts, own=own_wheel)
    return factory.run([case.lock.stacks[name] for name in names])


def files(dest: Path) -> set[str]:
    return {path.name for path in dest.iterdir()}


def test_stack_is_built_with_its_digests_and_requirements(tmp_path: Path) -> None:
    dest = tmp_path / "dist" / "wheels"
    outcome = run(small(tmp_path), dest, "released")
    assert outcome.status == 0
    assert files(dest) == {WOVEN, *OWN, "requirements-released.txt", "SHA256SUMS"}
    assert [(built.upstream, built.origin) for built in outcome.built] == [
        ("demo", "registry"),
        ("train-infer-consistency", "this distribution"),
    ]
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=dest, check=True)
    assert len((dest / "SHA256SUMS").read_text().splitlines()) == 4
    alone = (dest / "requirements-overlay.txt").read_text()
    assert [line.split("==")[0] for line in alone.splitlines() if "--hash" in line] == ["own"]
    text = (dest / "requirements-released.txt").read_text()
    assert "\n--no-index\n--find-links .\n" in text
    assert f"demo-pkg==1.0+consistency.7 --hash=sha256:{file_digest(dest / WOVEN)}\n" in text


def test_second_run_gives_the_same_bytes(tmp_path: Path) -> None:
    case = small(tmp_path)
    run(case, tmp_path / "dist", "released")
    before = {path.name: path.read_bytes() for path in (tmp_path / "dist").iterdir()}
    run(case, tmp_path / "dist", "released")
    assert {path.name: path.read_bytes() for path in (tmp_path / "dist").iterdir()} == before


def test_stack_from_a_commit(tmp_path: Path) -> None:
    repository, commit = make_checkout(tmp_path / "repository", tag="cp311-cp311-manylinux1_x86_64")
    case = small(tmp_path).with_git(repository.as_uri(), commit)
    outcome = run(case, tmp_path / "dist", "commit", given=False, target=Target("aarch64", "3.12"))
    woven = "demo_pkg-1.0.dev0+gc0ffee.consistency.7-py3-none-any.whl"
    assert outcome.status == 0
    assert woven in files(tmp_path / "dist")
    assert b"LATER = True" in members_of(tmp_path / "dist" / woven)["demo/core.py"]
    assert b"self.extra = None" in members_of(tmp_path / "dist" / woven)["demo/core.py"]


def test_added_modules_are_in_notice_and_provenance(tmp_path: Path) -> None:
    tree, _ = make_checkout(tmp_path / "tree", commit=False)
    (tree / "demo" / "kernels").mkdir()
    (tree / "demo" / "kernels" / "fp8.py").write_bytes(b"FP8 = 8\n")
    case = small(tmp_path)
    factory = Factory(case.lock, case.upstreams, tmp_path / "dist", HERE, sources={"demo": tree}, own=own_wheel)
    outcome = factory.run([case.lock.stacks["commit"]])
    members = members_of(outcome.built[0].wheel.path)
    assert members["demo/kernels/fp8.py"] == b"FP8 = 8\n"
    (notice,) = [data.decode() for name, data in members.items() if name.endswith("NOTICE.consistency.txt")]
    assert "though the upstream's own build leaves them out:\n  demo/kernels/fp8.py\n" in notice
    (record,) = [data for name, data in members.items() if name.endswith("/consistency.json")]
    assert json.loads(record)["artifact"]["added"] == ["demo/kernels/fp8.py"]


def test_source_that_cannot_be_had_does_not_stop_the_others(tmp_path: Path) -> None:
    case = small(tmp_path).with_git("https://host.invalid/demo", "2" * 40)
    dest = tmp_path / "dist"
    dest.mkdir()
    (dest / "requirements-commit.txt").write_text("of an earlier run")
    outcome = run(case, dest, "released", "commit")
    assert outcome.status == 3
    assert [(missing.stack, missing.upstream, missing.version) for missing in outcome.missing] == [
        ("commit", "demo", "c0ffee")
    ]
    assert "SOURCE_demo=PATH" in str(outcome.missing[0].error)
    assert list(outcome.requirements) == ["released"]
    assert files(dest) == {WOVEN, *OWN, "requirements-released.txt", "SHA256SUMS"}


def test_artifact_that_cannot_be_had(tmp_path: Path) -> None:
    outcome = run(small(tmp_path), tmp_path / "dist", "released", given=False)
    assert outcome.status == 3
    assert "or give the file by --artifact or as " in str(outcome.missing[0].error)
    assert files(tmp_path / "dist") == {*OWN, "SHA256SUMS"}


def test_artifact_of_another_content(tmp_path: Path) -> None:
    case = small(tmp_path)
    make_wheel(case.wheel.parent, {**FILES, "demo/more.py": b""})
    outcome = run(case, tmp_path / "dist", "released")
    assert "the locked one is" in str(outcome.missing[0].error)
    assert WOVEN not in files(tmp_path / "dist")


def test_artifact_that_no_pin_has(tmp_path: Path) -> None:
    case = small(tmp_path)
    other = case.wheel.rename(case.wheel.with_name("other-1-py3-none-any.whl"))
    with pytest.raises(
        UsageError, match=r"other-1-py3-none-any.whl: no wheel of the stack has this name; use demo_pkg"
    ):
        run(replace(case, wheel=other), tmp_path / "dist", "released")
    assert not (tmp_path / "dist").exists()


def test_own_wheel_that_cannot_be_had(tmp_path: Path) -> None:
    case = small(tmp_path)

    def fail(_: Path) -> BuiltWheel:
        raise EvidenceError("no backend")

    factory = Factory(case.lock, case.upstreams, tmp_path / "dist", HERE, given=[case.wheel], own=fail)
    outcome = factory.run([case.lock.stacks["released"]])
    assert outcome.status == 3
    assert files(tmp_path / "dist") == {WOVEN, "SHA256SUMS"}


def test_pins_whose_files_are_alike(tmp_path: Path) -> None:
    """They are woven alike, so the wheel is of the pin that was asked for; recognition alone would say the later."""
    case = small(tmp_path)
    pins = dict(case.lock.upstreams["demo"])
    pins["c0ffee"] = replace(pins["c0ffee"], files=pins["1.0"].files)
    lock = replace(case.lock, upstreams={"demo": pins})
    outcome = run(replace(case, lock=lock), tmp_path / "dist", "released")
    assert outcome.status == 0
    record = members_of(tmp_path / "dist" / WOVEN)["demo_pkg-1.0+consistency.7.dist-info/consistency.json"]
    assert b'"pin": "1.0"' in record


def test_lock_that_says_other_woven_bytes(tmp_path: Path) -> None:
    case = small(tmp_path)
    pins = dict(case.lock.upstreams["demo"])
    locked = dict(pins["1.0"].files)
    locked["demo/core.py"] = replace(locked["demo/core.py"], after="0" * 64)
    pins["1.0"] = replace(pins["1.0"], files=locked)
    lock = replace(case.lock, upstreams={"demo": pins})
    run(case, tmp_path / "dist", "released")
    with pytest.raises(FoundError, match=r"demo/core.py: it is woven to other bytes than VERSIONS.lock has"):
        run(replace(case, lock=lock), tmp_path / "dist", "released")
    assert files(tmp_path / "dist") == {WOVEN, "own-0-py3-none-any.whl"}, "digests of an unfinished run were left"


def test_wheel_of_another_pin(tmp_path: Path) -> None:
    case = small(tmp_path, make_wheel(tmp_path / "registry", {**FILES, "demo/core.py": CORE + b"\n\nLATER = True\n"}))
    with pytest.raises(FoundError, match=r"its files are demo c0ffee, not 1.0"):
        run(case, tmp_path / "dist", "released")


def test_checkout_is_for_commits_only(tmp_path: Path) -> None:
    """A registry pin stays the registry's, and that is said; the commit is built from the checkout."""
    tree, _ = make_checkout(tmp_path / "tree", commit=False)
    case = small(tmp_path)
    said: list[str] = []
    factory = Factory(
        case.lock,
        case.upstreams,
        tmp_path / "dist",
        HERE,
        given=[case.wheel],
        sources={"demo": tree},
        say=said.append,
        own=own_wheel,
    )
    outcome = factory.run(list(case.lock.stacks.values()))
    assert [built.origin for built in outcome.built][:2] == ["registry", f"checkout {tree}"]
    assert said[0] == f"{tree} is not used: demo 1.0 comes from the registry"


def test_two_runs_at_once(tmp_path: Path) -> None:
    dest = tmp_path / "dist"
    with (
        folder.alone(dest),
        pytest.raises(UnfinishedError, match=r"another run is writing to .*dist; wait, or choose another --dest"),
    ):
        run(small(tmp_path), dest, "released")
    assert files(dest) == set()
    assert run(small(tmp_path), dest, "released").status == 0, "the folder stayed locked"


def test_killed_half_way_the_next_run_clears_up(tmp_path: Path) -> None:
    """A kill that cannot be caught leaves at most a hidden part, never a wheel; the next run takes it away."""
    case = small(tmp_path)
    dest = tmp_path / "dist"

    def die(*_: object, **__: object) -> None:
        (dest / f".{WOVEN}.x.part").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        vars(stacks)["repack"] = die
        run(case, dest, "released")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert WOVEN not in files(dest)
    assert f".{WOVEN}.x.part" in files(dest)
    run(case, dest, "released")
    assert files(dest) == {WOVEN, *OWN, "requirements-released.txt", "SHA256SUMS"}


def test_destination_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "dist").write_text("")
    with pytest.raises(UnfinishedError, match=r"dist: File exists; choose another --dest"):
        run(small(tmp_path), tmp_path / "dist", "released")


def test_requirements_install_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented line, in a fresh environment, from another folder."""
    case = small(tmp_path)
    dest = tmp_path / "some where"
    run(case, dest, "released")
    monkeypatch.delenv("PIP_NO_INDEX")
    install = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    install += ["--require-hashes", "--target", str(tmp_path / "site"), "-r", str(dest / "requirements-released.txt")]
    (tmp_path / "elsewhere").mkdir()
    subprocess.run(install, check=True, cwd=tmp_path / "elsewhere")
    assert (tmp_path / "site" / "demo_pkg-1.0+consistency.7.dist-info").is_dir()
    (dest / WOVEN).write_bytes((dest / WOVEN).read_bytes() + b"x")
    done = subprocess.run(
        [*install, "--upgrade"], cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize(
    ("machine", "python", "words"),
    [
        ("riscv64", None, "no wheels are built for platform riscv64; use one of x86_64, aarch64"),
        (None, "3.10", "Python 3.10 is not supported; use 3.11 or newer"),
        (None, "3", "'3' is no version such as 3.11"),
        (None, "2.7", "'2.7' is no version such as 3.11"),
        (None, "3.11.4", "'3.11.4' is no version such as 3.11"),
    ],
)
def test_targets_that_nothing_is_built_for(machine: str | None, python: str | None, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Target.of(machine, python)
    assert words in str(caught.value)


def test_other_words_for_the_same_machine() -> None:
    assert Target.of("arm64", None).machine == "aarch64"
    assert Target.of("AMD64", "3.12") == Target("x86_64", "3.12")


PUBLISHED = [
    "a-1-cp311-cp311-manylinux_2_24_aarch64.whl",
    "a-1-cp311-cp311-manylinux_2_24_x86_64.whl",
    "a-1-cp313-cp313-manylinux_2_24_x86_64.whl",
]


def pin_of(*names: str) -> Pin:
    artifacts = {name: Artifact(name, "", 0) for name in names}
    return Pin("1", "registry", "a==1", None, None, None, "1", "1+consistency.{N}", False, artifacts, {})


def test_choice_of_a_registry_file() -> None:
    pin = pin_of(*PUBLISHED)
    assert choose_artifact("a", pin, "aarch64", "3.11").file == PUBLISHED[0]
    assert choose_artifact("a", pin, "x86_64", "3.13").file == PUBLISHED[2]
    with pytest.raises(UsageError, match=r"a 1 is not published for Python 3.12; use 3.11 or 3.13"):
        choose_artifact("a", pin, "x86_64", "3.12")
    with pytest.raises(UsageError, match=r"a 1 is not published for Python 3.13; use 3.11"):
        choose_artifact("a", pin, "aarch64", "3.13")
    with pytest.raises(UsageError, match=r"a 1 is not published for aarch64; use x86_64"):
        choose_artifact("a", pin_of(*PUBLISHED[1:]), "aarch64", "3.11")


def test_unknown_stack() -> None:
    with pytest.raises(UsageError, match=r"there is no stack 'verl-9'; use one of verl-0.8, .*, all"):
        choose_stacks(load_lock(), "verl-9")


def test_contradictory_stack_is_refused(tmp_path: Path) -> None:
    case = small(tmp_path)
    demands = (Demand("torch", "a", "torch==2.9.0", "x"), Demand("torch", "b", "torch==2.8.0", "y"))
    stack = replace(case.lock.stacks["released"], demands=demands)
    with pytest.raises(FoundError, match="torch"):
        choose_stacks(replace(case.lock, stacks={"released": stack}), "released")


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("0.18.0+consistency.{N}", "0.18.0+consistency.3"),
        ("0.8.0.dev0+gb7dabd83.consistency.{N}", "0.8.0.dev0+gb7dabd83.consistency.3"),
        ("0.2.2+npu+consistency.{N}", "0.2.2+npu.consistency.3"),
        ("0.5.7+slime-0.2.2+consistency.{N}", "0.5.7+slime.0.2.2.consistency.3"),
    ],
)
def test_version_of_a_woven_wheel(template: str, wanted: str) -> None:
    from packaging.version import Version

    lock = Lock(3, {}, {}, {})
    assert wheel_version(replace(pin_of(), wheel_version=template), lock) == wanted
    assert str(Version(wanted)) == wanted


def test_every_stack_of_the_lock_can_be_chosen() -> None:
    """Each registry pin of each stack has a file for the stack's Python on both machines."""
    lock = load_lock()
    for stack in lock.stacks.values():
        for name, version in stack.pins.items():
            pin = lock.pin(name, version)
            if pin.source == "registry":
                for machine in ("x86_64", "aarch64"):
                    artifact = choose_artifact(name, pin, machine, stack.python)
                    assert WheelName.parse(artifact.file).fits_platform(machine)
