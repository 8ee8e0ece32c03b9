"""Lets Megatron's training run on CPU tensors over gloo: megatron-core, mbridge, verl's Megatron engine.

verl loads it itself: ``VERL_USE_EXTERNAL_MODULES=verl_cpu,megatron_cpu`` with this folder's parent on the path;
elsewhere an import before megatron's is enough. The layers are megatron-core's own local ones (no Transformer Engine);
two parts of them cannot do what is asked here and are stood in for, the norm under sequence parallelism and the
attention over packed sequences. The configuration has to switch fusions off and CPU initialisation on:
:data:`TRANSFORMER_CONFIG`.
"""

from __future__ import annotations

from megatron_cpu import bridge, core

#: Fields of megatron-core's TransformerConfig that a CPU needs.
TRANSFORMER_CONFIG = {
    "use_cpu_initialization": True,
    "masked_softmax_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
}

core.install()
bridge.install()
