"""CONSISTENCY_KEEP_ENDS with the real msprobe: FSDP1, FSDP2 and Megatron dump the ends, and training is unharmed.

Each run is a process group of its own (keep_ends_worker.py); all runs of one kind are made once, two at a time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from train_infer_consistency.overlay.inspect import weave_upstream
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import open_tree
from train_infer_consistency.overlay.weave import weave

pytestmark = pytest.mark.engines

# "hooked" is the switch on, woven without the edit that keeps backward hooks off the two ends.
Mode = Literal["unwoven", "off", "on", "hooked"]
Runs = Callable[[str], dict[tuple[Mode, int], "Run"]]
WORKER = Path(__file__).with_name("keep_ends_worker.py")
UPSTREAM, FORWARD_ONLY = "mindstudio-probe", "forward-only"
ENGINES = ("fsdp1", "fsdp2", "megatron")
MODES: tuple[tuple[Mode, int], ...] = (
    ("unwoven", 1),
    ("off", 1),
    ("on", 1),
    ("hooked", 1),
    ("off", 2),
    ("on", 2),
)


class Run:
    """What the ranks of one process group left behind."""

    def __init__(self, folder: Path, world: int) -> None:
        self.folder = folder
        self.reports = [json.loads((folder / f"report{rank}.json").read_text()) for rank in range(world)]

    def steps(self, engine: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield for each rank and variant of an engine its report and the data of its dump."""
        for rank, report in enumerate(self.reports):
            for number, variant in enumerate(report["variants"]):
                if variant["engine"] != engine:
                    continue
                dump = self.folder / "dump" / f"step{number}" / f"rank{rank}" / "dump.json"
                yield variant, json.loads(dump.read_text())["data"]


def ends(variant: dict[str, Any]) -> tuple[str, str]:
    """Return how msprobe names the two modules it leaves out under verl: number 1 and the last of named_modules()."""
    first, last = (f"Module.{name}.{kind}." for name, kind in (variant["modules"][1], variant["modules"][-1]))
    return first, last


def outputs(data: dict[str, Any], module: str) -> list[dict[str, Any]]:
    """Return a module's first output of each call in order; the logits where the output is a Hugging Face one."""
    calls = sorted(
        (key for key in data if key.startswith(f"{module}forward.")), key=lambda key: int(key.rpartition(".")[2])
    )
    leaves = [data[key]["output"][0] for key in calls]
    return [leaf.get("logits", leaf) for leaf in leaves]


def installed() -> Path:
    spec = importlib.util.find_spec("msprobe")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[Mode, Path | None]:
    """Where each mode's msprobe is imported from: the installed one, or a woven copy of it."""
    site = installed().parent
    upstream = load_upstreams()[UPSTREAM]
    woven = weave_upstream(upstream, open_tree(site, upstream.package), load_lock())
    (file,) = woven.files
    edits = [edit for edit in upstream.files[0].edits_for(woven.pin) if edit.id != FORWARD_ONLY]
    assert file.before is not None
    hooked = weave(file.path, file.before, edits, woven.pin, woven.revision).after
    assert hooked is not None
    folders: dict[str, Path] = {}
    for name, content in (("woven", file.after), ("hooked", hooked)):
        folders[name] = tmp_path_factory.mktemp(name)
        shutil.copytree(installed(), folders[name] / upstream.package)
        (folders[name] / file.path).write_bytes(content)
    return {"unwoven": None, "off": folders["woven"], "on": folders["woven"], "hooked": folders["hooked"]}


def launch(kind: str, mode: Mode, world: int, tree: Path | None, folder: Path) -> Run:
    """Run one process group to its end.

    Raises:
        AssertionError: a rank failed; the message has the end of its output.
    """
    paths = [str(tree)] if tree else []
    paths += [path for path in [os.environ.get("PYTHONPATH")] if path]
    # One thread, so that sums are made in one order; gloo on the loopback, so that no host name has to resolve.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["CONSISTENCY_KEEP_ENDS"] = "1" if mode in ("on", "hooked", "unwoven") else "0"
    with ExitStack() as stack:
        ranks = []
        for rank in range(world):
            log = stack.enter_context((folder / f"log{rank}").open("wb"))
            command = [sys.executable, str(WORKER), kind, str(rank), str(world), str(folder)]
            ranks.append(subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT))
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
        for number, process in enumerate(ranks):
            status = process.wait(timeout=300)
            tail = (folder / f"log{number}").read_text(errors="replace")[-3000:]
            assert status == 0, f"{kind}, {mode}, rank {number} of {world}:\n{tail}"
    return Run(folder, world)


@pytest.fixture(scope="module")
def runs(trees: dict[Mode, Path | None], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    done: dict[str, dict[tuple[Mode, int], Run]] = {}

    def get(engine: str) -> dict[tuple[Mode, int], Run]:
        kind = engine.rstrip("12")
        if kind not in done:
            jobs = [(*wanted, tmp_path_factory.mktemp(f"{kind}-{wanted[0]}-")) for wanted in MODES]
            with ThreadPoolExecutor(2) as pool:
                futures = {(m, w): pool.submit(launch, kind, m, w, trees[m], folder) for m, w, folder in jobs}
            done[kind] = {wanted: future.result() for wanted, future in futures.items()}
        return done[kind]

    return get


def test_overlay_has_the_edit_that_the_counter_test_leaves_out() -> None:
    (file,) = load_upstreams()[UPSTREAM].files
    assert FORWARD_ONLY in [edit.id for edit in file.edits]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_mode_ran_its_own_msprobe(engine: str, runs: Runs, trees: dict[Mode, Path | None]) -> None:
    for (mode, _), run in runs(engine).items():
        for report in run.reports:
            assert Path(report["msprobe"]).is_relative_to(trees[mode] or installed())


@pytest.mark.parametrize("engine", ENGINES)
def test_switched_off_is_upstream(engine: str, runs: Runs) -> None:
    done = runs(engine)
    assert [data for _, data in done["off", 1].steps(engine)] == [data for _, data in done["unwoven", 1].steps(engine)]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_switch_adds_the_two_ends_and_changes_no_other_entry(engine: str, world: int, runs: Runs) -> None:
    done = runs(engine)
    for (variant, without), (_, data) in zip(
        done["off", world].steps(engine), done["on", world].steps(engine), strict=True
    ):
        assert without, variant["name"]
        assert not [key for key in without if key.startswith(ends(variant))]
        for end in ends(variant):
            assert [key for key in data if key.startswith(f"{end}forward.")], (variant["name"], end)
            assert not [key for key in data if key.startswith(f"{end}backward.")]
        assert {key: entry for key, entry in data.items() if not key.startswith(ends(variant))} == without


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_dumped_logits_are_the_models_own(engine: str, world: int, runs: Runs) -> None:
    """Compared with the logits as the model returned them, before they are divided in place."""
    checked = 0
    for variant, data in runs(engine)["on", world].steps(engine):
        if not variant["logits"]:  # a pipeline stage that is not the last
            assert ends(variant)[1].endswith("mlp.linear_fc2.RowParallelLinear.")
            continue
        first, last = ends(variant)
        sides = [outputs(data, last)] + ([] if engine == "fsdp2" else [outputs(data, first)])
        for dumped in sides:
            for leaf, expected in zip(dumped, variant["logits"], strict=True):
                # msprobe sums in the tensor's own type: bfloat16 has eight bits.
                close = 1e-5 if leaf["dtype"] == "torch.float32" else 1e-2
                assert sorted(leaf["shape"]) == sorted(expected["shape"])
                assert (leaf["Max"], leaf["Min"]) == (expected["Max"], expected["Min"])
                assert leaf["Norm"] == pytest.approx(expected["Norm"], rel=close)
                assert leaf["Mean"] == pytest.approx(expected["Mean"], abs=close * expected["Max"])
                checked += 1
    assert checked >= 3


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_forward_and_gradients_are_unharmed(engine: str, world: int, runs: Runs) -> None:
    """Against the run without msprobe, and bit by bit against upstream's dump."""
    done = runs(engine)
    for (off, _), (on, _) in zip(done["off", world].steps(engine), done["on", world].steps(engine), strict=True):
        assert on["error"] is None
        assert on["logits_equal"]
        assert on["gradients"] or on["name"] == "no grad"
        assert on["gradient_difference"] <= 1e-6 * on["gradient_scale"]
        assert on["gradient_digest"] == off["gradient_digest"]


@pytest.mark.parametrize(
    ("engine", "error"), [("fsdp1", "ValueError: expected to be in"), ("fsdp2", "RuntimeError: setS")]
)
def test_backward_hooks_on_the_ends_break_fsdp(engine: str, error: str, runs: Runs) -> None:
    """Upstream's reason: where logits are divided in place, msprobe's hook drops FSDP's own pre-backward hook."""
    raised = {variant["name"]: variant["error"] for variant, _ in runs(engine)["hooked", 1].steps(engine)}
    assert raised.pop("no grad") is None
    assert raised
    assert all(str(text).startswith(error) for text in raised.values()), raised


def test_backward_hooks_on_the_ends_do_not_break_megatron(runs: Runs) -> None:
    hooked, on = (runs("megatron")[mode, 1] for mode in ("hooked", "on"))
    for (one, _), (other, _) in zip(hooked.steps("megatron"), on.steps("megatron"), strict=True):
        assert one["error"] is None
        assert one["gradient_digest"] == other["gradient_digest"]
