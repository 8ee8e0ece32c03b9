"""Rules of slime's training: one prompt-only forward with the weights that SGLang got, and nothing after it."""

from __future__ import annotations

from .. import defaults
from ..rule import ERROR, NOTE, WARNING, Found, Rule, drop_flag, set_flag
from ..run import SLIME, Run
from .settings import covered, flag_must_be, flag_must_not_be

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rule import Answer

_ONLY = (SLIME,)


def _critic(run: Run) -> Answer:
    dest = "advantage_estimator"
    if defaults.slime(run, dest) != "ppo":
        return None
    return Found(run.where(dest), set_flag("--advantage-estimator", "grpo"))


def _evaluation(run: Run) -> Answer:
    dest = "eval_interval"
    if defaults.slime(run, dest) is None or defaults.slime(run, "skip_eval_before_train"):
        return None
    return Found(run.where(dest), drop_flag("--eval-interval"))


def _format(run: Run) -> Answer:
    dest = "qkv_format"
    value = defaults.slime(run, dest)
    return None if value == "thd" else Found(run.where(dest), set_flag("--qkv-format", "thd"), value=value)


def _response(run: Run) -> Answer:
    dest = "rollout_max_response_len"
    value = defaults.slime(run, dest)
    if value == 1:
        return None
    mend = set_flag("--rollout-max-response-len", 1)
    return Found(run.where(dest), mend, value="not set" if value is None else value)


def _backend(run: Run) -> Answer:
    value = defaults.slime(run, "train_backend")
    if value == "megatron":
        return None
    return Found(run.where("train_backend"), set_flag("--train-backend", "megatron"), value=value)


RULES = (
    Rule(
        "S301",
        ERROR,
        _ONLY,
        _critic,
        fact="slime 0.2.2: use_critic is advantage_estimator == ppo; the critic waits for an actor that does not train",
        en="--advantage-estimator ppo has a critic, which waits for ever; the capture refuses it",
        zh="--advantage-estimator ppo 含有 critic，它会一直等待；采集会拒绝",
        good="--advantage-estimator grpo",
        bad="--advantage-estimator ppo",
    ),
    Rule(
        "S302",
        WARNING,
        _ONLY,
        flag_must_not_be("use_routing_replay", "use_rollout_routing_replay"),
        fact="the dumped forward is run without replay: its experts are those that training's own router chooses",
        en="{flags} has no part in the dumped forward, which routes by itself",
        zh="{flags} 不作用于被 dump 的前向，它使用自己的路由",
        good="--num-rollout 1",
        bad="--use-routing-replay",
    ),
    Rule(
        "S303",
        ERROR,
        _ONLY,
        flag_must_not_be("use_fault_tolerance"),
        fact="slime 0.2.2 ends an engine that does not answer its health check for 30 s, which a dumped forward may take",
        en="{flags} ends engines whose dumped forward takes long",
        zh="{flags} 会结束因 dump 而前向较慢的引擎",
        good="--num-rollout 1",
        bad="--use-fault-tolerance",
    ),
    Rule(
        "S304",
        ERROR,
        _ONLY,
        _evaluation,
        fact="slime 0.2.2 train.py evaluates before the first rollout where --eval-interval is set, and SGLang's first "
        "prefill is then an evaluation's",
        en="an evaluation runs first, so that SGLang's step 0 is one of its prompts",
        zh="会先执行评测，SGLang 的 step 0 会是评测的 prompt",
        good="--eval-interval 20 --eval-prompt-data aime /data/aime.jsonl --skip-eval-before-train",
        bad="--eval-interval 20 --eval-prompt-data aime /data/aime.jsonl",
    ),
    Rule(
        "S305",
        WARNING,
        _ONLY,
        flag_must_not_be("save_interval"),
        fact="slime 0.2.2 saves after the last rollout where --save-interval is set, and nothing was trained",
        en="{flags} saves a checkpoint that no training changed",
        zh="{flags} 会保存未经训练的 checkpoint",
        good="--num-rollout 1",
        bad="--save /ckpt --save-interval 20",
    ),
    Rule(
        "S306",
        NOTE,
        _ONLY,
        flag_must_be("no_gradient_accumulation_fusion", True),
        fact="Megatron's fused gradient accumulation needs a CUDA extension that an NPU does not have, and a forward does "
        "not use it",
        en="--no-gradient-accumulation-fusion is not given: without its CUDA extension Megatron stops at start-up",
        zh="没有 --no-gradient-accumulation-fusion：缺少对应 CUDA 扩展时 Megatron 会在启动时终止",
        good="--no-gradient-accumulation-fusion",
        bad="--num-rollout 1",
    ),
    Rule(
        "S307",
        ERROR,
        _ONLY,
        flag_must_not_be("keep_old_actor"),
        fact="slime 0.2.2 computes old_log_prob with the old actor's weights then, which SGLang did not get; the capture "
        "refuses it",
        en="{flags} dumps other weights than SGLang's, and the capture is refused",
        zh="{flags} 会 dump 与 SGLang 不同的权重，采集会拒绝",
        good="--num-rollout 1",
        bad="--keep-old-actor",
    ),
    Rule(
        "S308",
        ERROR,
        _ONLY,
        _format,
        fact="slime 0.2.2 fails in get_batch with bshd, 0.2.3 and 0.2.4 pad a prompt to prompt and response; the capture "
        "refuses it",
        en="--qkv-format {value} pads a prompt to the length of prompt and response, and the capture is refused",
        zh="--qkv-format {value} 会把 prompt 填充到 prompt 加 response 的长度，采集会拒绝",
        good="--qkv-format thd",
        bad="--qkv-format bshd",
    ),
    Rule(
        "S309",
        NOTE,
        _ONLY,
        _response,
        fact="only the prompt is compared; with one response token no decode forward is run",
        en="--rollout-max-response-len is {value}: 1 is enough, and the run is shorter",
        zh="--rollout-max-response-len 为 {value}：设为 1 即可，运行更短",
        good="--rollout-max-response-len 1",
        bad="--rollout-max-response-len 8192",
    ),
    Rule(
        "S310",
        ERROR,
        _ONLY,
        _backend,
        fact="the capture is in slime's Megatron actor",
        en="--train-backend {value}: only the Megatron actor is dumped",
        zh="--train-backend {value}：只采集 Megatron 的 actor",
        good="--train-backend megatron",
        bad="--train-backend fsdp",
    ),
    Rule(
        "S311",
        ERROR,
        _ONLY,
        flag_must_not_be("debug_rollout_only", "debug_train_only", "load_debug_rollout_data"),
        fact="slime 0.2.2: these start one side only",
        en="{flags} starts one side only, so that there is nothing to compare",
        zh="{flags} 只启动一侧，没有可比对的数据",
        good="--num-rollout 1",
        bad="--debug-train-only",
    ),
    Rule(
        "S312",
        ERROR,
        _ONLY,
        covered("slime", "sglang"),
        fact="VERSIONS.lock lists the releases that the capture has edits for",
        en="{name} {version} has no edits: a run of it dumps nothing that can be paired (covered: {known})",
        zh="{name} {version} 没有对应的改动：其运行不会产生可配对的 dump（已支持：{known}）",
        good="--num-rollout 1",
        bad={
            "plan.toml": 'scenario = "slime"\nstack = "slime=0.3.0,sglang=0.5.10"\n',
            "run.sh": "python3 train.py --num-rollout 1",
        },
    ),
)
