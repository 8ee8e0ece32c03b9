"""Dialects: names and wrappers, which dialect fits, files of the user; names read from real releases of the engines."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from train_infer_consistency.comparing.dialect import Dialect, choose, fill, load, shipped
from train_infer_consistency.comparing.names import LAYER_ORDER, sort_key, split_numbers
from train_infer_consistency.errors import UsageError

from .cases import Data, changed, direct, dump_of

BY_NAME = {dialect.name: dialect for dialect in shipped()}


def canonical(dialect: str, path: str, cls: str = "Linear", beside: frozenset[str] = frozenset()) -> str | None:
    template, numbers = split_numbers(path)
    plan = BY_NAME[dialect].plan(template, cls, beside)
    return None if plan is None else fill(plan.pieces, numbers) + (f"#{plan.rule.part}" if plan.rule.part else "")


@pytest.mark.parametrize(
    ("dialect", "path", "name"),
    [
        ("hf", "model.layers.3.self_attn.q_proj", "layers.3.attn.qkv#q"),
        ("hf", "_fsdp_wrapped_module.model.layers.3._fsdp_wrapped_module.mlp.up_proj", "layers.3.mlp.gate_up#up"),
        ("hf", "model.layers.3._checkpoint_wrapped_module._fsdp_wrapped_module.mlp.down_proj", "layers.3.mlp.down"),
        ("hf", "_fsdp_wrapped_module._fsdp_wrapped_module.model.norm", "final_norm"),
        ("hf", "_orig_mod.model.layers.0.input_layernorm", "layers.0.input_norm"),
        ("hf", "base_model.model.model.layers.7.self_attn.o_proj", "layers.7.attn.o"),
        ("hf", "base_model.model.lm_head", "lm_head"),
        ("hf", "lm_head", "lm_head"),
        ("hf", "model.embed_tokens", "embed"),
        ("hf", "model", "model"),
        ("hf", "model.layers.1.mlp.experts.12.gate_proj", "layers.1.mlp.experts.12.gate_up#gate"),
        ("hf", "model.layers.1.self_attn.kv_a_proj_with_mqa", "layers.1.attn.qkv_a#kv"),
        ("hf", "model.language_model.layers.2.mlp", "layers.2.mlp"),
        ("megatron", "module.module.decoder.layers.3.self_attention.linear_qkv", "layers.3.attn.qkv"),
        ("megatron", "decoder.layers.0.pre_mlp_layernorm", "layers.0.post_attn_norm"),
        ("megatron", "output_layer", "lm_head"),
        ("megatron", "module", "model"),
        ("megatron", "decoder.layers.1.mlp.experts.local_experts.5.linear_fc1", "layers.1.mlp.experts.5.gate_up"),
        ("vllm", "model.layers.3.self_attn.qkv_proj", "layers.3.attn.qkv"),
        ("vllm", "model.layers.3.mlp.shared_experts.down_proj", "layers.3.mlp.shared_expert.down"),
        ("vllm", "language_model.model.layers.3.mlp", "layers.3.mlp"),
        ("vllm", "logits_processor", "lm_head"),
        ("vllm-ascend", "model.layers.3.mlp.gate_up_proj", "layers.3.mlp.gate_up"),
        ("sglang", "model.layers.3.self_attn.fused_qkv_a_proj_with_mqa", "layers.3.attn.qkv_a"),
        ("megatron-te", "decoder.layers.0.mlp.linear_fc1", "layers.0.mlp.gate_up"),
    ],
)
def test_canonical_paths(dialect: str, path: str, name: str) -> None:
    assert canonical(dialect, path) == name


def test_lora_keeps_the_layer_and_leaves_out_the_adapters() -> None:
    base = "base_model.model.model.layers.0.self_attn.q_proj"
    template, _ = split_numbers(f"{base}.base_layer")
    plan = BY_NAME["hf"].plan(template, "Linear")
    assert plan is not None
    assert (plan.template, plan.take) == ("layers.#.attn.qkv", "parameters")
    assert canonical("hf", f"{base}.lora_A.default") is None
    assert canonical("hf", f"{base}.lora_dropout.default", "Dropout") is None


def test_megatrons_latent_attention_has_the_query_norm_of_another_place() -> None:
    path = "decoder.layers.0.self_attention.q_layernorm"
    assert canonical("megatron", path, "RMSNorm") == "layers.0.attn.q_norm"
    beside = frozenset({"decoder.layers.#.self_attention.linear_q_down_proj"})
    assert canonical("megatron", path, "RMSNorm", beside) == "layers.0.attn.q_a_norm"


def test_transformer_engines_fused_norm_lends_its_weight_and_input() -> None:
    template, _ = split_numbers("decoder.layers.2.self_attention.linear_qkv")
    plan = BY_NAME["megatron-te"].plan(template, "TELayerNormColumnParallelLinear")
    assert plan is not None
    assert {(slot.name, "#".join(slot.module), slot.kind) for slot in plan.slots} == {
        ("input.0", "layers.#.input_norm", "input"),
        ("parameters.layer_norm_weight", "layers.#.input_norm", "weight"),
    }
    plain = BY_NAME["megatron-te"].plan(template, "TEColumnParallelLinear")
    assert plain is not None
    assert plain.slots == ()


def test_what_no_one_could_check_says_so() -> None:
    assert {dialect.name for dialect in shipped() if not dialect.verified} == {"megatron-te", "mindspeed"}


def test_a_lone_name_is_a_name_of_its_own() -> None:
    assert canonical("hf", "model.layers.3.something_new") == "layers.3.something_new"
    assert canonical("megatron", "module.decoder.layers.3.new") == "layers.3.new"


def test_the_order_is_that_of_a_forward_pass() -> None:
    names = [
        "lm_head",
        "layers.10.attn.o",
        "layers.2",
        "layers.2.mlp.down",
        "layers.2.input_norm",
        "final_norm",
        "embed",
    ]
    ordered = sorted(names, key=lambda name: sort_key(*split_numbers(name)))
    assert ordered == [
        "embed",
        "layers.2.input_norm",
        "layers.2.mlp.down",
        "layers.2",
        "layers.10.attn.o",
        "final_norm",
        "lm_head",
    ]
    experts = [f"layers.0.mlp.experts.{number}.down" for number in (10, 9, 0)]
    assert max(experts, key=lambda name: sort_key(*split_numbers(name))).endswith("10.down")


def test_every_canonical_name_has_a_place_in_the_order() -> None:
    known = {f"layers.#.{name}" for name in LAYER_ORDER} | {"embed", "final_norm", "lm_head", "layers.#"}
    for dialect in shipped():
        targets = {rule.target for rules in dialect.rules.values() for rule in rules if not rule.uncounted}
        assert targets <= known, dialect.name


class TestFiles:
    def test_a_dialect_of_the_user_makes_an_unknown_model_comparable(self, dumps: Path, tmp_path: Path) -> None:
        def rename(data: Data) -> None:
            for name in list(data):
                new = re.sub(r"self_attn\.o_proj", "attention.out", name)
                data[new.replace("mlp.down_proj", "ffn.second")] = data.pop(name)

        look = dumps / "lookalike"
        ours = dump_of(look / "vllm_fp32_stat")
        theirs = changed(dump_of(look / "verl_fsdp2_fp32_stat"), tmp_path / "rank0", rename)
        assert direct(ours, theirs).verdict == "insufficient"
        file = tmp_path / "mine.toml"
        file.write_text(
            'name = "mine"\nextends = "hf"\n[detect]\nnames = ["layers.#.attention.out"]\n'
            '[[module]]\nname = "layers.#.attention.out"\nis = "layers.#.attn.o"\n'
            '[[module]]\nname = "layers.#.ffn.second"\nis = "layers.#.mlp.down"\n'
        )
        found = direct(ours, theirs, dialects=(load(file),))
        assert (found.verdict, found.coverage) == ("consistent", 1.0)
        assert found.pairs[0].training is not None
        assert found.pairs[0].training.dialect.name == "mine"

    @pytest.mark.parametrize(
        "text",
        [
            "nonsense = 1",
            'extends = "none"',
            "[[module]]\nname = 3",
            '[[module]]\nname = "a"\nis = "b"\nsplit = "diagonal"',
            '[[module]]\nname = "a"\nis = "b"\ncolour = 1',
            "module = 3",
            "detect = 3",
            "[",
        ],
    )
    def test_a_file_that_means_nothing_is_a_wrong_command_line(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "bad.toml"
        file.write_text(text)
        with pytest.raises(UsageError, match=r"bad\.toml"):
            load(file)


# The classes of each engine's models, by the place of an instance in the model.
ATTENTION, MLP, MOE = "model.layers.0.self_attn", "model.layers.0.mlp", "model.layers.1.mlp"


def classes_of(family: str, **others: str) -> dict[str, str]:
    """Place and class: those of the usual names, and ``others`` by the name of their place."""
    places = {"mlp": MLP, "moe": MOE, "shared_expert": f"{MOE}.shared_expert", "shared": f"{MOE}.shared_experts"}
    places |= {"attention": ATTENTION, "indexer": f"{ATTENTION}.indexer"}
    usual = {"": f"{family}ForCausalLM", "model": f"{family}Model", "model.layers.0": f"{family}DecoderLayer"}
    return {**usual, ATTENTION: f"{family}Attention", **{places[place]: name for place, name in others.items()}}


VLLM, SGLANG = "vllm/model_executor/models/", "sglang/srt/models/"
DEEPSEEK = {"mlp": "DeepseekV2MLP", "moe": "DeepseekV2MoE", "shared": "DeepseekV2MLP"}
QWEN3_MOE = {"mlp": "Qwen3MoeMLP", "shared_expert": "Qwen3MoeMLP", "moe": "Qwen3MoeSparseMoeBlock"}
RELEASES: list[tuple[str, str, str, dict[str, str]]] = [
    ("vllm", "0.18.0", f"{VLLM}qwen2.py", classes_of("Qwen2", mlp="Qwen2MLP")),
    ("vllm", "0.18.0", f"{VLLM}qwen3.py", classes_of("Qwen3")),
    ("vllm", "0.18.0", f"{VLLM}llama.py", classes_of("Llama", mlp="LlamaMLP")),
    ("vllm", "0.18.0", f"{VLLM}qwen3_moe.py", classes_of("Qwen3Moe", **QWEN3_MOE)),
    (
        "vllm", "0.18.0", f"{VLLM}deepseek_v2.py",
        classes_of("DeepseekV2", attention="DeepseekV2MLAAttention", indexer="Indexer", **DEEPSEEK),
    ),
    ("sglang", "0.5.9", f"{SGLANG}qwen2.py", classes_of("Qwen2", mlp="Qwen2MLP")),
    ("sglang", "0.5.9", f"{SGLANG}qwen3.py", classes_of("Qwen3")),
    ("sglang", "0.5.9", f"{SGLANG}llama.py", classes_of("Llama", mlp="LlamaMLP")),
    ("sglang", "0.5.9", f"{SGLANG}qwen3_moe.py", classes_of("Qwen3Moe", moe="Qwen3MoeSparseMoeBlock")),
    (
        "sglang", "0.5.9", f"{SGLANG}deepseek_v2.py",
        classes_of("DeepseekV2", attention="DeepseekV2AttentionMLA", **DEEPSEEK),
    ),
]  # fmt: skip

# What makes a module: a class by its name, or a factory.
_MODULE = re.compile(
    r"(Linear|Norm|Embedding|LMHead|LogitsProcessor|Attention|MoE|MoeBlock|TopK|MLP|Mul|MoEGate|Indexer|Wrapper|Pooler)$"
    r"|^(get_rope|get_rope_wrapper|attn_cls|GateLinear|SparseAttnIndexer|get_moe_impl_class)$"
)


def attributes(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    """(attribute, class) of the modules that a class makes itself."""
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    for node in ast.walk(found):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        function = node.value.func
        while isinstance(function, ast.Call):
            function = function.func
        cls = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        for target in node.targets:
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self" and _MODULE.search(cls):
                yield target.attr, cls


def unknown_names(dialect: Dialect, source: str, classes: dict[str, str]) -> tuple[list[str], int]:
    """The modules of a source's classes that a dialect does not know, and how many there are in all."""
    tree = ast.parse(source)
    unknown, count = [], 0
    for place, name in classes.items():
        for attribute, cls in attributes(tree, name):
            path = f"{place}.{attribute}" if place else attribute
            plan = dialect.plan(split_numbers(path)[0], cls)
            count += 1
            if plan is not None and not plan.known:
                unknown.append(path)
    return unknown, count


@pytest.mark.download
@pytest.mark.parametrize(
    ("name", "version", "path", "classes"), RELEASES, ids=[f"{item[0]}-{Path(item[2]).stem}" for item in RELEASES]
)
def test_names_of_real_classes_are_known(
    release: Callable[..., Path], name: str, version: str, path: str, classes: dict[str, str]
) -> None:
    with zipfile.ZipFile(release(name, version)) as archive:
        source = archive.read(path).decode()
    unknown, count = unknown_names(BY_NAME[name], source, classes)
    assert unknown == []
    assert count >= 8, "hardly a module was found: the reader of the classes is wrong"


@pytest.mark.download
def test_class_names_of_the_real_vllm_ascend_choose_its_dialect(release: Callable[..., Path]) -> None:
    """vLLM-Ascend replaces vLLM's classes by name; its own table says by which."""
    with zipfile.ZipFile(release("vllm-ascend", "0.18.0")) as archive:
        source = archive.read("vllm_ascend/utils.py").decode()
    classes = set(re.findall(r'"\w+": (Ascend\w+),', source))
    own = BY_NAME["vllm-ascend"].detect_classes - BY_NAME["vllm"].detect_classes
    assert own
    assert own <= classes
    modules = {("model.layers.#.self_attn.qkv_proj", "AscendQKVParallelLinear"), ("model.norm", "AscendRMSNorm")}
    assert choose(modules).name == "vllm-ascend"
    assert (
        choose({("model.layers.#.self_attn.qkv_proj", "QKVParallelLinear"), ("model.norm", "RMSNorm")}).name == "vllm"
    )
    radix = {
        ("model.layers.#.self_attn.qkv_proj", "QKVParallelLinear"),
        ("model.layers.#.self_attn.attn", "RadixAttention"),
    }
    assert choose(radix).name == "sglang"


def test_an_unknown_name_among_real_ones_would_be_seen() -> None:
    source = (
        "class A:\n def __init__(self):\n  self.qkv_proj = QKVParallelLinear()\n  self.surprise = ReplicatedLinear()\n"
    )
    unknown, count = unknown_names(BY_NAME["vllm"], source, {ATTENTION: "A"})
    assert (unknown, count) == ([f"{ATTENTION}.surprise"], 2)
