"""With a switch on, each edit calls capture at the right place, with the right things, and once.

The woven skeletons run in this process. Capture's module is replaced by one that writes down who called it, and what
upstream did before and after.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.capture import verl as real_verl
from train_infer_consistency.overlay.inspect import weave_upstream
from train_infer_consistency.overlay.trees import MappingTree

from .trees import skeleton, skeleton_lock, upstreams

Woven = Callable[[str, str, types.ModuleType], Any]


@pytest.fixture
def woven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Woven]:
    """``woven(upstream, path, capture)``: a module of a woven skeleton, imported with its switch on."""
    before = set(sys.modules)

    def load(name: str, path: str, capture: types.ModuleType) -> Any:
        upstream = upstreams()[name]
        files = dict(skeleton(name))
        files |= {
            file.path: file.after
            for file in weave_upstream(upstream, MappingTree(name, skeleton(name)), skeleton_lock(name)).files
        }
        for file, data in files.items():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes(data)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("DUMP_ON", "1")
        monkeypatch.setenv("SGLANG_MSPROBE_DUMP", "1")
        short = {"vllm-ascend": "vllm"}.get(name, name)
        monkeypatch.setitem(sys.modules, f"train_infer_consistency.capture.{short}", capture)
        importlib.invalidate_caches()
        return importlib.import_module(path)

    yield load
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"verl", "vllm", "vllm_ascend", "slime", "sglang"}:
            del sys.modules[name]


class Batch(list[int]):
    """Numbers that note when a forward reads them."""

    def __init__(self, events: list[Any], numbers: list[int], error: Exception | None = None) -> None:
        super().__init__(numbers)
        self._events, self._error = events, error

    def __iter__(self) -> Iterator[int]:
        self._events.append("forward")
        if self._error is not None:
            raise self._error
        return super().__iter__()


@contextmanager
def noted(events: list[Any], region: Any) -> Iterator[Any]:
    """A session's context manager around upstream's own."""
    events.append("start")
    with region as value:
        try:
            yield value
        except BaseException:
            events.append("fail")
            raise
    events.append("stop")


# --- verl's FSDP engine -----------------------------------------------------------------------------------------

FSDP = "verl.workers.engine.fsdp.transformer_impl"
MEGATRON = "verl.workers.engine.megatron.transformer_impl"


@pytest.fixture
def events() -> list[Any]:
    return []


def fsdp_capture(events: list[Any]) -> types.ModuleType:
    capture: Any = types.ModuleType("capture")

    def ensure_debugger(engine: Any) -> None:
        events.append("ensure")
        engine._debugger = "session"

    def micro_batch(engine: Any, region: Any, micro: Any, data: Any, forward_only: bool) -> Any:
        events.append(("micro", micro is data[0], forward_only))
        return noted(events, region)

    capture.ensure_debugger, capture.micro_batch = ensure_debugger, micro_batch
    return capture  # type: ignore[no-any-return]


def test_fsdp_each_micro_batch_lies_in_a_session_that_was_opened_before(woven: Woven, events: list[Any]) -> None:
    engine = woven("verl", FSDP, fsdp_capture(events)).make()
    result = engine.forward_backward_batch([Batch(events, [1, 2]), Batch(events, [3])], forward_only=True)
    assert result == [3, 3]
    forward = ["start", "forward", "stop"]
    assert events == ["ensure", ("micro", True, True), *forward, ("micro", False, True), *forward]


def test_fsdp_a_failing_micro_batch_ends_its_session(woven: Woven, events: list[Any]) -> None:
    engine = woven("verl", FSDP, fsdp_capture(events)).make()
    with pytest.raises(MemoryError):
        engine.forward_backward_batch([Batch(events, [1], MemoryError())])
    assert events == ["ensure", ("micro", True, False), "start", "forward", "fail"]


@pytest.mark.parametrize("path", [FSDP, MEGATRON])
def test_engines_have_the_attributes_without_their_constructor(woven: Woven, events: list[Any], path: str) -> None:
    """A subclass that does not call its base's constructor is as good as any."""
    module = woven("verl", path, fsdp_capture(events))
    base = module.FSDPEngine if path == FSDP else module.MegatronEngineWithLMHead
    engine = base.__new__(base)
    assert (engine._debugger, engine._update_actor_logger_fp) == (None, None)


# --- verl's Megatron engine -------------------------------------------------------------------------------------


def megatron_capture(events: list[Any]) -> types.ModuleType:
    capture: Any = types.ModuleType("capture")

    def should_dump(engine: Any, data: Any, forward_only: bool) -> bool:
        events.append(("decide", len(data), forward_only))
        return True

    def around_forward(engine: Any, forward: Any, model: Any, batch: Any) -> Any:
        def call(*args: Any) -> Any:
            events.append(("start", model is abs, batch is args[1]))
            result = forward(*args)
            events.append("stop")
            return result

        return call

    capture.ensure_debugger = lambda engine: events.append("ensure")
    capture.should_dump, capture.around_forward = should_dump, around_forward
    return capture  # type: ignore[no-any-return]


@pytest.mark.parametrize("fused", [False, True])
def test_megatron_only_the_models_forward_lies_between_start_and_stop(
    woven: Woven, events: list[Any], fused: bool
) -> None:
    engine = woven("verl", MEGATRON, megatron_capture(events)).make()
    engine.forward_backward_batch([Batch(events, [1, 2]), Batch(events, [3])], forward_only=fused)
    forward = [("start", True, True), "forward", "stop"]
    assert events == ["ensure", ("decide", 2, fused), *forward, *forward]


def test_megatron_another_head_has_no_session_around_it(woven: Woven, events: list[Any]) -> None:
    """The critic's engine has a forward step of its own."""
    module = woven("verl", MEGATRON, megatron_capture(events))

    class WithValueHead(module.MegatronEngine):  # type: ignore[misc, name-defined]
        def forward_step(self, batch: Any, fused: bool) -> int:
            return len(batch)

    assert WithValueHead().forward_backward_batch([[1, 2]]) == [2]
    assert events == ["ensure", ("decide", 1, False)]


# --- request ids through verl -----------------------------------------------------------------------------------


def client_of(base: type[Any], asked: list[str]) -> Any:
    class Client(base):  # type: ignore[misc]
        async def ask(self, request_id: str, prompt: list[int]) -> Any:
            asked.append(request_id)
            return await super().ask(request_id, prompt)

    return Client(100)


def test_the_id_that_travels_is_the_one_the_engine_was_given(woven: Woven) -> None:
    module = woven("verl", "verl.workers.rollout.llm_server", real_verl)
    asked: list[str] = []
    output = module.finish(client_of(module.LLMServerClient, asked).generate([1, 2, 3]))
    assert len(asked) == 1
    assert output.extra_fields == {"request_id": asked[0]}


def test_a_resumed_generation_keeps_the_id_of_its_first_attempt(woven: Woven) -> None:
    """Only the first attempt's prefill is the prompt alone."""
    module = woven("verl", "verl.experimental.fully_async_policy.fully_async_rollouter", real_verl)
    server = importlib.import_module("verl.workers.rollout.llm_server")
    asked: list[str] = []
    output = server.finish(client_of(module.FullyAsyncLLMServerClient, asked).generate([1, 2, 3]))
    assert len(asked) == 2
    assert output.extra_fields == {"request_id": asked[0]}


def test_agent_loop_workers_have_the_column_whether_or_not_they_have_ids(woven: Woven) -> None:
    worker = woven("verl", "verl.experimental.agent_loop.agent_loop", real_verl).make()
    assert worker._postprocess([{"turns": 1}]) == {"request_id": [None], "reward": [None], "turns": [1]}


# --- verl's trainers --------------------------------------------------------------------------------------------


def trainer_capture(passes: list[Any]) -> types.ModuleType:
    capture: Any = types.ModuleType("capture")

    def prompt_only_pass(trainer: Any, batch: Any) -> None:
        passes.append((trainer, list(batch.rows), dict(batch.meta_info)))
        batch.rows.append(100)

    capture.prompt_only_pass = prompt_only_pass
    return capture  # type: ignore[no-any-return]


def test_the_added_pass_comes_before_old_log_probs_also_where_these_are_bypassed(woven: Woven) -> None:
    passes: list[Any] = []
    plain, bypassing = woven("verl", "verl.trainer.ppo.ray_trainer", trainer_capture(passes)).make()
    assert plain.fit() == [0, 1, 100, 1, 2, 100]
    assert bypassing.fit() == [0, 1, 100]
    assert [(trainer is plain, rows) for trainer, rows, _ in passes] == [
        (True, [0, 1]),
        (True, [1, 2]),
        (False, [0, 1]),
        (False, [1, 2]),
    ]


def test_fully_async_the_added_pass_has_the_temperature(woven: Woven) -> None:
    passes: list[Any] = []
    trainer = woven("verl", "verl.experimental.fully_async_policy.fully_async_trainer", trainer_capture(passes)).make()
    assert trainer._fit_generate().rows == [7, 100]
    assert passes == [(trainer, [7], {"temperature": 0.5})]


# --- inference engines ------------------------------------------------------------------------------------------


class Debugger:
    """A session in a runner."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def scheduled(self, output: Any) -> None:
        self._events.append(("scheduled", output.total_num_scheduled_tokens))

    def start(self) -> None:
        self._events.append("start")

    def forward(self, execute: Any, runner: Any, output: Any, *args: Any) -> Any:
        self._events.append(("forward", output.total_num_scheduled_tokens, args))
        return execute(runner, output, *args)

    @contextmanager
    def around(self, runner: Any, region: Any, batch: Any) -> Iterator[Any]:
        self._events.append(("around", batch))
        with noted(self._events, region) as value:
            yield value


@pytest.fixture
def msprobe(monkeypatch: pytest.MonkeyPatch) -> None:
    """An msprobe whose debugger knows its file."""
    module: Any = types.ModuleType("msprobe.pytorch")
    module.PrecisionDebugger = lambda path: types.SimpleNamespace(config_path=path)
    monkeypatch.setitem(sys.modules, "msprobe", types.ModuleType("msprobe"))
    monkeypatch.setitem(sys.modules, "msprobe.pytorch", module)


@pytest.mark.usefixtures("msprobe")
def test_vllm_ascend_a_session_takes_the_debuggers_place_and_learns_of_each_forward_first(
    woven: Woven, events: list[Any]
) -> None:
    capture: Any = types.ModuleType("capture")

    def open_session(runner: Any, make_debugger: Any, path: str) -> Debugger:
        events.append((make_debugger().config_path, path))
        runner._dispatch_logger = "log"
        return Debugger(events)

    capture.open_session = open_session
    module = woven("vllm-ascend", "vllm_ascend.worker.model_runner_v1", capture)
    runner = module.switch_on()
    runner.execute_model(types.SimpleNamespace(total_num_scheduled_tokens=5))
    assert events == [("config.json", "config.json"), ("scheduled", 5), "start"]


@pytest.mark.usefixtures("msprobe")
def test_vllm_the_runner_is_whole_when_its_session_opens_and_each_forward_goes_through_it(
    woven: Woven, events: list[Any]
) -> None:
    capture: Any = types.ModuleType("capture")

    def open_session(runner: Any, make_debugger: Any, path: str) -> Debugger:
        events.append((make_debugger().config_path, path, hasattr(runner, "layerwise_nvtx_hooks_registered")))
        return Debugger(events)

    capture.open_session = open_session
    runner = woven("vllm", "vllm.v1.worker.gpu_model_runner", capture).switch_on()
    assert runner.execute_model(types.SimpleNamespace(total_num_scheduled_tokens=5), 3) == 30
    assert events == [("config.json", "config.json", True), ("forward", 5, (3,))]


def test_sglang_the_runner_is_whole_when_its_session_opens_and_each_forward_lies_in_it(
    woven: Woven, events: list[Any]
) -> None:
    """Deterministic mode must not touch loading and memory: everything is made before the session is."""
    capture: Any = types.ModuleType("capture")

    def open_session(runner: Any) -> Debugger:
        events.append(hasattr(runner, "_weights_send_group"))
        return Debugger(events)

    capture.open_session = open_session
    runner = woven("sglang", "sglang.srt.model_executor.model_runner", capture).make()
    assert runner.forward([1, 2]) == [11, 11, 12]
    assert events == [True, ("around", [1, 2]), "start", "stop"]


# --- slime ------------------------------------------------------------------------------------------------------


class SlimeSession(Debugger):
    """Dumps the first rollout's prompts."""

    def dump_prompts(self, actor: Any, rollout_id: int, data: Any, iterate: Any) -> bool:
        self._events.append(("prompts", rollout_id, data, callable(iterate)))
        return rollout_id == 0

    @contextmanager
    def around(self, actor: Any, region: Any, prefix: str) -> Iterator[Any]:
        self._events.append(("around", prefix))
        with noted(self._events, region) as value:
            yield value


def test_slime_the_session_opens_before_torch_is_patched_and_decides_about_each_rollout(
    woven: Woven, events: list[Any]
) -> None:
    capture: Any = types.ModuleType("capture")
    module = woven("slime", "slime.backends.megatron_utils.actor", capture)

    def open_session(actor: Any, args: Any, role: str) -> SlimeSession:
        events.append(("open", role, list(module.TIMED)))
        return SlimeSession(events)

    capture.open_session = open_session
    actor = module.make()
    assert actor.train_actor(0, [1, 2, 3]) is None
    assert actor.train_actor(1, [1, 2]) == 3 + 4 + 1
    assert events == [
        ("open", "actor", []),
        ("prompts", 0, [1, 2, 3], True),
        ("prompts", 1, [1, 2], True),
        ("around", "old_"),
        "start",
        "stop",
    ]
