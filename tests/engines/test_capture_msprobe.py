"""Capture over the real msprobe and torch: folders and rows, not only that a dump exists.

Each run is a process of its own, since msprobe's debugger is one for the process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.engines

PROLOGUE = """
import json, os, sys, types
import torch
from pathlib import Path

root, config = Path(sys.argv[1]), sys.argv[2]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(64, 8)
        self.proj = torch.nn.Linear(8, 8)
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(8, 64)

    def forward(self, ids):
        return self.head(self.drop(self.proj(self.embed(ids))))

def prompt(length):
    return torch.arange(1, length + 1)

net = Net()

from train_infer_consistency.capture.session import Session, open_session
from train_infer_consistency.capture.switches import CaptureError, switches

def plain(seed=None):
    session, _ = open_session(lambda debugger: Session(debugger, "test"), config, "MSPROBE_CONFIG_PATH", seed)
    session.open_log("log.jsonl", "update_actor", {}, dumps=session.root)
    return session
"""


class Run:
    """One process: what it was given, what it wrote."""

    def __init__(self, root: Path, output: str) -> None:
        self.root, self.output = root, output

    def lines(self, name: str = "log.jsonl") -> list[dict[str, Any]]:
        return [
            json.loads(line) for file in sorted(self.root.glob(f"*/{name}")) for line in file.read_text().splitlines()
        ]

    def rows(self, dump: str) -> list[str]:
        """The module forward rows of a dump, without the class and call: ``embed``, ``proj``, ``head``."""
        data = json.loads((self.root / dump / "dump.json").read_text())["data"]
        return [row for row in (re.sub(r"Module\.(.*)\.\w+\.forward\.", r"\1#", key) for key in data) if "#" in row]

    def tokens(self, dump: str) -> int:
        """How many tokens the embedding of a dump saw."""
        data = json.loads((self.root / dump / "dump.json").read_text())["data"]
        (key,) = [key for key in data if ".embed.Embedding.forward.0" in key]
        return int(data[key]["input_args"][0]["shape"][-1])

    def folders(self) -> list[str]:
        return sorted(str(path.parent.relative_to(self.root)) for path in self.root.glob("**/dump.json"))


class Runner:
    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "dumps"
        self.config = tmp_path / "config.json"
        self.write()

    def write(self, **more: Any) -> None:
        content = {
            "task": "statistics",
            "dump_path": str(self.root),
            "rank": [],
            "step": [],
            "level": "L0",
            "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
        }
        self.config.write_text(json.dumps({**content, **more}))

    def __call__(self, body: str, status: int = 0, **variables: str) -> Run:
        code = textwrap.dedent(PROLOGUE) + textwrap.dedent(body)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MSPROBE_LOG_LEVEL": "3", **variables}
        done = subprocess.run(
            [sys.executable, "-c", code, str(self.root), str(self.config)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return Run(self.root, done.stdout)


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


ALL = ["embed#0", "proj#0", "drop#0", "head#0"]


def test_steps_skips_and_a_failure(run: Runner) -> None:
    """A failed forward is neither counted nor appended to the next one, and no reader takes it for a dump."""
    done = run(
        """
        session = plain()
        for number, length in enumerate((3, 4, 5, 6)):
            skipped = "decode" if number == 1 else None
            try:
                with session.recording({"number": number}, skipped, model=net):
                    net(prompt(length))
                    if number == 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        """
    )
    assert [(line["number"], line["step"], line["skipped"]) for line in done.lines()] == [
        (0, 0, None),
        (1, None, "decode"),
        (2, None, "failed"),
        (3, 1, None),
    ]
    first, _, failed, last = done.lines()
    assert [done.tokens(line["dump"]) for line in (first, failed, last)] == [3, 5, 6]
    assert done.rows(last["dump"]) == ALL
    assert "/invalid-proc" in failed["dump"]
    assert sorted(done.folders()) == sorted(line["dump"] for line in (first, failed, last))


def test_behind_the_step_filter_no_step_is_claimed(run: Runner) -> None:
    run.write(step=[1, 3])
    done = run(
        """
        session = plain()
        for length in range(2, 9):
            with session.recording({"length": length}, model=net):
                net(prompt(length))
        """
    )
    steps = {line["step"]: line for line in done.lines() if line["step"] is not None}
    assert sorted(steps) == [1, 3]
    assert {line["skipped"] for line in done.lines() if line["step"] is None} == {"step-filter"}
    assert {step: done.tokens(line["dump"]) for step, line in steps.items()} == {1: 3, 3: 5}
    assert len(done.lines()) == 7


def test_the_rank_is_the_distributed_one_and_its_filter_is_a_reason(run: Runner) -> None:
    run.write(rank=[1])
    done = run(
        """
        import torch.distributed as dist
        store = dist.FileStore(str(root.parent / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            plain()
        except CaptureError as error:
            print(error)
        """
    )
    assert "rank [1]" in done.output
    run.write(rank=[0], dump_path=str(run.root / "second"))
    done = run(
        """
        import torch.distributed as dist
        store = dist.FileStore(str(root.parent / "store2"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        session = plain()
        with session.recording({}, model=net):
            net(prompt(3))
        """
    )
    done.root = run.root / "second"
    assert [line["dump"] for line in done.lines()] == ["step0/rank0"]
    assert done.rows("step0/rank0") == ALL


def test_a_given_rank_and_a_folder_of_its_own(run: Runner) -> None:
    """SGLang gives msprobe a card's number; a second engine with the same number must not lie over the first."""
    body = """
        session, _ = open_session(lambda debugger: Session(debugger, "test"), config, "x", None)
        session.open_log("log.jsonl", "dispatch_logger", {}, dumps=session.root, rank_id=2)
        with session.recording({}, model=net, rank_id=2):
            net(prompt(int(os.environ["LENGTH"])))
        """
    run(body, CONSISTENCY_RUN_ID="r", LENGTH="3")
    done = run(body, CONSISTENCY_RUN_ID="r", LENGTH="4")
    dumps = {line["dump"]: done.tokens(line["dump"]) for line in done.lines()}
    assert sorted(dumps.values()) == [3, 4]
    assert dumps["step0/rank2"] == 3
    assert all(re.fullmatch(r"(\d+/)?step0/rank2", dump) for dump in dumps)


def test_seeds_do_not_fill_memory_and_an_added_pass_leaves_no_trace(run: Runner) -> None:
    done = run(
        """
        session = plain()
        def draws():
            return torch.rand(2).tolist()
        torch.manual_seed(3)
        expected = draws() + draws()
        torch.manual_seed(3)
        seen = draws()
        net.train()
        with session.recording({}, added=True, model=net):
            net(prompt(3))
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.utils.deterministic.fill_uninitialized_memory
            assert not torch.isnan(torch.empty(1000)).all()
        seen += draws()
        assert seen == expected
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert "PYTHONHASHSEED" not in os.environ
        print("kept")
        """
    )
    assert "kept" in done.output


def test_a_second_debugger_and_a_foreign_step_are_noticed(run: Runner) -> None:
    done = run(
        """
        from msprobe.pytorch import PrecisionDebugger
        session = plain()
        with session.recording({}, model=net):
            net(prompt(3))
        PrecisionDebugger.step()
        try:
            session.start(model=net)
        except CaptureError as error:
            print(error)
        """
    )
    assert "something else in this process uses msprobe" in done.output
    run.write(dump_path=str(run.root / "second"))
    done = run(
        """
        from msprobe.pytorch import PrecisionDebugger
        PrecisionDebugger(config_path=config)
        try:
            plain()
        except CaptureError as error:
            print(error)
        """
    )
    assert "has an msprobe debugger already" in done.output


def test_msprobes_own_refusals_are_one_line(run: Runner) -> None:
    run.write(task="nonsense")
    done = run(
        """
        try:
            plain()
        except CaptureError as error:
            print("LINE", error)
        """
    )
    (line,) = [line for line in done.output.splitlines() if line.startswith("LINE")]
    assert f"MSPROBE_CONFIG_PATH={run.config}" in line


def test_what_msprobe_refuses_only_in_the_worker_is_refused_at_start(run: Runner) -> None:
    run.write(dump_path=str(run.root / "with space"))
    done = run(
        """
        try:
            plain()
        except CaptureError as error:
            print("CAPTURE", error)
        assert "msprobe" not in sys.modules
        """
    )
    assert "CAPTURE" in done.output


def test_killed_between_start_and_stop(run: Runner) -> None:
    """The lines before are whole, and the unfinished dump has none."""
    done = run(
        """
        session = plain()
        with session.recording({}, model=net):
            net(prompt(3))
        session.start(model=net)
        net(prompt(4))
        os._exit(9)
        """,
        status=9,
    )
    (line,) = done.lines()
    assert (line["step"], done.rows(line["dump"])) == (0, ALL)


VLLM = """
from train_infer_consistency.capture.vllm import open_session as open_vllm

def output(new=(), cached=(), tokens={}):
    return types.SimpleNamespace(
        scheduled_new_reqs=[
            types.SimpleNamespace(req_id=rid, prompt_token_ids=prompt(length).tolist(), num_computed_tokens=computed)
            for rid, length, computed in new
        ],
        scheduled_cached_reqs=types.SimpleNamespace(
            req_ids=[rid for rid, _, _ in cached],
            resumed_req_ids=set(),
            num_computed_tokens=[computed for _, computed, _ in cached],
            num_output_tokens=[done for _, _, done in cached],
        ),
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens={},
        finished_req_ids=set(),
    )

rollout = [
    output(new=[("a", 5, 0)], tokens={"a": 5}),
    output(cached=[("a", 5, 1)], tokens={"a": 1}),
    output(new=[("b", 7, 0), ("c", 3, 0)], tokens={"b": 7, "c": 3}),
    output(new=[("d", 9, 4)], tokens={"d": 5}),
    output(new=[("e", 6, 0)], tokens={"e": 6}),
]

def make_runner(module):
    runner = type("Runner", (), {"__module__": module})()
    runner.model = net
    runner.model_config = types.SimpleNamespace(enforce_eager=True)
    runner.vllm_config = types.SimpleNamespace(
        additional_config={"dump_config_path": config},
        parallel_config=types.SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, data_parallel_rank=0
        ),
    )
    return runner
"""

WHOLE = [("a", 0), (None, None), (None, None), (None, None), ("e", 1)]


def check_rollout(done: Run) -> None:
    lines = done.lines("dispatch_log.jsonl")
    assert [line["step"] for line in lines] == [0, None, None, None, 1]
    assert [line["skipped"] for line in lines] == [None, "decode", "packed", "cached-prefix", None]
    pid = str(lines[0]["pid"])
    assert done.folders() == [lines[0]["dump"], lines[4]["dump"]]
    assert all(re.fullmatch(rf"{pid}/step[01]/proc{pid}", folder) for folder in done.folders())
    for line in (lines[0], lines[4]):
        assert done.tokens(line["dump"]) == line["requests"][0]["prompt_length"]
        assert done.rows(line["dump"]) == ALL


def test_vllms_own_runner(run: Runner) -> None:
    done = run(
        VLLM
        + """
runner = make_runner("vllm.v1.worker.gpu_model_runner")
session = open_vllm(runner)
for message in rollout:
    session.forward(lambda self, m: net(prompt(m.total_num_scheduled_tokens)), runner, message)
"""
    )
    check_rollout(done)


def test_vllm_ascends_runner_and_its_own_calls(run: Runner) -> None:
    done = run(
        VLLM
        + """
from msprobe.pytorch import PrecisionDebugger
runner = make_runner("vllm_ascend.worker.model_runner_v1")
assert open_vllm(runner) is None
runner.debugger = open_vllm(runner, lambda: PrecisionDebugger(config), config)
for message in rollout:
    runner.debugger.scheduled(message)
    assert runner.debugger.config.level == "L0"
    runner.debugger.start(model=runner.model)
    net(prompt(message.total_num_scheduled_tokens))
    runner.debugger.stop()
    runner.debugger.step()
"""
    )
    check_rollout(done)


def test_a_weight_load_of_a_real_module_is_counted(run: Runner) -> None:
    done = run(
        VLLM
        + """
class Loading(Net):
    def load_weights(self, weights):
        return set(weights)

net = Loading()
runner = make_runner("vllm.v1.worker.gpu_model_runner")
session = open_vllm(runner)
for name in ("a", "b"):
    message = output(new=[(name, 4, 0)], tokens={name: 4})
    session.forward(lambda self, m: net(prompt(4)), runner, message)
    assert net.load_weights(["w"]) == {"w"}
"""
    )
    assert [line["weight_version"] for line in done.lines("dispatch_log.jsonl")] == [0, 1]


def test_slime_over_real_tensors(run: Runner) -> None:
    """The copy is shallow, and slime's list of model chunks is dumped below old_log_prob."""
    done = run(
        """
        import contextlib
        from train_infer_consistency.capture.slime import copy_rollout_data_prompts_only, open_session
        timers = types.ModuleType("slime.utils.timer")
        timers.timer = timers.inverse_timer = lambda name: contextlib.nullcontext()
        saving = types.ModuleType("slime.utils.train_dump_utils")
        saving.save_debug_train_data = lambda args, **given: print("saved", given["rollout_id"])
        for name in ("slime", "slime.utils"):
            sys.modules[name] = types.ModuleType(name)
        sys.modules[timers.__name__], sys.modules[saving.__name__] = timers, saving

        args = types.SimpleNamespace(
            debug_rollout_only=False, keep_old_actor=False, use_critic=False, use_routing_replay=False, qkv_format="thd"
        )
        data = {
            "tokens": [prompt(7)], "total_lengths": [7], "response_lengths": [3], "loss_masks": [torch.ones(3)],
            "rollout_log_probs": [torch.zeros(3)], "sample_indices": [0],
        }
        copy = copy_rollout_data_prompts_only(data)
        assert copy["tokens"][0].data_ptr() == data["tokens"][0].data_ptr()
        assert copy["tokens"][0].tolist() == [1, 2, 3, 4]
        assert copy["loss_masks"][0].shape == (0,) and copy["loss_masks"][0].dtype == torch.float32

        class Actor:
            model, _active_model_tag = [net], "actor"
            def _switch_model(self, tag):
                self._active_model_tag = tag
            def compute_log_prob(self, iterator, batches, store_prefix):
                with self.session.around(self, contextlib.nullcontext(), store_prefix):
                    for tokens in iterator["tokens"]:
                        net(tokens)

        actor = Actor()
        actor.args = args
        actor.session = open_session(actor, args, "actor")
        assert actor.session.dump_prompts(actor, 0, data, lambda args, model, data: (data, 1)) is True
        assert actor.session.dump_prompts(actor, 1, data, lambda args, model, data: (data, 1)) is False
        """,
        DUMP_ON="1",
        PROMPTS_ONLY="1",
        MSPROBE_CONFIG_PATH=str(run.config),
    )
    assert "saved 0" in done.output
    (line,) = done.lines("update_actor_log.jsonl")
    assert re.fullmatch(r"old_log_prob/step0/proc\d+", line["dump"])
    assert done.rows(line["dump"]) == ["0.embed#0", "0.proj#0", "0.drop#0", "0.head#0"]
    assert done.tokens(line["dump"]) == line["requests"][0]["prompt_length"] == 4
