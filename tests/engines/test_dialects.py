"""Dialects against real models: every module that transformers, PEFT, FSDP and Megatron-Core make has a known name."""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

import pytest

from train_infer_consistency.comparing.dialect import Dialect, choose, shipped
from train_infer_consistency.comparing.names import split_numbers

pytestmark = pytest.mark.engines

BY_NAME = {dialect.name: dialect for dialect in shipped()}
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    **EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 8,
    "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("Qwen2", {}),
    ("Qwen3", {"head_dim": 8}),
    ("Llama", {}),
    ("Qwen3Moe", {**EXPERTS, "num_experts": 4, "head_dim": 8}),
    ("DeepseekV3", LATENT),
]


def make(family: str, more: dict[str, Any]) -> Any:
    """A small model without elements."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    with torch.device("meta"):
        return getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SMALL, **more))


def modules(model: Any) -> set[tuple[str, str]]:
    """(template, class) of what can run, as msprobe names it: not the root, not the lists."""
    lists = ("ModuleList", "ModuleDict")
    found = {(split_numbers(name)[0], type(module).__name__) for name, module in model.named_modules() if name}
    return {item for item in found if item[1] not in lists}


def unknown(dialect: Dialect, found: set[tuple[str, str]]) -> list[str]:
    templates = frozenset(dialect.normalise(template)[0] for template, _ in found)
    plans = {template: dialect.plan(template, cls, templates) for template, cls in found}
    return sorted(template for template, plan in plans.items() if plan is not None and not plan.known)


@pytest.mark.parametrize(("family", "more"), MODELS, ids=[family for family, _ in MODELS])
def test_every_module_of_a_transformers_model_is_known(family: str, more: dict[str, Any]) -> None:
    found = modules(make(family, more))
    assert choose(found).name == "hf"
    assert unknown(BY_NAME["hf"], found) == []
    targets = {plan.template for template, cls in found if (plan := BY_NAME["hf"].plan(template, cls)) is not None}
    assert {"embed", "layers.#.input_norm", "layers.#.attn.o", "layers.#", "final_norm", "lm_head"} <= targets


def test_every_module_under_checkpoint_wrappers_and_lora_is_known() -> None:
    peft = importlib.import_module("peft")
    wrapper = importlib.import_module("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    model = make("Qwen2", {})
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = wrapper.checkpoint_wrapper(layer)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets))
    found = modules(adapted)
    assert any("_checkpoint_wrapped_module" in template for template, _ in found)
    assert any("lora_A" in template for template, _ in found)
    assert choose(found).name == "hf"
    assert unknown(BY_NAME["hf"], found) == []


def built(path: str, cls: str) -> set[str]:
    """The attributes that a class of Megatron-Core builds from its spec."""
    source = inspect.getsource(getattr(importlib.import_module(path), cls))
    tree = ast.parse(source.lstrip())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = getattr(node.value.func, "attr", getattr(node.value.func, "id", ""))
            if name == "build_module" or name in _MADE:
                found |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
    return found


_MADE = {
    "LanguageModelEmbedding",
    "RotaryEmbedding",
    "TransformerBlock",
    "VocabParallelEmbedding",
    "ColumnParallelLinear",
}
CORE = "megatron.core.transformer."
LAYER = "decoder.layers.#"
MEGATRON = [
    ("megatron.core.models.gpt.gpt_model", "GPTModel", ""),
    ("megatron.core.models.common.embeddings.language_model_embedding", "LanguageModelEmbedding", "embedding"),
    (f"{CORE}transformer_block", "TransformerBlock", "decoder"),
    (f"{CORE}transformer_layer", "TransformerLayer", LAYER),
    (f"{CORE}attention", "Attention", f"{LAYER}.self_attention"),
    (f"{CORE}attention", "SelfAttention", f"{LAYER}.self_attention"),
    (f"{CORE}multi_latent_attention", "MLASelfAttention", f"{LAYER}.self_attention"),
    (f"{CORE}mlp", "MLP", f"{LAYER}.mlp"),
    (f"{CORE}moe.moe_layer", "MoELayer", f"{LAYER}.mlp"),
    (f"{CORE}moe.experts", "TEGroupedMLP", f"{LAYER}.mlp.experts"),
]
# Cross-attention and bias-dropout-add: empty in a decoder, and msprobe's entries of them are ignored by their class.
EMPTY = {"pre_cross_attn_layernorm", "cross_attention", "cross_attn_bda", "self_attn_bda", "mlp_bda"}


@pytest.mark.parametrize(("path", "cls", "place"), MEGATRON, ids=[f"{cls}" for _, cls, _ in MEGATRON])
def test_every_module_that_megatron_core_builds_is_known(path: str, cls: str, place: str) -> None:
    names = built(path, cls) - EMPTY - {"mtp"}
    assert names
    found = {(f"{place}.{name}" if place else name, "Module") for name in names}
    assert unknown(BY_NAME["megatron"], found) == []
    assert unknown(BY_NAME["megatron-te"], found) == []
