"""vLLM's and vllm-ascend's runners: which forwards are dumped, and what their lines say of each request."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capture.conftest import Process
from train_infer_consistency.capture.log import prompt_hash
from train_infer_consistency.capture.switches import CaptureError
from train_infer_consistency.capture.vllm import (
    DispatchLogger,
    Requests,
    VllmSession,
    open_session,
    why_not_whole_prompt,
)

Refusal = Callable[[Callable[[], Any]], str]


def new(req_id: str, prompt: list[int] | None, computed: int = 0) -> types.SimpleNamespace:
    return types.SimpleNamespace(req_id=req_id, prompt_token_ids=prompt, num_computed_tokens=computed)


def scheduler_output(
    fresh: list[types.SimpleNamespace],
    cached: list[tuple[str, int, int]],
    tokens: dict[str, int],
    *,
    resumed: set[str] = frozenset(),  # type: ignore[assignment]
    drafts: dict[str, list[int]] | None = None,
    finished: set[str] = frozenset(),  # type: ignore[assignment]
) -> types.SimpleNamespace:
    """vLLM 0.18's SchedulerOutput: new requests, (id, computed, output) of cached ones, and scheduled tokens."""
    return types.SimpleNamespace(
        scheduled_new_reqs=fresh,
        scheduled_cached_reqs=types.SimpleNamespace(
            req_ids=[entry[0] for entry in cached],
            resumed_req_ids=resumed,
            num_computed_tokens=[entry[1] for entry in cached],
            num_output_tokens=[entry[2] for entry in cached],
        ),
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens=drafts or {},
        finished_req_ids=finished,
    )


def prompt(length: int) -> list[int]:
    return list(range(100, 100 + length))


def prefill(req_id: str, length: int) -> types.SimpleNamespace:
    return scheduler_output([new(req_id, prompt(length))], [], {req_id: length})


class Model:
    """A model whose weights can be loaded."""

    loads = 0

    def load_weights(self, weights: list[str]) -> set[str]:
        self.loads += 1
        return set(weights)


def runner_of(
    process: Process, module: str = "vllm.v1.worker.gpu_model_runner", eager: bool = True, config: Any = "given"
) -> Any:
    """A runner of a package, with the attributes capture reads."""
    additional = {"dump_config_path": str(process.config)} if config == "given" else config
    runner = type("Runner", (), {"__module__": module})()
    runner.model = Model()
    runner.model_config = types.SimpleNamespace(enforce_eager=eager)
    runner.vllm_config = types.SimpleNamespace(
        additional_config=additional,
        parallel_config=types.SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, data_parallel_rank=0
        ),
    )
    return runner


@pytest.fixture
def session(process: Process) -> VllmSession:
    process.torch.distributed.rank = 0
    opened = open_session(runner_of(process))
    assert opened is not None
    return opened


def run(session: VllmSession, process: Process, output: types.SimpleNamespace) -> None:
    """What vLLM's woven execute_model does."""

    def execute_model(runner: Any, scheduled: Any) -> str:
        assert scheduled is output
        process.service.record("embed")
        return "output"

    assert session.forward(execute_model, session._runner, output) == "output"


# --- which forwards are whole prompts -------------------------------------------------------------------------


def reason(*outputs: types.SimpleNamespace) -> str | None:
    """Why the last of these messages is no whole prompt."""
    requests = Requests()
    return [why_not_whole_prompt(requests.describe(output)) for output in outputs][-1]


def test_one_new_request_with_its_whole_prompt() -> None:
    assert reason(prefill("a", 5)) is None


def test_a_prompt_of_one_token_is_a_prefill() -> None:
    """The runner's attention state calls it a decode."""
    assert reason(prefill("a", 1)) is None


def test_decode() -> None:
    assert reason(prefill("a", 5), scheduler_output([], [("a", 5, 1)], {"a": 1})) == "decode"


def test_a_prompt_in_two_chunks_is_used_for_neither() -> None:
    first = scheduler_output([new("a", prompt(95))], [], {"a": 64})
    second = scheduler_output([], [("a", 64, 0)], {"a": 31})
    assert reason(first) == "chunked"
    assert reason(first, second) == "chunked"


def test_a_last_chunk_of_one_token_is_no_decode() -> None:
    requests = Requests()
    requests.describe(scheduler_output([new("a", prompt(65))], [], {"a": 64}))
    line = requests.describe(scheduler_output([], [("a", 64, 0)], {"a": 1}))
    assert line["requests"][0]["phase"] == "prefill"
    assert line["phase"] == "prefill"
    assert why_not_whole_prompt(line) == "chunked"


def test_a_prefix_from_the_cache() -> None:
    assert reason(scheduler_output([new("a", prompt(95), computed=80)], [], {"a": 15})) == "cached-prefix"


def test_two_prompts_in_one_forward() -> None:
    both = scheduler_output([new("a", prompt(5)), new("b", prompt(6))], [], {"a": 5, "b": 6})
    assert reason(both) == "packed"


def test_a_prompt_packed_with_a_decode() -> None:
    requests = Requests()
    requests.describe(prefill("a", 5))
    line = requests.describe(scheduler_output([new("b", prompt(6))], [("a", 5, 1)], {"a": 1, "b": 6}))
    assert [entry["phase"] for entry in line["requests"]] == ["prefill", "decode"]
    assert why_not_whole_prompt(line) == "packed"


def test_a_preempted_request_comes_back_with_prompt_and_response() -> None:
    back = scheduler_output([], [("a", 0, 3)], {"a": 8}, resumed={"a"})
    assert reason(prefill("a", 5), back) == "resumed"


def test_resumption_as_vllm_wrote_it_before_0_14() -> None:
    back = scheduler_output([], [("a", 0, 3)], {"a": 5})
    del back.scheduled_cached_reqs.resumed_req_ids
    back.scheduled_cached_reqs.resumed_from_preemption = [True]
    assert reason(prefill("a", 5), back) == "resumed"


def test_a_draft_that_is_verified_is_no_prefill() -> None:
    verify = scheduler_output([], [("a", 5, 1)], {"a": 4}, drafts={"a": [1, 2, 3]})
    assert reason(prefill("a", 5), verify) == "speculative"


def test_embeddings_in_place_of_tokens_have_no_hash() -> None:
    output = scheduler_output([new("a", None)], [], {"a": 5})
    line = Requests().describe(output)
    assert line["requests"][0]["prompt_hash"] is None
    assert why_not_whole_prompt(line) == "no-prompt-tokens"


def test_a_message_without_requests_is_a_dummy() -> None:
    assert reason(scheduler_output([], [], {})) == "dummy"


@given(
    st.integers(1, 60),
    st.integers(0, 59),
    st.integers(1, 60),
    st.integers(0, 2),
)
def test_only_a_whole_uncached_lone_prompt_is_whole(length: int, computed: int, tokens: int, others: int) -> None:
    computed, tokens = min(computed, length - 1), max(1, min(tokens, length - min(computed, length - 1)))
    fresh = [new("a", prompt(length), computed), *(new(f"b{n}", prompt(3)) for n in range(others))]
    output = scheduler_output(fresh, [], {"a": tokens, **{f"b{n}": 3 for n in range(others)}})
    whole = computed == 0 and tokens == length and others == 0
    assert (reason(output) is None) == whole


# --- what a line says -------------------------------------------------------------------------------------------


def test_documented_fields_in_their_documented_meaning() -> None:
    line = Requests().describe(prefill("f1f254c0-12345678", 95))
    assert (line["phase"], line["total_num_scheduled_tokens"]) == ("prefill", 95)
    (entry,) = line["requests"]
    assert entry == {
        "request_id": "f1f254c0-12345678",
        "type": "new",
        "tokens": 95,
        "phase": "prefill",
        "computed_tokens": 0,
        "prompt_length": 95,
        "prompt_hash": prompt_hash(prompt(95)),
    }


def test_a_cached_requests_entry_knows_its_prompt_until_it_finishes() -> None:
    requests = Requests()
    requests.describe(prefill("a", 5))
    (entry,) = requests.describe(scheduler_output([], [("a", 6, 2)], {"a": 1}))["requests"]
    assert entry == {
        "request_id": "a",
        "type": "cached",
        "tokens": 1,
        "phase": "decode",
        "computed_tokens": 6,
        "prompt_length": 5,
    }
    requests.describe(scheduler_output([], [], {}, finished={"a"}))
    assert requests._prompt_lengths == {}


@pytest.mark.parametrize(("output", "phase"), [(0, "prefill"), (1, "decode")])
def test_a_request_whose_prompt_this_process_never_saw(output: int, phase: str) -> None:
    """Then the tokens it has generated say what it does, as far as anything says it."""
    line = Requests().describe(scheduler_output([], [("a", 5, output)], {"a": 1}))
    assert (line["phase"], line["requests"][0]["prompt_length"]) == (phase, None)
    assert why_not_whole_prompt(line) == ("no-prompt-tokens" if phase == "prefill" else "decode")


def test_ranks_of_the_parallel_groups(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = types.ModuleType("vllm.distributed.parallel_state")
    state._TP, state._PP = types.SimpleNamespace(rank_in_group=3), None
    monkeypatch.setitem(sys.modules, state.__name__, state)
    opened = open_session(runner_of(process))
    assert opened is not None
    run(opened, process, prefill("a", 5))
    parallel = process.lines()[0]["parallel"]
    assert (parallel["tp_rank"], parallel["tp_size"], "pp_rank" in parallel) == (3, 1, False)


# --- vLLM's own runner ---------------------------------------------------------------------------------------


def test_a_rollout_dumps_its_whole_prompts_and_logs_every_forward(process: Process, session: VllmSession) -> None:
    run(session, process, prefill("a", 5))
    run(session, process, scheduler_output([], [("a", 5, 1)], {"a": 1}))
    run(session, process, scheduler_output([], [("a", 6, 2)], {"a": 1}))
    run(session, process, prefill("b", 7))
    assert [(line["step"], line["skipped"]) for line in process.lines()] == [
        (0, None),
        (None, "decode"),
        (None, "decode"),
        (1, None),
    ]
    folder = f"{os.getpid()}"
    assert process.rank_folders() == [f"{folder}/step0/rank0", f"{folder}/step1/rank0"]
    assert all(process.dump(line["dump"]) == ["embed"] for line in process.lines() if line["dump"])
    assert process.service.started[0]["model"] is session._runner.model


def test_a_message_without_tokens_is_no_forward(process: Process, session: VllmSession) -> None:
    output = scheduler_output([], [], {}, finished={"a"})
    assert session.forward(lambda *_: "empty", session._runner, output) == "empty"
    assert process.lines() == []


def test_a_failed_forward_is_invalid_and_the_next_one_is_dumped(process: Process, session: VllmSession) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        session.forward(fails, session._runner, prefill("a", 5))
    # At once: there may be no next one.
    assert [line.get("invalid") for line in process.lines()] == [True]
    run(session, process, prefill("b", 5))
    assert [(line["step"], line.get("invalid")) for line in process.lines()] == [(None, True), (0, None)]


def test_everything_if_asked_for(process: Process) -> None:
    process.env(CONSISTENCY_DUMP_ALL="1")
    opened = open_session(runner_of(process))
    assert opened is not None
    run(opened, process, prefill("a", 5))
    run(opened, process, scheduler_output([], [("a", 5, 1)], {"a": 1}))
    assert [line["step"] for line in process.lines()] == [0, 1]


def test_new_weights_are_a_new_version(process: Process, session: VllmSession) -> None:
    run(session, process, prefill("a", 5))
    assert session._runner.model.load_weights(["w"]) == {"w"}
    run(session, process, prefill("b", 5))
    assert session._runner.model.loads == 1
    assert [line["weight_version"] for line in process.lines()] == [0, 1]


def test_no_session_unless_asked_for(process: Process) -> None:
    for config in ({}, {"dump_config_path": None}, None, "text"):
        assert open_session(runner_of(process, config=config)) is None


def test_vllm_stands_back_for_a_runner_with_a_debugger_of_its_own(process: Process) -> None:
    assert open_session(runner_of(process, module="vllm_ascend.worker.model_runner_v1")) is None


def test_both_overlays_make_one_session_and_one_log(process: Process) -> None:
    """vllm-ascend's runner is built: first vLLM's own hook in its base class is asked, then vllm-ascend's."""
    runner = runner_of(process, module="vllm_ascend.worker.model_runner_v1")
    assert open_session(runner) is None
    session = open_session(runner, lambda: process.debugger(str(process.config)), str(process.config))
    assert session is not None
    assert len(list(process.root.glob("*/dispatch_log.jsonl"))) == 1
    assert session.engine == "vllm-ascend"


def test_a_debugger_made_by_vllms_laid_file(process: Process) -> None:
    session = open_session(runner_of(process), lambda: process.debugger(str(process.config)), str(process.config))
    assert session is not None
    assert session.engine == "vllm"


def test_graphs_and_the_v2_runner_are_refused_by_name(process: Process, refusal: Refusal) -> None:
    assert "enforce_eager" in refusal(lambda: open_session(runner_of(process, eager=False)))
    process.env(VLLM_USE_V2_MODEL_RUNNER="1")
    assert "VLLM_USE_V2_MODEL_RUNNER" in refusal(lambda: open_session(runner_of(process)))


def test_a_path_that_is_no_text(process: Process, refusal: Refusal) -> None:
    assert "dump_config_path" in refusal(lambda: open_session(runner_of(process, config={"dump_config_path": 3})))


def test_seeds_are_left_alone_unless_one_is_given(process: Process) -> None:
    process.torch.rng = 3
    open_session(runner_of(process))
    assert process.torch.rng == 3
    process.restart()
    process.env(MSPROBE_SEED="8", CONSISTENCY_RUN_ID="r")
    process.write_config(dump_path=str(process.root / "second"))
    open_session(runner_of(process))
    assert process.torch.rng == 8


def test_a_second_engine_in_the_process_goes_on_in_the_same_folder(process: Process, session: VllmSession) -> None:
    run(session, process, prefill("a", 5))
    session.start(model="gone before its stop")
    second = runner_of(process)
    again = open_session(second)
    assert again is session
    second.model.load_weights(["w"])
    # Its ids begin anew: this one's prompt was another runner's.
    run(again, process, scheduler_output([], [("a", 5, 0)], {"a": 1}))
    run(again, process, prefill("a", 5))
    assert [(line["step"], line["skipped"]) for line in process.lines()] == [
        (0, None),
        (None, "dummy"),
        (None, "no-prompt-tokens"),
        (1, None),
    ]
    assert process.service.started[-1]["model"] is second.model


# --- vllm-ascend's runner: its own calls ---------------------------------------------------------------------


@pytest.fixture
def ascend(process: Process) -> Any:
    process.torch.distributed.rank = 0
    runner = runner_of(process, module="vllm_ascend.worker.model_runner_v1")
    runner.debugger = open_session(runner, lambda: process.debugger(str(process.config)), str(process.config))
    return runner


def ascend_forward(runner: Any, process: Process, output: types.SimpleNamespace) -> None:
    """The calls of execute_model and sample_tokens, wherever the stop is."""
    assert runner._dispatch_logger is not None
    runner.debugger.scheduled(output)
    if str(runner.debugger.config.level).upper() in ("L0", "MIX"):
        runner.debugger.start(model=runner.model)
    else:
        runner.debugger.start()
    process.service.record("embed")
    runner.debugger.stop()
    runner.debugger.step()


def test_the_ascend_runners_own_calls(process: Process, ascend: Any) -> None:
    ascend_forward(ascend, process, prefill("a", 5))
    ascend_forward(ascend, process, scheduler_output([], [("a", 5, 1)], {"a": 1}))
    first, second = process.lines()
    assert (first["step"], first["requests"][0]["request_id"], first["engine"]) == (0, "a", "vllm-ascend")
    assert process.dump(first["dump"]) == ["embed"]
    assert first["dump"] == f"{os.getpid()}/step0/rank0"
    assert (second["step"], second["skipped"]) == (None, "decode")
    assert process.debugger.calls == ["start", "stop", "step"]


def test_a_forward_that_never_came_to_its_stop(process: Process, ascend: Any) -> None:
    """An exception between the runner's start and its stop: the next message finds the forward still open."""
    ascend.debugger.scheduled(prefill("a", 5))
    ascend.debugger.start(model=ascend.model)
    process.service.record("half")
    ascend_forward(ascend, process, prefill("b", 5))
    failed, good = process.lines()
    assert (failed["step"], failed["invalid"], failed["requests"][0]["request_id"]) == (None, True, "a")
    assert (good["step"], good["requests"][0]["request_id"]) == (0, "b")
    assert process.dump(good["dump"]) == ["embed"]


def test_a_stop_that_is_left_out_is_reported(process: Process, ascend: Any, refusal: Refusal) -> None:
    """msprobe's step() writes the dump all the same, so that nothing else shows it."""
    ascend.debugger.scheduled(prefill("a", 5))
    ascend.debugger.start(model=ascend.model)
    assert "step() of a forward that is recorded" in refusal(ascend.debugger.step)


def test_a_start_without_a_message_is_a_dummy(process: Process, ascend: Any) -> None:
    ascend_forward(ascend, process, prefill("a", 5))
    ascend.debugger.start(model=ascend.model)
    ascend.debugger.stop()
    ascend.debugger.step()
    assert [(line["step"], line["skipped"]) for line in process.lines()] == [(0, None), (None, "dummy")]


def test_a_dummy_run_has_a_line_and_msprobe_is_not_told(process: Process, ascend: Any) -> None:
    """An idle data-parallel rank's, and those of a starting engine, which come before any request."""
    ascend.debugger.dummy(16)
    ascend_forward(ascend, process, prefill("a", 5))
    ascend.debugger.dummy(1)
    ascend_forward(ascend, process, prefill("b", 6))
    assert [(line["step"], line["skipped"]) for line in process.lines()] == [
        (None, "dummy"),
        (0, None),
        (None, "dummy"),
        (1, None),
    ]
    assert [line["total_num_scheduled_tokens"] for line in process.lines()] == [16, 5, 1, 6]
    first = process.lines()[0]
    assert (first["requests"], first["dump"], first["phase"], first["weight_version"]) == ([], None, None, 0)
    assert process.debugger.calls == ["start", "stop", "step"] * 2


# --- the procedure's own logger --------------------------------------------------------------------------------


def test_dispatch_logger_by_hand(process: Process) -> None:
    logger = DispatchLogger(str(process.root), 42, rank=1)
    state = types.SimpleNamespace(name="PrefillNoCache")
    logger.log_step(prefill("a", 5), state)
    logger.log_step(scheduler_output([], [("a", 5, 1)], {"a": 1}), None)
    logger.log_step(scheduler_output([], [("a", 6, 2)], {"a": 1}), None, step=9)
    logger.close()
    logger.close()
    with pytest.raises(CaptureError, match="closed"):
        logger.log_step(prefill("a", 5), None)
    assert (process.root / "42" / "dispatch_log.jsonl").is_file()
    first, second, third = process.lines()
    assert (first["source"], first["rank"], first["step"], first["phase"]) == ("dispatch_logger", 1, 0, "prefill")
    assert first["attn_state"] == "PrefillNoCache"
    assert (second["step"], second["phase"], third["step"]) == (1, "decode", 9)


def test_dispatch_logger_asks_msprobe_for_the_step(process: Process) -> None:
    """A counter of its own goes on where msprobe's stands still."""
    debugger = process.debugger(str(process.config))
    logger = DispatchLogger(str(process.root), 42)
    debugger.service.init_step = 5
    debugger.start(model="model")
    logger.log_step(prefill("a", 5), None)
    logger.close()
    assert [line["step"] for line in process.lines()] == [5]


def test_dispatch_logger_claims_no_step_behind_the_filter(process: Process) -> None:
    process.write_config(step=[0])
    debugger = process.debugger(str(process.config))
    logger = DispatchLogger(str(process.root), 42)
    for _ in range(3):
        debugger.start(model="model")
        logger.log_step(prefill("a", 5), None)
        debugger.stop()
        debugger.step()
    logger.close()
    assert [(line["step"], line["skipped"]) for line in process.lines()] == [
        (0, None),
        (None, "step-filter"),
        (None, "step-filter"),
    ]
