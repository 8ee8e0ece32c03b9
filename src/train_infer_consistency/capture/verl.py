"""verl's FSDP and Megatron engines: which training forwards are dumped, and the added prompt-only pass.

The trainer's batch is never cut: with PROMPTS_ONLY a marked copy of its prompts goes through
``compute_log_prob`` once, the engines dump what is marked, and training goes on with the batch it had.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from train_infer_consistency.capture.log import UPDATE_ACTOR_LOG, megatron_parallel, prompt_hash, world_size
from train_infer_consistency.capture.session import Session, open_session
from train_infer_consistency.capture.switches import CaptureError, switches

#: Marks the added pass's batch; it travels in verl's meta_info to every micro-batch.
MARK = "consistency_dump"
_VERSION = "consistency_weight_version"
_STEP = "consistency_trainer_step"
#: The strategies whose engines are edited; verl's others have a forward loop of their own (0.8.0).
_STRATEGIES = ("fsdp", "fsdp2", "megatron", "mindspeed_megatron", "mindspeed_llm")
# Cut to the prompt's width where they are there; responses and their mask become empty.
_SEQUENCES = ("input_ids", "attention_mask", "position_ids", "routed_experts")
_FSDP_MODULE = "verl.workers.engine.fsdp.transformer_impl"
_LAYER = re.compile(r"(?:^|\.)decoder\.layers\.\d+$")


class VerlSession(Session):
    """The session of one training worker process."""

    def __init__(self, debugger: Any, engine: str) -> None:
        super().__init__(debugger, engine)
        #: The phase of the batch that Megatron's schedule is working on, why it is not dumped, and whether it
        #: is the added pass.
        self.batch: tuple[str, str | None, bool] = ("log_prob", None, False)
        self._saw_added_pass = False

    def decide(self, data: Any, forward_only: bool) -> tuple[str, str | None, bool]:
        """The phase of a batch, why it is not dumped (None if it is), and whether it is the added pass.

        Raises:
            CaptureError: an added pass is asked for, and the trainer updates the actor without one.
        """
        phase = "log_prob" if forward_only else "update_actor"
        if _value(data, MARK):
            self._saw_added_pass = True
            return phase, None, True
        if switches().prompts_only and not forward_only and not self._saw_added_pass:
            raise CaptureError(
                "PROMPTS_ONLY is on, and this trainer updates the actor without the added pass: its step is not edited",
                "use main_ppo (RayPPOTrainer) or the fully asynchronous trainer, or set PROMPTS_ONLY=0",
            )
        return phase, _why_not(data, phase, forward_only), False


def ensure_debugger(engine: Any) -> None:
    """Open the actor engine's session on its first batch; sets ``_debugger``, ``_update_actor_logger_fp``.

    The reference model's engine and the critic's stay without one.

    Args:
        engine: verl's FSDPEngine or MegatronEngine.

    Raises:
        CaptureError: no msprobe file, an update that would crash, or anything of :func:`~.session.open_session`.
    """
    if engine._debugger is not None or not switches().dump_on or not _is_actor(engine):
        return
    is_megatron = any(kind.__name__ == "MegatronEngine" for kind in type(engine).__mro__)
    # With an added pass, training keeps the seeds it has: the pass brings its own, and gives everything back.
    seed = None if switches().prompts_only else switches().seed_or_default()
    session, _ = open_session(
        lambda debugger: VerlSession(debugger, "verl-megatron" if is_megatron else "verl-fsdp"),
        switches().actor_config(),
        "MSPROBE_CONFIG_PATH",
        seed,
    )
    _refuse_adapter_update(engine, session.config.level)
    if session.log is None:
        session.open_log(UPDATE_ACTOR_LOG, "update_actor", _parallel(engine), dumps=session.root)
    engine._debugger = session
    engine._update_actor_logger_fp = session.log


def micro_batch(
    engine: Any, region: AbstractContextManager[Any], micro: Any, data: Any, forward_only: bool
) -> AbstractContextManager[Any]:
    """A context manager that makes forward and backward of one FSDP micro-batch one forward of the session.

    Args:
        engine: the FSDPEngine.
        region: upstream's own context manager around them.
        micro: the micro-batch.
        data: the batch it is cut from.
        forward_only: False in a training update.
    """
    return _micro_batch(engine, region, micro, *engine._debugger.decide(data, forward_only))


@contextmanager
def _micro_batch(
    engine: Any, region: AbstractContextManager[Any], micro: Any, phase: str, skipped: str | None, added: bool
) -> Iterator[Any]:
    if skipped is None:
        _refuse_masked_out(micro)
    line = {**_describe(micro), "phase": phase, "prompt_only": added, "backward": phase == "update_actor"}
    with region as value, engine._debugger.recording(line, skipped, added, model=engine.module):
        yield value


def should_dump(engine: Any, data: Any, forward_only: bool) -> bool:
    """Whether a Megatron batch's forwards pass through :func:`around_forward`: all do once a session is open.

    That function dumps or logs why not; which of the two is settled here, where the whole batch is known.
    """
    session = engine._debugger
    if session is None:
        return False
    session.batch = session.decide(data, forward_only)
    return True


def around_forward(engine: Any, forward: Callable[..., Any], model: Any, batch: Any) -> Callable[..., Any]:
    """Wrap Megatron's forward function so that the session lies tightly around its call.

    The backward runs in Megatron's schedule and is not dumped.

    Args:
        engine: the MegatronEngine.
        forward: verl's forward function.
        model: the model chunk it is called with.
        batch: the micro-batch.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        phase, skipped, added = engine._debugger.batch
        line = {
            **_describe(batch),
            "phase": phase,
            "prompt_only": added,
            "backward": False,
            **_chunk(engine, model),
        }
        with engine._debugger.recording(line, skipped, added, model=model):
            return forward(*args, **kwargs)

    return call


def log_update_actor_step(engine: Any, micro: Any) -> None:
    """Write a line about a micro-batch that was dumped by hand, at msprobe's current step."""
    if engine._update_actor_logger_fp is not None:
        engine._update_actor_logger_fp.write({**_describe(micro), "step": engine._debugger.service.current_iter})


def keep_request_id(output: Any, request_id: str) -> None:
    """Put the engine's id into ``output.extra_fields["request_id"]``, from where it travels to training."""
    fields = getattr(output, "extra_fields", None)
    if isinstance(fields, dict):
        fields["request_id"] = request_id


def keep_first_request_id(final_output: Any, output: Any) -> None:
    """Keep the id whose prefill was the prompt alone when an interrupted request is resumed with another id.

    Called after ``output``'s tokens were joined to ``final_output``'s. Attempts after the first generated
    token prefill prompt and response; an attempt that was interrupted before its first token is replaced by
    the next one, which has the same prompt.
    """
    request_id = output.extra_fields.get("request_id")
    if request_id is not None and len(final_output.token_ids) == len(output.token_ids):
        final_output.extra_fields["request_id"] = request_id


def prompt_only_pass(trainer: Any, batch: Any) -> None:
    """Run the added pass over the batch's prompts if PROMPTS_ONLY is on; the batch itself is not touched.

    Args:
        trainer: RayPPOTrainer or FullyAsyncTrainer, whose own ``_compute_old_log_prob`` chooses the weights.
        batch: the DataProto that training goes on with.

    Raises:
        CaptureError: the actor's engine is one that is not edited, so that nothing would be dumped.
    """
    strategy = _engine(trainer.config.actor_rollout_ref.actor)
    if switches().dump_on and strategy not in _STRATEGIES:
        raise CaptureError(
            f"DUMP_ON is set, and nothing is dumped of an actor with strategy={strategy}",
            f"set actor_rollout_ref.actor.strategy to one of {', '.join(_STRATEGIES[:3])}",
        )
    if switches().prompts_only:
        trainer._compute_old_log_prob(prompt_only_copy(batch, _weight_version(trainer), trainer.global_steps))


def _engine(actor: Any) -> str:
    """The engine of an actor; MindSpeed has several, and its own configuration says which (verl 0.8.0)."""
    return str(actor.mindspeed.strategy if actor.strategy == "mindspeed" else actor.strategy)


def _weight_version(trainer: Any) -> int:
    """The number that the rollout has for the weights which the trainer has before its update."""
    version = getattr(trainer, "current_param_version", None)
    # RayPPOTrainer.fit counts a step before it updates, and sends the weights out under the step that made them.
    return int(trainer.global_steps - 1 if version is None else version)


def prompt_only_copy(batch: Any, version: int | None = None, step: int | None = None) -> Any:
    """A marked copy of a DataProto that ends where its prompts end.

    Cut by the width of ``prompts``, which, unlike cutting ``[:, :-width of responses]``, is right for empty
    responses too.

    Args:
        batch: with tensors ``prompts`` (B, P), ``responses`` (B, R), ``input_ids`` and ``attention_mask`` (B,
            P+R), ``position_ids`` (B, P+R) or (B, 3 or 4, P+R), and perhaps ``routed_experts`` (B, P+R,
            layers, k).
        version: the weights' number as the rollout counts them, for the log.
        step: the trainer's own step, for the log.
    """
    tensors, width = batch.batch, batch.batch["prompts"].size(1)
    cut = {"prompts": tensors["prompts"].clone()}
    for name in _SEQUENCES:
        if name in tensors.keys():  # noqa: SIM118 - a TensorDict is no container of its keys
            last = name == "position_ids"
            cut[name] = (tensors[name][..., :width] if last else tensors[name][:, :width]).clone()
    for name in ("responses", "response_mask"):
        cut[name] = tensors[name][:, :0].clone()
    meta = {**batch.meta_info, MARK: True, _VERSION: version, _STEP: step}
    # The number of tokens feeds a throughput metric, and must be the copy's own.
    meta["global_token_num"] = cut["attention_mask"].sum(dim=-1).tolist()
    return type(batch)(
        batch=type(tensors)(cut, batch_size=tensors.batch_size),
        non_tensor_batch=dict(batch.non_tensor_batch),
        meta_info=meta,
    )


def _is_actor(engine: Any) -> bool:
    critic = any(kind.__name__.endswith("WithValueHead") for kind in type(engine).__mro__)
    return not critic and not engine.engine_config.forward_only


def _why_not(data: Any, phase: str, forward_only: bool) -> str | None:
    """Why one of upstream's own batches is not dumped; None if it is."""
    if switches().prompts_only and forward_only:
        return "not-prompt-only"
    if not switches().wants(phase):
        return "phase"
    # LoRA's reference pass is the actor's engine with its adapter off; verl asks for the entropy in the
    # actor's own pass only.
    if forward_only and _value(data, "calculate_entropy") is False:
        return "reference"
    return None


def _refuse_adapter_update(engine: Any, level: str) -> None:
    """msprobe's backward hooks on the modules of a LoRA adapter under FSDP2 crash torch 2.10 and 2.13."""
    lora = getattr(engine, "_is_lora", False) and engine.engine_config.strategy == "fsdp2"
    if lora and switches().wants("update_actor") and level != "L1":
        raise CaptureError(
            f"DUMP_PHASE={switches().dump_phase} with level {level} and LoRA under FSDP2 ends in a segmentation fault",
            'use DUMP_PHASE=log_prob, strategy=fsdp, or "level": "L1"',
        )


def _refuse_masked_out(micro: Any) -> None:
    """verl b7dabd83 makes its attention mask from the loss mask, empty here; 0.8.0 from the tokens."""
    engine_module = sys.modules.get(_FSDP_MODULE)
    fixed = engine_module is None or hasattr(engine_module, "build_attention_mask_from_nested")
    if not fixed and _value(micro, "use_remove_padding") is False:
        raise CaptureError(
            "without use_remove_padding this verl masks every prompt token",
            "set actor_rollout_ref.model.use_remove_padding=True",
        )


def _describe(micro: Any) -> dict[str, Any]:
    """The documented fields of a micro-batch, and an entry for each sample, whose missing id is null."""
    prompts = list(_prompts(micro))
    ids = _column(micro, "request_id", len(prompts))
    oldest, newest = (_rollout_versions(micro, end, len(prompts)) for end in ("min", "max"))
    return {
        "request_ids": [] if all(value is None for value in ids) else ids,
        "num_requests": len(prompts),
        "requests": [
            {
                "request_id": request_id,
                "prompt_length": len(tokens),
                "response_length": response,
                "prompt_hash": prompt_hash(tokens),
                # The weight versions that the rollout engine generated the sample with.
                "rollout_weight_versions": [first, last],
            }
            for request_id, (tokens, response), first, last in zip(ids, prompts, oldest, newest, strict=True)
        ],
        # Counted as the rollout counts; lines without the trainer's step beside it had that in its place.
        "weight_version": _value(micro, _VERSION),
        "trainer_step": _value(micro, _STEP),
        "use_remove_padding": _value(micro, "use_remove_padding"),
    }


def _prompts(micro: Any) -> Iterator[tuple[list[int], int]]:
    """Each sample's prompt tokens, without the left padding, and how many response tokens follow."""
    prompts = micro["prompts"]
    if prompts.is_nested:
        for tokens, response in zip(prompts.unbind(), micro["responses"].unbind(), strict=True):
            yield tokens.tolist(), len(response)
        return
    mask = micro["attention_mask"]
    width = prompts.size(1)
    for tokens, bits in zip(prompts.tolist(), mask.tolist(), strict=True):
        yield [token for token, bit in zip(tokens, bits[:width], strict=True) if bit], sum(bits[width:])


def _rollout_versions(micro: Any, end: str, count: int) -> list[Any]:
    """The first or last weights of each sample; a rollout whose requests are never interrupted has one number."""
    only = _value(micro, "global_steps")
    versions = _column(micro, f"{end}_global_steps", count)
    # A single value is no sample's: it is the trainer's own step, in the batch's meta_info.
    return only if isinstance(only, list) and all(version is None for version in versions) else versions


def _column(micro: Any, key: str, count: int) -> list[Any]:
    values = _value(micro, key)
    return values if isinstance(values, list) else [values] * count


def _value(data: Any, key: str) -> Any:
    """A TensorDict's non-tensor value, unwrapped as verl's ``tensordict_utils.get`` does; None if absent."""
    value = data.get(key, None)
    kind = type(value).__name__
    if kind == "NonTensorStack":
        return value.tolist()
    return value.data if kind == "NonTensorData" else value


def _parallel(engine: Any) -> dict[str, Any]:
    return {
        "world_size": world_size(),
        "ulysses_size": getattr(engine.engine_config, "ulysses_sequence_parallel_size", None),
        **megatron_parallel(),
    }


def _chunk(engine: Any, model: Any) -> dict[str, Any]:
    """Which part of the network a Megatron model chunk is: dumps count its layers from 0."""
    chunks = engine.module if isinstance(engine.module, list | tuple) else [engine.module]
    # Of the layers alone: the attention inside one is numbered within its pipeline stage (megatron-core 0.12).
    layers = [module.layer_number for name, module in model.named_modules() if _LAYER.search(name)]
    return {
        "virtual_chunk": next((index for index, chunk in enumerate(chunks) if chunk is model), None),
        "virtual_chunks": len(chunks),
        "first_layer": min(layers) - 1 if layers else None,
        "sequence_parallel": getattr(getattr(engine, "tf_config", None), "sequence_parallel", None),
    }
