"""slime's and Megatron's defaults that rules rest on are those of their own parsers, read from their source.

Neither is in a registry. ``SOURCE_slime`` and ``SOURCE_Megatron_LM`` name a clone with its tags, or a plain tree of one
version. Nothing of them is imported.
"""

from __future__ import annotations

import ast
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.launch import defaults
from train_infer_consistency.launch.run import SLIME, Run

from .test_any_input import KEYS

SLIMES = ("v0.2.2", "v0.2.4")
SLIME_ARGUMENTS = "slime/utils/arguments.py"
#: What slime's own images and build scripts check out, at v0.2.2 and at v0.2.4.
MEGATRON = "3714d81d418c9f1bca4594fc35f9e8289f652862"
MEGATRON_ARGUMENTS = "megatron/training/arguments.py"
MEGATRONS = {"context_parallel_size", "pipeline_model_parallel_size", "tensor_model_parallel_size"}


def text_at(tree: Path, revision: str, file: str) -> str:
    """A file of a clone at a revision; of a plain tree as it is."""
    if not (tree / ".git").exists() and not (tree / "HEAD").exists():
        return (tree / file).read_text(encoding="utf-8")
    command = ["git", "-C", str(tree), "show", f"{revision}:{file}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def declared(text: str) -> dict[str, Any]:
    """Every flag that a source declares, by dest, and its default; ``reset_arg`` is slime's way to change Megatron's.

    A default that is no literal is left out.
    """
    found: dict[str, Any] = {}
    reset: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the upstream's own escape sequences
        tree = ast.parse(text)
    for call in calls(tree):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        flags = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        flags = [flag for flag in flags if flag.startswith("--")]
        if name not in ("add_argument", "reset_arg") or not flags:
            continue
        given = {one.arg: one.value for one in call.keywords if one.arg}
        action = getattr(given.get("action"), "value", "")
        default = given.get("default", ast.Constant({"store_true": False, "store_false": True}.get(action)))
        dest = getattr(given.get("dest"), "value", None) or flags[0].lstrip("-").replace("-", "_")
        if isinstance(default, ast.Constant):
            (reset if name == "reset_arg" else found).setdefault(dest, default.value)
    return {**found, **reset}


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def disagree(source: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The flags that rules ask for and the source declares: (what rules take for its default, what it is)."""
    run = Run(SLIME)
    asked = {dest: defaults.slime(run, dest) for dest in {*KEYS[SLIME], *defaults._SLIME} & source.keys()}
    return {dest: (ours, source[dest]) for dest, ours in asked.items() if (ours or None) != (source[dest] or None)}


@pytest.mark.parametrize("version", SLIMES)
def test_slime(source: Callable[[str], Path], version: str) -> None:
    own = declared(text_at(source("slime"), version, SLIME_ARGUMENTS))
    assert disagree(own) == {}
    assert {dest for dest in defaults._SLIME if not dest.startswith("sglang_")} - own.keys() == MEGATRONS
    assert len(own.keys() & set(KEYS[SLIME])) > 20


def test_megatron(source: Callable[[str], Path]) -> None:
    own = declared(text_at(source("Megatron-LM"), MEGATRON, MEGATRON_ARGUMENTS))
    assert own.keys() >= MEGATRONS
    changed = {"micro_batch_size"}  # by slime's reset_arg
    assert disagree({dest: default for dest, default in own.items() if dest not in changed}) == {}


def test_a_parsers_source_is_read() -> None:
    text = (
        "parser.add_argument('--a-b', '-a', type=int, default=1)\nparser.add_argument('--c', action='store_true')\n"
        "group.add_argument('--no-d', action='store_false', dest='d')\nreset_arg(parser, '--a-b', default=2)\n"
        "parser.add_argument('--e')\nparser.add_argument('--f', default=g())\nother('--h', default=1)\n"
    )
    assert declared(text) == {"a_b": 2, "c": False, "d": True, "e": None}
    assert disagree({"n_samples_per_prompt": 1, "context_parallel_size": 2}) == {"context_parallel_size": (1, 2)}
