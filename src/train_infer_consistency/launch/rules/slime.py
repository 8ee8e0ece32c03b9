"""Rules of slime's data and batches: one prompt, and one copy of it for each data-parallel rank."""

from __future__ import annotations

from .. import defaults
from ..rule import ERROR, NOTE, OUT, WARNING, Found, Rule, drop_flag, set_flag
from ..run import SLIME, Run
from .settings import flag_must_be, flag_must_not_be, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rule import Answer

_ONLY = (SLIME,)
_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def _world(run: Run) -> tuple[int, int]:
    """The training processes, and how many of them share one model: TP x PP x CP."""
    model = 1
    for dest in _PARALLEL:
        model *= size(run, dest)
    return size(run, "actor_num_nodes") * size(run, "actor_num_gpus_per_node"), model


def _ranks(run: Run) -> int | None:
    """The data-parallel size; None where the world does not divide, or training is not Megatron's."""
    world, model = _world(run)
    if model < 1 or world % model or defaults.slime(run, "train_backend") != "megatron":
        return None
    return world // model


def _divides(run: Run) -> Answer:
    world, model = _world(run)
    if model >= 1 and world % model == 0:
        return None
    return Found(run.where(*_PARALLEL), world=world, model=model)


def _one_prompt(run: Run) -> Answer:
    value = defaults.slime(run, "rollout_batch_size")
    if value == 1:
        return None
    mend = set_flag("--rollout-batch-size", 1)
    return Found(run.where("rollout_batch_size"), mend, value="not set" if value is None else value)


def _samples(run: Run) -> Answer:
    ranks = _ranks(run)
    if ranks is None:
        return OUT
    value = size(run, "n_samples_per_prompt")
    mend = set_flag("--n-samples-per-prompt", ranks)
    return None if value == ranks else Found(run.where("n_samples_per_prompt"), mend, value=value, ranks=ranks)


def _global_batch(run: Run) -> Answer:
    ranks = _ranks(run)
    if ranks is None:
        return OUT
    dest = "global_batch_size"
    value = defaults.slime(run, dest)
    if value is None and defaults.slime(run, "num_steps_per_rollout") is not None:
        dest = "num_steps_per_rollout"
        value = size(run, "rollout_batch_size") * size(run, "n_samples_per_prompt") // max(1, size(run, dest))
    if value == ranks:
        return None
    drops = [] if dest == "global_batch_size" else [drop_flag("--num-steps-per-rollout")]
    value = "not set" if value is None else value
    return Found(run.where(dest), set_flag("--global-batch-size", ranks), *drops, value=value, ranks=ranks)


def _over_sampling(run: Run) -> Answer:
    dest = "over_sampling_batch_size"
    if defaults.slime(run, dest) is None:
        return None
    value = size(run, dest)
    if value == 1:
        return None
    return Found(run.where(dest), drop_flag("--over-sampling-batch-size"), value=value)


def _padding(run: Run) -> Answer:
    ranks = size(run, "tensor_model_parallel_size")
    if ranks == 1:
        return None
    return Found(run.where("tensor_model_parallel_size"), ranks=ranks)


def _resumed(run: Run) -> Answer:
    dest = "start_rollout_id"
    start = defaults.slime(run, dest)
    mend = set_flag("--start-rollout-id", 0)
    if start is not None:
        return None if start == 0 else Found(run.where(dest), mend, value=start)
    load = defaults.slime(run, "load")
    if load is None or defaults.slime(run, "megatron_to_hf_mode") == "bridge":
        return None
    return Found(run.where("load"), mend, value="that of the checkpoint in --load")


RULES = (
    Rule(
        "S101",
        ERROR,
        _ONLY,
        _divides,
        fact="Megatron: DP = world size / TP / PP / CP must be whole",
        en="{world} training cards do not divide by TP x PP x CP = {model}",
        zh="{world} 张训练卡不能被 TP × PP × CP = {model} 整除",
        good="--actor-num-gpus-per-node 8 --tensor-model-parallel-size 4",
        bad="--actor-num-gpus-per-node 8 --tensor-model-parallel-size 3",
    ),
    Rule(
        "S102",
        ERROR,
        _ONLY,
        _one_prompt,
        fact="only the first whole prefill of an engine and the first training forward of a rank are dumped (step 0); "
        "with one prompt they are of the same one",
        en="--rollout-batch-size is {value}: with more than one prompt the two sides may dump different ones",
        zh="--rollout-batch-size 为 {value}：多于一条 prompt 时，两侧 dump 的可能不是同一条",
        good="--rollout-batch-size 1",
        bad="--rollout-batch-size 32",
    ),
    Rule(
        "S103",
        ERROR,
        _ONLY,
        _samples,
        fact="slime 0.2.2 utils/data.py deals global batch / DP samples to each rank; with n samples = DP each rank has "
        "the one prompt once",
        en="--n-samples-per-prompt is {value}, and DP = world size / TP / PP / CP is {ranks}",
        zh="--n-samples-per-prompt 为 {value}，而 DP = 总卡数 / TP / PP / CP 为 {ranks}",
        good="--actor-num-gpus-per-node 4 --n-samples-per-prompt 4",
        bad="--actor-num-gpus-per-node 4 --n-samples-per-prompt 8",
    ),
    Rule(
        "S104",
        ERROR,
        _ONLY,
        _global_batch,
        fact="slime 0.2.2: below DP a rank has no sample and the job dies in a division by zero; above it more samples "
        "are awaited than are made",
        en="the global batch is {value}, and DP = world size / TP / PP / CP is {ranks}",
        zh="global batch 为 {value}，而 DP = 总卡数 / TP / PP / CP 为 {ranks}",
        good="--actor-num-gpus-per-node 4 --global-batch-size 4",
        bad="--actor-num-gpus-per-node 4 --global-batch-size 2",
    ),
    Rule(
        "S105",
        WARNING,
        _ONLY,
        flag_must_not_be("balance_data"),
        fact="slime 0.2.2 deals samples to ranks by length with --balance-data",
        en="{flags} deals the samples to the ranks anew",
        zh="{flags} 会把样本重新分配到各 rank",
        good="--rollout-batch-size 1",
        bad="--balance-data",
    ),
    Rule(
        "S106",
        WARNING,
        _ONLY,
        flag_must_not_be("use_dynamic_batch_size"),
        fact="slime 0.2.2 packs as many samples as fit into a micro-batch with --use-dynamic-batch-size",
        en="{flags} changes which samples are in a training forward",
        zh="{flags} 会改变一次训练前向所含的样本",
        good="--micro-batch-size 1",
        bad="--use-dynamic-batch-size --max-tokens-per-gpu 9216",
    ),
    Rule(
        "S107",
        NOTE,
        _ONLY,
        flag_must_not_be("rollout_shuffle"),
        fact="slime 0.2.2: the one prompt is then chosen by --rollout-seed",
        en="{flags} chooses the prompt by the seed; leave it out for the data's first one",
        zh="{flags} 由随机种子选择 prompt；不传则取数据中的第一条",
        good="--rollout-batch-size 1",
        bad="--rollout-shuffle",
    ),
    Rule(
        "S108",
        ERROR,
        _ONLY,
        _over_sampling,
        fact="slime 0.2.2 starts that many prompts at once, and trains on those that are ready first",
        en="--over-sampling-batch-size {value} starts more prompts than the one that is compared",
        zh="--over-sampling-batch-size {value} 会启动多于一条的 prompt",
        good="--over-sampling-batch-size 1",
        bad="--over-sampling-batch-size 64",
    ),
    Rule(
        "S109",
        ERROR,
        _ONLY,
        flag_must_be("data_pad_size_multiplier", 1),
        fact="slime 0.2.2 arguments.py: default 128; get_batch pads to a multiple of TP x multiplier, and the padding is "
        "in every statistic of training's side",
        en="--data-pad-size-multiplier is {value}: training computes padding that SGLang does not",
        zh="--data-pad-size-multiplier 为 {value}：训练侧会计算 SGLang 没有的填充",
        good="--data-pad-size-multiplier 1",
        bad="--data-pad-size-multiplier 128",
    ),
    Rule(
        "S110",
        NOTE,
        _ONLY,
        _padding,
        fact="slime 0.2.2 get_batch pads to a multiple of TP x multiplier",
        en="with TP={ranks} choose a prompt whose length is a multiple of {ranks}, or training pads it",
        zh="TP={ranks} 时请选择长度为 {ranks} 整数倍的 prompt，否则训练侧会填充",
        good="--tensor-model-parallel-size 1",
        bad="--tensor-model-parallel-size 2",
    ),
    Rule(
        "S111",
        WARNING,
        _ONLY,
        flag_must_be("context_parallel_size", 1),
        fact="each rank then computes a part of the prompt; the comparison reports these as not comparable",
        en="--context-parallel-size {value} splits a prompt among the ranks, which is not comparable with a whole prefill",
        zh="--context-parallel-size {value} 会把一条 prompt 切分到多个 rank，无法与完整的 prefill 比对",
        good="--context-parallel-size 1",
        bad="--context-parallel-size 2",
    ),
    Rule(
        "S112",
        ERROR,
        _ONLY,
        flag_must_be("micro_batch_size", 1),
        fact="slime 0.2.2: samples of a rank // micro-batch size is 0 micro-batches for one sample, and the job dies of "
        "an IndexError",
        en="--micro-batch-size is {value}: with one sample a rank there is no micro-batch",
        zh="--micro-batch-size 为 {value}：每个 rank 只有一条样本时没有 micro-batch",
        good="--micro-batch-size 1",
        bad="--micro-batch-size 2",
    ),
    Rule(
        "S113",
        ERROR,
        _ONLY,
        flag_must_not_be("dynamic_sampling_filter_path", "rollout_sample_filter_path"),
        fact="slime 0.2.2: a filter drops a group whose rewards are alike and samples the next prompt, without end",
        en="{flags} may drop the one prompt and sample others",
        zh="{flags} 可能丢弃唯一的 prompt 并采样其他 prompt",
        good="--rollout-batch-size 1",
        bad="--dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
    ),
    Rule(
        "S114",
        ERROR,
        _ONLY,
        flag_must_be("num_rollout", 1),
        fact="with a dump on train_actor ends after the dumped forward, in every rollout",
        en="--num-rollout is {value}: one is dumped, and none is trained on",
        zh="--num-rollout 为 {value}：只会 dump 一轮，且都不会训练",
        good="--num-rollout 1",
        bad="--num-rollout 3000",
    ),
    Rule(
        "S115",
        WARNING,
        _ONLY,
        _resumed,
        fact="slime 0.2.2 train.py runs range(start_rollout_id, num_rollout), where the start is the loaded iteration + 1: "
        "with 1 rollout a resumed run does nothing and exits with 0",
        en="the first rollout's number is {value}: unless it is 0, --num-rollout 1 runs nothing and reports success",
        zh="首个 rollout 的编号为 {value}：若不为 0，--num-rollout 1 不会执行任何内容却正常退出",
        good="--load /ckpt --num-rollout 1 --start-rollout-id 0",
        bad="--load /ckpt --num-rollout 1",
    ),
    Rule(
        "S116",
        WARNING,
        _ONLY,
        flag_must_not_be("custom_config_path"),
        fact="slime 0.2.2 arguments.py: --custom-config-path sets any argument after the command line",
        en="{flags} sets arguments after the flags, and is not read here: give them as flags",
        zh="{flags} 会在命令行之后再设置参数，这里没有读取；请改用命令行参数",
        good="--num-rollout 1",
        bad="--custom-config-path custom.yaml",
    ),
)
