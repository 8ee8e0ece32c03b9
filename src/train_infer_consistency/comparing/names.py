"""Canonical module paths: their order in a forward pass, their layer, and their depth for the bounds.

``embed``, ``layers.3.input_norm``, ``layers.3.attn.qkv``, ``layers.3.mlp.down``, ``final_norm``, ``lm_head``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

# What runs in a layer, in the order of a forward pass; a container comes after what it contains.
LAYER_ORDER = [
    "input_norm",
    "attn.qkv", "attn.qkv_a", "attn.q_a_norm", "attn.q_b", "attn.kv_a_norm", "attn.kv_b",
    "attn.q_norm", "attn.k_norm", "attn.rope", "attn.core", "attn.o", "attn",
    "post_attn_norm",
    "mlp.router", "mlp.experts.#.gate_up", "mlp.experts.#.down", "mlp.experts.#", "mlp.experts",
    "mlp.shared_expert_gate", "mlp.shared_expert.gate_up", "mlp.shared_expert.down", "mlp.shared_expert",
    "mlp.gate_up", "mlp.down", "mlp",
]  # fmt: skip
_ORDER = {f"layers.#.{name}": index for index, name in enumerate(LAYER_ORDER)}
_ENDS = {"embed": 0, "final_norm": 2, "lm_head": 3}
_LAYER = "layers.#"
# Within a module: parameters are judged apart, then what goes in, then what comes out.
_KINDS = {"weight": 0, "bias": 1, "input": 2, "q": 3, "k": 4, "v": 5, "output": 9}

SortKey = tuple[int, int, int, tuple[int, ...], str]


@lru_cache(maxsize=1 << 16)
def split_numbers(path: str) -> tuple[str, tuple[int, ...]]:
    """Take the numbers out of a dotted path: ("layers.#.mlp", (3,)) for "layers.3.mlp"."""
    parent, _, name = path.rpartition(".")
    if not parent or name.isdecimal():
        return _split(path)
    template, numbers = _split(parent)  # the same for all that lie beside it
    return f"{template}.{name}", numbers


@lru_cache(maxsize=4096)
def _split(path: str) -> tuple[str, tuple[int, ...]]:
    segments = path.split(".")
    numbers = []
    for index, segment in enumerate(segments):
        if segment.isdecimal():
            numbers.append(int(segment))
            segments[index] = "#"
    return (".".join(segments), tuple(numbers)) if numbers else (path, ())


def sort_key(template: str, numbers: tuple[int, ...]) -> SortKey:
    """Where a module stands in a forward pass, whatever the order of the files and entries was."""
    if not numbers or not template.startswith(_LAYER):
        return (_ENDS.get(template, 4), 0, 0, numbers, template)
    # An unknown module stands before its layer's own output: it is a part of the layer.
    order = len(_ORDER) + 1 if template == _LAYER else _ORDER.get(template, len(_ORDER))
    return (1, numbers[0], order, numbers[1:], template)


def in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    """A module's rows in their order: parameters, what goes in, what comes out."""
    return tuple(sorted(kinds, key=lambda kind: (_KINDS.get(kind, 6), kind)))


def layer_of(module: str) -> int | None:
    """The layer of a canonical path; None outside the layers."""
    if not module.startswith("layers."):
        return None
    number = module[7:].partition(".")[0]
    return int(number) if number.isdecimal() else None


@lru_cache(maxsize=4096)
def template_of(module: str) -> str:
    """The path with ``#`` for its numbers."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "#", module)


def depth_of(template: str, numbers: tuple[int, ...], layers: int) -> int:
    """How many layers of rounding lie behind a module: 0 at the embedding, ``layers`` + 1 after the last layer."""
    if numbers and template.startswith(_LAYER):
        return numbers[0] + 1
    return 0 if template == "embed" else layers + 1
