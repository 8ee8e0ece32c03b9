"""The rules' pages are what the rules say, and the stacks' versions are those of VERSIONS.lock."""

from __future__ import annotations

import runpy
import tomllib

import pytest

from train_infer_consistency.launch.stacks import DEFAULT, STACKS, versions

from ..conftest import ROOT


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_pages_are_in_step_with_the_rules(language: str) -> None:
    script = runpy.run_path(str(ROOT / "build" / "rules_reference.py"))
    written = script["PAGES"][language].read_text(encoding="utf-8")
    assert written == script["page"](language), "run python build/rules_reference.py"


def test_the_stacks_are_the_locks() -> None:
    lock = tomllib.loads((ROOT / "VERSIONS.lock").read_text(encoding="utf-8"))
    assert STACKS.keys() == lock["stack"].keys()
    for name, stack in lock["stack"].items():
        for upstream, pin in stack["pins"].items():
            assert pin in STACKS[name][upstream], (name, upstream)
    assert {name for name in DEFAULT.values() if name} <= STACKS.keys()


def test_pins_are_a_stack_too() -> None:
    assert versions("verl=0.9.1,vllm-ascend==0.23.0") == {"verl": "0.9.1", "vllm-ascend": "0.23.0"}
    with pytest.raises(KeyError):
        versions("verl-7")
