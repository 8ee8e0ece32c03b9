"""slime's, Megatron's and SGLang's flags for a collection run, with their reasons."""

from __future__ import annotations

from ..rule import within
from .answers import Answers
from .setting import Given

#: Seconds: a forward under a dump takes long, and SGLang's watchdog ends its scheduler after 300.
WATCHDOG = 3600
#: The published procedure's; larger where the prompt is.
_CHUNK = 16384


def chunk_size(answers: Answers) -> int:
    """SGLang's chunk, in tokens: divided by the DP-attention ranks, it is above the prompt."""
    size = _CHUNK
    while size // (answers.dp if answers.dp_attention else 1) <= answers.prompt_length:
        size *= 2
    return size


def engine_cards(answers: Answers) -> int:
    """The cards of the one rollout engine."""
    return (answers.dp if answers.dp_attention else answers.tp) * answers.pp


def before(answers: Answers) -> list[Given]:
    """What the user's own arguments may set otherwise."""
    return [
        Given({"--hf-checkpoint": answers.model}, "the model", "模型"),
        Given(
            {"--advantage-estimator": "grpo"},
            "no critic: its actors would wait for a training step that is skipped",
            "不需要 critic：其进程会一直等待被跳过的训练步",
        ),
    ]


def after(answers: Answers, generate_config: str) -> list[Given]:
    """What the capture needs, whatever the user's own arguments say.

    Args:
        answers: the run's.
        generate_config: the path of the rollout's msprobe file.
    """
    return [*_data(answers), *_training(answers), *_rollout(answers, generate_config)]


def _data(answers: Answers) -> list[Given]:
    return [
        Given(
            {"--num-rollout": 1, "--start-rollout-id": 0},
            "one rollout, and that one is run: from a later checkpoint on, slime would do nothing and end with 0",
            "只做一次 rollout，且确实会执行：若从更靠后的检查点继续，slime 什么都不做就以 0 退出",
        ),
        Given(
            {
                "--rollout-batch-size": 1,
                "--n-samples-per-prompt": answers.dp,
                "--global-batch-size": answers.dp,
                "--micro-batch-size": 1,
            },
            "one prompt, answered once for each data-parallel rank (DP = world size / TP / PP / CP)",
            "一条 prompt，每个数据并行 rank 一个回答（DP = world size / TP / PP / CP）",
        ),
        Given(
            {"--rollout-max-prompt-len": answers.prompt_length, "--rollout-max-response-len": 1},
            "the prompt alone is compared; one token is the shortest answer",
            "只比对 prompt；回答最短为一个 token",
        ),
    ]


def _training(answers: Answers) -> list[Given]:
    return [
        Given(
            {
                "--actor-num-nodes": answers.nodes,
                "--actor-num-gpus-per-node": answers.world_size // answers.nodes,
                "--tensor-model-parallel-size": answers.tp,
                "--pipeline-model-parallel-size": answers.pp,
                "--context-parallel-size": answers.cp,
            },
            "the training side's cards and how the model is split; with TP = 1 no prompt is padded",
            "训练侧的卡与模型切分；TP = 1 时 prompt 不会被填充",
        ),
        Given(
            {"--data-pad-size-multiplier": 1},
            "padding to a multiple of TP x 1: a padding row is in every statistic, and SGLang has none",
            "只填充到 TP x 1 的倍数：填充行会进入每个统计量，而 SGLang 没有填充行",
        ),
        Given(
            {"--no-gradient-accumulation-fusion": True},
            "Megatron's fused gradient needs APEX's kernel; no gradient is compared",
            "Megatron 的融合梯度需要 APEX 的算子；梯度不参与比对",
        ),
    ]


def _rollout(answers: Answers, generate_config: str) -> list[Given]:
    found = [
        Given(
            {"--rollout-num-gpus": engine_cards(answers), "--rollout-num-gpus-per-engine": engine_cards(answers)},
            "one engine, split as training is: several would dump into folders of the same name",
            "一个引擎，切分与训练侧一致：多个引擎会写入同名目录",
        ),
        Given(
            {"--sglang-disable-cuda-graph": True, **_piecewise(answers)},
            "eager forwards: in a replayed graph msprobe sees nothing",
            "以 eager 方式前向：重放图时 msprobe 什么都看不到",
        ),
        Given(
            {"--sglang-disable-radix-cache": True},
            "each prompt is computed whole; all but the first answer would find it in the cache",
            "每条 prompt 都完整计算；否则除第一个外都会命中缓存",
        ),
        Given(
            {"--sglang-max-running-requests": answers.dp if answers.dp_attention else 1},
            "one request runs at a time: several in one prefill cannot be told apart",
            "同时只运行一个请求：一次 prefill 中的多个请求无法区分",
        ),
        Given(
            {"--sglang-chunked-prefill-size": chunk_size(answers)},
            "a prompt comes in one prefill",
            "一条 prompt 在一次 prefill 中完成",
        ),
        Given(
            {"--sglang-watchdog-timeout": WATCHDOG},
            "a forward under a dump takes long; SGLang would end itself after 300 s",
            "采集时的前向很慢；SGLang 默认 300 秒后会自行终止",
        ),
        Given(
            {"--router-policy": "round_robin"},
            "the router's default sends equal prompts to one engine",
            "路由器默认把相同的 prompt 发往同一个引擎",
        ),
    ]
    if answers.pp > 1:
        found.append(Given({"--sglang-pipeline-parallel-size": answers.pp}, "split as in training", "切分同训练侧"))
    if answers.dp_attention:
        sizes = {"--sglang-data-parallel-size": answers.dp, "--sglang-enable-dp-attention": True}
        found.append(
            Given(sizes, "DP attention was asked for: compare attention alone", "已要求 DP-Attention：只能比对注意力")
        )
    if answers.native_sglang:
        found.append(
            Given(
                {"--sglang-msprobe-dump-config": generate_config},
                "SGLang's own switch, from 0.5.11 on; it counts every forward, so step 0 is the health probe",
                "SGLang 0.5.11 起自带的开关；它对每次前向计步，step 0 是健康检查",
            )
        )
    return found


def _piecewise(answers: Answers) -> dict[str, bool]:
    """SGLang's second kind of graph, which it has by default, and whose switch it has, from 0.5.10 on."""
    there = within(answers.versions.get("sglang", "0"), ">=0.5.10")
    return {"--sglang-disable-piecewise-cuda-graph": True} if there else {}
