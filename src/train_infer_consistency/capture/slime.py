"""slime's Megatron actor: a dump of old_log_prob, over the prompts alone or as slime runs it.

With PROMPTS_ONLY one rollout's prompts go through an added pass and that rollout is not trained on, as the
published procedure has it; later rollouts train. Without it, slime's own pass is dumped and training goes on.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from train_infer_consistency.capture.log import UPDATE_ACTOR_LOG, megatron_parallel, prompt_hash, world_size
from train_infer_consistency.capture.session import Session
from train_infer_consistency.capture.session import open_session as _open_session
from train_infer_consistency.capture.switches import CaptureError, switches

#: Below the msprobe file's dump_path, as the published procedure has it.
SUBFOLDER = "old_log_prob"
#: What slime's forward and its data iterator read (v0.2.2 to v0.2.4); what else a rollout holds belongs to
#: training.
_KEPT = ("multimodal_train_inputs", "sample_indices", "dynamic_global_batch_size")
_STAGE = "ROUTING_REPLAY_STAGE"


def copy_rollout_data_prompts_only(rollout_data: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt-only copy of what slime's forward reads; the rollout itself stays as it is.

    Shallow: tokens are views of the rollout's tensors, cut behind the prompt, and no device memory is copied.

    Args:
        rollout_data: slime's RolloutBatch: ``tokens`` (one tensor of ``total_lengths[i]`` ids a sample),
            ``response_lengths``, ``loss_masks`` and more.

    Returns:
        tokens, total_lengths, response_lengths (all 0), loss_masks (all empty) and the keys that do not
        depend on the response.

    Raises:
        CaptureError: a sample has no prompt.
    """
    lengths = [
        total - response
        for total, response in zip(rollout_data["total_lengths"], rollout_data["response_lengths"], strict=True)
    ]
    if any(length < 1 for length in lengths):
        raise CaptureError("a sample of the rollout has no prompt token, so there is nothing to compare")
    copy = {key: rollout_data[key] for key in _KEPT if key in rollout_data}
    copy["tokens"] = [tokens[:length] for tokens, length in zip(rollout_data["tokens"], lengths, strict=True)]
    copy["total_lengths"] = lengths
    copy["response_lengths"] = [0] * len(lengths)
    if "loss_masks" in rollout_data:
        copy["loss_masks"] = [mask[:0] for mask in rollout_data["loss_masks"]]
    return copy


class SlimeSession(Session):
    """The session of one Megatron actor process."""

    def __init__(self, debugger: Any) -> None:
        super().__init__(debugger, "slime-megatron")
        self._rollout: dict[str, Any] = {}
        self._target = switches().rollout_id
        self._added = False

    def dump_prompts(
        self, actor: Any, rollout_id: int, rollout_data: Any, get_data_iterator: Callable[..., Any]
    ) -> bool:
        """Dump one rollout's prompts with an added pass, where PROMPTS_ONLY asks for this rollout.

        Args:
            actor: the MegatronTrainRayActor.
            rollout_id: slime's number of the rollout.
            rollout_data: its RolloutBatch.
            get_data_iterator: slime's own function.

        Returns:
            Whether the rollout was dumped and shall not be trained on.
        """
        self._rollout = {"rollout_id": rollout_id, **_samples(rollout_data)}
        if not switches().prompts_only:
            return False
        if self._target is None:
            self._target = rollout_id
        if rollout_id != self._target:
            return False
        timers = importlib.import_module("slime.utils.timer")
        prompts = copy_rollout_data_prompts_only(rollout_data)
        # Upstream ends train_wait here and starts it again afterwards; without that the next rollout's timer
        # fails.
        with timers.inverse_timer("train_wait"), timers.timer("train"), _without_routing_replay(actor.args):
            iterator, micro_batches = get_data_iterator(actor.args, actor.model, prompts)
            actor._switch_model("actor")
            self._added = True
            try:
                actor.compute_log_prob(iterator, micro_batches, store_prefix="")
            finally:
                self._added = False
        importlib.import_module("slime.utils.train_dump_utils").save_debug_train_data(
            actor.args, rollout_id=rollout_id, rollout_data=rollout_data
        )
        return True

    @contextmanager
    def around(self, actor: Any, region: AbstractContextManager[Any], store_prefix: str) -> Iterator[Any]:
        """Make one ``compute_log_prob`` a forward of the session.

        Args:
            actor: the MegatronTrainRayActor.
            region: upstream's own context manager (its timer).
            store_prefix: whose log-probabilities these are: empty for the actor, else ``ref_`` and the like.
        """
        if self.log is None:
            parallel = {"world_size": world_size(), **megatron_parallel()}
            self.open_log(UPDATE_ACTOR_LOG, "update_actor", parallel, dumps=self.root / SUBFOLDER)
        line = {
            "phase": "log_prob",
            "prompt_only": self._added,
            "weights": actor._active_model_tag,
            **self._rollout,
        }
        with (
            region as value,
            self.recording(line, self._why_not(store_prefix), added=self._added, model=actor.model),
        ):
            yield value

    def _why_not(self, store_prefix: str) -> str | None:
        if self._added:
            return None
        if store_prefix:
            return {"ref": "reference"}.get(store_prefix.rstrip("_"), store_prefix.rstrip("_"))
        if switches().prompts_only:
            return "not-prompt-only"
        return None if switches().wants("log_prob") else "phase"


def open_session(actor: Any, args: Any, role: str) -> SlimeSession | None:
    """Open an actor's session, before slime patches torch; sets ``debugger`` and ``dump_path_prefix``.

    Args:
        actor: the MegatronTrainRayActor.
        args: slime's arguments.
        role: ``actor`` or ``critic``.

    Returns:
        The session, or None where DUMP_ON is off, for a critic, and where slime only generates.

    Raises:
        CaptureError: a setting with which the dump would be wrong or the job would hang, or anything of
            :func:`~.session.open_session`.
    """
    if not switches().dump_on or role != "actor" or args.debug_rollout_only:
        return None
    _refuse(args)
    session, _ = _open_session(
        SlimeSession, switches().actor_config(), "MSPROBE_CONFIG_PATH", switches().seed_or_default()
    )
    actor.debugger = session
    actor.dump_path_prefix = str(session.root)
    return session


def _refuse(args: Any) -> None:
    if args.keep_old_actor:
        raise CaptureError(
            "--keep-old-actor computes old_log_prob with other weights than the ones SGLang got",
            "leave it out",
        )
    if switches().prompts_only and args.use_critic:
        raise CaptureError(
            "with PROMPTS_ONLY the critic would wait for an actor that does not train",
            "use an estimator without critic",
        )
    if switches().prompts_only and getattr(args, "qkv_format", "thd") != "thd":
        raise CaptureError(
            f"--qkv-format {args.qkv_format} pads a prompt to the length of prompt and response", "use thd"
        )


@contextmanager
def _without_routing_replay(args: Any) -> Iterator[None]:
    """Let the routers neither record nor replay: the added pass is none of those that replay counts on."""
    if not args.use_routing_replay:
        yield
        return
    before = os.environ.get(_STAGE)
    os.environ[_STAGE] = "fallthrough"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_STAGE]
        else:
            os.environ[_STAGE] = before


def _samples(rollout_data: Mapping[str, Any]) -> dict[str, Any]:
    """The log's fields about the samples; SGLang's request ids do not reach slime's training side."""
    entries: list[dict[str, Any]] = []
    indices = rollout_data.get("sample_indices") or [None] * len(rollout_data["tokens"])
    for index, tokens, total, response in zip(
        indices,
        rollout_data["tokens"],
        rollout_data["total_lengths"],
        rollout_data["response_lengths"],
        strict=True,
    ):
        entries.append(
            {
                "request_id": None,
                "sample_index": index,
                "prompt_length": total - response,
                "response_length": response,
                "prompt_hash": prompt_hash(tokens[: total - response].tolist()),
            }
        )
    return {"request_ids": [], "num_requests": len(entries), "requests": entries}
