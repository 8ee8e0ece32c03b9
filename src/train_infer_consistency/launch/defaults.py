"""The upstreams' defaults that rules need where a launch script leaves a setting out, by version.

verl: read from its composed configuration at b7dabd83, 0.8.0 and 0.9.0; slime: from its arguments at 0.2.2 to 0.2.4.
A configuration of the user's own (``--config-name``) has defaults that are not here, so what it may set is unknown.
"""

from __future__ import annotations

from .rule import within
from .run import VERL_FULLY_ASYNC, Run, UnknownValueError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROLLOUT, _ACTOR, _MODEL = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.model."

#: The releases that the capture has edits for; a test holds them to VERSIONS.lock. b7dabd83 counts as 0.8.0.
COVERED: dict[str, tuple[tuple[int, ...], ...]] = {
    "verl": ((0, 8, 0),),
    "vllm": ((0, 18, 0),),
    "vllm-ascend": ((0, 13, 0), (0, 18, 0)),
    "slime": ((0, 2, 2), (0, 2, 3), (0, 2, 4)),
    "sglang": ((0, 5, 6), (0, 5, 7), (0, 5, 8), (0, 5, 9), (0, 5, 10)),
}
#: verl b7dabd83 and 0.8.0, which agree on all of these.
_VERL: dict[str, Any] = {
    "actor_rollout_ref.hybrid_engine": True,
    _ACTOR + "fsdp_config.mixed_precision.param_dtype": "bfloat16",
    _ACTOR + "megatron.context_parallel_size": 1,
    _ACTOR + "megatron.dtype": "bfloat16",
    _ACTOR + "megatron.pipeline_model_parallel_size": 1,
    _ACTOR + "megatron.tensor_model_parallel_size": 1,
    _ACTOR + "ppo_epochs": 1,
    _ACTOR + "ppo_mini_batch_size": 256,
    _ACTOR + "ulysses_sequence_parallel_size": 1,
    _ACTOR + "use_dynamic_bsz": False,
    _MODEL + "enable_gradient_checkpointing": True,
    _MODEL + "lora.rank": 0,
    _MODEL + "lora_rank": 0,
    _MODEL + "use_remove_padding": True,
    _ROLLOUT + "dtype": "bfloat16",
    _ROLLOUT + "enable_chunked_prefill": True,
    _ROLLOUT + "enable_prefix_caching": True,
    _ROLLOUT + "enforce_eager": False,
    _ROLLOUT + "max_num_batched_tokens": 8192,
    _ROLLOUT + "max_num_seqs": 1024,
    _ROLLOUT + "multi_turn.enable": False,
    _ROLLOUT + "n": 1,
    _ROLLOUT + "skip.enable": False,
    "algorithm.rollout_correction.bypass_mode": False,
    "data.max_prompt_length": 512,
    "data.shuffle": True,
    "data.train_batch_size": 1024,
    "model_engine": "dp",
    "trainer.balance_batch": True,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "trainer.test_freq": -1,
    "trainer.total_epochs": 30,
    "trainer.val_before_train": True,
}
#: What 0.9.0 changed.
_VERL_09: dict[str, Any] = {_ROLLOUT + "max_num_seqs": 256, "trainer.use_v1": True}
#: What fully_async_ppo_trainer.yaml and its Megatron twin change.
_FULLY_ASYNC: dict[str, Any] = {
    "algorithm.rollout_correction.bypass_mode": True,
    "async_training.partial_rollout": True,
    "async_training.staleness_threshold": 0.1,
    "async_training.trigger_parameter_sync_step": 4,
    "data.gen_batch_size": 1,
}
#: slime 0.2.2 to 0.2.4, with Megatron's and SGLang's own; a flag that is not here is None or False where not given.
_SLIME: dict[str, Any] = {
    "actor_num_gpus_per_node": 8,
    "actor_num_nodes": 1,
    "advantage_estimator": "grpo",
    "context_parallel_size": 1,
    "data_pad_size_multiplier": 128,
    "micro_batch_size": 1,
    "n_samples_per_prompt": 1,
    "pipeline_model_parallel_size": 1,
    "qkv_format": "thd",
    "rollout_num_gpus_per_engine": 1,
    "sglang_dp_size": 1,
    "sglang_pp_size": 1,
    "sglang_watchdog_timeout": 300,
    "tensor_model_parallel_size": 1,
    "train_backend": "megatron",
}
#: A flag's other names, which argparse takes for the same destination.
_ALIASES = {
    "sglang_dp_size": "sglang_data_parallel_size",
    "sglang_pp_size": "sglang_pipeline_parallel_size",
}
_CONFIGURATIONS = (
    "ppo_trainer",
    "ppo_megatron_trainer",
    "fully_async_ppo_trainer",
    "fully_async_ppo_megatron_trainer",
)
_CONFIG_NAMES = ("--config-name", "-cn")


def verl(run: Run, key: str) -> Any:
    """A Hydra key's value: the run's, else upstream's default.

    Raises:
        UnknownValueError: it cannot be known, or a configuration of the user's own may set it.
    """
    if key not in run.hydra:
        name = config_name(run)
        if name and name not in _CONFIGURATIONS:
            raise UnknownValueError(key, f"--config-name {name}", run.where(*_CONFIG_NAMES), False)
        if _overridden_parent(run, key):
            return None
    return run.override(key, default(run, key))


def default(run: Run, key: str) -> Any:
    """Upstream's default of a Hydra key for the run's scenario and version; None where it has none."""
    if run.scenario == VERL_FULLY_ASYNC and key in _FULLY_ASYNC:
        return _FULLY_ASYNC[key]
    if key in _VERL_09 and within(run.stack.get("verl", "0"), ">=0.9"):
        return _VERL_09[key]
    return _VERL.get(key)


def config_name(run: Run) -> str:
    """The name of the Hydra configuration that the command chooses, without its ending; "" for the entry's own.

    Raises:
        UnknownValueError: it is unknown.
    """
    for option in _CONFIG_NAMES:
        if option in run.hydra:
            return str(run.hydra[option].value).strip("'\"").removesuffix(".yaml")
    return ""


def slime(run: Run, dest: str) -> Any:
    """A flag's value: the run's, else upstream's default; None or False where that is none.

    Raises:
        UnknownValueError: it cannot be known.
    """
    alias = _ALIASES.get(dest, dest)
    return run.flag(alias if alias in run.slime else dest, _SLIME.get(dest))


def _overridden_parent(run: Run, key: str) -> bool:
    """Whether a parent of the key is set to null: ``algorithm.rollout_correction=null`` takes its children away."""
    parts = key.split(".")
    parents = (".".join(parts[:count]) for count in range(1, len(parts)))
    return any(parent in run.hydra and run.hydra[parent].stored is None for parent in parents)
