"""``consistency check`` of a plan where the stack's woven wheels are installed: doctor's look at them is part of it.

The environment has these wheels; of what they import at their start it has the names alone, for which doctor asks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.run_loop import LoopDemo
from tests.launch.plans import plan_into
from train_infer_consistency.overlay.reading import load_upstreams

pytestmark = [pytest.mark.engines, pytest.mark.download]

#: A file that the overlay edits.
WOVEN = "vllm_ascend/worker/model_runner_v1.py"


@pytest.fixture
def site(base: LoopDemo, tmp_path: Path) -> Path:
    """The wheels as installed, to be changed: a changed file has to be replaced, all are links."""
    made = Path(shutil.copytree(base.site, tmp_path / "site", copy_function=os.link))
    for name in {need for upstream in load_upstreams().values() for need in upstream.imports}:
        metadata = made / f"{name}-9.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9\n")
    return made


def change(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def check(site: Path, tmp_path: Path, *more: str) -> tuple[int, str]:
    """The status of a check of a plan in an environment of its own, and what it says."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    plan_into(tmp_path / "plan", scenario="verl-hybrid")
    python = tmp_path / "venv" / "bin" / "python"
    command = [str(python), "-m", "train_infer_consistency.cli.main", "check", str(tmp_path / "plan"), *more]
    env = {**os.environ, "PYTHONPATH": str(site), "LC_ALL": "C"}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_nothing_is_said_of_what_the_stacks_wheels_brought(site: Path, tmp_path: Path) -> None:
    status, said = check(site, tmp_path, "--json")
    found: dict[str, Any] = json.loads(said)
    assert (status, found["status"], found["findings"], found["unread"]) == (0, 0, [], [])
    assert found["installed"] == []


def test_a_woven_file_that_somebody_changed_is_a_broken_rule(site: Path, tmp_path: Path) -> None:
    path = site / WOVEN
    change(path, path.read_bytes() + b"# mine\n")
    status, said = check(site, tmp_path)
    assert status == 1
    (line,) = (line for line in said.splitlines() if "installed here: error" in line)
    assert f"vllm-ascend: {WOVEN} is changed by someone else" in line
    assert ", 1 broken, " in said


def test_a_release_without_the_overlay_is_a_broken_rule(
    site: Path, release: Callable[..., Path], tmp_path: Path
) -> None:
    for path in [*site.glob("verl-*.dist-info"), site / "verl"]:
        shutil.rmtree(path)
    with zipfile.ZipFile(release("verl", "0.8.0")) as wheel:
        wheel.extractall(site)
    status, said = check(site, tmp_path)
    assert status == 1
    assert "verl: is installed without the overlay, and dumps nothing that can be paired" in said
    assert "consistency overlay apply verl" in said
