"""`make demo-loop` and `make demo-fully-async`: verl's own loops on a CPU, and what they left behind.

Each loop runs once, as the command does it. Nothing here looks at a clock: how long it took is in the log.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from demo.contained import descendants
from demo.generate import PROMPTS
from demo.loops import ANSWERS, LOOPS, overrides
from demo.run_loop import FOREIGN, LoopDemo
from train_infer_consistency.errors import UnfinishedError

from .test_demo import compare

pytestmark = [pytest.mark.engines, pytest.mark.download]

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = len(PROMPTS) * ANSWERS
ASYNC = LOOPS["fully-async"]


@pytest.fixture(scope="module")
def ran(base: LoopDemo, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoopDemo]:
    """``ran(name)``: a loop that has been run to its end."""
    done: dict[str, LoopDemo] = {}

    def run(name: str) -> LoopDemo:
        if name not in done:
            demo = LoopDemo(tmp_path_factory.mktemp(name), LOOPS[name], base=base)
            demo.write_prompts()
            demo.learn()
            done[name] = demo
        return done[name]

    return run


def read_log(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of the one log of this name below a folder."""
    (path,) = folder.rglob(name)
    return [json.loads(line) for line in path.read_text().splitlines()]


def rollout_log(demo: LoopDemo) -> list[dict[str, Any]]:
    """The lines about forwards that were dumped."""
    return [line for line in read_log(demo.dump("generate"), "dispatch_log.jsonl") if line["skipped"] is None]


def training_log(demo: LoopDemo) -> list[dict[str, Any]]:
    """The lines about forwards that were dumped."""
    return [line for line in read_log(demo.dump(demo.loop.strategy), "update_actor_log.jsonl") if not line["skipped"]]


@pytest.mark.parametrize("name", LOOPS)
def test_every_request_is_paired_by_its_own_id_and_both_engines_agree(
    name: str, ran: Callable[[str], LoopDemo], capfd: pytest.CaptureFixture[str]
) -> None:
    demo = ran(name)
    assert demo.judge_loop() == 0
    assert capfd.readouterr().out.splitlines()[-1] == f"{name}: consistent, status 0; {REQUESTS} requests paired"
    status, found = compare(demo.dump("generate"), demo.dump(demo.loop.strategy))
    assert (status, found["verdict"]) == (0, "consistent")
    pairs = found["pairs"]["used"]
    assert len({pair["request_id"] for pair in pairs}) == REQUESTS
    assert {pair["verdict"] for pair in pairs} == {"consistent"}
    assert found["coverage"] > 0.95


@pytest.mark.parametrize("name", LOOPS)
def test_ids_went_from_the_server_to_the_training_engine(name: str, ran: Callable[[str], LoopDemo]) -> None:
    """Each prompt whole and alone in one prefill; vLLM adds its suffix to the id that verl's client gave."""
    demo = ran(name)
    rollout, training = rollout_log(demo), training_log(demo)
    assert [len(line["requests"]) for line in rollout] == [1] * REQUESTS
    requests = [line["requests"][0] for line in rollout]
    assert all(request["tokens"] == request["prompt_length"] for request in requests)
    asked = {request["request_id"].rpartition("-")[0]: request["prompt_hash"] for request in requests}
    assert all(len(request_id) == 32 for request_id in asked)
    seen = {line["request_ids"][0]: line["requests"][0]["prompt_hash"] for line in training}
    assert asked == seen
    assert all(line["prompt_only"] and line["requests"][0]["response_length"] == 0 for line in training)


@pytest.mark.parametrize("name", LOOPS)
def test_dumps_lie_where_the_logs_say(name: str, ran: Callable[[str], LoopDemo]) -> None:
    demo = ran(name)
    for tree, lines in (
        (demo.dump("generate"), rollout_log(demo)),
        (demo.dump(demo.loop.strategy), training_log(demo)),
    ):
        folders = {path.parent.relative_to(tree).as_posix() for path in tree.rglob("dump.json")}
        assert folders == {line["dump"] for line in lines}
    process = rollout_log(demo)[0]["pid"]
    assert [line["dump"] for line in rollout_log(demo)] == [f"{process}/step{step}/rank0" for step in range(REQUESTS)]
    assert [line["dump"] for line in training_log(demo)] == [f"step{step}/rank0" for step in range(REQUESTS)]


def test_training_went_on_with_the_batch_that_it_had(ran: Callable[[str], LoopDemo]) -> None:
    lines = [json.loads(line)["data"] for line in ran("loop").metrics.read_text().splitlines()]
    (step,) = (line for line in lines if "actor/grad_norm" in line)
    assert step["training/global_step"] == 1
    assert step["actor/grad_norm"] > 0, "answers have their own rewards"
    assert step["actor/entropy"] == step["actor/entropy"] > 0, "the added pass's empty responses would give NaN"
    assert step["response_length/mean"] == 4
    assert step["prompt_length/max"] > step["prompt_length/min"]


def test_each_step_is_compared_with_the_weights_that_answered(ran: Callable[[str], LoopDemo]) -> None:
    """The asynchronous trainer: two versions of the weights, half of the requests each, the second one trained."""
    demo = ran("fully-async")
    rollout, training = rollout_log(demo), training_log(demo)
    versions = {line["requests"][0]["request_id"].rpartition("-")[0]: line["weight_version"] for line in rollout}
    assert sorted(versions.values()) == [0] * (REQUESTS // 2) + [1] * (REQUESTS // 2)
    for line in training:
        (request,) = line["requests"]
        assert request["rollout_weight_versions"] == [line["weight_version"]] * 2
        assert versions[request["request_id"]] == line["weight_version"]
    weights = {line["weight_version"]: read_weight(demo.dump("generate") / line["dump"]) for line in rollout}
    assert abs(weights[0]["Max"] - weights[1]["Max"]) > 0.01 * weights[0]["Max"], "or a stale weight could not be seen"


def read_weight(folder: Path) -> dict[str, Any]:
    """The statistics of the first layer's attention weights in a rollout's dump."""
    data = json.loads((folder / "dump.json").read_text())["data"]
    (module,) = (entry for name, entry in data.items() if "layers.0.self_attn.qkv_proj." in name)
    return dict(module["parameters"]["weight"])


def test_a_loop_that_takes_too_long_is_ended_with_all_its_processes(
    base: LoopDemo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    demo = LoopDemo(tmp_path, LOOPS["loop"], base=base)
    demo.write_prompts()
    before = set(descendants(os.getpid()))
    with pytest.raises(UnfinishedError) as raised:
        demo.learn(1)
    assert str(raised.value).startswith("verl.trainer.main_ppo did not end within 1 s; give it longer with TIMEOUT=")
    assert set(descendants(os.getpid())) <= before


def test_a_loop_that_cannot_run_is_said_with_its_last_lines(
    base: LoopDemo, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    demo = LoopDemo(tmp_path, dataclasses.replace(LOOPS["loop"], overrides={"no.such": 1}), base=base)
    with pytest.raises(UnfinishedError, match=r"main_ppo ended with status 1; its whole output is in .*loop$"):
        demo.learn()
    assert "no.such" in capfd.readouterr().err


#: A process in a session of its own, with shared memory that nobody else would remove.
ORPHAN = """
import os, subprocess, sys, time
hold = "from multiprocessing.shared_memory import SharedMemory; import sys, time; \\
held = SharedMemory(sys.argv[1], create=True, size=1); print(flush=True); time.sleep(600)"
orphan = subprocess.Popen([sys.executable, "-c", hold, sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE)
orphan.stdout.readline()  # only now its resource tracker knows of the memory
open(sys.argv[2], "w").close()
"""


@pytest.mark.parametrize(
    ("end", "stop", "status"),
    [("os._exit(7)", None, 7), ("time.sleep(600)", signal.SIGTERM, 143)],
    ids=["ends", "stopped"],
)
def test_no_process_and_no_shared_memory_outlive_their_command(
    end: str, stop: signal.Signals | None, status: int, tmp_path: Path
) -> None:
    memory = Path("/dev/shm", f"contained-{uuid4().hex}")
    command = [sys.executable, "-m", "demo.contained", sys.executable, "-c", ORPHAN + end, memory.name]
    command.append(str(tmp_path / "held"))
    contained, processes, held = subprocess.Popen(command, cwd=ROOT), set[int](), False
    while contained.poll() is None:
        processes |= set(descendants(contained.pid))
        held |= memory.exists()
        if stop is not None and (tmp_path / "held").exists():
            contained.send_signal(stop)
            stop = None
        time.sleep(0.005)
    assert contained.returncode == status
    assert len(processes) >= 2
    assert held
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
    assert not memory.exists()


def test_nothing_of_the_shell_leaks_into_a_loop(
    base: LoopDemo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for prefix in FOREIGN:
        monkeypatch.setenv(f"{prefix}ADDRESS", "from the shell")
    demo = LoopDemo(tmp_path, ASYNC, base=base)
    assert "from the shell" not in demo.loop_environment().values()


def test_overrides_are_spelt_for_hydra(tmp_path: Path) -> None:
    places = {name: tmp_path / "it's" / name for name in ("model", "prompts", "ray", "config")}
    spelt = overrides(ASYNC, tmp_path, places)
    assert r"data.train_files='" + str(tmp_path) + r"/it\'s/prompts'" in spelt
    assert "async_training.partial_rollout=false" in spelt
    assert "trainer.logger=[console,file]" in spelt
    assert next(line for line in spelt if "mixed_precision" in line).endswith(
        "={param_dtype:bf16,reduce_dtype:fp32,buffer_dtype:fp32}"
    )
