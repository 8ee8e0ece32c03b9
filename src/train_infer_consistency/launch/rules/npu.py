"""N: features of vLLM-Ascend that change which rank computes which tokens, or run past the modules."""

from __future__ import annotations

from ..rule import ERROR, NOTE, OUT, WARNING, Found, Rule, drop_override, drop_variable, set_override
from ..run import VERL
from .environment import word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..rule import Answer
    from ..run import Run

_ROLLOUT = "actor_rollout_ref.rollout."
_VLLM = _ROLLOUT + "engine_kwargs.vllm."
_ADDITIONAL = _VLLM + "additional_config."
#: What vllm-ascend reads with int().
_INTEGERS = (
    "VLLM_ASCEND_ENABLE_FLASHCOMM1",
    "VLLM_ASCEND_ENABLE_FLASHCOMM",
    "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
    "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE",
    "VLLM_ASCEND_ENABLE_MLAPO",
    "VLLM_ASCEND_ENABLE_NZ",
    "VLLM_ASCEND_ENABLE_CONTEXT_PARALLEL",
    "VLLM_ASCEND_ENABLE_FUSED_MC2",
    "VLLM_ASCEND_BALANCE_SCHEDULING",
)
_NEEDS = {"vllm-ascend": ">=0.13"}
_FACT = "vllm-ascend 0.18.0 "


def _applies(run: Run) -> bool:
    """Whether the rollout is vLLM-Ascend's, as far as the stack tells."""
    name = run.hydra.get(_ROLLOUT + "name")
    return "vllm-ascend" in run.stack and (name is None or name.value == "vllm")


def _variables(*names: str, least: int = 1) -> Callable[[Run], Answer]:
    """A rule: none of these variables is a number of at least ``least``."""

    def check(run: Run) -> Answer:
        given = [name for name in names if name in run.env]
        if not given or not _applies(run):
            return OUT
        on = [name for name in given if word(run, name).isdigit() and int(word(run, name)) >= least]
        return [Found(run.where(name), drop_variable(name), name=name, value=word(run, name)) for name in on] or None

    return check


def _options(*keys: str) -> Callable[[Run], Answer]:
    """A rule: none of these options is given and on."""

    def check(run: Run) -> Answer:
        given = [key for key in keys if key in run.hydra]
        if not given or not _applies(run):
            return OUT
        on = [key for key in given if run.override(key) not in (False, None, 0, [], {}, "")]
        return [Found(run.where(key), drop_override(key), key=key, value=run.hydra[key].raw) for key in on] or None

    return check


def _integers(run: Run) -> Answer:
    given = [name for name in _INTEGERS if name in run.env]
    if not given or not _applies(run):
        return OUT
    bad = [name for name in given if not word(run, name).lstrip("+-").isdigit()]
    return [Found(run.where(name), drop_variable(name), name=name, value=word(run, name)) for name in bad] or None


def _experts(run: Run) -> Answer:
    key = _ADDITIONAL + "eplb_config.dynamic_eplb"
    if not _applies(run) or (key not in run.hydra and "DYNAMIC_EPLB" not in run.env):
        return OUT
    if word(run, "DYNAMIC_EPLB") in ("true", "1"):
        return Found(run.where("DYNAMIC_EPLB"), drop_variable("DYNAMIC_EPLB"))
    return Found(run.where(key), set_override(key, False)) if run.override(key, False) else None


_PPO = "python3 -m verl.trainer.main_ppo\n"

RULES = (
    Rule(
        "N001",
        ERROR,
        VERL,
        _variables("VLLM_ASCEND_ENABLE_FLASHCOMM1", "VLLM_ASCEND_ENABLE_FLASHCOMM"),
        needs=_NEEDS,
        fact=_FACT + "utils.py enable_sp: with it, each tensor parallel rank has a part of the tokens, padded",
        en="{name}={value} shards the tokens over the tensor parallel ranks: their rows are no prompt's any more",
        zh="{name}={value} 会把 token 切分到各张量并行 rank 上：各 rank 的数据不再是完整的 prompt",
        good="export VLLM_ASCEND_ENABLE_FLASHCOMM1=0\n" + _PPO,
        bad="export VLLM_ASCEND_ENABLE_FLASHCOMM1=1\n" + _PPO,
    ),
    Rule(
        "N002",
        ERROR,
        VERL,
        _options(_ADDITIONAL + "enable_shared_expert_dp", _VLLM + "compilation_config.pass_config.enable_sp"),
        needs=_NEEDS,
        fact=_FACT
        + "ascend_config.py: enable_shared_expert_dp turns sequence parallelism on, as pass_config.enable_sp does",
        en="{key}={value} shards the tokens over the tensor parallel ranks",
        zh="{key}={value} 会把 token 切分到各张量并行 rank 上",
        good=f"+{_ADDITIONAL}enable_shared_expert_dp=False",
        bad=f"+{_ADDITIONAL}enable_shared_expert_dp=True",
    ),
    Rule(
        "N003",
        WARNING,
        VERL,
        _variables("VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE"),
        needs=_NEEDS,
        fact=_FACT + "envs.py, utils.py flashcomm2_enable: the size is o_proj's own tensor parallel group",
        en="{name}={value} gives o_proj a tensor parallel group of its own, so its shards are other than the model's",
        zh="{name}={value} 使 o_proj 使用单独的张量并行组，其切分与模型其余部分不同",
        good="export VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE=0\n" + _PPO,
        bad="export VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE=2\n" + _PPO,
    ),
    Rule(
        "N004",
        WARNING,
        VERL,
        _options(
            *(f"{_ADDITIONAL}finegrained_tp_config.{name}_tensor_parallel_size" for name in ("oproj", "lmhead")),
            *(f"{_ADDITIONAL}finegrained_tp_config.{name}_tensor_parallel_size" for name in ("embedding", "mlp")),
            _ADDITIONAL + "layer_sharding",
        ),
        needs=_NEEDS,
        fact=_FACT + "ascend_config.py FinegrainedTPConfig and layer_sharding",
        en="{key}={value} shards these layers otherwise than the model's tensor parallel size says",
        zh="{key}={value} 使这些层的切分与模型的张量并行度不一致",
        good=f"+{_ADDITIONAL}finegrained_tp_config.mlp_tensor_parallel_size=0",
        bad=f"+{_ADDITIONAL}finegrained_tp_config.mlp_tensor_parallel_size=2",
    ),
    Rule(
        "N005",
        ERROR,
        VERL,
        _options(_ADDITIONAL + "xlite_graph_config.enabled", _ADDITIONAL + "torchair_graph_config.enabled"),
        needs=_NEEDS,
        fact=_FACT + "platform.py and xlite/xlite_model_runner.py: the graph is run in the modules' place",
        en="{key}={value} runs a graph in place of the modules, which msprobe cannot hook",
        zh="{key}={value} 以图代替模块执行，msprobe 无法挂钩",
        good=f"+{_ADDITIONAL}xlite_graph_config.enabled=False",
        bad=f"+{_ADDITIONAL}xlite_graph_config.enabled=True",
    ),
    Rule(
        "N006",
        ERROR,
        VERL,
        _variables("VLLM_ASCEND_ENABLE_CONTEXT_PARALLEL"),
        needs=_NEEDS,
        fact=_FACT + "utils.py prefill_context_parallel_enable: a prompt is divided over ranks",
        en="{name}={value} divides a prompt over ranks: no rank has the whole of it",
        zh="{name}={value} 会把一条 prompt 切分到多个 rank：没有一个 rank 拥有完整的 prompt",
        good="export VLLM_ASCEND_ENABLE_CONTEXT_PARALLEL=0\n" + _PPO,
        bad="export VLLM_ASCEND_ENABLE_CONTEXT_PARALLEL=1\n" + _PPO,
    ),
    Rule(
        "N007",
        WARNING,
        VERL,
        _variables("VLLM_ASCEND_ENABLE_NZ", least=2),
        needs=_NEEDS,
        fact=_FACT
        + "envs.py: 2 keeps weights in FRACTAL_NZ; mindstudio-probe 26.1 and later write null for such tensors",
        en="{name}={value} keeps weights in the NZ format, of which msprobe writes no statistics",
        zh="{name}={value} 使权重以 NZ 格式存放，msprobe 对其不写统计量",
        good="export VLLM_ASCEND_ENABLE_NZ=1\n" + _PPO,
        bad="export VLLM_ASCEND_ENABLE_NZ=2\n" + _PPO,
    ),
    Rule(
        "N008",
        ERROR,
        VERL,
        _integers,
        needs=_NEEDS,
        fact=_FACT + "envs.py: int() of the variable's text, which stops at true and at an empty one",
        en="{name}={value} is read with int(), which stops the engine: write a number",
        zh="{name}={value} 会被 int() 解析而使引擎退出：请写数字",
        good="export VLLM_ASCEND_ENABLE_FLASHCOMM1=0\n" + _PPO,
        bad="export VLLM_ASCEND_ENABLE_FLASHCOMM1=false\n" + _PPO,
    ),
    Rule(
        "N009",
        WARNING,
        VERL,
        _experts,
        needs=_NEEDS,
        fact=_FACT
        + "envs.py DYNAMIC_EPLB, ascend_config.py EplbConfig: experts move between ranks while the engine runs",
        en="dynamic expert balancing moves experts between ranks, so expert weights are not where training has them",
        zh="动态专家均衡会在 rank 之间移动专家，专家权重的位置与训练侧不一致",
        good=f"+{_ADDITIONAL}eplb_config.dynamic_eplb=False",
        bad=f"+{_ADDITIONAL}eplb_config.dynamic_eplb=True",
    ),
    Rule(
        "N010",
        NOTE,
        VERL,
        _variables("VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE"),
        needs=_NEEDS,
        fact=_FACT + "envs.py: the matrix product and its all-reduce are one operator",
        en="{name}={value} sums in another order than the separate operators do: expect differences in the last digits",
        zh="{name}={value} 的求和顺序与分立算子不同：末位数字会有差异",
        good="export VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE=0\n" + _PPO,
        bad="export VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE=1\n" + _PPO,
    ),
)
