"""Registry files: taken from the cache or the user by digest, else through pip and the user's own configuration."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.errors import EvidenceError, UnfinishedError
from train_infer_consistency.wheels import registry
from train_infer_consistency.wheels.archive import file_digest
from train_infer_consistency.wheels.registry import fetch_artifact, run_pip

from .small import FILES, make_wheel

NAME = "demo_pkg-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def own_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's configuration is a folder of wheels and nothing else; the cache is a new one."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return index


def fetch(sha256: str, filename: str = NAME, given: Sequence[Path] = ()) -> Path:
    return fetch_artifact("demo-pkg==1.0", filename, sha256, given=given)


def kept(sha256: str, filename: str = NAME) -> Path:
    return registry.cache_dir() / "artifacts" / sha256 / filename


@pytest.mark.parametrize(
    "tag",
    [
        "py3-none-any",
        "cp311-cp311-manylinux_2_24_aarch64",
        "cp314-cp314-manylinux_2_17_x86_64.manylinux2014_x86_64",
        "cp38-abi3-manylinux_2_31_x86_64",
    ],
)
def test_pip_brings_a_wheel_of_any_platform_and_python(own_index: Path, tag: str) -> None:
    wheel = make_wheel(own_index, tag=tag)
    got = fetch(file_digest(wheel), wheel.name)
    assert got == kept(file_digest(wheel), wheel.name)
    assert got.read_bytes() == wheel.read_bytes()
    assert [path.name for path in got.parent.iterdir()] == [wheel.name]


def test_second_time_it_comes_from_the_cache(own_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(own_index)
    first = fetch(file_digest(wheel))
    monkeypatch.setattr(registry, "run_pip", None)  # not callable
    assert fetch(file_digest(first)) == first


def test_damaged_cache_is_not_used(own_index: Path) -> None:
    wheel = make_wheel(own_index)
    digest = file_digest(wheel)
    got = fetch(digest)
    got.write_bytes(got.read_bytes() + b"x")
    with pytest.raises(EvidenceError, match=r"sha256 is .*, the locked one is .*; remove it; the next run"):
        fetch(digest)


def test_other_content_under_the_name_is_refused(own_index: Path) -> None:
    make_wheel(own_index)
    wanted = "0" * 64
    with pytest.raises(EvidenceError) as caught:
        fetch(wanted)
    assert str(caught.value) == (
        f"demo-pkg==1.0: pip could not get {NAME} (what the index has under this name has another digest); "
        f"configure pip with an index that has it, or give the file by --artifact or as {kept(wanted)}"
    )
    assert not kept(wanted).parent.exists()


def test_release_that_no_index_has(own_index: Path) -> None:
    with pytest.raises(EvidenceError, match=r"pip could not get .* \(no configured index has it\); configure pip"):
        fetch("0" * 64)


def test_file_of_the_users_own(own_index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "mine")
    assert fetch(file_digest(wheel), given=[tmp_path / "other.whl", wheel]) == wheel
    other = make_wheel(tmp_path / "wrong", {**FILES, "demo/core.py": b""})
    with pytest.raises(EvidenceError, match=r"mine|wrong.*the locked one is .*; give the file that demo-pkg==1.0"):
        fetch(file_digest(wheel), given=[other])


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UnfinishedError, match=r"not written: .*; make room, or set XDG_CACHE_HOME"):
        fetch("0" * 64)


def test_python_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    assert run_pip(["--version"]) == "this Python has no pip; install it, for example by 'python -m ensurepip'"


def test_reason_never_shows_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index address may hold a password."""

    def fail(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        text = "Looking in indexes: https://me:secret@host/simple\nERROR: 403 for url: https://me:secret@host/x\n"
        return subprocess.CompletedProcess([], 1, "", text)

    monkeypatch.setattr(subprocess, "run", fail)
    assert run_pip([]) == "ERROR: 403 for url: …"
