"""SGLang's ModelRunner: only a real prompt prefill is dumped, and every forward has a line."""

from __future__ import annotations

import enum
import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.capture.conftest import Process
from tests.capture.fakes import Tensor
from train_infer_consistency.capture.log import prompt_hash
from train_infer_consistency.capture.sglang import SglangSession, open_session

Refusal = Callable[[Callable[[], Any]], str]
Mode = enum.Enum(
    "Mode",
    "EXTEND DECODE MIXED IDLE TARGET_VERIFY DRAFT_EXTEND DRAFT_EXTEND_V2 PREBUILT SPLIT_PREFILL DLLM_EXTEND",
)


class Runner:
    """As much of a ModelRunner as capture reads; three ways to give it new weights."""

    def __init__(self, gpu_id: int = 0, device: str = "cpu", draft: bool = False, **args: Any) -> None:
        self.gpu_id, self.tp_rank, self.tp_size, self.pp_rank, self.pp_size = gpu_id, 0, 1, 0, 1
        self.device, self.is_draft_worker = device, draft
        self.model = object()
        self.updates = 0
        given = {"disable_cuda_graph": True, "dp_size": 1, "enable_dp_attention": False, "node_rank": 0, "port": 30000}
        self.server_args = types.SimpleNamespace(**{**given, **args})

    def update_weights_from_tensor(self, tensors: list[str]) -> tuple[bool, str]:
        self.updates += 1
        return True, tensors[0]


def batch(
    ids: list[list[int]],
    prefixes: list[int] | None = None,
    wholes: list[int] | None = None,
    rids: list[str] | None = None,
    mode: str = "EXTEND",
) -> types.SimpleNamespace:
    """A ForwardBatch: the tokens each request computes, how many are cached before them, and its whole length."""
    lengths = [len(tokens) for tokens in ids]
    prefixes = prefixes or [0] * len(ids)
    made = types.SimpleNamespace(
        forward_mode=Mode[mode],
        batch_size=len(ids),
        input_ids=Tensor([token for tokens in ids for token in tokens]),
        extend_seq_lens_cpu=lengths if mode in ("EXTEND", "MIXED") else None,
        extend_prefix_lens_cpu=prefixes if mode in ("EXTEND", "MIXED") else None,
        orig_seq_lens=Tensor(wholes or [p + n for p, n in zip(prefixes, lengths, strict=True)]),
    )
    if rids is not None:
        made.rids = rids
    return made


PROMPT = [11, 12, 13, 14, 15, 16, 17, 18]


@pytest.fixture
def on(process: Process) -> Process:
    process.env(SGLANG_MSPROBE_DUMP="1", MSPROBE_GENERATE_CONFIG=str(process.config))
    process.torch.distributed.rank = 0
    return process


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def session(on: Process, runner: Runner) -> SglangSession:
    opened = open_session(runner)
    assert opened is not None
    return opened


@contextmanager
def region() -> Iterator[dict[str, str]]:
    """SGLang's own context manager around the forward; the forward uses its value."""
    yield {"metrics": "value"}


def run(process: Process, session: SglangSession, runner: Runner, forward_batch: Any) -> dict[str, Any]:
    """What the woven forward does, and the line of it."""
    with session.around(runner, region(), forward_batch) as outputs:
        assert outputs == {"metrics": "value"}
        process.service.record("layer")
    line: dict[str, Any] = process.lines()[-1]
    return line


def test_a_whole_prompt_is_dumped_into_the_procedures_folder(
    on: Process, session: SglangSession, runner: Runner
) -> None:
    line = run(on, session, runner, batch([PROMPT], rids=["rid-0"]))
    assert (line["step"], line["skipped"], line["dump"]) == (0, None, "step0/rank0")
    assert on.dump(line["dump"]) == ["layer"]
    assert line["requests"] == [
        {
            "request_id": "rid-0",
            "type": "new",
            "tokens": 8,
            "phase": "prefill",
            "computed_tokens": 0,
            "prompt_length": 8,
            "prompt_hash": prompt_hash(PROMPT),
        }
    ]
    assert on.service.started == [{"model": runner.model, "rank_id": 0}]


def test_without_request_ids_the_hash_still_names_the_prompt(
    on: Process, session: SglangSession, runner: Runner
) -> None:
    """ForwardBatch has no rids before 0.5.10."""
    (entry,) = run(on, session, runner, batch([PROMPT]))["requests"]
    assert (entry["request_id"], entry["prompt_hash"]) == (None, prompt_hash(PROMPT))


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (batch([[5]], mode="DECODE"), "decode"),
        (batch([], mode="IDLE"), "idle"),
        (batch([PROMPT, [5]], mode="MIXED"), "packed"),
        (batch([[1, 2, 3]], mode="TARGET_VERIFY"), "speculative"),
        (batch([[1, 2, 3]], mode="DRAFT_EXTEND"), "draft"),
        (batch([[1, 2, 3]], mode="DRAFT_EXTEND_V2"), "draft"),
        (batch([PROMPT], mode="SPLIT_PREFILL"), "split_prefill"),
        (batch([PROMPT], mode="DLLM_EXTEND"), "dllm_extend"),
        (batch([PROMPT, PROMPT, PROMPT]), "packed"),
        (batch([[18]], prefixes=[7]), "cached-prefix"),
        (batch([PROMPT], wholes=[12]), "chunked"),
        (batch([[0]]), "too-short"),
        (batch([PROMPT], rids=["HEALTH_CHECK_17"]), "health"),
        (batch([[5]], rids=["HEALTH_CHECK_17"], mode="DECODE"), "health"),
    ],
)
def test_what_is_no_prompt_prefill(
    on: Process, session: SglangSession, runner: Runner, forward: Any, reason: str
) -> None:
    if reason.endswith("extend") or reason == "split_prefill":
        forward.extend_seq_lens_cpu, forward.extend_prefix_lens_cpu = [8], [0]
    line = run(on, session, runner, forward)
    assert (line["step"], line["skipped"]) == (None, reason)
    assert on.rank_folders() == []
    # The next real prompt has the first step, so that "step": [0] means it.
    assert run(on, session, runner, batch([PROMPT]))["step"] == 0


def test_both_chunks_of_a_prompt_are_called_chunks(on: Process, session: SglangSession, runner: Runner) -> None:
    first = run(on, session, runner, batch([PROMPT], wholes=[12]))
    second = run(on, session, runner, batch([[1, 2, 3, 4]], prefixes=[8]))
    assert [line["skipped"] for line in (first, second)] == ["chunked", "chunked"]
    assert [line["requests"][0]["prompt_hash"] for line in (first, second)] == [None, None]


def test_a_chunk_that_was_packed_has_a_last_chunk_too(on: Process, session: SglangSession, runner: Runner) -> None:
    forwards = (
        batch([[1, 2], PROMPT], wholes=[2, 12]),
        batch([[1, 2, 3, 4]], prefixes=[8]),
        # Other prompts, of which as much is in the prefix cache as either chunk left there.
        batch([[7]], prefixes=[12]),
        batch([[7]], prefixes=[8]),
    )
    lines = [run(on, session, runner, forward) for forward in forwards]
    assert [line["skipped"] for line in lines] == ["packed", "chunked", "cached-prefix", "cached-prefix"]


def test_a_draft_model_leaves_its_targets_forwards_what_they_are(
    on: Process, session: SglangSession, runner: Runner
) -> None:
    draft = Runner(draft=True)
    first, second = batch([PROMPT], wholes=[12], rids=["a"]), batch([[1, 2, 3, 4]], prefixes=[8], rids=["a"])
    whole = batch([PROMPT], rids=["b"])
    order = ((runner, first), (draft, first), (runner, second), (draft, second), (draft, whole), (runner, whole))
    lines = [run(on, session, who, forward) for who, forward in order]
    assert [line["skipped"] for line in lines] == ["chunked", "draft", "chunked", "draft", "draft", None]


def test_a_request_that_was_pushed_out_comes_back_longer(on: Process, session: SglangSession, runner: Runner) -> None:
    run(on, session, runner, batch([PROMPT], rids=["a"]))
    assert run(on, session, runner, batch([[*PROMPT, 1, 2]], rids=["a"]))["skipped"] == "resumed"


def test_hashes_of_packed_prompts(on: Process, session: SglangSession, runner: Runner) -> None:
    line = run(on, session, runner, batch([[1, 2], PROMPT], rids=["a", "b"]))
    assert [entry["prompt_hash"] for entry in line["requests"]] == [prompt_hash([1, 2]), prompt_hash(PROMPT)]
    assert line["total_num_scheduled_tokens"] == 10


def test_the_least_length_is_a_switch(on: Process, runner: Runner) -> None:
    on.env(MSPROBE_MIN_DUMP_TOKENS="1")
    session = open_session(runner)
    assert session is not None
    assert run(on, session, runner, batch([[7]]))["step"] == 0


def test_everything_if_asked_for_but_not_another_model(on: Process, runner: Runner) -> None:
    on.env(CONSISTENCY_DUMP_ALL="1")
    session = open_session(runner)
    assert session is not None
    assert run(on, session, runner, batch([[5]], mode="DECODE"))["step"] == 0
    assert run(on, session, Runner(draft=True), batch([PROMPT]))["skipped"] == "draft"
    assert run(on, session, runner, batch([], mode="IDLE"))["skipped"] == "idle"


def test_a_draft_worker_joins_its_targets_session_and_is_never_dumped(on: Process, runner: Runner) -> None:
    draft = Runner(draft=True)
    assert open_session(draft) is None
    session = open_session(runner)
    assert session is not None
    assert open_session(draft) is session
    assert run(on, session, draft, batch([PROMPT]))["skipped"] == "draft"


def test_an_exception_in_the_forward(on: Process, session: SglangSession, runner: Runner) -> None:
    with pytest.raises(MemoryError), session.around(runner, region(), batch([PROMPT])):
        raise MemoryError
    line = run(on, session, runner, batch([PROMPT]))
    assert (line["step"], on.dump(line["dump"])) == (0, ["layer"])
    assert [entry.get("invalid", False) for entry in on.lines()] == [True, False]


def test_new_weights_are_a_new_version(on: Process, session: SglangSession, runner: Runner) -> None:
    before = run(on, session, runner, batch([PROMPT]))
    assert runner.update_weights_from_tensor(["w"]) == (True, "w")
    after = run(on, session, runner, batch([PROMPT], rids=["b"]))
    assert (before["weight_version"], after["weight_version"], runner.updates) == (0, 1, 1)


def test_rank_folders_of_engines_and_nodes_never_collide(on: Process) -> None:
    """Cards are numbered on each node from 0, so two nodes' engines give msprobe the same rank."""
    on.env(CONSISTENCY_RUN_ID="r")
    for _ in range(3):
        on.restart()
        on.env(CONSISTENCY_RUN_ID="r")
        session = open_session(Runner())
        assert session is not None
        with session.around(Runner(), region(), batch([PROMPT])):
            on.service.record("layer")
    dumps = {line["dump"] for line in on.lines()}
    assert len(dumps) == 3
    assert "step0/rank0" in dumps
    assert all(on.dump(dump) == ["layer"] for dump in dumps)


@pytest.mark.parametrize("on_or_off", [True, False])
def test_attention_data_parallelism_is_in_every_line(on: Process, on_or_off: bool) -> None:
    """With it the MLP of every rank sees all ranks' tokens, so that no row behind the attention has a partner."""
    runner = Runner(enable_dp_attention=on_or_off, dp_size=2)
    session = open_session(runner)
    assert session is not None
    parallel = run(on, session, runner, batch([PROMPT]))["parallel"]
    assert (parallel["dp_attention"], parallel["dp_size"]) == (on_or_off, 2)


def test_two_cards_of_one_node_keep_the_procedures_folders(on: Process) -> None:
    on.env(CONSISTENCY_RUN_ID="r")
    for card in (0, 1):
        on.restart()
        on.env(CONSISTENCY_RUN_ID="r")
        runner = Runner(gpu_id=card)
        session = open_session(runner)
        assert session is not None
        with session.around(runner, region(), batch([PROMPT])):
            pass
    assert {line["dump"] for line in on.lines()} == {"step0/rank0", "step0/rank1"}


def test_off(process: Process, runner: Runner) -> None:
    assert open_session(runner) is None


def test_the_config_is_needed(process: Process, runner: Runner, refusal: Refusal) -> None:
    process.env(SGLANG_MSPROBE_DUMP="1")
    assert "MSPROBE_GENERATE_CONFIG" in refusal(lambda: open_session(runner))


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ({"disable_cuda_graph": False}, "--disable-cuda-graph"),
        ({"disable_piecewise_cuda_graph": False}, "--disable-piecewise-cuda-graph"),
        ({"enable_piecewise_cuda_graph": True}, "--enable-piecewise-cuda-graph"),
    ],
)
def test_graphs_are_refused_by_name(on: Process, refusal: Refusal, args: dict[str, bool], word: str) -> None:
    assert word in refusal(lambda: open_session(Runner(device="cuda", **args)))


@pytest.mark.parametrize(
    ("device", "args"),
    [
        ("cuda", {"disable_piecewise_cuda_graph": True}),
        ("cuda", {"enable_piecewise_cuda_graph": False}),
        # The piecewise graph is never used on an NPU, though its option is on by default.
        ("npu", {"disable_piecewise_cuda_graph": False}),
        ("cpu", {"disable_cuda_graph": False}),
    ],
)
def test_eager_is_accepted(on: Process, device: str, args: dict[str, bool]) -> None:
    assert open_session(Runner(device=device, **args)) is not None


def test_the_procedures_seed(on: Process, session: SglangSession) -> None:
    assert on.torch.rng == 1234
    assert on.torch.utils.deterministic.fill_uninitialized_memory is False
    assert {line.name for line in on.root.glob(f"{os.getpid()}/*")} == {"dispatch_log.jsonl"}
