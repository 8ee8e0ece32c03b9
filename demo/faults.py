"""Six faults as they happen between two engines; each is planted in one engine, at one place with a known name.

``make demo FAULT=NAME`` must then name that place. The functions that plant get a network as the engine holds it,
loaded and ready; only numbers change, no file of an upstream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    """One fault: the engine it is planted in, the module it is in as `consistency compare` names it, and what it is."""

    engine: Literal["inference", "training"]
    module: str
    story: str
    plant: Callable[[Any], None] | None = None


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


def _swap_projections(network: Any) -> None:
    """K and v have one shape, so a loader that mixes them up notices nothing; as a whole, qkv is the same numbers."""
    projection = find(network, "layers.0.self_attn.qkv_proj")
    keys = (projection.weight.shape[0] - find(network, "layers.0.self_attn.o_proj").weight.shape[1]) // 2
    for tensor in (projection.weight.data, projection.bias.data):
        key, value = tensor[-2 * keys : -keys].clone(), tensor[-keys:].clone()
        tensor[-2 * keys : -keys], tensor[-keys:] = value, key


def _keep_stale_weight(network: Any) -> None:
    weight = find(network, "layers.1.self_attn.o_proj").weight.data
    steps = weight.new_ones(weight.shape)
    steps[::2] = -1
    weight += DRIFT * steps


def _change_epsilon(network: Any) -> None:
    for part in network.modules():
        if hasattr(part, "variance_epsilon"):
            part.variance_epsilon = EPSILON


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
        _swap_projections,
    ),
    "stale-weight": Fault(
        "inference", "layers.1.attn.o", "the second layer's o_proj still has the weights of the step before",
        _keep_stale_weight,
    ),
    "shifted-position": Fault("training", "layers.0.attn.rope", "every position is one too large"),
    "rmsnorm-epsilon": Fault(
        "inference", "layers.0.input_norm", f"the norms add {EPSILON} instead of 1e-6", _change_epsilon
    ),
    "bf16-module": Fault(
        "training", "layers.1.mlp.down", "the second layer's down_proj computes in bf16 and returns fp32",
        _compute_in_bfloat16,
    ),
}  # fmt: skip


def plant(name: str, engine: str, network: Any) -> None:
    """Plant a fault in an engine's network; nothing happens where it belongs to the other engine."""
    fault = FAULTS.get(name)
    if fault is not None and fault.engine == engine and fault.plant is not None:
        fault.plant(network)
