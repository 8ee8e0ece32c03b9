"""Rules of what the capture dumps of verl's training: phases, engines, and what else holds msprobe's debugger."""

from __future__ import annotations

from .. import defaults
from ..rule import ERROR, NOTE, OUT, WARNING, Found, Rule, drop_variable, set_override, set_variable
from ..run import VERL, VERL_HYBRID, Run
from .settings import ACTOR, MODEL, count, covered, dumps_updates, on, override_must_be, phase, strategy, switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rule import Answer

#: The strategies whose engines the capture is in; a test holds them to capture.verl's.
COVERED = ("fsdp", "fsdp2", "megatron", "mindspeed_megatron", "mindspeed_llm")
_PROFILER = "global_profiler.tool"
_BYPASS = "algorithm.rollout_correction.bypass_mode"
_UPDATE = "export DUMP_ON=1 DUMP_PHASE=update_actor\npython3 -m verl.trainer.main_ppo "


def _updates(run: Run) -> Answer:
    if not dumps_updates(run):
        return OUT
    batch, mini = count(run, "data.train_batch_size"), count(run, ACTOR + "ppo_mini_batch_size")
    epochs = count(run, ACTOR + "ppo_epochs")
    updates = max(1, -(-batch // max(1, mini))) * epochs
    if updates <= 1:
        return None
    key = ACTOR + "ppo_mini_batch_size"
    return Found(run.where(key), set_override(key, batch), set_override(ACTOR + "ppo_epochs", 1), updates=updates)


def _bypass(run: Run) -> Answer:
    if not on(defaults.verl(run, _BYPASS)):
        return None
    only = switch(run, "PROMPTS_ONLY")
    if only or (only is None and switch(run, "DUMP_ON") is None):
        return None  # the added pass is run all the same; without any variable nothing is known
    if dumps_updates(run):
        return OUT
    return Found(run.where(_BYPASS), set_override(_BYPASS, False), set_variable("PROMPTS_ONLY", "1"))


def _profiler(run: Run) -> Answer:
    if defaults.verl(run, _PROFILER) != "precision_debugger":
        return None
    return Found(run.where(_PROFILER), set_override(_PROFILER, None))


def _strategy(run: Run) -> Answer:
    name = strategy(run)
    if name in COVERED:
        return None
    return Found(run.where(ACTOR + "strategy", "model_engine"), set_override(ACTOR + "strategy", "fsdp2"), name=name)


def _lora(run: Run) -> Answer:
    rank = max(count(run, MODEL + "lora_rank"), count(run, MODEL + "lora.rank"))
    if rank <= 0:
        return OUT
    if strategy(run) != "fsdp2" or not dumps_updates(run):
        return None
    file = run.msprobe_of("actor")
    if file is not None and file.content.get("level", "L1") == "L1":
        return None
    return Found(run.where("DUMP_PHASE"), set_variable("DUMP_PHASE", "log_prob"), phase=phase(run))


def _mixed(run: Run) -> Answer:
    if not switch(run, "PROMPTS_ONLY"):
        return OUT
    if not dumps_updates(run):
        return None
    return Found(run.where("DUMP_PHASE"), drop_variable("DUMP_PHASE"), phase=phase(run))


def _checkpointing(run: Run) -> Answer:
    if not dumps_updates(run):
        return OUT
    key = MODEL + "enable_gradient_checkpointing"
    return Found(run.where(key), set_override(key, False)) if on(defaults.verl(run, key)) else None


def _backward(run: Run) -> Answer:
    if not dumps_updates(run):
        return OUT
    return Found(run.where("DUMP_PHASE")) if strategy(run) == "megatron" else None


RULES = (
    Rule(
        "V211",
        WARNING,
        (VERL_HYBRID,),
        _updates,
        fact="each step makes train_batch_size / ppo_mini_batch_size x ppo_epochs updates; from the second on the actor "
        "has other weights than the rollout had",
        en="a step makes {updates} updates: of those that are dumped only the first has the rollout's weights",
        zh="一步包含 {updates} 次更新：被 dump 的更新中只有第一次与 rollout 权重相同",
        good=_UPDATE + "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8",
        bad=_UPDATE + "data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size=8",
    ),
    Rule(
        "V212",
        ERROR,
        VERL,
        _bypass,
        fact="verl 0.8.0: with bypass_mode the rollout's log-probabilities are taken, and the log_prob forward is not run; "
        "it is on by default in fully async",
        en="with bypass_mode and without PROMPTS_ONLY the log_prob forward is not run, and nothing is dumped",
        zh="bypass_mode 开启且没有 PROMPTS_ONLY 时不会执行 log_prob 前向，训练侧不会 dump",
        good="export DUMP_ON=1 PROMPTS_ONLY=1\n"
        "python3 -m verl.trainer.main_ppo algorithm.rollout_correction.bypass_mode=True",
        bad="export DUMP_ON=1\npython3 -m verl.trainer.main_ppo algorithm.rollout_correction.bypass_mode=True",
    ),
    Rule(
        "V213",
        ERROR,
        VERL,
        _profiler,
        fact="verl 0.8.0 utils/profiler/precision_debugger_profile.py makes msprobe's one debugger of the process itself",
        en="global_profiler.tool=precision_debugger holds the process's only msprobe debugger, and the capture is refused",
        zh="global_profiler.tool=precision_debugger 占用了进程中唯一的 msprobe debugger，采集会被拒绝",
        good="global_profiler.tool=null",
        bad="global_profiler.tool=precision_debugger",
    ),
    Rule(
        "V214",
        ERROR,
        VERL,
        _strategy,
        fact="verl 0.8.0 workers/engine: veomni, torchtitan and automodel have a forward loop of their own; the capture "
        "refuses an actor whose strategy is none of fsdp, fsdp2, megatron, mindspeed_megatron, mindspeed_llm",
        en="nothing is dumped of an actor with strategy {name}",
        zh="strategy 为 {name} 的 actor 不会 dump 任何数据",
        good="actor_rollout_ref.actor.strategy=fsdp2",
        bad="model_engine=veomni",
    ),
    Rule(
        "V215",
        ERROR,
        VERL,
        _lora,
        fact="msprobe's backward hooks on a LoRA adapter's modules under FSDP2 crash torch 2.10 and 2.13 (level L0 and "
        "mix)",
        en="DUMP_PHASE={phase} of a LoRA adapter under FSDP2 ends in a segmentation fault, unless msprobe's level is L1",
        zh="FSDP2 下对 LoRA 使用 DUMP_PHASE={phase} 会导致段错误，除非 msprobe 的 level 为 L1",
        good="export DUMP_ON=1 DUMP_PHASE=log_prob\n"
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.actor.strategy=fsdp2",
        bad=_UPDATE + "actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.actor.strategy=fsdp2",
    ),
    Rule(
        "V216",
        WARNING,
        VERL,
        _mixed,
        fact="PROMPTS_ONLY dumps an added prompt-only pass; DUMP_PHASE=update_actor or all dumps the updates beside it, "
        "which hold prompt and response",
        en="PROMPTS_ONLY with DUMP_PHASE={phase} mixes prompt-only forwards and updates with responses in one dump",
        zh="PROMPTS_ONLY 与 DUMP_PHASE={phase} 同用，会把仅含 prompt 的前向与含 response 的更新混在一份 dump 中",
        good="export DUMP_ON=1 PROMPTS_ONLY=1\npython3 -m verl.trainer.main_ppo trainer.test_freq=-1",
        bad="export DUMP_ON=1 PROMPTS_ONLY=1 DUMP_PHASE=all\npython3 -m verl.trainer.main_ppo trainer.test_freq=-1",
    ),
    Rule(
        "V217",
        ERROR,
        (VERL_HYBRID,),
        override_must_be("trainer.use_v1", False),
        needs={"verl": ">=0.9"},
        fact="verl 0.9.0 main_ppo.py: with use_v1, by default True, RayPPOTrainer is not used and request ids do not "
        "reach training",
        en="trainer.use_v1={value}: the new trainer has no prompt-only pass, and its request ids do not reach training",
        zh="trainer.use_v1={value}：新的 trainer 没有仅含 prompt 的前向，request id 也不会传到训练侧",
        good={
            "plan.toml": 'scenario = "verl-hybrid"\nstack = "verl=0.9.1"\n',
            "run.sh": "python3 -m verl.trainer.main_ppo trainer.use_v1=False",
        },
        bad={
            "plan.toml": 'scenario = "verl-hybrid"\nstack = "verl=0.9.1"\n',
            "run.sh": "python3 -m verl.trainer.main_ppo trainer.test_freq=-1",
        },
    ),
    Rule(
        "V222",
        WARNING,
        VERL,
        _checkpointing,
        fact="verl 0.8.0 hf_model.yaml: enable_gradient_checkpointing is True; recomputing calls each module's forward "
        "again in the backward",
        en="gradient checkpointing computes a dumped update's forward twice",
        zh="梯度检查点会使被 dump 的更新前向计算两遍",
        good=_UPDATE + "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        bad=_UPDATE + "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    ),
    Rule(
        "V223",
        NOTE,
        VERL,
        _backward,
        fact="Megatron's schedule runs the backward outside the forward step that is dumped",
        en="under Megatron an update's backward is not dumped",
        zh="Megatron 后端的更新阶段不会采集反向",
        good=_UPDATE + "actor_rollout_ref.actor.strategy=fsdp",
        bad=_UPDATE + "actor_rollout_ref.actor.strategy=megatron",
    ),
    Rule(
        "V225",
        ERROR,
        VERL,
        covered("verl", "vllm-ascend"),
        fact="VERSIONS.lock lists the releases that the capture has edits for",
        en="{name} {version} has no edits: a run of it dumps nothing that can be paired (covered: {known})",
        zh="{name} {version} 没有对应的改动：其运行不会产生可配对的 dump（已支持：{known}）",
        good="trainer.test_freq=-1",
        bad={
            "plan.toml": 'scenario = "verl-hybrid"\nstack = "verl=0.8.0,vllm-ascend=0.23.0"\n',
            "run.sh": "python3 -m verl.trainer.main_ppo trainer.test_freq=-1",
        },
    ),
)
