"""Plans for tests, and what a real shell makes of their launch scripts."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.launch.plan import Plan, make_plan, write_plan
from train_infer_consistency.launch.planning.answers import make_answers

DUMP_ROOT = "/data/dumps"
#: scenario, and answers beside those that are required.
KINDS: dict[str, dict[str, Any]] = {
    "hybrid": {"scenario": "verl-hybrid"},
    "hybrid, FSDP1": {"scenario": "verl-hybrid", "engine": "fsdp"},
    "hybrid, Megatron": {"scenario": "verl-hybrid", "engine": "megatron"},
    "hybrid, CUDA": {"scenario": "verl-hybrid", "stack": "verl-0.8-cuda"},
    "hybrid, b7dabd83": {"scenario": "verl-hybrid", "stack": "verl-b7dabd83"},
    "fully async": {"scenario": "verl-fully-async"},
    "fully async, Megatron": {"scenario": "verl-fully-async", "engine": "megatron"},
    "fully async, b7dabd83": {"scenario": "verl-fully-async", "stack": "verl-b7dabd83"},
    "slime": {"scenario": "slime", "stack": "slime-0.2.2"},
    "slime 0.2.4": {"scenario": "slime", "stack": "slime-0.2.4"},
}


def plan_into(folder: Path, language: str = "en", **given: Any) -> Plan:
    """Write a plan for eight cards, or as ``given`` says."""
    base = {"model": "/models/m", "world_size": 8, "dump_root": DUMP_ROOT, "run_id": "t"}
    plan = make_plan(make_answers(base | given), folder, language)
    write_plan(plan)
    return plan


def arguments(folder: Path, *own: str) -> list[str]:
    """The words that ``run.sh`` starts Python, or Ray, with: bash runs it, with programs that write them down."""
    programs = folder.parent / f"{folder.name}-bin"
    programs.mkdir()
    for name in ("python3", "ray"):
        (programs / name).write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > {shlex.quote(str(programs / 'words'))}\n")
        (programs / name).chmod(0o755)
    env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    # The dump root of plan_into is a target machine's: nothing is made there.
    script = (folder / "run.sh").read_text().replace(DUMP_ROOT, str(folder.parent / "dumps"))
    (programs / "run.sh").write_text(script)
    subprocess.run(["bash", str(programs / "run.sh"), *own], env=env, check=True, capture_output=True, text=True)
    return (programs / "words").read_text().split("\0")[:-1]


def shellcheck() -> Path:
    """shellcheck, which requirements/dev.txt brings where it has a wheel."""
    from build.lint_shell import shellcheck as found  # reads YAML too, which an environment of engines need not

    return found() or pytest.skip("no shellcheck on this machine: apt install shellcheck")
