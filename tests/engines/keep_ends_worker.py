"""One rank of a tiny model under FSDP1, FSDP2 or Megatron, run without and with msprobe's dump, for test_keep_ends.py.

It is a script, because msprobe has one debugger per process: ``keep_ends_worker.py fsdp|megatron RANK WORLD FOLDER``.
Every variant runs twice from the same seed, first before msprobe is imported, then inside a dump.
``FOLDER/report{RANK}.json`` says what came out; step *k* of ``FOLDER/dump`` belongs to variant *k*.

The logits are divided in place by a temperature, as verl's FSDP and Megatron engines do.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TOKENS, VOCABULARY, TEMPERATURE = 11, 128, 0.7


@dataclass(frozen=True)
class Variant:
    """How a model is built and run."""

    engine: str
    name: str
    checkpointing: bool = False
    bfloat16: bool = False
    grad: bool = True


@dataclass
class Outcome:
    """What one run computed: logits before the division (last pipeline stage only), loss, gradients of this rank."""

    logits: list[torch.Tensor] = field(default_factory=list)
    loss: float | None = None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


Run = Callable[[Any, Variant], Outcome]
FSDP = tuple(
    variant
    for engine in ("fsdp1", "fsdp2")
    for variant in (
        Variant(engine, "plain"),
        Variant(engine, "checkpointing", checkpointing=True),
        Variant(engine, "no grad", grad=False),
    )
)
MEGATRON = (
    Variant("megatron", "fp32"),
    Variant("megatron", "bf16", bfloat16=True),
    Variant("megatron", "bf16 recompute", checkpointing=True, bfloat16=True),
)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and positions, [1, TOKENS]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (1, TOKENS), generator=generator), torch.arange(TOKENS)[None]


def token_loss(logits: torch.Tensor, ids: torch.Tensor, out: Outcome) -> torch.Tensor:
    """Divide [1, TOKENS, VOCABULARY] in place as verl does, and return the mean cross entropy."""
    out.logits.append(logits.detach().clone())
    rows = logits.squeeze(0)
    rows.div_(torch.full((TOKENS, 1), TEMPERATURE))
    loss = torch.nn.functional.cross_entropy(rows[:-1].float(), ids[0, 1:])
    out.loss = loss.item()
    return loss


def build_fsdp(variant: Variant) -> Any:
    """Return a two-layer Qwen2 wrapped as verl wraps its actor: each layer, then the whole."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model: Any = transformers.Qwen2ForCausalLM(config).float().train()
    if variant.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    if variant.engine == "fsdp1":
        wrap: Any = importlib.import_module("torch.distributed.fsdp.wrap")
        layers = {type(model.model.layers[0])}
        policy = functools.partial(wrap.transformer_auto_wrap_policy, transformer_layer_cls=layers)
        return fsdp.FullyShardedDataParallel(
            model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=False
        )
    mesh: Any = importlib.import_module("torch.distributed.device_mesh").init_device_mesh(
        "cpu", (dist.get_world_size(),)
    )
    # verl hands its own reshard_after_forward (True) to the root too, which makes the root depend on its backward hook.
    for part in (*model.model.layers, model):
        fsdp.fully_shard(part, mesh=mesh, reshard_after_forward=True)
    return model


def run_fsdp(model: Any, variant: Variant) -> Outcome:
    """Forward, loss and backward; each rank has its own tokens."""
    out = Outcome()
    ids, positions = batch(7 + dist.get_rank())
    with torch.set_grad_enabled(variant.grad):
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        loss = token_loss(logits, ids, out)
    if variant.grad:
        loss.backward()
        for name, parameter in model.named_parameters():
            grad = parameter.grad
            out.gradients[name] = (grad.to_local() if hasattr(grad, "to_local") else grad).detach().clone()
    return out


def megatron_on_cpu(pipeline: int) -> None:
    """Stand in for the CUDA calls that megatron-core makes whatever the device."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    cuda.synchronize = lambda *_: None
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    zeros = torch.zeros

    @functools.wraps(zeros)
    def zeros_on_cpu(*arguments: Any, **options: Any) -> torch.Tensor:
        return zeros(*arguments, **{**options, "device": "cpu"})

    torch.zeros = zeros_on_cpu
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    states: Any = importlib.import_module("megatron.core.parallel_state")
    states.initialize_model_parallel(1, pipeline)
    random.model_parallel_cuda_manual_seed(1)


def build_megatron(pipeline: int, variant: Variant) -> Any:
    """Return this stage of a GPT with two layers a stage, in DDP as verl wraps it, in Float16Module too for bf16."""
    core: Any = importlib.import_module("megatron.core")
    gpt: Any = importlib.import_module("megatron.core.models.gpt")
    specs: Any = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    wrappers: Any = importlib.import_module("megatron.core.transformer.module")
    ddp: Any = importlib.import_module("megatron.core.distributed")
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    config = importlib.import_module("megatron.core.transformer").TransformerConfig(
        num_layers=2 * pipeline,
        hidden_size=32,
        ffn_hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.bfloat16 if variant.bfloat16 else torch.float32,
        deallocate_pipeline_outputs=True,
        use_cpu_initialization=True,
        bf16=variant.bfloat16,
        params_dtype=torch.bfloat16 if variant.bfloat16 else torch.float32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        **(recompute if variant.checkpointing else {}),
    )
    model: Any = gpt.GPTModel(
        config=config,
        transformer_layer_spec=specs.get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=VOCABULARY,
        max_sequence_length=64,
        pre_process=core.parallel_state.is_pipeline_first_stage(),
        post_process=core.parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    model = wrappers.Float16Module(config, model) if variant.bfloat16 else model
    settings = ddp.DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False)
    return ddp.DistributedDataParallel(config, settings, model).train()


def run_megatron(model: Any, _variant: Variant) -> Outcome:
    """Two micro-batches through Megatron's own schedule."""
    out = Outcome()
    schedules: Any = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    mask = torch.triu(torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool), diagonal=1)

    def forward_step(batches: Iterator[tuple[torch.Tensor, torch.Tensor]], part: Any) -> tuple[torch.Tensor, Any]:
        ids, positions = next(batches)
        output = part(input_ids=ids, position_ids=positions, attention_mask=mask)

        def loss_of(logits: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
            return token_loss(logits, ids, out), {}

        return output, loss_of

    model.zero_grad_buffer()
    schedules.get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter([batch(7), batch(8)]),
        model=[model],
        num_microbatches=2,
        seq_length=TOKENS,
        micro_batch_size=1,
        forward_only=False,
    )
    out.gradients = {name: parameter.main_grad.clone() for name, parameter in model.named_parameters()}
    return out


def debugger(folder: Path, rank: int) -> Any:
    """Return msprobe's debugger at level L0, statistics."""
    config = folder / f"config{rank}.json"
    settings = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config.write_text(
        json.dumps(
            {
                "task": "statistics",
                "dump_path": str(folder / "dump"),
                "rank": [],
                "step": [],
                "level": "L0",
                "statistics": settings,
            }
        )
    )
    return importlib.import_module("msprobe.pytorch").PrecisionDebugger(config_path=str(config))


def statistics(logits: torch.Tensor) -> dict[str, Any]:
    """Return what msprobe's statistics ought to be, computed from the model's own output."""
    values = logits.float()
    return {
        "shape": list(logits.shape),
        "Max": values.max().item(),
        "Min": values.min().item(),
        "Mean": values.mean().item(),
        "Norm": values.norm().item(),
    }


def digest(tensors: list[torch.Tensor]) -> str:
    """Return a digest of all values, to compare two processes bit by bit."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def compared(variant: Variant, modules: list[list[str]], bare: Outcome, dumped: Outcome | None) -> dict[str, Any]:
    """Return the report on one variant; ``dumped`` is None where the run inside the dump raised."""
    report: dict[str, Any] = {"engine": variant.engine, "name": variant.name, "modules": modules}
    report["logits"] = [statistics(logits) for logits in bare.logits]
    if dumped is None:
        return report
    same = bare.gradients.keys() == dumped.gradients.keys()
    pairs = [(grad, dumped.gradients[name]) for name, grad in bare.gradients.items()] if same else []
    report |= {
        "logits_equal": digest(bare.logits) == digest(dumped.logits) and bare.loss == dumped.loss,
        "gradients": len(pairs),
        "gradient_scale": max((a.abs().max().item() for a, _ in pairs), default=0.0),
        "gradient_difference": max(((a - b).abs().max().item() for a, b in pairs), default=0.0),
        "gradient_digest": digest([b for _, b in pairs]),
    }
    return report


def main(kind: str, rank: int, world: int, folder: Path) -> None:
    """Run all variants of a kind."""
    sys.modules["verl"] = types.ModuleType("verl")  # all that msprobe looks at
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=world)
    run: Run = run_fsdp
    variants, build = FSDP, build_fsdp
    if kind == "megatron":
        megatron_on_cpu(world)
        run, variants, build = run_megatron, MEGATRON, functools.partial(build_megatron, world)

    def fresh(variant: Variant) -> Any:
        torch.manual_seed(1 + rank if kind == "megatron" else 1)
        return build(variant)

    bare = [run(fresh(variant), variant) for variant in variants]
    probe = debugger(folder, rank)
    reports = []
    for variant, before in zip(variants, bare, strict=True):
        model = fresh(variant)
        modules = [[name, type(module).__name__] for name, module in model.named_modules()]
        probe.start(model=model)
        try:
            after, error = run(model, variant), None
        except (RuntimeError, ValueError) as raised:
            after, error = None, f"{type(raised).__name__}: {raised}".splitlines()[0]
        probe.stop()
        probe.step()
        reports.append(compared(variant, modules, before, after) | {"error": error})
    source = sys.modules["msprobe"].__file__
    (folder / f"report{rank}.json").write_text(json.dumps({"msprobe": source, "variants": reports}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
