"""Six faults as they happen between two engines; each is planted in one engine, at one place with a known name.

``make demo FAULT=NAME`` must then name that place. A fault of the rollout is in the checkpoint that it loads, so that
every engine has the same one: ``faults.py NAME MODEL FOLDER`` writes it. A fault of training is planted in the network,
loaded and ready. Only numbers change, no file of an upstream.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

#: How much a layer's output is scaled, and how far a stale weight is from the fresh one: a step of training.
SCALE, DRIFT = 1.02, 0.01
#: Positions are this much too large.
SHIFT = 1
#: What another configuration says, instead of 1e-6.
EPSILON = 1e-5
_WRAPPED = "_fsdp_wrapped_module"


@dataclass(frozen=True)
class Fault:
    """One fault: the engine it is planted in, the module it is in as `consistency compare` names it, and what it is.

    Attributes:
        plant: changes training's network.
        spoil: changes the tensors and the configuration that the rollout loads.
    """

    engine: Literal["inference", "training"]
    module: str
    story: str
    plant: Callable[[Any], None] | None = None
    spoil: Callable[[dict[str, Any], dict[str, Any]], None] | None = None


def find(network: Any, name: str) -> Any:
    """Return a submodule by its name in the Hugging Face model, without FSDP1's wrappers."""
    found = [part for path, part in network.named_modules() if path.replace(f"{_WRAPPED}.", "") == f"model.{name}"]
    module = found[-1]
    while hasattr(module, _WRAPPED):
        module = getattr(module, _WRAPPED)
    return module


def _scale_layer(network: Any) -> None:
    layer = find(network, "layers.0")
    forward = layer.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        return output * SCALE if not isinstance(output, tuple) else (output[0] * SCALE, *output[1:])

    layer.forward = scaled


def _swap_projections(tensors: dict[str, Any], _config: dict[str, Any]) -> None:
    """K and v have one shape, so a loader that mixes them up notices nothing; as a whole, qkv is the same numbers."""
    for kind in ("weight", "bias"):
        key, value = (f"model.layers.0.self_attn.{name}_proj.{kind}" for name in "kv")
        tensors[key], tensors[value] = tensors[value], tensors[key]


def _keep_stale_weight(tensors: dict[str, Any], _config: dict[str, Any]) -> None:
    weight = tensors["model.layers.1.self_attn.o_proj.weight"]
    weight[::2] -= DRIFT
    weight[1::2] += DRIFT


def _change_epsilon(_tensors: dict[str, Any], config: dict[str, Any]) -> None:
    config["rms_norm_eps"] = EPSILON


def _compute_in_bfloat16(network: Any) -> None:
    linear = find(network, "layers.1.mlp.down_proj")

    def coarse(hidden: Any) -> Any:
        return (hidden.bfloat16() @ linear.weight.bfloat16().t()).float()

    linear.forward = coarse


def shift(name: str) -> int:
    """Return what is added to every position in training: 0 but for the fault that is about it."""
    return SHIFT if name == "shifted-position" else 0


FAULTS = {
    "scaled-layer": Fault("training", "layers.0", f"the first layer's output is scaled by {SCALE}", _scale_layer),
    "swapped-projection": Fault(
        "inference", "layers.0.attn.qkv", "the first layer's k and v weights were loaded in each other's place",
        spoil=_swap_projections,
    ),
    "stale-weight": Fault(
        "inference", "layers.1.attn.o", "the second layer's o_proj still has the weights of the step before",
        spoil=_keep_stale_weight,
    ),
    "shifted-position": Fault("training", "layers.0.attn.rope", "every position is one too large"),
    "rmsnorm-epsilon": Fault(
        "inference", "layers.0.input_norm", f"the norms add {EPSILON} instead of 1e-6", spoil=_change_epsilon
    ),
    "bf16-module": Fault(
        "training", "layers.1.mlp.down", "the second layer's down_proj computes in bf16 and returns fp32",
        _compute_in_bfloat16,
    ),
}  # fmt: skip


def plant(name: str, network: Any) -> None:
    """Plant a fault in training's network; nothing happens where it is the rollout's, or none."""
    fault = FAULTS.get(name)
    if fault is not None and fault.plant is not None:
        fault.plant(network)


def write_spoilt(name: str, model: Path, folder: Path) -> None:
    """Write a copy of a model with one of the rollout's faults in it.

    Args:
        name: of the fault.
        model: the folder of the sound one.
        folder: a new one.
    """
    safetensors: Any = importlib.import_module("safetensors.torch")
    spoil = FAULTS[name].spoil
    shutil.copytree(model, folder)
    weights, configuration = folder / "model.safetensors", folder / "config.json"
    tensors, config = safetensors.load_file(weights), json.loads(configuration.read_text())
    if spoil is not None:
        spoil(tensors, config)
    safetensors.save_file(tensors, weights, metadata={"format": "pt"})
    configuration.write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    write_spoilt(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
