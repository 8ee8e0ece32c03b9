"""With the switches off a woven file is upstream's own; with one on and no package, it stops in one line.

The woven skeletons are imported by an interpreter that cannot import this project. Each has ``make`` and ``run``,
which go through every edited scope.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.overlay.inspect import UpstreamWeave, weave_upstream
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.trees import MappingTree, WheelTree, open_tree

from .trees import skeleton, skeleton_lock, upstreams

# vllm-ascend's edits but one stand where only a run with a dump configuration comes.
ONLY_WITH_A_DEBUGGER = {"need-msprobe", "import-session", "session", "scheduled"}
SWITCHES = {
    "verl": "DUMP_ON",
    "slime": "DUMP_ON",
    "sglang": "SGLANG_MSPROBE_DUMP",
    "mindstudio-probe": "CONSISTENCY_KEEP_ENDS",
}
MODULES = [
    pytest.param(name, file.path, id=f"{name}-{file.path}")
    for name, upstream in upstreams().items()
    if upstream.overlays == name
    for file in upstream.files
    if not file.lays
]

PROGRAM = """\
import builtins, importlib, json, os, sys
root, module, scenario = sys.argv[1:]
sys.path[:0] = [root]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "train_infer_consistency":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path[:0] = [Blocked()]

ran = set()
def trace(frame, event, argument):
    if frame.f_code.co_filename.startswith(root):
        ran.add((os.path.relpath(frame.f_code.co_filename, root), frame.f_lineno))
        return trace
sys.settrace(trace)
loaded = importlib.import_module(module)
if scenario == "on":
    loaded.switch_on()
    sys.exit("nothing was raised")
made = loaded.make()
seen = []
if scenario == "watched":
    sys.settrace(None)
    loaded.run(made)  # once, so that asyncio and the like have imported what they need
    made = loaded.make()
    def imported(*arguments, real=builtins.__import__):
        seen.append(f"import {arguments[0]}")
        return real(*arguments)
    builtins.__import__ = imported
    class Environment(type(os.environ)):
        def __getitem__(self, key):
            seen.append(f"environ {key}")
            return super().__getitem__(key)
    os.environ.__class__ = Environment
    assert os.environ.get("PATH") and seen == ["environ PATH"]
    seen.clear()
result = loaded.run(made)
sys.settrace(None)
print(json.dumps({"result": result, "ran": sorted(ran), "seen": seen}))
"""


@pytest.fixture(scope="module")
def weaves() -> dict[str, UpstreamWeave]:
    return {
        name: weave_upstream(upstreams()[name], MappingTree(name, skeleton(name)), skeleton_lock(name))
        for name in upstreams()
    }


def lay(root: Path, files: dict[str, bytes]) -> Path:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def both(root: Path, weave: UpstreamWeave) -> tuple[Path, Path]:
    """Write the pristine and the woven skeleton; the real files' packages are not regular packages here."""
    pristine = skeleton(weave.upstream.name)
    woven = {**pristine, **{file.path: file.after for file in weave.files}}
    return lay(root / "pristine", pristine), lay(root / "woven", woven)


def start(root: Path, path: str, scenario: str, **environment: str) -> subprocess.CompletedProcess[str]:
    bare = {key: value for key, value in os.environ.items() if key not in SWITCHES.values() and key != "PYTHONPATH"}
    module = path.removesuffix(".py").replace("/", ".")
    return subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM, str(root), module, scenario],
        env={**bare, **environment, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def outcome(run: subprocess.CompletedProcess[str]) -> Any:
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def hunks(before: bytes, after: bytes) -> list[list[int]]:
    """The numbers of the woven file's lines that are not upstream's, by hunk, without the notice and empty lines."""
    old, new = before.decode().splitlines(), after.decode().splitlines()
    found = []
    for tag, _, _, start_line, end_line in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        lines = [number + 1 for number in range(start_line, end_line) if new[number].strip()]
        if tag != "equal" and lines and "# Modified by" not in new[lines[0] - 1]:
            found.append(lines)
    return found


@pytest.mark.parametrize("value", [None, "", "0", " False ", "no", "OFF"])
@pytest.mark.parametrize(("name", "path"), MODULES)
def test_switched_off_it_does_what_upstream_does(
    name: str, path: str, value: str | None, tmp_path: Path, weaves: dict[str, UpstreamWeave]
) -> None:
    pristine, woven = both(tmp_path, weaves[name])
    environment = {SWITCHES[name]: value} if value is not None and name in SWITCHES else {}
    wanted = outcome(start(pristine, path, "plain"))
    found = outcome(start(woven, path, "plain", **environment))
    assert found["result"] == wanted["result"]
    assert wanted["result"] not in (None, [], {})

    (file,) = [file for file in weaves[name].files if file.path == path]
    assert file.before is not None
    ran = {line for ran_path, line in found["ran"] if ran_path == path}
    edited = hunks(file.before, file.after)
    missed = [lines for lines in edited if not ran & set(lines)]
    # Every edit was on the way, so that the equal results say something.
    assert len(missed) <= (len(ONLY_WITH_A_DEBUGGER) if name == "vllm-ascend" else 0), missed
    if name != "mindstudio-probe":
        assert edited


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_switched_off_no_call_imports_or_reads_the_environment(
    name: str, path: str, tmp_path: Path, weaves: dict[str, UpstreamWeave]
) -> None:
    pristine, woven = both(tmp_path, weaves[name])
    assert outcome(start(pristine, path, "watched"))["seen"] == []
    assert outcome(start(woven, path, "watched"))["seen"] == []


def check_one_line(run: subprocess.CompletedProcess[str], switch: str, missing: str) -> None:
    lines = run.stderr.strip().splitlines()
    assert run.returncode == 1, run.stderr
    assert run.stdout == ""
    assert lines[-1].startswith("RuntimeError: ")
    assert switch in lines[-1]
    assert missing in lines[-1]
    assert "not installed here; install " in lines[-1]
    assert "During handling of" not in run.stderr
    assert "ModuleNotFoundError" not in run.stderr


@pytest.mark.parametrize(
    ("name", "path", "switch"),
    [
        ("verl", "verl/utils/consistency_switch.py", "DUMP_ON"),
        ("verl", "verl/workers/engine/fsdp/transformer_impl.py", "DUMP_ON"),
        ("verl", "verl/workers/engine/megatron/transformer_impl.py", "DUMP_ON"),
        ("verl", "verl/workers/rollout/llm_server.py", "DUMP_ON"),
        ("verl", "verl/trainer/ppo/ray_trainer.py", "DUMP_ON"),
        ("verl", "verl/experimental/agent_loop/agent_loop.py", "DUMP_ON"),
        ("sglang", "sglang/srt/model_executor/consistency_switch.py", "SGLANG_MSPROBE_DUMP"),
        ("sglang", "sglang/srt/model_executor/model_runner.py", "SGLANG_MSPROBE_DUMP"),
        ("slime", "slime/backends/megatron_utils/actor.py", "DUMP_ON"),
        ("vllm-ascend", "vllm_ascend/worker/model_runner_v1.py", "dump_config_path"),
        ("vllm", "vllm/v1/worker/gpu_model_runner.py", "dump_config_path"),
    ],
)
def test_switched_on_without_the_package_it_stops_at_start_up(
    name: str, path: str, switch: str, tmp_path: Path, weaves: dict[str, UpstreamWeave]
) -> None:
    woven = both(tmp_path, weaves[name])[1]
    environment = {switch: "1"} if switch.isupper() else {}
    scenario = "plain" if name == "sglang" or name == "verl" else "on"
    site = lay(tmp_path / "site", {"msprobe/pytorch.py": b"PrecisionDebugger = None\n"})
    run = start(woven, path, scenario, **environment, PYTHONPATH=str(site))
    check_one_line(run, switch, "train-infer-consistency")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("vllm-ascend", "vllm_ascend/worker/model_runner_v1.py"),
        ("vllm", "vllm/v1/worker/gpu_model_runner.py"),
    ],
)
def test_switched_on_without_msprobe_the_mend_comes_before_the_import_error(
    name: str, path: str, tmp_path: Path, weaves: dict[str, UpstreamWeave]
) -> None:
    run = start(both(tmp_path, weaves[name])[1], path, "on")
    check_one_line(run, "dump_config_path", "mindstudio-probe (>= 26.0.0)")


@pytest.mark.parametrize(
    ("name", "path"),
    [("vllm-ascend", "vllm_ascend/worker/worker.py"), ("vllm", "vllm/v1/worker/gpu_worker.py")],
)
def test_the_v2_runner_is_refused_where_a_dump_is_asked_for(
    name: str, path: str, tmp_path: Path, weaves: dict[str, UpstreamWeave]
) -> None:
    """By the laid file alone; that it is inert without a dump is in the skeletons' ``make``."""
    run = start(both(tmp_path, weaves[name])[1], path, "on")
    lines = run.stderr.strip().splitlines()
    assert (run.returncode, run.stdout) == (1, "")
    assert lines[-1].startswith("RuntimeError: additional_config.dump_config_path is set and the v2 model runner ")
    assert "unset VLLM_USE_V2_MODEL_RUNNER" in lines[-1]


def test_switched_on_msprobe_keeps_the_ends_without_the_package(
    tmp_path: Path, weaves: dict[str, UpstreamWeave]
) -> None:
    woven = both(tmp_path, weaves["mindstudio-probe"])[1]
    path = "msprobe/pytorch/dump/module_dump/module_processor.py"
    hooked, forward_only = outcome(start(woven, path, "plain", CONSISTENCY_KEEP_ENDS="1"))["result"]
    assert hooked == [f"Module.{name}" for name in "abcdef"]
    assert forward_only == {"Module.b": True, "Module.d": True}
    hooked, forward_only = outcome(start(woven, path, "plain"))["result"]
    assert hooked == [f"Module.{name}" for name in "acef"]
    assert forward_only == {}


@pytest.mark.parametrize("name", [name for name, upstream in upstreams().items() if upstream.overlays == name])
def test_laid_files_need_nothing_to_be_imported(name: str, tmp_path: Path, weaves: dict[str, UpstreamWeave]) -> None:
    """Only the standard library, and with the switch off nothing of it looks for this project."""
    for file in weaves[name].files:
        if file.before is not None:
            continue
        root = lay(tmp_path / name, {file.path: file.after})
        program = (
            "import sys; before = set(sys.modules); sys.path[:0] = [sys.argv[1]]\n"
            "class Only:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        top = name.partition('.')[0]\n"
            "        assert top in sys.stdlib_module_names or top == sys.argv[2].partition('.')[0], name\n"
            "sys.meta_path[:0] = [Only()]\n"
            "import importlib; importlib.import_module(sys.argv[2])\n"
        )
        module = file.path.removesuffix(".py").replace("/", ".")
        environment = {key: value for key, value in os.environ.items() if key not in SWITCHES.values()}
        subprocess.run([sys.executable, "-B", "-I", "-c", program, str(root), module], env=environment, check=True)


class SwitchedOff(ast.NodeTransformer):
    """A file's program while every switch is off: what is not upstream's is evaluated and goes.

    An edit of a form that is not known here stays, and its file is then not equal to upstream's.
    """

    NONE = re.compile(
        r"((self\.)?_consistency|(self|model_runner)\.(_debugger|debugger|_dispatch_logger|_should_dump))$"
    )
    #: What it calls before upstream's own statement, and which does nothing where no dump is asked for.
    CHECKS = ("_consistency_need_msprobe", "_consistency_refuse_v2_runner")
    BOUND_IN_CLASS = re.compile(
        r"(_consistency\w*|_?debugger|_update_actor_logger_fp|_should_dump|_dispatch_logger|dump_path_prefix)$"
    )
    METHODS = ("_ensure_debugger", "_log_update_actor_step")
    UNREACHED = "ModuleProcessor.module_with_backward_hook[prefix_name] = True"

    def is_off(self, test: ast.expr) -> bool:
        """Whether a condition is false while the switches are off."""
        match test:
            case ast.Compare(left, [ast.IsNot()], [ast.Constant(None)]):
                return bool(self.NONE.match(ast.unparse(left)))
            case ast.BoolOp(ast.And(), [first, *_]):
                return self.is_off(first)
        return bool(self.NONE.match(ast.unparse(test)))

    def visit_If(self, node: ast.If) -> Any:
        if not node.orelse and (
            self.is_off(node.test) or [ast.unparse(item) for item in node.body] == [self.UNREACHED]
        ):
            return None
        self.generic_visit(node)
        # What holds only lines of ours is empty without them.
        return node if node.body else None

    def visit_Expr(self, node: ast.Expr) -> Any:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        return None if isinstance(called, ast.Name) and called.id in self.CHECKS else self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        match node.test:
            case ast.Compare(left, [ast.Is()], [ast.Constant(None)]) | ast.UnaryOp(ast.Not(), left) if self.is_off(
                left
            ):
                return self.visit(node.body)
        return self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        return self.visit(node.value) if node.target.id.startswith("_consistency") else self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        if ast.unparse(node.values[-1]) == "not self._consistency_keep_ends":
            return self.visit(node.values[0])
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        if ast.unparse(node.func) == "_consistency_open_session" and isinstance(node.args[1], ast.Lambda):
            return self.visit(node.args[1].body)
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom | ast.Import) -> Any:
        return None if all((name.asname or "").startswith("_consistency") for name in node.names) else node

    visit_Import = visit_ImportFrom  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> Any:
        if "_consistency_open_session(" in ast.unparse(node.value) and "lambda" not in ast.unparse(node.value):
            return None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        def is_ours(item: ast.stmt) -> bool:
            if isinstance(item, ast.FunctionDef):
                return item.name in self.METHODS
            return isinstance(item, ast.Assign) and bool(self.BOUND_IN_CLASS.match(ast.unparse(item.targets[0])))

        node.body = [item for item in node.body if not is_ours(item)]
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                item.decorator_list = [d for d in item.decorator_list if ast.unparse(d) != "_consistency_recorded"]
        return self.generic_visit(node)


def check_off(weave: UpstreamWeave) -> None:
    edited = [file for file in weave.files if file.before is not None]
    assert edited
    for file in edited:
        off = [ast.dump(SwitchedOff().visit(ast.parse(data))) for data in (file.before or b"", file.after)]
        assert off[0] == off[1], file.path
        assert ast.dump(ast.parse(file.before or b"")) != ast.dump(ast.parse(file.after))


@pytest.mark.parametrize("name", upstreams())
def test_switched_off_a_woven_skeleton_is_upstreams_program(name: str, weaves: dict[str, UpstreamWeave]) -> None:
    check_off(weaves[name])


@pytest.mark.download
@pytest.mark.parametrize(
    ("name", "version"),
    [
        (name, pin.version)
        for name, upstream in upstreams().items()
        for pin in upstream.pins
        if pin.registry is not None and name != "vllm"
    ],
)
def test_switched_off_a_woven_release_is_upstreams_program(
    name: str, version: str, release: Callable[..., Path]
) -> None:
    check_off(weave_upstream(upstreams()[name], WheelTree(release(name, version)), load_lock()))


@pytest.mark.parametrize("name", ["verl", "slime"])
def test_switched_off_a_woven_commit_is_upstreams_program(name: str, source: Callable[[str], Path]) -> None:
    check_off(weave_upstream(upstreams()[name], open_tree(source(name), name), load_lock()))
