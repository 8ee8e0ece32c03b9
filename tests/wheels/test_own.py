"""This distribution's own wheel: the same files, built from the checkout or put together from an installation."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from train_infer_consistency.wheels import own
from train_infer_consistency.wheels.archive import file_digest
from train_infer_consistency.wheels.record import WheelReader

from .small import members_of

BUILD = """
import sys
from pathlib import Path
from train_infer_consistency.wheels.own import build_own
print(build_own(Path(sys.argv[1])).path)
"""


@pytest.fixture
def installed(own_wheel: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that sees the wheel's files as installed, and no checkout."""
    site = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*command, "--target", str(site), str(own_wheel)], check=True)
    return {**os.environ, "PYTHONPATH": str(site)}


def build(environment: dict[str, str], dest: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-c", BUILD, str(dest)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=dest.parent,
    )


def test_put_together_from_an_installation(own_wheel: Path, installed: dict[str, str], tmp_path: Path) -> None:
    done = build(installed, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.name == own_wheel.name
    assert {name: data for name, data in members_of(path).items() if not name.endswith("RECORD")} == {
        name: data for name, data in members_of(own_wheel).items() if not name.endswith("RECORD")
    }
    with WheelReader(path) as wheel:
        wheel.verify_all()
    digest = file_digest(path)
    assert file_digest(Path(build(installed, tmp_path / "again").stdout.strip())) == digest


def test_installation_that_was_changed(installed: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "site" / "train_infer_consistency" / "errors.py"
    path.write_text(path.read_text() + "# changed\n")
    done = build(installed, tmp_path / "out")
    assert "errors.py was changed since it was installed; install train-infer-consistency again" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_built_from_the_checkout(own_wheel: Path, tmp_path: Path) -> None:
    built = own.build_own(tmp_path)
    assert built.path.name == own_wheel.name
    assert built.sha256 == file_digest(built.path)
    with zipfile.ZipFile(built.path) as wheel:
        names = wheel.namelist()
    assert "train_infer_consistency/_shipped/VERSIONS.lock" in names
    assert "train_infer_consistency/wheels/licences/MulanPSL-2.0.txt" in names
