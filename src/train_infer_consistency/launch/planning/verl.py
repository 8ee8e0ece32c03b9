"""verl's settings for a collection run, hybrid and fully asynchronous, with their reasons."""

from __future__ import annotations

from ..run import VERL_FULLY_ASYNC, VERL_HYBRID
from .answers import Answers
from .setting import Given

_ACTOR, _MODEL, _ROLLOUT = (f"actor_rollout_ref.{part}." for part in ("actor", "model", "rollout"))
_VARIABLES = "+ray_kwargs.ray_init.runtime_env.env_vars."
MODULES = {
    VERL_HYBRID: "verl.trainer.main_ppo",
    VERL_FULLY_ASYNC: "verl.experimental.fully_async_policy.fully_async_main",
}
#: Tokens of an answer: the prompt is what is compared, and an answer costs time alone.
RESPONSE = 16
#: Training steps. The second of fully asynchronous training has weights that were sent to the rollout.
STEPS = {VERL_HYBRID: 1, VERL_FULLY_ASYNC: 2}
#: The names that the published procedure gives to the folders below the dump root.
FOLDERS = {"generate": "generate_sequence", "actor": "update_actor"}


def before(answers: Answers) -> list[Given]:
    """What the user's own arguments may set otherwise."""
    found = [
        Given(
            {"algorithm.adv_estimator": "grpo"},
            "no critic: verl's default (gae) would train one, for nothing that is compared",
            "不需要 critic：verl 默认的 gae 会额外训练一个，而它不参与比对",
        ),
        Given(
            {"trainer.logger": "console"},
            "no account of a tracking service is needed for a step or two",
            "只跑一两步，不需要实验跟踪服务的账号",
        ),
    ]
    if answers.megatron:
        engine = Given({"model_engine": "megatron"}, "the training engine", "训练引擎")
        found.insert(0, engine)
    return found


def after(answers: Answers, generate_config: str, variables: dict[str, str]) -> list[Given]:
    """What the capture needs, whatever the user's own arguments say.

    Args:
        answers: the run's.
        generate_config: the path of the rollout's msprobe file.
        variables: for Ray's workers.
    """
    found = [*_data(answers), *_training(answers), *_rollout(answers, generate_config)]
    if answers.scenario == VERL_FULLY_ASYNC:
        found += _fully_async(answers)
    workers = Given(
        {_VARIABLES + name: f"{value}" for name, value in variables.items()},
        "Ray's workers read these; verl hands on a fixed list of the shell's variables only, and a cluster that runs "
        "already has none of them",
        "Ray 的工作进程读取这些变量；verl 只转发固定的一份 shell 变量清单，而已经启动的集群里没有它们",
    )
    return [*found, workers]


def _data(answers: Answers) -> list[Given]:
    each = Given(
        {_ACTOR + "ppo_mini_batch_size": answers.dp, _ROLLOUT + "n": 1},
        "one prompt for each data-parallel rank, answered once: a second answer has the same prompt",
        "每个数据并行 rank 一条 prompt，只采一个回答：同一 prompt 的第二个回答不会增加信息",
    )
    if answers.scenario == VERL_FULLY_ASYNC:
        batch = Given(
            {"data.train_batch_size": 0},
            "samples come one by one here; verl asserts that no batch size is given",
            "此模式下样本逐条到来；verl 断言不设 batch size",
        )
    else:
        batch = Given({"data.train_batch_size": answers.dp}, "as many in the one step", "唯一一步的 prompt 数与之相同")
    return [
        each,
        batch,
        Given(
            {"data.shuffle": False, "trainer.balance_batch": False},
            "every run sees the same prompts in the same order; balancing would move them between ranks",
            "每次运行看到同样顺序的同样 prompt；均衡会在 rank 之间搬动样本",
        ),
        Given(
            {
                "data.max_prompt_length": answers.prompt_length,
                "data.filter_overlong_prompts": True,
                "data.max_response_length": RESPONSE,
            },
            "the prompt alone is compared: longer prompts are left out, answers are short",
            "只比对 prompt：过长的 prompt 被过滤，回答从短",
        ),
    ]


def _training(answers: Answers) -> list[Given]:
    found = [
        Given(
            {
                _ACTOR + "ppo_micro_batch_size_per_gpu": 1,
                _ROLLOUT + "log_prob_micro_batch_size_per_gpu": 1,
                _ACTOR + "use_dynamic_bsz": False,
            },
            "one request in a micro-batch, so that a dump is one request's",
            "每个 micro-batch 只有一个请求，这样一份 dump 只属于一个请求",
        ),
        Given(
            {_MODEL + "use_remove_padding": True},
            "no padding rows in training's statistics: the rollout has none",
            "训练侧统计量中不含 padding 行：推理侧没有",
        ),
        Given(
            {
                "trainer.val_before_train": False,
                "trainer.test_freq": -1,
                "trainer.save_freq": -1,
                "trainer.resume_mode": "disable",
                "trainer.total_epochs": 1,
            },
            "no evaluation, whose prompts would be dumped as well; no checkpoint is written or taken up",
            "不做评估，否则其 prompt 也会被 dump；不保存也不恢复检查点",
        ),
        Given(
            {"trainer.nnodes": answers.nodes, "trainer.n_gpus_per_node": answers.world_size // answers.nodes},
            "the training side's cards",
            "训练侧的卡",
        ),
        Given({_MODEL + "path": answers.model}, "the model", "模型"),
    ]
    if answers.scenario == VERL_HYBRID:
        found.append(Given({"trainer.total_training_steps": STEPS[VERL_HYBRID]}, "one step is enough", "一步即够"))
    return [*found, *(_megatron(answers) if answers.megatron else _fsdp(answers))]


def _fsdp(answers: Answers) -> list[Given]:
    return [
        Given(
            {_ACTOR + "strategy": answers.engine, _ACTOR + "fsdp_config.dtype": "bfloat16"},
            "bfloat16 in both engines, as FSDP2 hands its weights over; FSDP1's flat parameters are not dumped",
            "两侧均为 bfloat16，与 FSDP2 传递权重的精度一致；FSDP1 的扁平参数不会被 dump",
        ),
        Given(
            {_ACTOR + "ulysses_sequence_parallel_size": 1},
            "each rank computes whole prompts",
            "每个 rank 计算完整的 prompt",
        ),
        Given(
            {_ACTOR + "use_torch_compile": False},
            "eager modules: msprobe's hooks are not seen in compiled ones",
            "模块以 eager 方式执行：编译后的模块中 msprobe 的 hook 不生效",
        ),
    ]


def _megatron(answers: Answers) -> list[Given]:
    megatron = _ACTOR + "megatron."
    return [
        Given(
            {
                megatron + "tensor_model_parallel_size": answers.tp,
                megatron + "pipeline_model_parallel_size": answers.pp,
                megatron + "context_parallel_size": answers.cp,
            },
            "DP = world size / TP / PP / CP; with TP = CP = 1 no prompt is padded",
            "DP = world size / TP / PP / CP；TP = CP = 1 时 prompt 不会被填充",
        ),
        Given(
            {megatron + "sequence_parallel": False},
            "each tensor-parallel rank sees all rows, as in the rollout",
            "每个张量并行 rank 看到全部行，与推理侧一致",
        ),
        Given({megatron + "dtype": "bfloat16"}, "bfloat16 in both engines", "两侧均为 bfloat16"),
    ]


def _rollout(answers: Answers, generate_config: str) -> list[Given]:
    length = answers.prompt_length + RESPONSE
    return [
        Given(
            {_ROLLOUT + "name": "vllm", _ROLLOUT + "enforce_eager": True},
            "the rollout that is dumped is vLLM's, in eager mode: in graph mode its runner refuses",
            "被 dump 的推理引擎是 vLLM，且为 eager 模式：图模式下 runner 拒绝 dump",
        ),
        Given(
            {"+" + _ROLLOUT + "engine_kwargs.vllm.additional_config.dump_config_path": generate_config},
            "turns the rollout's dump on",
            "打开推理侧采集",
        ),
        Given(
            {_ROLLOUT + "max_num_seqs": 1},
            "one request runs at a time: several in one prefill cannot be told apart",
            "同时只运行一个请求：一次 prefill 中的多个请求无法区分",
        ),
        Given(
            {_ROLLOUT + "enable_prefix_caching": False},
            "each prompt is computed whole: with a cache, prompts that begin alike are computed in part",
            "每条 prompt 都完整计算：有前缀缓存时，开头相同的 prompt 只会计算一部分",
        ),
        Given(
            {
                _ROLLOUT + "enable_chunked_prefill": False,
                _ROLLOUT + "max_model_len": length,
                _ROLLOUT + "max_num_batched_tokens": length,
            },
            "a prompt comes in one prefill; vLLM then wants room for the longest sequence",
            "一条 prompt 在一次 prefill 中完成；此时 vLLM 要求批 token 数不小于最长序列",
        ),
        Given(
            {_ROLLOUT + "tensor_model_parallel_size": answers.tp, _ROLLOUT + "dtype": "bfloat16"},
            "split and computed as in training",
            "切分与精度同训练侧",
        ),
        Given(
            {_ROLLOUT + "agent.num_workers": 1},
            "the agent loop's workers share a batch evenly, and there are few prompts",
            "agent loop 的 worker 需均分一个 batch，而 prompt 很少",
        ),
    ]


def _fully_async(answers: Answers) -> list[Given]:
    return [
        Given(
            {"actor_rollout_ref.hybrid_engine": False, "data.gen_batch_size": 1},
            "rollout and trainer have cards of their own; verl asserts both",
            "推理与训练各有自己的卡；verl 对二者有断言",
        ),
        Given(
            {"rollout.nnodes": 1, "rollout.n_gpus_per_node": answers.tp, "rollout.n": 1},
            "one rollout engine",
            "一个推理引擎",
        ),
        Given(
            {"rollout.total_rollout_steps": STEPS[VERL_FULLY_ASYNC] * answers.dp, "async_training.require_batches": 1},
            "two training steps; the second has weights that were sent to the rollout",
            "两个训练步；第二步的权重经过了到推理侧的同步",
        ),
        Given(
            {"algorithm.rollout_correction": None},
            "bypass_mode off: with it the log-probs, and with them the pass that is dumped, are not computed",
            "关闭 bypass_mode：否则不会计算 log-prob，也就没有可 dump 的前向",
        ),
        Given(
            {
                "async_training.staleness_threshold": 0,
                "async_training.trigger_parameter_sync_step": 1,
                "async_training.partial_rollout": False,
            },
            "both sides have the same weights for every sample, and none is resumed with others",
            "每个样本两侧权重相同，且不会换了权重后续写",
        ),
    ]
