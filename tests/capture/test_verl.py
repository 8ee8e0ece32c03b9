"""verl's engines and trainers: which forwards are dumped, and that the training batch is never touched."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capture.conftest import Process
from tests.capture.fakes import DataProto, NonTensorData, NonTensorStack, Tensor, TensorDict
from train_infer_consistency.capture import verl
from train_infer_consistency.capture.log import prompt_hash

Refusal = Callable[[Callable[[], Any]], str]


class FSDPEngine:
    """verl's FSDPEngine with the woven attributes."""

    _debugger: Any = None
    _update_actor_logger_fp: Any = None

    def __init__(self, forward_only: bool = False) -> None:
        self.engine_config = types.SimpleNamespace(forward_only=forward_only, ulysses_sequence_parallel_size=2)
        self.module = "module"


class FSDPEngineWithLMHead(FSDPEngine):
    pass


class FSDPEngineWithValueHead(FSDPEngineWithLMHead):
    pass


class MegatronEngine:
    _debugger: Any = None
    _update_actor_logger_fp: Any = None

    def __init__(self) -> None:
        self.engine_config = types.SimpleNamespace(forward_only=False)
        self.tf_config = types.SimpleNamespace(sequence_parallel=True)
        self.module = [Chunk(3, 4), Chunk(7)]


class MegatronEngineWithLMHead(MegatronEngine):
    pass


class Chunk:
    """A chunk of the network whose layers have these numbers, and attentions numbered within the chunk."""

    def __init__(self, *numbers: int) -> None:
        self._modules: list[tuple[str, Any]] = [("", object()), ("module.decoder", object())]
        for local, number in enumerate(numbers):
            layer = f"module.decoder.layers.{local}"
            self._modules.append((layer, types.SimpleNamespace(layer_number=number)))
            self._modules.append((f"{layer}.self_attention", types.SimpleNamespace(layer_number=local + 1)))

    def named_modules(self) -> list[tuple[str, Any]]:
        return self._modules


def batch(ids: list[str | None] | None = ("a",), **values: Any) -> TensorDict:  # type: ignore[assignment]
    """A micro-batch of one to two samples as verl's engine gets it: left-padded prompts, right-padded responses."""
    rows = [([0, 0, 5, 6], [7, 8, 0], [0, 0, 1, 1, 1, 1, 0]), ([3, 4, 5, 6], [9, 0, 0], [1, 1, 1, 1, 1, 0, 0])]
    rows = rows[: len(ids or [1])]
    content: dict[str, Any] = {
        "prompts": Tensor([row[0] for row in rows]),
        "responses": Tensor([row[1] for row in rows]),
        "attention_mask": Tensor([row[2] for row in rows]),
        "min_global_steps": NonTensorStack([1] * len(rows)),
        "max_global_steps": NonTensorStack([2] * len(rows)),
    }
    if ids is not None:
        content["request_id"] = NonTensorStack(list(ids))
    content.update({name: NonTensorData(value) for name, value in values.items()})
    return TensorDict(content, batch_size=len(rows))


@pytest.fixture
def on(process: Process) -> Process:
    process.env(DUMP_ON="1", MSPROBE_CONFIG_PATH=str(process.config))
    process.torch.distributed.rank = 0
    return process


def opened(engine: Any) -> Any:
    verl.ensure_debugger(engine)
    return engine


def run(process: Process, engine: Any, micro: Any, forward_only: bool = True, data: Any = None) -> dict[str, Any]:
    """The woven FSDP loop's body, and the line of it."""
    ctx = nullcontext("ctx")
    woven = (
        ctx
        if engine._debugger is None
        else verl.micro_batch(engine, ctx, micro, micro if data is None else data, forward_only)
    )
    with woven as value:
        assert value == "ctx"
        process.service.record("layer")
    return lines(process)[-1]


def lines(process: Process) -> list[dict[str, Any]]:
    return process.lines("update_actor_log.jsonl")


# --- which engines --------------------------------------------------------------------------------------------


def test_the_actor_has_a_session_and_the_procedures_attributes(on: Process) -> None:
    engine = opened(FSDPEngineWithLMHead())
    assert engine._debugger.service is on.service
    assert engine._update_actor_logger_fp is engine._debugger.log
    assert (on.root / f"{os.getpid()}" / "update_actor_log.jsonl").is_file()
    again = engine._debugger
    assert opened(engine)._debugger is again


@pytest.mark.parametrize(
    "engine", [FSDPEngineWithValueHead(), FSDPEngineWithLMHead(forward_only=True)], ids=["critic", "reference"]
)
def test_critic_and_reference_model_are_kept_out(on: Process, engine: Any) -> None:
    """They share the actor's process, and msprobe's singleton would count and log their forwards as the actor's."""
    assert opened(engine)._debugger is None
    assert on.debugger._instance is None
    assert on.torch.rng == 0


def test_off(process: Process) -> None:
    assert opened(FSDPEngineWithLMHead())._debugger is None


@pytest.mark.parametrize(
    ("phase", "strategy", "level", "lora", "refused"),
    [
        ("update_actor", "fsdp2", "L0", True, True),
        ("all", "fsdp2", "mix", True, True),
        ("log_prob", "fsdp2", "L0", True, False),
        ("all", "fsdp", "L0", True, False),
        ("all", "fsdp2", "L1", True, False),
        ("all", "fsdp2", "L0", False, False),
    ],
)
def test_an_update_that_would_crash_is_refused(
    on: Process, refusal: Refusal, phase: str, strategy: str, level: str, lora: bool, refused: bool
) -> None:
    """msprobe's module hooks, an adapter and FSDP2: without a word torch ends the process."""
    on.env(DUMP_PHASE=phase)
    on.write_config(level=level)
    engine: Any = FSDPEngineWithLMHead()
    engine._is_lora, engine.engine_config.strategy = lora, strategy
    if not refused:
        assert opened(engine)._debugger is not None
        return
    for _ in range(2):
        assert "segmentation fault; use DUMP_PHASE=log_prob" in refusal(lambda: opened(engine))
    assert engine._debugger is None
    assert not list(on.root.rglob("*.jsonl"))


def test_no_config(on: Process, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    on.env(MSPROBE_CONFIG_PATH="")
    monkeypatch.setattr("train_infer_consistency.capture.switches.DOCUMENTED_ACTOR_CONFIG", str(on.site / "none.json"))
    assert "MSPROBE_CONFIG_PATH" in refusal(lambda: opened(FSDPEngineWithLMHead()))


def test_seeds_are_set_for_upstreams_own_forwards_and_kept_for_an_added_pass(on: Process) -> None:
    opened(FSDPEngineWithLMHead())
    assert on.torch.rng == 1234
    on.restart()
    on.env(PROMPTS_ONLY="1", CONSISTENCY_RUN_ID="r")
    on.write_config(dump_path=str(on.root / "second"))
    opened(FSDPEngineWithLMHead())
    assert on.torch.rng == 0
    assert on.torch.deterministic == (False, False)


# --- which forwards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts_only", "phase", "expected"),
    [
        # added pass, own log_prob, own update: what is dumped of them
        ("0", "log_prob", (True, True, False)),
        ("0", "update_actor", (True, False, True)),
        ("0", "all", (True, True, True)),
        ("1", "log_prob", (True, False, False)),
        ("1", "update_actor", (True, False, True)),
        ("1", "all", (True, False, True)),
    ],
)
def test_phases(on: Process, prompts_only: str, phase: str, expected: tuple[bool, bool, bool]) -> None:
    on.env(PROMPTS_ONLY=prompts_only, DUMP_PHASE=phase)
    engine = opened(FSDPEngineWithLMHead())
    run(on, engine, batch(consistency_dump=True, calculate_entropy=True))
    run(on, engine, batch(calculate_entropy=True))
    run(on, engine, batch(calculate_entropy=False), forward_only=False)
    assert tuple(line["step"] is not None for line in lines(on)) == expected
    assert [line["prompt_only"] for line in lines(on)] == [True, False, False]
    assert [line["phase"] for line in lines(on)] == ["log_prob", "log_prob", "update_actor"]
    assert all((line["skipped"] is None) == (line["step"] is not None) for line in lines(on))


def test_the_mark_is_read_from_the_batch(on: Process) -> None:
    on.env(PROMPTS_ONLY="1")
    engine = opened(FSDPEngineWithLMHead())
    assert run(on, engine, batch(), data=batch(consistency_dump=True))["step"] == 0


def test_loras_reference_pass_is_not_the_actors(on: Process) -> None:
    """The actor's engine with its adapter off: a second line for the same ids, with other weights."""
    engine = opened(FSDPEngineWithLMHead())
    assert run(on, engine, batch(calculate_entropy=False))["skipped"] == "reference"
    assert run(on, engine, batch(calculate_entropy=True))["step"] == 0


@pytest.mark.parametrize("phase", ["log_prob", "all"])
def test_a_trainer_without_the_added_pass_is_refused_at_its_first_update(
    on: Process, refusal: Refusal, phase: str
) -> None:
    """One whose step is not edited would train to its end and leave nothing that could be compared."""
    on.env(PROMPTS_ONLY="1", DUMP_PHASE=phase)
    engine = opened(FSDPEngineWithLMHead())
    assert run(on, engine, batch())["skipped"] == "not-prompt-only"
    assert "PROMPTS_ONLY=0" in refusal(lambda: run(on, engine, batch(), forward_only=False))
    assert "its step is not edited" in refusal(lambda: run(on, engine, batch(), forward_only=False))
    assert len(lines(on)) == 1
    megatron = MegatronEngineWithLMHead()
    megatron._debugger = engine._debugger
    assert "its step is not edited" in refusal(lambda: verl.should_dump(megatron, batch(), False))


def test_an_added_pass_leaves_the_random_state(on: Process) -> None:
    on.env(PROMPTS_ONLY="1", MSPROBE_SEED="9")
    engine = opened(FSDPEngineWithLMHead())
    on.torch.rng = 5
    with verl.micro_batch(engine, nullcontext(), batch(), batch(consistency_dump=True), True):
        assert on.torch.rng == 9
        on.torch.rng = 6
    assert on.torch.rng == 5


def test_upstreams_own_forward_moves_the_random_state_as_ever(on: Process) -> None:
    engine = opened(FSDPEngineWithLMHead())
    on.torch.rng = 5
    with verl.micro_batch(engine, nullcontext(), batch(), batch(), True):
        on.torch.rng = 6
    assert on.torch.rng == 6


def test_a_failed_micro_batch(on: Process) -> None:
    engine = opened(FSDPEngineWithLMHead())
    with pytest.raises(MemoryError), verl.micro_batch(engine, nullcontext(), batch(), batch(), True):
        raise MemoryError
    assert run(on, engine, batch())["step"] == 0
    assert lines(on)[0]["invalid"] is True


@pytest.mark.parametrize("fixed", [True, False])
def test_a_mask_that_would_hide_every_prompt_token(
    on: Process, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, fixed: bool
) -> None:
    module: Any = types.ModuleType("verl.workers.engine.fsdp.transformer_impl")
    if fixed:
        module.build_attention_mask_from_nested = object()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    engine = opened(FSDPEngineWithLMHead())
    if fixed:
        assert run(on, engine, batch(use_remove_padding=False))["step"] == 0
    else:
        assert "use_remove_padding" in refusal(lambda: run(on, engine, batch(use_remove_padding=False)))
        assert run(on, engine, batch(use_remove_padding=True))["step"] == 0


# --- what a line says ---------------------------------------------------------------------------------------------


def test_documented_fields_and_what_pairing_needs(on: Process) -> None:
    engine = opened(FSDPEngineWithLMHead())
    numbers = {"consistency_weight_version": 4, "consistency_trainer_step": 5}
    line = run(on, engine, batch(["a", "b"], **numbers, use_remove_padding=True))
    assert (line["source"], line["rank"], line["step"], line["engine"]) == ("update_actor", 0, 0, "verl-fsdp")
    assert (line["request_ids"], line["num_requests"]) == (["a", "b"], 2)
    assert (line["weight_version"], line["trainer_step"]) == (4, 5)
    assert line["requests"] == [
        {
            "request_id": "a",
            "prompt_length": 2,
            "response_length": 2,
            "prompt_hash": prompt_hash([5, 6]),
            "rollout_weight_versions": [1, 2],
        },
        {
            "request_id": "b",
            "prompt_length": 4,
            "response_length": 1,
            "prompt_hash": prompt_hash([3, 4, 5, 6]),
            "rollout_weight_versions": [1, 2],
        },
    ]
    assert line["dump"] == "step0/rank0"
    assert line["parallel"]["ulysses_size"] == 2
    assert on.service.started[0]["model"] == "module"


@pytest.mark.parametrize(
    ("given", "versions"),
    [
        # A hybrid rollout's server says one number; the keys of an interrupted request are there and empty.
        ({"global_steps": NonTensorStack([4])}, [4, 4]),
        ({"global_steps": NonTensorData(5)}, [None, None]),
        ({}, [None, None]),
    ],
)
def test_a_hybrid_rollouts_own_weight_version(on: Process, given: dict[str, Any], versions: list[int | None]) -> None:
    engine, micro = opened(FSDPEngineWithLMHead()), batch()
    micro._values |= {f"{end}_global_steps": NonTensorStack([None]) for end in ("min", "max")} | given
    assert run(on, engine, micro)["requests"][0]["rollout_weight_versions"] == versions


def test_missing_ids_are_null_and_never_the_word_none(on: Process) -> None:
    engine = opened(FSDPEngineWithLMHead())
    assert run(on, engine, batch(["a", None]))["request_ids"] == ["a", None]
    for absent in (batch([None]), batch(None)):
        line = run(on, engine, absent)
        assert (line["request_ids"], line["num_requests"]) == ([], 1)
        assert line["requests"][0]["request_id"] is None


def test_a_line_by_hand(on: Process) -> None:
    engine = opened(FSDPEngineWithLMHead())
    engine._debugger.start(model="module")
    verl.log_update_actor_step(engine, batch())
    assert (lines(on)[0]["step"], lines(on)[0]["request_ids"]) == (0, ["a"])
    verl.log_update_actor_step(FSDPEngineWithLMHead(), batch())


# --- Megatron ----------------------------------------------------------------------------------------------------


def megatron_forward(process: Process, engine: Any, model: Any, micro: Any) -> Any:
    """The woven forward_step: the wrapped function is called as upstream calls it."""

    def forward_fn(model: Any, input_ids: Any, *, data_format: str) -> tuple[Any, ...]:
        process.service.record("layer")
        return model, input_ids, data_format

    forward = forward_fn if not engine._should_dump else verl.around_forward(engine, forward_fn, model, micro)
    assert process.service.primitive_switch is False
    result = forward(model, "ids", data_format="thd")
    assert process.service.primitive_switch is False
    return result


def test_megatron_dumps_tightly_around_the_forward_of_each_chunk(on: Process) -> None:
    engine = opened(MegatronEngineWithLMHead())
    engine._should_dump = verl.should_dump(engine, batch(), True)
    for chunk in engine.module:
        assert megatron_forward(on, engine, chunk, batch()) == (chunk, "ids", "thd")
    first, second = lines(on)
    assert [line["step"] for line in (first, second)] == [0, 1]
    assert [line["request_ids"] for line in (first, second)] == [["a"], ["a"]]
    assert [line["virtual_chunk"] for line in (first, second)] == [0, 1]
    assert [line["first_layer"] for line in (first, second)] == [2, 6]
    assert (first["virtual_chunks"], first["sequence_parallel"], first["backward"]) == (2, True, False)
    assert first["engine"] == "verl-megatron"
    assert [start["model"] for start in on.service.started] == engine.module


def test_megatron_logs_what_it_does_not_dump(on: Process) -> None:
    on.env(PROMPTS_ONLY="1")
    engine = opened(MegatronEngineWithLMHead())
    for data, forward_only in ((batch(consistency_dump=True), True), (batch(), True), (batch(), False)):
        engine._should_dump = verl.should_dump(engine, data, forward_only)
        megatron_forward(on, engine, engine.module[0], batch())
    assert [(line["step"], line["skipped"]) for line in lines(on)] == [
        (0, None),
        (None, "not-prompt-only"),
        (None, "phase"),
    ]


def test_megatron_without_a_session(process: Process) -> None:
    assert verl.should_dump(MegatronEngineWithLMHead(), batch(), True) is False


def test_megatrons_parallel_ranks(on: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = types.ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: True
    for group in ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel", "data_parallel"):
        setattr(state, f"get_{group}_rank", lambda group=group: len(group))
        setattr(state, f"get_{group}_world_size", lambda group=group: 100 + len(group))
    monkeypatch.setitem(sys.modules, state.__name__, state)
    engine = opened(MegatronEngineWithLMHead())
    engine._should_dump = verl.should_dump(engine, batch(), True)
    megatron_forward(on, engine, engine.module[0], batch())
    parallel = lines(on)[0]["parallel"]
    assert (parallel["tp_rank"], parallel["tp_size"]) == (21, 121)
    assert (parallel["pp_rank"], parallel["cp_rank"], parallel["dp_rank"]) == (23, 16, 13)


# --- request ids --------------------------------------------------------------------------------------------------


def token_output(tokens: list[int], **fields: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(token_ids=tokens, extra_fields=fields)


def test_the_engines_id_travels(process: Process) -> None:
    output = token_output([1], global_steps=3)
    verl.keep_request_id(output, "id")
    assert output.extra_fields == {"global_steps": 3, "request_id": "id"}
    verl.keep_request_id(types.SimpleNamespace(), "id")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_the_kept_id_is_the_one_whose_prefill_was_the_prompt(attempts: list[int]) -> None:
    """However often a request is interrupted, each time after some number of new tokens."""
    final = token_output([])
    prefilled: dict[str, int] = {}
    for number, count in enumerate(attempts):
        output = token_output([9] * count, request_id=f"id{number}")
        prefilled[f"id{number}"] = len(final.token_ids)
        final.token_ids.extend(output.token_ids)
        verl.keep_first_request_id(final, output)
    kept = final.extra_fields["request_id"]
    assert prefilled[kept] == 0
    # Of several such attempts the last: the earlier ones may have been interrupted before they were run at all.
    assert kept == max((name for name, before in prefilled.items() if before == 0), key=lambda name: int(name[2:]))


def test_a_resumed_attempt_without_an_id(process: Process) -> None:
    final = token_output([1])
    verl.keep_first_request_id(final, token_output([1]))
    assert final.extra_fields == {}


# --- the added pass --------------------------------------------------------------------------------------------------


def training_batch(width: int, responses: int, mrope: bool = False) -> DataProto:
    """A DataProto of two samples, as the trainer has it before old_log_prob."""

    def rows(length: int, start: int = 0) -> list[list[int]]:
        return [[10 * row + start + n for n in range(length)] for row in range(2)]

    both = width + responses
    positions: list[Any] = [rows(both)] * 2 if mrope else rows(both)
    tensors = {
        "prompts": Tensor(rows(width)),
        "responses": Tensor(rows(responses, width)),
        "response_mask": Tensor([[1] * responses] * 2),
        "input_ids": Tensor(rows(both)),
        "attention_mask": Tensor([[1] * both] * 2),
        "position_ids": Tensor(positions),
        "rollout_log_probs": Tensor([[0] * responses] * 2),
        "rm_scores": Tensor([[0] * responses] * 2),
    }
    return DataProto(
        TensorDict(tensors, 2), {"request_id": ["a", "b"]}, {"temperature": 1.0, "global_token_num": [both] * 2}
    )


def contents(data: DataProto) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    tensors = {name: data.batch[name].tolist() for name in data.batch.keys()}  # noqa: SIM118 - as a TensorDict
    return tensors, dict(data.non_tensor_batch), dict(data.meta_info)


@given(st.integers(1, 6), st.integers(0, 6), st.booleans())
def test_the_copy_ends_where_the_prompts_end_and_the_batch_stays(width: int, responses: int, mrope: bool) -> None:
    """Also for an empty response, where cutting by the response's width would leave nothing."""
    data = training_batch(width, responses, mrope)
    before = contents(data)
    copy = verl.prompt_only_copy(data, 7)
    assert contents(data) == before
    for name in ("input_ids", "attention_mask"):
        assert copy.batch[name].tolist() == [row[:width] for row in data.batch[name].tolist()]
    expected = data.batch["position_ids"].tolist()
    cut = [[line[:width] for line in row] for row in expected] if mrope else [row[:width] for row in expected]
    assert copy.batch["position_ids"].tolist() == cut
    assert copy.batch["prompts"].tolist() == data.batch["prompts"].tolist()
    for name in ("responses", "response_mask"):
        assert copy.batch[name].tolist() == [[], []]
    assert copy.non_tensor_batch == data.non_tensor_batch
    assert copy.meta_info["global_token_num"] == [width, width]
    assert (copy.meta_info["temperature"], copy.meta_info["consistency_dump"]) == (1.0, True)
    # Nothing that depends on the response goes along, and cutting twice is cutting once.
    assert copy.batch.keys() == {"prompts", "responses", "response_mask", "input_ids", "attention_mask", "position_ids"}
    assert contents(verl.prompt_only_copy(copy, 7)) == contents(copy)
    # What the engine does to the copy in place stays in the copy.
    assert not any(copy.batch[name].is_view or copy.batch[name] is data.batch[name] for name in set(copy.batch.keys()))


def test_routed_experts_are_cut_along(process: Process) -> None:
    data = training_batch(3, 2)
    data.batch._values["routed_experts"] = Tensor([[[n] for n in range(5)]] * 2)
    assert verl.prompt_only_copy(data).batch["routed_experts"].tolist() == [[[0], [1], [2]]] * 2


class Trainer:
    """RayPPOTrainer: its own function chooses the weights."""

    global_steps = 3

    def __init__(self, strategy: str = "fsdp2") -> None:
        self.passes: list[DataProto] = []
        # verl: actor.strategy=mindspeed, actor.mindspeed.strategy=mindspeed_megatron
        package = strategy.partition("_")[0]
        engine = {package: types.SimpleNamespace(strategy=strategy)}
        actor = types.SimpleNamespace(strategy=package, **engine)
        self.config = types.SimpleNamespace(actor_rollout_ref=types.SimpleNamespace(actor=actor))

    def _compute_old_log_prob(self, data: DataProto) -> tuple[str, float]:
        data.batch._values.pop("input_ids")
        data.meta_info["temperature"] = None
        self.passes.append(data)
        return "log_prob", 0.0


def test_the_added_pass_runs_once_over_a_copy(process: Process) -> None:
    process.env(DUMP_ON="1", PROMPTS_ONLY="1")
    trainer, data = Trainer(), training_batch(3, 2)
    before = contents(data)
    verl.prompt_only_pass(trainer, data)
    (copy,) = trainer.passes
    assert copy is not data
    # The trainer's third step computes with the weights that the second one made, and the rollout had those.
    assert (copy.meta_info["consistency_weight_version"], copy.meta_info["consistency_trainer_step"]) == (2, 3)
    assert contents(data) == before


def test_fully_async_weights_have_their_own_version(process: Process) -> None:
    process.env(DUMP_ON="1", PROMPTS_ONLY="1")
    trainer: Any = Trainer()
    trainer.current_param_version = 0
    verl.prompt_only_pass(trainer, training_batch(3, 2))
    assert trainer.passes[0].meta_info["consistency_weight_version"] == 0


def test_without_prompts_only_nothing_is_added(process: Process) -> None:
    process.env(DUMP_ON="1", PROMPTS_ONLY="no")
    trainer = Trainer()
    verl.prompt_only_pass(trainer, training_batch(3, 2))
    assert trainer.passes == []


@pytest.mark.parametrize("prompts_only", ["0", "1"])
def test_an_engine_that_is_not_edited_is_refused_by_name(process: Process, refusal: Refusal, prompts_only: str) -> None:
    process.env(DUMP_ON="1", PROMPTS_ONLY=prompts_only)
    for trainer in map(Trainer, ("veomni", "torchtitan", "automodel", "mindspeed_fsdp")):
        text = refusal(functools.partial(verl.prompt_only_pass, trainer, training_batch(3, 2)))
        actor = trainer.config.actor_rollout_ref.actor
        assert f"strategy={getattr(actor, actor.strategy).strategy}" in text
        assert trainer.passes == []
    for strategy in ("fsdp", "fsdp2", "megatron", "mindspeed_megatron", "mindspeed_llm"):
        verl.prompt_only_pass(Trainer(strategy), training_batch(3, 2))
