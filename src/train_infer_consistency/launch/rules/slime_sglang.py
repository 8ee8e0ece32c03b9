"""Rules of slime's SGLang engines: one eager prefill of the whole prompt, and how msprobe is switched on in them."""

from __future__ import annotations

from .. import defaults
from ..rule import (
    ERROR,
    NOTE,
    OUT,
    WARNING,
    Found,
    NotChecked,
    Rule,
    drop_flag,
    set_flag,
)
from ..run import SLIME, Run
from .settings import flag_must_be, flag_must_not_be, size, slime_example

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rule import Answer

_ONLY = (SLIME,)
_TP, _ENGINE = "tensor_model_parallel_size", "rollout_num_gpus_per_engine"


def _attention_parallel(run: Run) -> bool:
    return bool(defaults.slime(run, "sglang_enable_dp_attention")) or size(run, "sglang_dp_size") > 1


def _dp_attention(run: Run) -> Answer:
    if not _attention_parallel(run):
        return None
    given = [
        dest
        for dest in ("sglang_enable_dp_attention", "sglang_dp_size", "sglang_data_parallel_size")
        if dest in run.slime
    ]
    drops = [drop_flag("--" + dest.replace("_", "-")) for dest in given]
    tensor = size(run, _TP)
    return Found(run.where(*given), *drops, set_flag("--rollout-num-gpus-per-engine", tensor), tensor=tensor)


def _chunks(run: Run) -> Answer:
    dest = "sglang_chunked_prefill_size"
    chunk = defaults.slime(run, dest)
    if chunk is None:
        return Found(
            run.where(dest), set_flag("--sglang-chunked-prefill-size", -1), chunk="not set", room="4096 to 16384"
        )
    chunk = size(run, dest)
    if chunk <= 0:
        return None
    room = chunk // max(1, size(run, "sglang_dp_size"))
    length = defaults.slime(run, "rollout_max_prompt_len")
    if length is None:
        return NotChecked(
            f"the prompt must be shorter than {room} tokens (no --rollout-max-prompt-len bounds it)",
            f"prompt 必须短于 {room} 个 token（没有 --rollout-max-prompt-len 限制其长度）",
            target=True,
        )
    if room > size(run, "rollout_max_prompt_len"):
        return None
    return Found(run.where(dest), set_flag("--sglang-chunked-prefill-size", -1), chunk=chunk, room=room)


def _tensor(run: Run) -> Answer:
    if _attention_parallel(run):
        return OUT
    train, rollout = size(run, _TP), size(run, _ENGINE)
    stages = size(run, "sglang_pp_size")
    if train == rollout // max(1, stages):
        return None
    mend = set_flag("--rollout-num-gpus-per-engine", train * stages)
    return Found(run.where(_ENGINE, _TP), mend, train=train, rollout=rollout)


def _pipeline(run: Run) -> Answer:
    train, rollout = size(run, "pipeline_model_parallel_size"), size(run, "sglang_pp_size")
    if train == rollout:
        return None
    return Found(run.where("pipeline_model_parallel_size", "sglang_pp_size"), train=train, rollout=rollout)


def _piecewise(run: Run) -> Answer:
    flag = "sglang_disable_piecewise_cuda_graph"
    return (
        None if defaults.slime(run, flag) else Found(run.where(flag), set_flag("--sglang-disable-piecewise-cuda-graph"))
    )


def _router(run: Run) -> Answer:
    engines = defaults.slime(run, "rollout_num_gpus")
    cards = size(run, "rollout_num_gpus") if engines is not None else 0
    if defaults.slime(run, "colocate"):
        cards = size(run, "actor_num_nodes") * size(run, "actor_num_gpus_per_node")
    count = cards // max(1, size(run, _ENGINE))
    if count < 2 or defaults.slime(run, "use_slime_router") or defaults.slime(run, "sglang_router_ip"):
        return OUT
    policy = defaults.slime(run, "router_policy")
    if policy == "round_robin":
        return None
    mend = set_flag("--router-policy", "round_robin")
    return Found(run.where("router_policy"), mend, policy=policy or "cache_aware", count=count)


def _watchdog(run: Run) -> Answer:
    dest = "sglang_watchdog_timeout"
    value = defaults.slime(run, dest)
    if isinstance(value, int | float) and value > 300:
        return None
    return Found(run.where(dest), set_flag("--sglang-watchdog-timeout", 3600), value=value)


def _enabled_piecewise(run: Run) -> Answer:
    if not defaults.slime(run, "sglang_enable_piecewise_cuda_graph"):
        return None
    flag = "sglang_enable_piecewise_cuda_graph"
    return Found(run.where(flag), drop_flag("--sglang-enable-piecewise-cuda-graph"))


RULES = (
    Rule(
        "S201",
        ERROR,
        _ONLY,
        flag_must_be("sglang_disable_cuda_graph", True),
        fact="in a replayed graph msprobe sees no module's forward; the capture refuses it",
        en="SGLang captures graphs (--sglang-disable-cuda-graph is not given), and the dump is refused",
        zh="SGLang 会使用图模式（没有 --sglang-disable-cuda-graph），dump 会被拒绝",
        good="--sglang-disable-cuda-graph",
        bad="--num-rollout 1",
    ),
    Rule(
        "S202",
        WARNING,
        _ONLY,
        _piecewise,
        needs={"sglang": ">=0.5.10"},
        fact="SGLang 0.5.10: the piecewise graph of the prefill is on by default on CUDA, and --disable-cuda-graph leaves "
        "it on",
        en="on CUDA the prefill runs as a piecewise graph (--sglang-disable-piecewise-cuda-graph is not given)",
        zh="在 CUDA 上 prefill 会以分段图执行（没有 --sglang-disable-piecewise-cuda-graph）",
        good=slime_example("slime-0.2.4", "--sglang-disable-cuda-graph --sglang-disable-piecewise-cuda-graph"),
        bad=slime_example("slime-0.2.4", "--sglang-disable-cuda-graph"),
    ),
    Rule(
        "S203",
        ERROR,
        _ONLY,
        _enabled_piecewise,
        needs={"sglang": "<0.5.10"},
        fact="SGLang 0.5.6 to 0.5.9: the piecewise graph of the prefill is off unless asked for",
        en="the prefill runs as a piecewise graph",
        zh="prefill 会以分段图执行",
        good="--sglang-disable-cuda-graph",
        bad="--sglang-disable-cuda-graph --sglang-enable-piecewise-cuda-graph",
    ),
    Rule(
        "S204",
        ERROR,
        _ONLY,
        flag_must_be("sglang_disable_radix_cache", True),
        fact="measured with SGLang 0.5.10: of four equal prompts the later ones had 19 of 20 tokens from the cache",
        en="the radix cache is on (--sglang-disable-radix-cache is not given): equal prompts are computed in part only",
        zh="radix cache 已开启（没有 --sglang-disable-radix-cache）：相同的 prompt 只会计算一部分",
        good="--sglang-disable-radix-cache",
        bad="--num-rollout 1",
    ),
    Rule(
        "S205",
        WARNING,
        _ONLY,
        _chunks,
        fact="SGLang 0.5.8 server_args.py: the chunk is 2048 to 16384 by the card's memory, and is divided by dp_size; a "
        "prompt of that length or longer is computed in pieces",
        en="the chunk of a prefill is {chunk}: a prompt of {room} tokens or more comes in pieces",
        zh="prefill 的分块大小为 {chunk}：达到 {room} 个 token 的 prompt 会被分块计算",
        good="--sglang-chunked-prefill-size 16384 --rollout-max-prompt-len 4096",
        bad="--sglang-chunked-prefill-size 4096 --rollout-max-prompt-len 8192",
    ),
    Rule(
        "S206",
        WARNING,
        _ONLY,
        flag_must_be("sglang_max_running_requests", 1),
        fact="measured with SGLang 0.5.10: of four prompts sent at once one was prefilled alone, three in one step",
        en="--sglang-max-running-requests is {value}: several requests are packed into one prefill",
        zh="--sglang-max-running-requests 为 {value}：多个请求会合并到一次 prefill 中",
        good="--sglang-max-running-requests 1",
        bad="--sglang-max-running-requests 64",
    ),
    Rule(
        "S207",
        WARNING,
        _ONLY,
        _tensor,
        fact="slime 0.2.2: SGLang's TP is --rollout-num-gpus-per-engine (over its pipeline stages)",
        en="training has TP={train}, an engine {rollout} cards: their ranks hold different parts of the weights",
        zh="训练侧 TP={train}，每个推理引擎 {rollout} 张卡：两侧各 rank 的权重切分不同",
        good="--tensor-model-parallel-size 2 --rollout-num-gpus-per-engine 2",
        bad="--tensor-model-parallel-size 2 --rollout-num-gpus-per-engine 4",
    ),
    Rule(
        "S208",
        WARNING,
        _ONLY,
        _pipeline,
        fact="the two sides' stages hold different layers where their numbers differ",
        en="training has {train} pipeline stages, SGLang {rollout}",
        zh="训练侧有 {train} 个流水线阶段，SGLang 有 {rollout} 个",
        good="--pipeline-model-parallel-size 1",
        bad="--pipeline-model-parallel-size 2",
    ),
    Rule(
        "S209",
        ERROR,
        _ONLY,
        _dp_attention,
        fact="measured with SGLang 0.5.10, TP 2 and DP 2: the MLP of every rank sees all ranks' tokens with weights split "
        "by TP, so only the attention equals TP=1; Qwen2 and Llama mix the ranks' requests (sglang issue 28615)",
        en="with DP attention an engine is not TP=1: its MLP is split over all ranks and sees all their tokens; use "
        "engines of {tensor} cards",
        zh="DP attention 下引擎并非 TP=1：其 MLP 切分到所有 rank 且处理所有 rank 的 token；请使用 {tensor} 张卡的引擎",
        good="--rollout-num-gpus-per-engine 1",
        bad="--rollout-num-gpus-per-engine 4 --sglang-dp-size 4 --sglang-enable-dp-attention",
    ),
    Rule(
        "S210",
        ERROR,
        _ONLY,
        flag_must_not_be("sglang_speculative_algorithm"),
        fact="a draft's verification is an extend of several tokens, and draft and target share msprobe's debugger",
        en="{flags}: with speculative decoding other forwards look like prefills",
        zh="{flags}：投机解码的其他前向看起来像 prefill",
        good="--num-rollout 1",
        bad="--sglang-speculative-algorithm EAGLE",
    ),
    Rule(
        "S211",
        WARNING,
        _ONLY,
        _router,
        fact="sglang_router's default policy is cache_aware: equal prompts go to one engine",
        en="router policy {policy} sends equal prompts to one of {count} engines, and the others dump nothing",
        zh="路由策略 {policy} 会把相同的 prompt 都发给 {count} 个引擎中的一个，其余引擎不会 dump",
        good="--rollout-num-gpus 4 --router-policy round_robin",
        bad="--rollout-num-gpus 4",
    ),
    Rule(
        "S212",
        NOTE,
        _ONLY,
        _watchdog,
        fact="SGLang 0.5.8: the watchdog ends a scheduler whose forward takes longer than 300 s, which a dump of tensors "
        "may",
        en="--sglang-watchdog-timeout is {value} s, and a forward with a large dump may take longer",
        zh="--sglang-watchdog-timeout 为 {value} 秒，而数据量大的 dump 可能更久",
        good="--sglang-watchdog-timeout 3600",
        bad="--sglang-watchdog-timeout 300",
    ),
)
