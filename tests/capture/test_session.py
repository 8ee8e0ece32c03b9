"""The session around msprobe's singleton: steps, folders, failures, filters, seeds, and who else uses msprobe."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.capture import fakes
from tests.capture.conftest import Process
from train_infer_consistency.capture.randomness import kept_determinism, kept_random_state, seed_everything
from train_infer_consistency.capture.session import Session, State, find_session, open_session
from train_infer_consistency.capture.switches import CaptureError

Refusal = Callable[[Callable[[], Any]], str]


class Plain(Session):
    def __init__(self, debugger: Any) -> None:
        super().__init__(debugger, "engine")


def opened(process: Process, seed: int | None = None) -> Plain:
    session, _ = open_session(Plain, str(process.config), "MSPROBE_CONFIG_PATH", seed)
    if session.log is None:
        session.open_log("log.jsonl", "update_actor", {}, dumps=session.root)
    return session


def forward(session: Session, process: Process, name: str, **recording: Any) -> None:
    with session.recording({"name": name}, model="model", **recording):
        process.service.record(name)


def fails(session: Session, process: Process, name: str, error: type[BaseException] = ZeroDivisionError) -> None:
    """A forward that raises half-way."""
    with pytest.raises(error), session.recording({"name": name}, model="model"):
        _raise_after(lambda: process.service.record(name), error)


def _raise_after(call: Callable[[], Any], error: type[BaseException]) -> None:
    call()
    raise error


def lines(process: Process) -> list[dict[str, Any]]:
    return process.lines("log.jsonl")


def test_each_forward_has_its_step_its_folder_and_its_line(process: Process) -> None:
    process.torch.distributed.rank = 0
    session = opened(process)
    for name in ("a", "b"):
        forward(session, process, name)
    assert [(line["name"], line["step"], line["dump"]) for line in lines(process)] == [
        ("a", 0, "step0/rank0"),
        ("b", 1, "step1/rank0"),
    ]
    assert [process.dump(line["dump"]) for line in lines(process)] == [["a"], ["b"]]
    assert process.debugger.calls == ["start", "stop", "step"] * 2


def test_without_torch_distributed_the_folder_is_proc(process: Process) -> None:
    session = opened(process)
    forward(session, process, "a")
    (line,) = lines(process)
    assert process.dump(line["dump"]) == ["a"]
    assert line["dump"] == f"step0/proc{os.getpid()}"


def test_a_skipped_forward_has_a_line_and_no_dump_and_no_step(process: Process) -> None:
    session = opened(process)
    forward(session, process, "a", skipped="decode")
    forward(session, process, "b")
    first, second = lines(process)
    assert (first["step"], first["skipped"], first["dump"]) == (None, "decode", None)
    assert (second["step"], second["skipped"]) == (0, None)


def test_behind_the_step_filter_no_step_is_claimed(process: Process) -> None:
    """msprobe's counter freezes there, so that a logger that asks it says the same step for ever."""
    process.write_config(step=[1])
    session = opened(process)
    for name in "abcd":
        forward(session, process, name)
    assert [(line["step"], line["skipped"]) for line in lines(process)] == [
        (None, "step-filter"),
        (1, None),
        (None, "step-filter"),
        (None, "step-filter"),
    ]
    assert process.service.current_iter == 2


def test_the_first_step_may_be_another_than_0(process: Process) -> None:
    """msprobe adds its first step to what it has counted; whoever counts for himself misses that."""
    session = opened(process)
    process.service.init_step = 5
    for name in "ab":
        forward(session, process, name)
    assert [line["step"] for line in lines(process)] == [5, 6]
    assert all(process.dump(line["dump"]) == [line["name"]] for line in lines(process))


def test_no_step_is_claimed_once_msprobe_has_ended(process: Process) -> None:
    """It also ends without a filter, when its data processor says that it has enough."""
    session = opened(process)
    process.service.should_stop_service = True
    forward(session, process, "a")
    assert [(line["step"], line["skipped"]) for line in lines(process)] == [(None, "step-filter")]


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 6), min_size=1), st.lists(st.booleans(), max_size=9))
def test_a_line_claims_a_step_exactly_if_its_dump_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], forwards: list[bool]
) -> None:
    """For any step filter, and any mixture of forwards that succeed and that fail."""
    with pytest.MonkeyPatch.context() as patch:
        process = Process(patch, tmp_path_factory.mktemp("run"))
        process.write_config(step=sorted(steps))
        process.torch.distributed.rank = 0
        session = opened(process)
        for number, succeeds in enumerate(forwards):
            if succeeds:
                forward(session, process, f"forward{number}")
                continue
            fails(session, process, f"forward{number}")
        written = lines(process)
        session.log.close() if session.log else None
        process.restart()
        assert len(written) == len(forwards)
        claimed = {line["dump"]: line["name"] for line in written if line["step"] is not None}
        present = {folder for folder in process.rank_folders() if folder.rpartition("/")[2] == "rank0"}
        assert present == claimed.keys()
        assert all(process.dump(folder) == [name] for folder, name in claimed.items())
        assert all(line["dump"] == f"step{line['step']}/rank0" for line in written if line["step"] is not None)


@pytest.mark.parametrize(("rank", "outcome"), [(0, (None, "rank-filter")), (1, (0, None))])
def test_the_rank_filter_is_a_reason(process: Process, rank: int, outcome: tuple[int | None, str | None]) -> None:
    process.write_config(rank=[1])
    process.torch.distributed.rank, process.torch.distributed.world = rank, 2
    session = opened(process)
    forward(session, process, "a")
    assert [(line["step"], line["skipped"]) for line in lines(process)] == [outcome]


def test_a_rank_filter_for_ranks_that_do_not_exist_is_refused(process: Process, refusal: Refusal) -> None:
    process.write_config(rank=[4, 5])
    process.torch.distributed.rank, process.torch.distributed.world = 0, 2
    assert "rank [4, 5]" in refusal(lambda: opened(process))


def test_a_failed_forward_is_invalid_is_not_counted_and_does_not_leak_into_the_next(process: Process) -> None:
    process.torch.distributed.rank = 0
    session = opened(process)
    fails(session, process, "half")
    assert session.state is State.ARMED
    process.service.record("between")
    forward(session, process, "b")
    failed, good = lines(process)
    assert (failed["step"], failed["skipped"], failed["invalid"], failed["failed_step"]) == (None, "failed", True, 0)
    assert failed["dump"] == "step0/invalid-rank0-0"
    assert process.dump(failed["dump"]) == ["half"]
    assert (good["step"], process.dump(good["dump"])) == (0, ["b"])
    assert "invalid" not in good


def test_failures_of_the_same_step_are_all_kept(process: Process) -> None:
    process.torch.distributed.rank = 0
    session = opened(process)
    for name in "ab":
        fails(session, process, name, KeyboardInterrupt)
    assert [process.dump(line["dump"]) for line in lines(process)] == [["a"], ["b"]]


def test_a_failing_stop_does_not_hide_the_forwards_own_exception(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(process)

    def stop() -> None:
        raise OSError("disk")

    with pytest.raises(ZeroDivisionError), session.recording({}, model="model"):
        _raise_after(lambda: monkeypatch.setattr(process.service, "stop", stop), ZeroDivisionError)


def test_an_exception_in_a_skipped_forward_is_in_its_line(process: Process) -> None:
    session = opened(process)
    with pytest.raises(ZeroDivisionError), session.recording({}, "decode", model="model"):
        raise ZeroDivisionError
    (line,) = lines(process)
    assert (line["step"], line["skipped"], line["invalid"]) == (None, "decode", True)


@pytest.mark.parametrize(
    ("calls", "word"),
    [
        (["stop"], "armed"),
        (["step"], "armed"),
        (["start", "start"], "recorded"),
        (["start", "step"], "recorded"),
        (["start", "stop", "stop"], "stopped"),
        (["start", "stop", "start"], "stopped"),
        (["start", "stop", "step", "step"], "stepped"),
        (["start", "stop", "step", "stop"], "stepped"),
    ],
)
def test_calls_out_of_order_are_reported(process: Process, refusal: Refusal, calls: list[str], word: str) -> None:
    session = opened(process)
    methods: dict[str, Callable[[], Any]] = {
        "start": lambda: session.start(model="model"),
        "stop": session.stop,
        "step": session.step,
    }
    for call in calls[:-1]:
        methods[call]()
    assert f"{calls[-1]}() of a forward that is {word}" in refusal(methods[calls[-1]])


def test_the_session_stands_in_for_the_debugger(process: Process) -> None:
    """Upstream code reads config.level and service, and calls start, stop and step."""
    session = opened(process)
    assert session.config is process.debugger._instance.config
    assert session.config.dump_path == str(process.root)
    assert session.service is process.service
    session.start(model="model", rank_id=3)
    session.stop()
    session.step()
    assert process.service.started == [{"model": "model", "rank_id": 3}]
    assert [line["dump"] for line in lines(process)] == ["step0/rank3"]


def test_the_line_is_written_before_msprobe_counts(process: Process) -> None:
    session = opened(process)
    assert session.log is not None
    seen: list[list[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.log, "write", lambda _: seen.append(list(process.debugger.calls)))
        forward(session, process, "a")
    assert seen == [["start", "stop"]]


def test_a_failed_log_write_is_loud(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(process)
    real = os.write
    with pytest.raises(CaptureError, match="useless"), session.recording({}, model="model"):
        monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    monkeypatch.setattr(os, "write", real)
    assert lines(process) == []


def test_another_debugger_in_the_process_is_refused_by_name(process: Process, refusal: Refusal) -> None:
    process.debugger(str(process.config))
    assert "precision_debugger" in refusal(lambda: opened(process))


def test_a_second_session_of_the_same_file_is_the_first(process: Process) -> None:
    first = opened(process)
    again, new = open_session(Plain, str(process.config), "x", None)
    assert again is first
    assert not new
    assert find_session(Plain) is first


def test_a_second_file_in_one_process_is_refused(process: Process, refusal: Refusal, tmp_path: Path) -> None:
    opened(process)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"task": "statistics", "dump_path": str(tmp_path / "other")}))
    assert "one msprobe file" in refusal(lambda: open_session(Plain, str(other), "x", None))


@pytest.mark.parametrize("what", ["running", "stepped"])
def test_someone_else_using_the_debugger_is_noticed(process: Process, refusal: Refusal, what: str) -> None:
    session = opened(process)
    forward(session, process, "a")
    if what == "running":
        process.debugger._instance.start(model="model")
    else:
        process.debugger._instance.step()
    assert "something else" in refusal(lambda: session.start(model="model"))


def test_the_folder_is_set_anew_before_each_start(process: Process) -> None:
    """msprobe may replace its configuration, and with it the folder this process dumps into."""
    process.torch.distributed.rank = 0
    session, _ = open_session(Plain, str(process.config), "x", None)
    session.open_log("log.jsonl", "update_actor", {})
    forward(session, process, "a")
    process.service.config.dump_path = str(process.root)
    forward(session, process, "b")
    assert [line["dump"] for line in lines(process)] == [f"{os.getpid()}/step{n}/rank0" for n in (0, 1)]


def test_msprobe_dumping_elsewhere_is_an_error(
    process: Process, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = opened(process)
    real = process.service.start

    def start(*args: Any) -> None:
        process.service.config.dump_path = str(tmp_path / "elsewhere")
        real(*args)

    monkeypatch.setattr(process.service, "start", start)
    assert "elsewhere" in refusal(lambda: session.start(model="model"))


def test_a_graph_dumper_is_refused_by_name(process: Process, refusal: Refusal) -> None:
    text = refusal(lambda: open_session(Plain, str(process.config), "x", None, make=fakes.AclGraphDumper))
    assert "AclGraphDumper" in text
    assert "eager" in text


def test_an_unfit_msprobe_or_file_is_refused_before_there_is_a_debugger(process: Process, refusal: Refusal) -> None:
    process.install_msprobe("8.3.3")
    assert "8.3.3 is too old" in refusal(lambda: opened(process, seed=7))
    process.install_msprobe("26.2.0")
    process.write_config(dump_enable=True)
    assert "dump_enable" in refusal(lambda: opened(process, seed=7))
    assert process.debugger._instance is None
    assert process.torch.rng == 0


def test_msprobes_own_refusals_become_one_line(process: Process, refusal: Refusal) -> None:
    process.write_config(task="nonsense")
    text = refusal(lambda: opened(process))
    assert "task" in text
    assert "MSPROBE_CONFIG_PATH" in text
    process.restart()
    process.write_config()
    session = opened(process)
    assert "missing the parameter" in refusal(lambda: session.begin({}))


def test_a_forked_child_does_not_dump(process: Process, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(process)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert "spawn" in refusal(lambda: session.start(model="model"))


def test_a_rank_that_dumped_before_is_refused(process: Process, refusal: Refusal) -> None:
    """A rerun into the same folder would lie over the old steps, and the old higher ones would stay."""
    process.env(CONSISTENCY_RUN_ID="r")
    process.torch.distributed.rank = 0
    opened(process)
    process.restart()
    process.torch.distributed.rank = 0
    assert "rank0 already" in refusal(lambda: opened(process))
    process.restart()
    process.torch.distributed.rank = 1
    opened(process)


def test_processes_without_a_rank_do_not_stand_in_each_others_way(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch.distributed a dump's folder has the process's own number."""
    process.env(CONSISTENCY_RUN_ID="r")
    pid = os.getpid()
    for number in range(2):
        process.restart()
        monkeypatch.setattr(os, "getpid", lambda number=number: pid + number)
        session = opened(process)
        forward(session, process, f"process {number}")
        assert session.log is not None
        session.log.close()
    assert {line["dump"]: line["name"] for line in lines(process)} == {
        f"step0/proc{pid}": "process 0",
        f"step0/proc{pid + 1}": "process 1",
    }


def test_another_run_is_refused(process: Process, refusal: Refusal) -> None:
    process.env(CONSISTENCY_RUN_ID="r")
    opened(process)
    process.restart()
    process.env(CONSISTENCY_RUN_ID="s")
    assert "'r'" in refusal(lambda: opened(process))


def test_a_given_rank_that_is_taken_goes_into_a_folder_of_its_own(process: Process) -> None:
    process.env(CONSISTENCY_RUN_ID="r")
    dumps = []
    for _ in range(2):
        process.restart()
        session, _ = open_session(Plain, str(process.config), "x", None)
        session.open_log("log.jsonl", "dispatch_logger", {}, dumps=session.root, rank_id=5)
        forward(session, process, "a", rank_id=5)
        assert session.log is not None
        dumps.append(json.loads(session.log.path.read_text())["dump"])
    assert dumps[0] == "step0/rank5"
    assert dumps[1].endswith("/step0/rank5")
    assert dumps[1] != dumps[0]


def test_constants_of_a_line(process: Process) -> None:
    process.env(CONSISTENCY_RUN_ID="r")
    process.torch.distributed.rank, process.torch.distributed.world = 3, 4
    session = opened(process)
    forward(session, process, "a")
    (line,) = lines(process)
    assert (line["source"], line["rank"], line["run_id"], line["msprobe"]) == ("update_actor", 3, "r", "26.2.0")
    assert {"timestamp", "pid", "host", "replica", "engine", "parallel", "overlay"} <= line.keys()


def test_seeding_neither_fills_memory_nor_raises_on_missing_kernels(process: Process) -> None:
    seed_everything(99)
    assert process.torch.rng == 99
    assert process.torch.deterministic == (True, True)
    assert process.torch.utils.deterministic.fill_uninitialized_memory is False


def test_the_given_seed_is_used_at_opening(process: Process) -> None:
    opened(process, seed=7)
    assert process.torch.rng == 7
    process.restart()
    process.torch.rng = 5
    process.env(CONSISTENCY_RUN_ID="r")
    open_session(Plain, str(process.config), "x", None)
    assert process.torch.rng == 5
    assert process.torch.deterministic == (False, False)


@pytest.mark.parametrize("failing", [False, True])
def test_an_added_forward_leaves_no_trace_in_any_generator_or_setting(process: Process, failing: bool) -> None:
    process.env(MSPROBE_SEED="77")
    session = opened(process)
    torch = process.torch
    torch.rng, torch.npu.state = 5, 6
    random.seed(1)
    expected = random.getstate()
    inside: list[tuple[int, bool]] = []
    try:
        with session.recording({}, added=True, model="model"):
            inside.append((torch.rng, torch.deterministic[0]))
            random.random()
            torch.rng, torch.npu.state = 50, 60
            if failing:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert failing
    assert inside == [(77, True)]
    assert (torch.rng, torch.npu.state, torch.deterministic) == (5, 6, (False, False))
    assert torch.utils.deterministic.fill_uninitialized_memory is True
    assert torch.backends.cudnn.deterministic is False
    assert random.getstate() == expected
    assert "PYTHONHASHSEED" not in os.environ


def test_keeping_states_without_torch(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "torch")
    random.seed(1)
    expected = random.random()
    random.seed(1)
    with kept_random_state(), kept_determinism():
        random.random()
    assert random.random() == expected
