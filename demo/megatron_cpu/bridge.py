"""mbridge and verl's Megatron engine without Transformer Engine."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any

from import_hooks import after_import


def install() -> None:
    """Prepare mbridge if it is installed, and verl's configuration."""
    spec = importlib.util.find_spec("mbridge")
    if spec is not None and spec.submodule_search_locations:
        # Its package of models imports all of them, and some import Transformer Engine.
        models = ModuleType("mbridge.models")
        models.__path__ = [f"{spec.submodule_search_locations[0]}/models"]
        sys.modules.setdefault("mbridge.models", models)
        after_import("mbridge", _load_dense_models)
        after_import("mbridge.core.util", _tell_virtual_chunks)
    after_import("verl.workers.config.engine", _allow_float32)


def _load_dense_models(module: Any) -> None:
    """Load Qwen2 and Qwen3, and name the norms, which are modules of their own where no layer fuses them."""
    qwen2 = importlib.import_module("mbridge.models.qwen2").Qwen2Bridge
    importlib.import_module("mbridge.models.qwen3")
    layer = "model.layers.{layer_number}"
    qwen2._OTHER_MAPPING = {"input_layernorm.weight": [f"{layer}.input_layernorm.weight"]}
    # mbridge looks for "mlp" in a name first.
    norm = {"pre_mlp_layernorm.weight": [f"{layer}.post_attention_layernorm.weight"]}
    qwen2._MLP_MAPPING = {**qwen2._MLP_MAPPING, **norm}


def _tell_virtual_chunks(module: Any) -> None:
    """Before 0.13 megatron-core asks a global for the chunk's number, which mbridge does not set: all are the first."""
    original, state = module.get_model, module.mpu
    if "vp_stage" in inspect.signature(state.is_pipeline_first_stage).parameters:
        return

    @functools.wraps(original)
    def get_model(provide: Any, *args: Any, **kwargs: Any) -> Any:
        def provide_chunk(vp_stage: int | None = None, **ends: bool) -> Any:
            if vp_stage is None:
                return provide(**ends)
            state.set_virtual_pipeline_model_parallel_rank(vp_stage)
            first, last = state.is_pipeline_first_stage(), state.is_pipeline_last_stage()
            return provide(pre_process=first, post_process=last, vp_stage=vp_stage)

        return original(provide_chunk, *args, **kwargs)

    module.get_model = get_model


def _allow_float32(module: Any) -> None:
    """verl allows two types only; the engine itself takes any."""
    config = module.McoreEngineConfig
    original = config.__post_init__

    def check(self: Any) -> None:
        wanted = self.dtype
        if wanted == "float32":
            object.__setattr__(self, "dtype", "bfloat16")
        original(self)
        object.__setattr__(self, "dtype", wanted)

    config.__post_init__ = check
