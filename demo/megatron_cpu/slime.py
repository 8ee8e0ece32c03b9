"""slime's Megatron actor without Megatron-LM's training package, SGLang, Triton and Ray: import before slime.

slime itself is not touched. :func:`install` puts stand-ins in place of the modules it imports and never needs here,
four functions in place of ``megatron.training``, and lets a call to Ray return what it is given.
:func:`make_args` makes what Megatron-LM's parser would: a namespace in which what is not named is None.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import megatron_cpu
import torch
from import_hooks import after_import

#: Imported by slime's actor and never called in a training step.
_UNUSED = (
    "sglang",
    "sglang.srt",
    "sglang.srt.model_executor",
    "sglang.srt.model_executor.model_runner",
    "sglang.srt.patch_torch",
    "sglang.srt.server_args",
    "sglang.srt.utils",
    "sglang.srt.utils.patch_torch",
    "sglang_router",
    "sglang_router.launch_router",
    "torch_memory_saver",
    "triton",
    "triton.language",
    "wandb",
)
#: They look for Triton and wandb themselves, and must not take the stand-ins for them.
_FIRST = (
    "torch._inductor.runtime.hints",
    "transformers.generation.utils",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
)


class Arguments(Namespace):
    """Arguments of a run; one that was not given is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def make_args(
    model: Path, tensor_parallel: int = 1, data_parallel: int = 1, pipeline_parallel: int = 1, **changes: Any
) -> Arguments:
    """Make the arguments of a float32 actor for a Hugging Face model, and two samples or one for each rank's share."""
    from megatron.core.optimizer import OptimizerConfig

    config = importlib.import_module("transformers").AutoConfig.from_pretrained(model)
    fields = {
        field.name: field.default
        for field in dataclasses.fields(OptimizerConfig)
        if field.default is not dataclasses.MISSING
    }
    given = {
        "hf_checkpoint": str(model),
        "load": str(model),
        "lr": 1e-2,
        "params_dtype": torch.float32,
        "tensor_model_parallel_size": tensor_parallel,
        "pipeline_model_parallel_size": pipeline_parallel,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "num_distributed_optimizer_instances": 1,
        "data_parallel_size": data_parallel,
        "sequence_parallel": tensor_parallel > 1,
        "distributed_backend": "gloo",
        "enable_gloo_process_groups": True,
        "distributed_timeout_minutes": 5,
        "num_gpus_per_node": tensor_parallel * data_parallel * pipeline_parallel,
        "seed": 7,
        "te_rng_tracker": False,
        "inference_rng_tracker": False,
        "data_parallel_random_init": False,
        "num_rollout": 4,
        "rollout_batch_size": 1,
        "n_samples_per_prompt": 2,
        "global_batch_size": 2,
        "micro_batch_size": 1,
        "seq_length": 64,
        "data_pad_size_multiplier": 1,
        "qkv_format": "thd",
        "megatron_to_hf_mode": "raw",
        "enable_weights_backuper": True,
        "transformer_impl": "local",
        "qk_layernorm": config.model_type == "qwen3",
        "padded_vocab_size": config.vocab_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "position_embedding_type": "rope",
        "rotary_base": config.rope_theta,
        "rotary_percent": 1.0,
        "fp16_lm_cross_entropy": False,
        "use_rope_scaling": False,
        "untie_embeddings_and_output_weights": True,
        "lr_decay_style": "constant",
        "lr_warmup_init": 0.0,
        "lr_warmup_iters": 0,
        "min_lr": 0.0,
        "start_weight_decay": 0.0,
        "end_weight_decay": 0.0,
        "weight_decay_incr_style": "constant",
        "override_opt_param_scheduler": False,
        "use_checkpoint_opt_param_scheduler": False,
        "compute_advantages_and_returns": True,
        "advantage_estimator": "grpo",
        "loss_type": "policy_loss",
        "kl_coef": 0.0,
        "entropy_coef": 0.0,
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "rollout_temperature": 1.0,
        "log_probs_chunk_size": -1,
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_query_groups": config.num_key_value_heads,
        "ffn_hidden_size": config.intermediate_size,
        "kv_channels": config.hidden_size // config.num_attention_heads,
        "model_name": config.model_type,
    }
    return Arguments(**{**fields, **given, **changes})


def install() -> None:
    """Put the stand-ins in place."""
    for name in _FIRST:
        importlib.import_module(name)
    for name in _UNUSED:
        try:
            importlib.import_module(name)
        except ImportError:
            sys.modules[name] = _Unused(name)
    cuda: Any = torch.cuda
    cuda.mem_get_info = lambda *args: (1, 1)
    torch.distributed.init_process_group = _in_a_file(torch.distributed.init_process_group)
    torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor  # type: ignore[method-assign,misc]
    setattr(torch, "empty_like", _unpinned(torch.empty_like))  # noqa: B010
    _install_training()
    after_import("slime.utils.data", _call_at_once)
    after_import("slime.backends.megatron_utils.initialize", _accept_numpy)
    after_import("slime.utils.reloadable_process_group", _forward_newer_collectives)
    for kind in ("tensor", "distributed"):
        name = f"slime.backends.megatron_utils.update_weight.update_weight_from_{kind}"
        after_import(name, _send_no_weights)


def _in_a_file(original: Any) -> Any:
    """slime's ranks meet over a port; where DIST_INIT_METHOD names a file, that needs none."""

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        where = os.environ.get("DIST_INIT_METHOD")
        if where is not None:
            kwargs |= {"init_method": where, "rank": int(os.environ["RANK"])}
            kwargs["world_size"] = int(os.environ["WORLD_SIZE"])
        original(*args, **kwargs)

    return init_process_group


def _unpinned(factory: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return make


class _Unused(ModuleType):
    """A module of which every name is there and nothing does anything."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


class _Nothing:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As a decorator it leaves the function as it is.
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self


def _install_training() -> None:
    """What slime takes from megatron.training, which megatron-core's wheel has not."""
    state: dict[str, Any] = {}
    contents: dict[str, dict[str, Any]] = {
        "": {},
        ".global_vars": {
            "get_args": lambda: state["args"],
            "set_args": lambda args: state.update(args=args),
            "_build_tokenizer": lambda args: None,
        },
        ".training": {"get_model": _get_model},
        ".arguments": {
            "core_transformer_config_from_args": lambda args: _bridge(args.hf_checkpoint).config,
            "parse_args": None,
            "validate_args": None,
        },
        ".checkpointing": {
            "load_checkpoint": None,
            "save_checkpoint": None,
        },
        ".tokenizer": {},
        ".tokenizer.tokenizer": {"_vocab_size_with_padding": None},
    }
    for suffix, names in contents.items():
        module = ModuleType(f"megatron.training{suffix}")
        module.__path__ = []
        for name, value in names.items():
            setattr(module, name, value)
        sys.modules[module.__name__] = module
    after_import("slime.backends.megatron_utils.checkpoint", lambda module: _load_from_hugging_face(module, state))


def _bridge(model: str) -> Any:
    auto: Any = importlib.import_module("mbridge").AutoBridge
    config = importlib.import_module("transformers").AutoConfig.from_pretrained(model)
    bridge = auto.from_config(config, dtype=torch.float32)
    bridge.set_extra_args(**megatron_cpu.TRANSFORMER_CONFIG)
    return bridge


def _get_model(provider: Any, *_: Any) -> list[Any]:
    distributed: Any = importlib.import_module("megatron.core.distributed")
    state: Any = importlib.import_module("megatron.core.parallel_state")
    model = provider(state.is_pipeline_first_stage(), state.is_pipeline_last_stage())
    settings = distributed.DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False)
    wrapped = distributed.DistributedDataParallel(config=model.config, ddp_config=settings, module=model)
    return [wrapped]


def _load_from_hugging_face(module: Any, state: dict[str, Any]) -> None:
    """A checkpoint is a Hugging Face folder here, and slime would ask Megatron-Bridge for it."""

    def load(model: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        path = state["args"].hf_checkpoint
        with torch.no_grad():
            _bridge(path).load_weights(model, path)
        return -1, 0

    module.load_checkpoint = load


def _call_at_once(module: Any) -> None:
    module.ray = SimpleNamespace(get=lambda value: value)


def _accept_numpy(module: Any) -> None:
    """slime refuses numpy 2, which its image has not; what is used of it is the same."""
    module.np = SimpleNamespace(__version__="1.26", random=module.np.random)


def _forward_newer_collectives(module: Any) -> None:
    """torch 2.13's names of collectives that slime's wrapper forwards by their older ones."""

    def forwarded(name: str) -> Any:
        return lambda self, *args, **kwargs: self._fwd(name, *args, **kwargs)

    for name in ("reduce_scatter_single", "all_gather_single"):
        if not hasattr(module.ReloadableProcessGroup, name) or name not in vars(module.ReloadableProcessGroup):
            setattr(module.ReloadableProcessGroup, name, forwarded(name))


def _send_no_weights(module: Any) -> None:
    for name in ("UpdateWeightFromTensor", "UpdateWeightFromDistributed"):
        if name in vars(module):
            setattr(module, name, lambda *args, **kwargs: None)


install()
