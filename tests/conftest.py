"""Fixtures for every test: real upstream releases by digest, source trees, and this project's own wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.wheels.registry import fetch_artifact

# No test depends on a clock. In CI the same examples every time, where nobody is there to look at a new one.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")

ROOT = Path(__file__).resolve().parent.parent
NO_SOURCE = "not run: no source"


@pytest.fixture(scope="session")
def release() -> Callable[..., Path]:
    """``release(name, version, machine="x86_64")``: the path of the pinned upstream wheel for Python 3.11.

    It is downloaded through pip, checked by digest, and kept in the user's cache folder.
    """

    def get(name: str, version: str, machine: str = "x86_64") -> Path:
        pin = load_lock().pin(name, version)
        wheel = re.compile(rf"-none-any\.whl$|-(cp311-cp311|cp\d+-abi3)-.*linux.*_{machine}\.whl$")
        fitting = [artifact for artifact in pin.artifacts.values() if wheel.search(artifact.file)]
        assert len(fitting) == 1, f"{name} {version} has {len(fitting)} wheels for {machine} and Python 3.11"
        assert pin.requirement is not None
        return fetch_artifact(pin.requirement, fitting[0].file, fitting[0].sha256)

    return get


@pytest.fixture
def source() -> Callable[[str], Path]:
    """``source(name)``: the tree named by ``SOURCE_<name>`` (dashes as underscores), or a skipped test.

    The closing summary lists such tests under "not run: no source".
    """

    def get(name: str) -> Path:
        given = os.environ.get(f"SOURCE_{name.replace('-', '_')}")
        if not given:
            pytest.skip(NO_SOURCE)
        return Path(given).expanduser()

    return get


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real msprobe dumps, unpacked once a run: ``lookalike``, ``loop`` and ``megatron`` (tests/data/README.md)."""
    folder = tmp_path_factory.mktemp("dumps")
    with tarfile.open(ROOT / "tests" / "data" / "dumps.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "dumps"


@pytest.fixture(scope="session")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this project, built once from the checkout."""
    folder = tmp_path_factory.mktemp("own-wheel")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every test that had no upstream source, so that a green run does not hide it."""
    skipped = [
        report.nodeid
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and report.longrepr[2] == f"Skipped: {NO_SOURCE}"
    ]
    if skipped:
        terminalreporter.section(NO_SOURCE)
        for nodeid in skipped:
            terminalreporter.line(nodeid)
