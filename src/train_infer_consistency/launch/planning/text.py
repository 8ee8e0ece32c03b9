"""What a plan says to the person who runs it: its README, its warnings and its costs, in English and Chinese."""

from __future__ import annotations

import shlex

from ..run import SLIME
from .answers import Answers
from .costs import SOURCE, SOURCE_ZH, Costs, bytes_text
from .msprobe_files import folders
from .slime import engine_cards

_WARNINGS: dict[str, tuple[str, str]] = {
    "cp": (
        "with CP={cp} a training rank computes a part of a prompt, not comparable with a whole prefill: use --cp 1",
        "CP={cp} 时每个训练 rank 只计算 prompt 的一部分，与完整的 prefill 不可比：请用 --cp 1",
    ),
    "tp": (
        "with TP={tp} choose prompts whose length is a multiple of {tp}: Megatron pads others, the rollout does not",
        "TP={tp} 时请选择长度为 {tp} 的整数倍的 prompt：否则 Megatron 会填充，而推理侧不会",
    ),
    "pp": (
        "the rollout has no pipeline stages: training's stages are compared by their layers' numbers",
        "推理侧没有流水线切分：训练侧各 stage 按层号比对",
    ),
    "native": (
        "SGLang {version} dumps every forward: step 0 is the health probe; take the step of the prompt's length",
        "SGLang {version} 会 dump 每次前向：step 0 是健康检查；请选用长度等于 prompt 的 step",
    ),
    "dp-attention": (
        "DP attention: only attention modules can be compared, and with some models (Qwen2, Llama) not even these",
        "DP-Attention：只有注意力模块可比，且对某些模型（Qwen2、Llama）连注意力也不可比",
    ),
    "tensors": (
        "whole tensors of a real model take gigabytes to terabytes: look at the estimate before you start",
        "真实模型的完整张量会占用 GB 到 TB 级空间：启动前请先看估算",
    ),
}


def warnings(answers: Answers, language: str) -> list[str]:
    """What to know before the run is started."""
    keys = [
        ("cp", answers.cp > 1),
        ("tp", answers.megatron and answers.tp > 1),
        ("pp", answers.pp > 1 and answers.scenario != SLIME),
        ("native", answers.native_sglang),
        ("dp-attention", answers.dp_attention),
        ("tensors", answers.tensors),
    ]
    values = {"cp": answers.cp, "tp": answers.tp, "version": answers.versions.get("sglang", "")}
    return [_WARNINGS[key][language == "zh"].format(**values) for key, there in keys if there]


def cost_lines(costs: Costs, language: str) -> list[str]:
    """The costs, a line each."""
    zh = language == "zh"
    assumed = ""
    if costs.assumed:
        assumed = (
            f"，按 {costs.layers} 层估算（此处没有该模型的 config.json）"
            if zh
            else f", if the model has {costs.layers} layers: its config.json is not here"
        )
    dumps = costs.generate_dumps + costs.actor_dumps
    seconds = "" if costs.seconds is None else f"{costs.seconds:g} s"
    factor = "" if costs.factor is None else f"{costs.factor:g}x"
    unknown = "没有数据" if zh else "no figure"
    if zh:
        return [
            f"训练步 {costs.steps}，比对的 prompt {costs.prompts} 条",
            f"dump {dumps} 份（推理侧 {costs.generate_dumps}，训练侧 {costs.actor_dumps}），文件约 {costs.files} 个",
            f"磁盘约 {bytes_text(costs.size)}{assumed}",
            f"被 dump 的前向耗时约为原来的 {factor or unknown}；最忙的 rank 增加约 {seconds or unknown}（CPU 上测得）",
            f"依据：{SOURCE_ZH}",
        ]
    return [
        f"training steps: {costs.steps}; prompts compared: {costs.prompts}",
        f"{dumps} dumps (rollout {costs.generate_dumps}, training {costs.actor_dumps}), about {costs.files} files",
        f"about {bytes_text(costs.size)} on disk{assumed}",
        f"a dumped forward's time: {factor or unknown}; on a CPU about {seconds or unknown} more on the busiest rank",
        f"source: {SOURCE}",
    ]


def cards(answers: Answers) -> int:
    """The cards that the run takes."""
    if answers.scenario == SLIME:
        return answers.world_size + engine_cards(answers)
    return answers.world_size + (answers.tp if answers.scenario == "verl-fully-async" else 0)


def readme(answers: Answers, plan: str, costs: Costs, said: list[str], language: str) -> str:
    """The README of a run.

    Args:
        answers: the run's.
        plan: the plan's folder, as the target machine has it.
        costs: as expected.
        said: the warnings.
        language: "en" or "zh".
    """
    places = folders(answers)
    slime = answers.scenario == SLIME
    own = (
        '"${MODEL_ARGS[@]}" --ref-load CHECKPOINT --prompt-data FILE --input-key KEY --label-key KEY --rm-type TYPE'
        if slime
        else "data.train_files=FILE data.val_files=FILE reward.custom_reward_function.path=FILE"
    )
    train = answers.dump_root.rstrip("/") if slime else places["actor"]
    pair = f"{shlex.quote(places['generate'])} {shlex.quote(train)}"
    values = {
        "scenario": answers.scenario,
        "stack": answers.stack,
        "versions": ", ".join(f"{name} {version}" for name, version in answers.versions.items()),
        "plan": plan,
        "run_id": answers.run_id,
        "cards": cards(answers),
        "plural": "" if cards(answers) == 1 else "s",
        "own": own,
        "pair": pair,
        "root": answers.dump_root,
        "generate": places["generate"],
        "actor": places["actor"],
        "warnings": "".join(f"- {one}\n" for one in said),
        "costs": "".join(f"- {one}\n" for one in cost_lines(costs, language)),
        "before": "".join(f"- {one}\n" for one in _before(answers, costs, language)),
        "start": _STARTS[slime][language == "zh"].format(plan=plan),
        "compare": _compare(answers, pair, plan, language),
    }
    return _README[language == "zh"].format(**values).replace("\n\n\n", "\n\n")


def _before(answers: Answers, costs: Costs, language: str) -> list[str]:
    """What has to be there before the start: data, and nodes where one has too few cards."""
    zh = language == "zh"
    prompts, length, taken = costs.prompts, answers.prompt_length, cards(answers)
    nodes = -(-taken // answers.per_node)
    if zh:
        found = [f"数据中至少要有 {prompts} 条不超过 {length} 个 token 的 prompt；更长的会被过滤，最前面的会被使用。"]
    else:
        enough = "1 prompt" if prompts == 1 else f"{prompts} prompts"
        found = [f"The data needs {enough} or more of at most {length} tokens; the first ones are used."]
    if answers.scenario != SLIME:
        found[0] += _REWARD[zh]
    if nodes > 1:
        found.append(_NODES[zh].format(nodes=nodes, cards=taken, each=answers.per_node))
    return found


_REWARD = (
    " `val_files` may be the same file. A reward function is needed where verl has none for the `data_source`.",
    "`val_files` 可以是同一个文件。仅当 verl 没有适用于数据中 `data_source` 的奖励函数时才需要自己的。",
)
_NODES = (
    "Ray has to run on {nodes} nodes or more ({cards} cards, {each} a node) before `run.sh` is started on one of them.",
    "先在至少 {nodes} 个节点上启动 Ray（共 {cards} 张卡，每节点 {each} 张），再在其中一个节点上运行 `run.sh`。",
)


def _compare(answers: Answers, pair: str, plan: str, language: str) -> str:
    """How the dumps are compared."""
    zh = language == "zh"
    root = answers.dump_root.rstrip("/")
    if answers.native_sglang:
        return _NATIVE[zh].format(root=root)
    return _PAIRED[zh].format(pair=pair, report=shlex.quote(f"{root}/report"), plan=plan)


_NATIVE = (
    """\
SGLang's own switch writes no log of requests. With N the step whose forward has the prompt's length:

```
consistency compare {root}/generate/stepN {root}/old_log_prob/step0 -o {root}/report
```""",
    """\
SGLang 自带的开关不写请求日志。N 为前向长度等于 prompt 长度的 step：

```
consistency compare {root}/generate/stepN {root}/old_log_prob/step0 -o {root}/report
```""",
)
_PAIRED = (
    """\
Each side has its log of requests beside its dumps.

```
consistency pairs {pair}
consistency compare {pair} -o {report}
```

`pairs` says which steps belong to one request, and why each other step was not used; `compare` gives the verdict, and
the first module that differs. Dumps on several nodes: `consistency collect`, or `compare --ray`; `--plan {plan}` names
the plan there.""",
    """\
两侧的 dump 旁边各有请求日志。

```
consistency pairs {pair}
consistency compare {pair} -o {report}
```

`pairs` 列出哪些 step 属于同一请求，以及其余 step 为何未用；`compare` 给出结论和第一个不一致的模块。
dump 分布在多个节点时：`consistency collect`，或 `compare --ray`；此时用 `--plan {plan}` 指明本方案。""",
)
_SLIME_EN = """\
Start Ray and this script in slime's folder, where `train.py` is. The model's shape is `MODEL_ARGS` of slime's
`scripts/models/`: `source` that file first. If your image finds Megatron-LM by `PYTHONPATH`, add it to
`{plan}/runtime_env.json`."""
_SLIME_ZH = """\
在 slime 目录（`train.py` 所在处）启动 Ray 和本脚本。模型结构参数是 slime `scripts/models/` 里的 `MODEL_ARGS`：
先 `source` 对应文件。若镜像通过 `PYTHONPATH` 找到 Megatron-LM，请把它加进 `{plan}/runtime_env.json`。"""
_VERL_EN = """\
`run.sh` hands the variables to Ray's workers itself. `runtime_env.json` has the same ones for a launcher of your own;
use one of the two: Ray refuses a variable that both a job and its driver set."""
_VERL_ZH = """\
`run.sh` 自己把环境变量交给 Ray 的工作进程。`runtime_env.json` 内容相同，供您自己的启动方式使用；
二者只用其一：job 与 driver 都设置同一变量时 Ray 会拒绝。"""
_STARTS = {True: (_SLIME_EN, _SLIME_ZH), False: (_VERL_EN, _VERL_ZH)}
_README = (
    """\
# {scenario}: a collection run

Run {run_id}, stack {stack}: {versions}. It takes {cards} card{plural}. `plan.toml` has the answers.

{warnings}
## Before

- This folder and {root} have to be at the same paths on every node; the latter is made where it is missing.
{before}- Install the stack's woven packages on every node, and look: `consistency doctor` (`--ray`: a whole cluster).
- `consistency check {plan}` says what would go wrong, also after you have changed something here.

## Start

```
bash {plan}/run.sh {own}
```

{start}

What you add comes before what the capture needs, so it cannot undo that. The output goes to `run.log` here.
A second run needs another dump root: plan again with
`consistency plan {scenario} --answers {plan}/plan.toml --dump-root ROOT -o FOLDER`.

## Afterwards

The rollout's dumps are in `{generate}`, training's in `{actor}`.

{compare}

The report names this plan, by the copy of `plan.toml` that `run.sh` puts into {root}.


## What it costs

{costs}""",
    """\
# {scenario}：采集运行

运行编号 {run_id}，版本组合 {stack}：{versions}。需要 {cards} 张卡。回答记录在 `plan.toml`。

{warnings}
## 运行之前

- 本目录与 {root} 在每个节点上的路径必须相同；后者不存在时会自动创建。
{before}- 在每个节点安装该版本组合的已织入软件包，并检查：`consistency doctor`（`--ray` 检查集群的所有节点）。
- `consistency check {plan}` 会说明哪里会出错；改动这里的文件之后也可再检查一次。

## 启动

```
bash {plan}/run.sh {own}
```

{start}

您添加的参数排在采集所需设置之前，因此不会使其失效。输出写入本目录的 `run.log`。
再次运行需要另一个 dump 目录，请重新生成：
`consistency plan {scenario} --answers {plan}/plan.toml --dump-root ROOT -o FOLDER`。

## 运行之后

推理侧的 dump 在 `{generate}`，训练侧的在 `{actor}`。

{compare}

报告会写明本方案，依据是 `run.sh` 放到 {root} 的 `plan.toml` 副本。


## 开销

{costs}""",
)
