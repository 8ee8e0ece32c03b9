"""verl's training loops as the demo runs them: what they are and how they are configured (see run_loop.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from demo.generate import PROMPTS, RESPONSE

#: In tokens, more than the longest prompt has.
PROMPT_LENGTH = 160
#: Answers to each prompt, each of them a request of its own.
ANSWERS = 2
_MODEL, _ACTOR, _ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout"))
REWARD = Path(__file__).resolve().parent / "verl_cpu" / "reward.py"


@dataclass(frozen=True)
class Loop:
    """One of verl's training loops.

    Attributes:
        name: as in ``make demo-NAME``.
        main: its module.
        strategy: of the FSDP engine.
        kind: of both engines' numbers.
        npus: that Ray is told of.
        overrides: of its configuration, beyond those of both loops.
        interrupted: how many requests a weight sync interrupts; the weights of their prompt's prefill, or of their
            first tokens, are others than the trainer's, and none is compared.
    """

    name: str
    main: str
    strategy: str
    kind: str
    npus: int
    overrides: Mapping[str, Any] = field(default_factory=dict)
    interrupted: int = 0


LOOPS = {
    loop.name: loop
    for loop in (
        # float32, in which the two engines must agree to the last few bits.
        Loop(
            "loop",
            "verl.trainer.main_ppo",
            "fsdp",
            "float32",
            1,
            {
                "data.train_batch_size": len(PROMPTS),
                "actor_rollout_ref.actor.ppo_mini_batch_size": len(PROMPTS),
                "trainer.total_training_steps": 1,
            },
        ),
        # bfloat16, in which FSDP2 hands its weights to the rollout whatever it computes in.
        Loop(
            "fully-async",
            "verl.experimental.fully_async_policy.fully_async_main",
            "fsdp2",
            "bfloat16",
            2,
            {
                "actor_rollout_ref.hybrid_engine": False,
                "actor_rollout_ref.actor.ppo_mini_batch_size": len(PROMPTS) // 2,
                "actor_rollout_ref.rollout.checkpoint_engine.backend": "zmq",
                "+actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": "verl_cpu.sync",
                "algorithm.rollout_correction": "null",
                "async_training.staleness_threshold": 0,
                "async_training.trigger_parameter_sync_step": 1,
                "async_training.partial_rollout": False,
                "data.train_batch_size": 0,
                "rollout.n": ANSWERS,
                "rollout.nnodes": 1,
                "rollout.n_gpus_per_node": 1,
                "rollout.total_rollout_steps": len(PROMPTS),
            },
        ),
    )
}

_VLLM = "+actor_rollout_ref.rollout.engine_kwargs.vllm"
#: The fully asynchronous loop with all prompts in the rollout while the trainer is at the first half of them. Its
#: weight sync finds a request of the other half after its first token (see verl_cpu/held.py), and the rest before it.
INTERRUPTED = replace(
    LOOPS["fully-async"],
    name="interrupted",
    interrupted=len(PROMPTS) // 2 * ANSWERS,
    overrides={
        **LOOPS["fully-async"].overrides,
        "async_training.staleness_threshold": 1,
        "async_training.partial_rollout": True,
        f"{_VLLM}.scheduler_cls": "verl_cpu.held.HeldScheduler",
        f"{_VLLM}.additional_config.held": {
            "requests": len(PROMPTS) * ANSWERS,
            "answers": ANSWERS,
            "prompts": len(PROMPTS) // 2,
        },
    },
)


def overrides(loop: Loop, folder: Path, places: Mapping[str, Path]) -> list[str]:
    """Return a loop's configuration, as Hydra's command line has it.

    Args:
        loop: which.
        folder: for what it writes.
        places: ``model``, ``prompts``, ``ray`` (Ray's folder), ``config`` (msprobe's file for the rollout).
    """
    return spelt({**stand_ins(loop.npus, folder, places), **_settings(loop, places), **loop.overrides})


def stand_ins(npus: int, folder: Path, places: Mapping[str, Path]) -> dict[str, Any]:
    """What a loop needs on a CPU, and the demo's own data, whatever is collected.

    Args:
        npus: that Ray is told of.
        folder: for what the loop writes.
        places: ``prompts`` and ``ray`` of :func:`overrides`.
    """
    return {
        "data.train_files": places["prompts"],
        "data.val_files": places["prompts"],
        "data.dataloader_num_workers": 0,
        f"+{_MODEL}.override_config.attn_implementation": "eager",
        f"{_MODEL}.enable_gradient_checkpointing": False,
        # So large that the next weights are far from these, in bfloat16 too: a stale one would be seen.
        f"{_ACTOR}.optim.lr": 1e-2,
        f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 16,
        f"{_ROLLOUT}.ignore_eos": True,
        # The stand-in has no memory that can be given back.
        f"{_ROLLOUT}.free_cache_engine": False,
        f"+{_ROLLOUT}.enable_sleep_mode": False,
        f"+{_ROLLOUT}.engine_kwargs.vllm.num_gpu_blocks_override": 16,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": REWARD,
        "trainer.logger": ["console", "file"],
        "trainer.default_local_dir": folder / "checkpoints",
        "+ray_kwargs.ray_init.address": "local",
        # Said to be there: verl's actors ask for many, and wait in silence for what is not to be had.
        "ray_kwargs.ray_init.num_cpus": 64,
        "+ray_kwargs.ray_init.num_gpus": 0,
        "+ray_kwargs.ray_init.resources.NPU": npus,
        "+ray_kwargs.ray_init.object_store_memory": 256 << 20,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init._temp_dir": places["ray"],
        "hydra.run.dir": folder / "hydra",
        "hydra.output_subdir": "null",
    }


def _settings(loop: Loop, places: Mapping[str, Path]) -> dict[str, Any]:
    """A collection run's own settings."""
    kind = {"float32": "fp32", "bfloat16": "bf16"}[loop.kind]
    precision = {"param_dtype": kind, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {
        "algorithm.adv_estimator": "grpo",
        "data.max_prompt_length": PROMPT_LENGTH,
        "data.max_response_length": RESPONSE,
        "data.filter_overlong_prompts": False,
        "data.shuffle": False,
        f"{_MODEL}.path": places["model"],
        f"{_MODEL}.use_remove_padding": True,
        f"{_ACTOR}.strategy": loop.strategy,
        f"{_ACTOR}.use_torch_compile": False,
        f"+{_ACTOR}.fsdp_config.mixed_precision": precision,
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 1,
        f"{_ROLLOUT}.name": "vllm",
        f"{_ROLLOUT}.n": ANSWERS,
        f"{_ROLLOUT}.dtype": loop.kind,
        f"{_ROLLOUT}.tensor_model_parallel_size": 1,
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": 1,
        f"{_ROLLOUT}.agent.num_workers": 1,
        # One prompt in a prefill, and all of it.
        f"{_ROLLOUT}.max_num_seqs": 1,
        f"{_ROLLOUT}.enable_prefix_caching": False,
        f"{_ROLLOUT}.enable_chunked_prefill": False,
        f"{_ROLLOUT}.max_model_len": 256,
        f"{_ROLLOUT}.max_num_batched_tokens": 256,
        f"{_ROLLOUT}.enforce_eager": True,
        f"+{_ROLLOUT}.engine_kwargs.vllm.additional_config.dump_config_path": places["config"],
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.total_epochs": 1,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.val_before_train": False,
        "trainer.balance_batch": False,
        "trainer.resume_mode": "disable",
    }


def spelt(settings: Mapping[str, Any]) -> list[str]:
    """Settings as Hydra's command line has them."""
    return [f"{name}={_spell(value)}" for name, value in settings.items()]


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_spell(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spell, value)) + "]"
    if isinstance(value, Path):
        return "'" + str(value).replace("'", "\\'") + "'"
    return str(value).lower() if isinstance(value, bool) else str(value)
