"""``consistency selftest`` for real: vllm-ascend's runner and verl's FSDP engine, as a user with a card runs it.

Both engines are in one environment, as in the images; the stand-ins of the demo take the place of the card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.rollouts import ascend
from demo.run import ROOT, Demo
from train_infer_consistency.selftest.inference import PROMPTS

pytestmark = [pytest.mark.engines, pytest.mark.download]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell in such an image."""
    demo = Demo(tmp_path_factory.mktemp("installed"))
    demo.install()
    own = {"PYTHONPATH": os.pathsep.join(map(str, (demo.site, ROOT / "demo")))}
    base = {**os.environ, **own, "VERL_USE_EXTERNAL_MODULES": "verl_cpu"}
    # Switches of a run that went before must not matter.
    left = {"DUMP_ON": "0", "PROMPTS_ONLY": "0", "CONSISTENCY_RUN_ID": "another", "MSPROBE_CONFIG_PATH": "nowhere"}
    return ascend.environment(base, demo.tree, Path("nowhere")) | left


@pytest.fixture(scope="module")
def told(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """The folder of a run, its status and what it printed."""
    folder = tmp_path_factory.mktemp("selftest") / "made"
    command = [sys.executable, "-m", "train_infer_consistency.cli.main", "selftest", "-o", str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=900)
    return folder, done.returncode, done.stdout or done.stderr


def test_both_engines_agree(told: tuple[Path, int, str]) -> None:
    folder, status, text = told
    assert status == 0, text
    assert text.startswith("## consistency selftest: vllm-ascend consistent, status 0\n")
    assert f"vllm-ascend against verl (FSDP2, bfloat16): **consistent**: all {len(PROMPTS)} pairs agree" in text
    assert (folder / "report.md").read_text() == text
    answer = json.loads((folder / "with-vllm-ascend" / "comparison.json").read_text())
    assert len(answer["pairs"]["used"]) == len(PROMPTS)


def test_report_says_on_what_it_was_run(told: tuple[Path, int, str]) -> None:
    _, _, text = told
    assert "| device | npu, 1 x CPU stand-in for an Ascend NPU |" in text
    for name, version in (("vllm-ascend", "0.18.0"), ("verl", "0.8.0"), ("mindstudio-probe", "26.2.0")):
        assert f"| {name} | {version}+consistency.1 | woven by consistency.1 (this version) |" in text
    for step in ("look", "model", "vllm-ascend", "verl for vllm-ascend", "compare vllm-ascend"):
        assert f"| {step} | done | " in text
    assert "- vllm: not run: vllm-ascend's runner takes its place here" in text
    assert "- sglang: not run: sglang is not installed here; " in text
