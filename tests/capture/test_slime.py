"""slime's actor: one rollout's prompts, or its own old_log_prob; the rollout's data, timers and routing stay whole."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capture.conftest import Process
from tests.capture.fakes import Tensor
from train_infer_consistency.capture.log import prompt_hash
from train_infer_consistency.capture.slime import copy_rollout_data_prompts_only, open_session

Refusal = Callable[[Callable[[], Any]], str]


def rollout(samples: list[tuple[int, int]]) -> dict[str, Any]:
    """A RolloutBatch with (prompt length, response length) samples and the keys slime gives one."""
    return {
        "tokens": [Tensor(list(range(100, 100 + p + r))) for p, r in samples],
        "total_lengths": [p + r for p, r in samples],
        "response_lengths": [r for _, r in samples],
        "loss_masks": [Tensor([1] * r) for _, r in samples],
        "sample_indices": list(range(len(samples))),
        "rollout_log_probs": [Tensor([0] * r) for _, r in samples],
        "rollout_routed_experts": [Tensor([0] * (p + r - 1)) for p, r in samples],
        "max_seq_lens": [64] * len(samples),
        "rewards": [0.5] * len(samples),
    }


class Actor:
    """A MegatronTrainRayActor with the woven calls."""

    def __init__(self, process: Process, **args: Any) -> None:
        self.process = process
        given = {
            "debug_rollout_only": False,
            "keep_old_actor": False,
            "use_critic": False,
            "use_routing_replay": False,
            "qkv_format": "thd",
        }
        self.args = types.SimpleNamespace(**{**given, **args})
        self.model = [object()]
        self._active_model_tag = "ref"
        self.seen: list[tuple[Any, ...]] = []
        self.trained: list[int] = []
        self._consistency = open_session(self, self.args, "actor")
        process.torch.distributed.rank = 0

    def _switch_model(self, tag: str) -> None:
        self._active_model_tag = tag

    def compute_log_prob(self, iterator: Any, micro_batches: Any, store_prefix: str = "") -> None:
        around = (
            self.timer() if self._consistency is None else self._consistency.around(self, self.timer(), store_prefix)
        )
        with around as value:
            assert value == "timer"
            self.seen.append((iterator, store_prefix, self._active_model_tag, os.environ.get("ROUTING_REPLAY_STAGE")))
            self.process.torch.rng += 1
            if self.process.debugger._instance is not None:
                self.process.service.record(store_prefix or "layer")

    def train_actor(self, rollout_id: int, data: dict[str, Any]) -> None:
        if self._consistency is not None and self._consistency.dump_prompts(self, rollout_id, data, get_data_iterator):
            return
        iterator, micro_batches = get_data_iterator(self.args, self.model, data)
        self._switch_model("ref")
        self.compute_log_prob(iterator, micro_batches, store_prefix="ref_")
        self._switch_model("actor")
        self.compute_log_prob(iterator, micro_batches)
        self.trained.append(rollout_id)

    @contextmanager
    def timer(self) -> Iterator[str]:
        yield "timer"


def get_data_iterator(args: Any, model: Any, data: dict[str, Any]) -> tuple[Any, int]:
    return data, 1


class Slime:
    """slime's timers and its save_debug_train_data."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = ["train_wait"]
        self.events: list[str] = []
        self.saved: list[tuple[int, dict[str, Any]]] = []
        timer: Any = types.ModuleType("slime.utils.timer")
        timer.timer, timer.inverse_timer = self.timer, self.inverse_timer
        dump: Any = types.ModuleType("slime.utils.train_dump_utils")
        dump.save_debug_train_data = lambda args, *, rollout_id, rollout_data: self.saved.append(
            (rollout_id, rollout_data)
        )
        for name in ("slime", "slime.utils"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, timer.__name__, timer)
        monkeypatch.setitem(sys.modules, dump.__name__, dump)

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        assert name not in self.running
        self.running.append(name)
        self.events.append(f"{name} starts")
        try:
            yield
        finally:
            self.running.remove(name)
            self.events.append(f"{name} ends")

    @contextmanager
    def inverse_timer(self, name: str) -> Iterator[None]:
        self.running.remove(name)
        self.events.append(f"{name} ends")
        try:
            yield
        finally:
            self.running.append(name)
            self.events.append(f"{name} starts")


@pytest.fixture
def slime(process: Process, monkeypatch: pytest.MonkeyPatch) -> Slime:
    process.env(DUMP_ON="1", MSPROBE_CONFIG_PATH=str(process.config))
    monkeypatch.delenv("ROUTING_REPLAY_STAGE", raising=False)
    return Slime(monkeypatch)


def lines(process: Process) -> list[dict[str, Any]]:
    return process.lines("update_actor_log.jsonl")


# --- the copy ---------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_the_copy_ends_where_each_prompt_ends(samples: list[tuple[int, int]]) -> None:
    data = rollout(samples)
    copy = copy_rollout_data_prompts_only(data)
    assert [tokens.tolist() for tokens in copy["tokens"]] == [list(range(100, 100 + p)) for p, _ in samples]
    assert copy["total_lengths"] == [p for p, _ in samples]
    assert copy["response_lengths"] == [0] * len(samples)
    assert [mask.tolist() for mask in copy["loss_masks"]] == [[]] * len(samples)
    assert all(tokens.is_view for tokens in copy["tokens"])
    # And the rollout is as it was.
    fresh = rollout(samples)
    assert data.keys() == fresh.keys()
    assert [tokens.tolist() for tokens in data["tokens"]] == [tokens.tolist() for tokens in fresh["tokens"]]
    assert data["total_lengths"] == fresh["total_lengths"]
    assert data["response_lengths"] == fresh["response_lengths"]
    # Cutting what is cut changes nothing.
    again = copy_rollout_data_prompts_only(copy)
    assert [tokens.tolist() for tokens in again["tokens"]] == [tokens.tolist() for tokens in copy["tokens"]]


def test_nothing_that_depends_on_the_response_is_in_the_copy() -> None:
    kept = copy_rollout_data_prompts_only(rollout([(3, 2)])).keys()
    assert kept == {"tokens", "total_lengths", "response_lengths", "loss_masks", "sample_indices"}


def test_what_belongs_to_the_prompt_is_shared_and_not_copied() -> None:
    data = {**rollout([(3, 2)]), "multimodal_train_inputs": [object()], "dynamic_global_batch_size": 4}
    copy = copy_rollout_data_prompts_only(data)
    assert copy["multimodal_train_inputs"] is data["multimodal_train_inputs"]
    assert copy["dynamic_global_batch_size"] == 4


def test_list_masks_and_no_masks_and_no_samples() -> None:
    data = rollout([(3, 2)])
    data["loss_masks"] = [[1, 1]]
    assert copy_rollout_data_prompts_only(data)["loss_masks"] == [[]]
    del data["loss_masks"]
    assert "loss_masks" not in copy_rollout_data_prompts_only(data)
    assert copy_rollout_data_prompts_only(rollout([]))["tokens"] == []


def test_a_sample_without_a_prompt(refusal: Refusal) -> None:
    assert "no prompt" in refusal(lambda: copy_rollout_data_prompts_only(rollout([(3, 1), (0, 2)])))


# --- PROMPTS_ONLY=1 ---------------------------------------------------------------------------------------------


def test_the_first_rollouts_prompts_are_dumped_and_later_rollouts_train(process: Process, slime: Slime) -> None:
    process.env(PROMPTS_ONLY="1")
    actor = Actor(process)
    data = rollout([(4, 3)])
    for rollout_id in (5, 6, 7):
        actor.train_actor(rollout_id, data)
    assert actor.trained == [6, 7]
    dumped = [line for line in lines(process) if line["step"] is not None]
    (line,) = dumped
    assert (line["rollout_id"], line["phase"], line["prompt_only"], line["weights"]) == (5, "log_prob", True, "actor")
    assert line["dump"] == "old_log_prob/step0/rank0"
    assert process.dump(line["dump"]) == ["layer"]
    iterator, prefix, tag, _ = actor.seen[0]
    assert (prefix, tag) == ("", "actor")
    assert [tokens.tolist() for tokens in iterator["tokens"]] == [[100, 101, 102, 103]]
    assert [line["skipped"] for line in lines(process)[1:]] == ["reference", "not-prompt-only"] * 2


def test_the_rollout_can_be_named(process: Process, slime: Slime) -> None:
    process.env(PROMPTS_ONLY="1", CONSISTENCY_ROLLOUT_ID="6")
    actor = Actor(process)
    for rollout_id in (5, 6, 7):
        actor.train_actor(rollout_id, rollout([(4, 3)]))
    assert actor.trained == [5, 7]
    assert [line["rollout_id"] for line in lines(process) if line["step"] is not None] == [6]


def test_the_debug_data_are_saved_whole_and_the_timers_end(process: Process, slime: Slime) -> None:
    process.env(PROMPTS_ONLY="1")
    data = rollout([(4, 3)])
    Actor(process).train_actor(0, data)
    assert slime.saved == [(0, data)]
    assert slime.running == ["train_wait"]
    assert slime.events == ["train_wait ends", "train starts", "train ends", "train_wait starts"]


def test_the_timers_end_after_a_failure_too(process: Process, slime: Slime) -> None:
    process.env(PROMPTS_ONLY="1")
    actor = Actor(process)

    def fails(*_: Any) -> Any:
        raise MemoryError

    assert actor._consistency is not None
    with pytest.raises(MemoryError):
        actor._consistency.dump_prompts(actor, 0, rollout([(4, 3)]), fails)
    assert slime.running == ["train_wait"]


def test_the_added_pass_leaves_the_random_state(process: Process, slime: Slime) -> None:
    process.env(PROMPTS_ONLY="1")
    actor = Actor(process)
    process.torch.rng = 5
    actor.train_actor(0, rollout([(4, 3)]))
    assert process.torch.rng == 5


@pytest.mark.parametrize("before", [None, "replay_backward"])
def test_routing_replay_neither_records_nor_replays(
    process: Process, slime: Slime, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    process.env(PROMPTS_ONLY="1")
    if before is not None:
        monkeypatch.setenv("ROUTING_REPLAY_STAGE", before)
    actor = Actor(process, use_routing_replay=True)
    actor.train_actor(0, rollout([(4, 3)]))
    assert actor.seen[0][3] == "fallthrough"
    assert os.environ.get("ROUTING_REPLAY_STAGE") == before


# --- PROMPTS_ONLY=0 ---------------------------------------------------------------------------------------------


def test_slimes_own_pass_is_dumped_and_training_goes_on(process: Process, slime: Slime) -> None:
    actor = Actor(process)
    for rollout_id in (0, 1):
        actor.train_actor(rollout_id, rollout([(4, 3), (2, 1)]))
    assert actor.trained == [0, 1]
    assert [(line["step"], line["skipped"]) for line in lines(process)] == [
        (None, "reference"),
        (0, None),
        (None, "reference"),
        (1, None),
    ]
    line = lines(process)[1]
    assert (line["rollout_id"], line["prompt_only"], line["num_requests"], line["request_ids"]) == (0, False, 2, [])
    assert line["requests"][1] == {
        "request_id": None,
        "sample_index": 1,
        "prompt_length": 2,
        "response_length": 1,
        "prompt_hash": prompt_hash([100, 101]),
    }
    assert slime.saved == []


def test_another_phase_is_not_this_one(process: Process, slime: Slime) -> None:
    process.env(DUMP_PHASE="update_actor")
    Actor(process).train_actor(0, rollout([(4, 3)]))
    assert [line["skipped"] for line in lines(process)] == ["reference", "phase"]


def test_a_teachers_pass_is_named(process: Process, slime: Slime) -> None:
    actor = Actor(process)
    actor.compute_log_prob(None, 1, store_prefix="teacher_")
    assert [line["skipped"] for line in lines(process)] == ["teacher"]


# --- opening ----------------------------------------------------------------------------------------------------


def test_the_procedures_attributes(process: Process, slime: Slime) -> None:
    actor: Any = Actor(process)
    assert actor.debugger is actor._consistency
    assert actor.dump_path_prefix == str(process.root)
    assert process.torch.rng == 1234


def test_off_critic_and_rollout_only(process: Process, slime: Slime) -> None:
    args = types.SimpleNamespace(debug_rollout_only=False, keep_old_actor=False, use_critic=False)
    assert open_session(types.SimpleNamespace(), args, "critic") is None
    args.debug_rollout_only = True
    assert open_session(types.SimpleNamespace(), args, "actor") is None
    process.env(DUMP_ON="off")
    args.debug_rollout_only = False
    assert open_session(types.SimpleNamespace(), args, "actor") is None
    assert process.debugger._instance is None


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ({"keep_old_actor": True}, "--keep-old-actor"),
        ({"use_critic": True}, "critic"),
        ({"qkv_format": "bshd"}, "--qkv-format"),
    ],
)
def test_what_would_dump_the_wrong_thing_or_hang(
    process: Process, slime: Slime, refusal: Refusal, args: dict[str, Any], word: str
) -> None:
    process.env(PROMPTS_ONLY="1")
    assert word in refusal(lambda: Actor(process, **args))


@pytest.mark.parametrize("args", [{"use_critic": True}, {"qkv_format": "bshd"}])
def test_slimes_own_pass_needs_no_refusal(process: Process, slime: Slime, args: dict[str, Any]) -> None:
    """A critic trains along, and a format that pads is the run's own."""
    actor = Actor(process, **args)
    actor.train_actor(0, rollout([(4, 3)]))
    assert actor.trained == [0]
    assert [line["step"] for line in lines(process)] == [None, 0]


def test_a_rollout_without_sample_indices(process: Process, slime: Slime) -> None:
    data = rollout([(4, 3)])
    del data["sample_indices"]
    Actor(process).train_actor(0, data)
    assert lines(process)[1]["requests"][0]["sample_index"] is None
