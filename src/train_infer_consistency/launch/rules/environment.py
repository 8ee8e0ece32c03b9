"""E: the variables of a collection run: are they spelt so that they can be read, and do they reach the workers?"""

from __future__ import annotations

from ..rule import ERROR, NOTE, OUT, WARNING, Found, Rule, drop_variable, set_override, set_variable
from ..run import EXPORT, RAY_KWARGS, RUNTIME_ENV, SHELL, SLIME, VERL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..rule import Answer, Mend
    from ..run import Run, Setting

# The spellings of capture/switches.py.
_ON = frozenset(("1", "true", "yes", "on"))
_OFF = frozenset(("", "0", "false", "no", "off"))
_SWITCHES = ("DUMP_ON", "PROMPTS_ONLY", "SGLANG_MSPROBE_DUMP", "CONSISTENCY_KEEP_ENDS", "CONSISTENCY_DUMP_ALL")
_NUMBERS = ("MSPROBE_SEED", "MSPROBE_MIN_DUMP_TOKENS", "CONSISTENCY_ROLLOUT_ID")
_PHASES = ("log_prob", "update_actor", "all")
_OURS = (*_SWITCHES, *_NUMBERS, "DUMP_PHASE", "MSPROBE_CONFIG_PATH", "MSPROBE_GENERATE_CONFIG", "CONSISTENCY_RUN_ID")
_RAY_KEY = "+ray_kwargs.ray_init.runtime_env.env_vars."
_REACHING = (RUNTIME_ENV, RAY_KWARGS)


def for_workers(run: Run, name: str, value: str) -> Mend:
    """The mend that gives a variable to Ray's workers: for verl an override, for slime the job's runtime_env."""
    if run.scenario in VERL:
        return set_override(_RAY_KEY + name, f"'{value}'" if _reads_as_other(value) else value)
    return set_variable(name, value)


def _reads_as_other(value: str) -> bool:
    return value.lower() in ("true", "false", "null", "inf", "nan") or value.replace(".", "", 1).isdigit()


def word(run: Run, name: str) -> str:
    """A switch's text as the code reads it: without outer spaces, in small letters; "" where it is not set."""
    return (run.variable(name) or "").strip().lower()


def is_on(run: Run, name: str) -> bool:
    """Whether a switch is on."""
    return word(run, name) in _ON


def _settings(run: Run, names: Iterable[str]) -> list[Setting]:
    return [run.env[name][-1] for name in names if name in run.env]


def _unreadable(run: Run) -> Answer:
    settings = _settings(run, _SWITCHES)
    found = [
        Found(setting.origin, for_workers(run, setting.key, "1"), name=setting.key, value=setting.raw)
        for setting in settings
        if str(setting.value).strip().lower() not in _ON | _OFF
    ]
    return found or (None if settings else OUT)


def _numbers(run: Run) -> Answer:
    settings = _settings(run, _NUMBERS)
    found = []
    for setting in settings:
        text = str(setting.value).strip()
        if text and not (text.isascii() and text.isdigit()):
            found.append(Found(setting.origin, drop_variable(setting.key), name=setting.key, value=setting.raw))
    return found or (None if settings else OUT)


def _phase(run: Run) -> Answer:
    value = run.variable("DUMP_PHASE")
    if value is None:
        return OUT
    if not value.strip() or value.strip() in _PHASES:
        return None
    return Found(run.where("DUMP_PHASE"), for_workers(run, "DUMP_PHASE", "log_prob"), value=value)


def _on(name: str) -> Callable[[Run], Answer]:
    """A rule: this switch has to be on."""

    def check(run: Run) -> Answer:
        if is_on(run, name) or word(run, name) not in _ON | _OFF:  # a spelling that cannot be read is E001's
            return None
        return Found(run.where(name), for_workers(run, name, "1"))

    return check


def _scopes(run: Run, name: str) -> set[str]:
    return {setting.scope for setting in run.env.get(name, ())}


def _stranded(scope: str, when: Callable[[Run], bool]) -> Callable[[Run], Answer]:
    """A rule: a variable of ours that is set in this scope, and in none that reaches further."""
    further = {SHELL: (EXPORT, *_REACHING), EXPORT: _REACHING}[scope]

    def check(run: Run) -> Answer:
        settings = _settings(run, _OURS)
        if not settings or not when(run):
            return OUT
        stranded = [one for one in settings if one.scope == scope and not _scopes(run, one.key) & set(further)]
        if not stranded:
            return None
        names = ", ".join(one.key for one in stranded)
        mends = [for_workers(run, one.key, str(one.value)) for one in stranded if one.known]
        return Found(stranded[0].origin, *mends, names=names)

    return check


def _no_text(run: Run) -> Answer:
    settings = [one for several in run.env.values() for one in several if one.scope in _REACHING]
    if not settings:
        return OUT
    found = [
        Found(one.origin, for_workers(run, one.key, one.raw), name=one.key, value=one.raw)
        for one in settings
        if one.known and not isinstance(one.value, str)
    ]
    return found or None


def _actor_file(run: Run) -> Answer:
    if (run.variable("MSPROBE_CONFIG_PATH") or "").strip():
        return None
    return Found(run.where(), for_workers(run, "MSPROBE_CONFIG_PATH", "/home/config_actor.json"))


def _generate_file(run: Run) -> Answer:
    if not is_on(run, "SGLANG_MSPROBE_DUMP"):
        return OUT
    if (run.variable("MSPROBE_GENERATE_CONFIG") or "").strip():
        return None
    mend = for_workers(run, "MSPROBE_GENERATE_CONFIG", "/path/to/config_generate.json")
    return Found(run.where("SGLANG_MSPROBE_DUMP"), mend)


def _number(text: str) -> int | None:
    """What ``int()`` makes of a text; None where it stops."""
    try:
        return int(text)
    except ValueError:
        return None


def _v2_runner(run: Run) -> Answer:
    name = "VLLM_USE_V2_MODEL_RUNNER"
    value = run.variable(name)
    if value is None:
        return OUT
    off = _number(value) is None or word(run, name) in _OFF  # a text that is no number is E017's
    return None if off else Found(run.where(name), drop_variable(name))


def _v2_no_number(run: Run) -> Answer:
    name = "VLLM_USE_V2_MODEL_RUNNER"
    value = run.variable(name)
    if value is None:
        return OUT
    return None if _number(value) is not None else Found(run.where(name), drop_variable(name), value=value)


def _dynamo(run: Run) -> Answer:
    name = "TORCHDYNAMO_DISABLE"
    return None if run.variable(name) == "1" else Found(run.where(name), for_workers(run, name, "1"))


def _run_id(run: Run) -> Answer:
    if (run.variable("CONSISTENCY_RUN_ID") or "").strip():
        return None
    return Found(run.where(), for_workers(run, "CONSISTENCY_RUN_ID", "run1"))


_V = "export DUMP_ON=1 PROMPTS_ONLY=1\npython3 -m verl.trainer.main_ppo "
_RAY = "+ray_kwargs.ray_init.runtime_env.env_vars."
_SUBMIT = "ray job submit --runtime-env-json='{\"env_vars\": {%s}}' -- python3 train.py --hf-checkpoint /m"

RULES = (
    Rule(
        "E001",
        ERROR,
        (),
        _unreadable,
        fact="capture/switches.py parse_switch; the published code calls int(), which stops at true and at an empty text",
        en="{name}={value} is neither on nor off: write 1 or 0",
        zh="{name}={value} 既不是开也不是关：请写 1 或 0",
        good="export DUMP_ON=true\npython3 -m verl.trainer.main_ppo",
        bad="export DUMP_ON=enable\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "E002",
        ERROR,
        (),
        _numbers,
        fact="capture/switches.py parse_integer: digits alone",
        en="{name}={value} is no whole number",
        zh="{name}={value} 不是整数",
        good="export MSPROBE_SEED=1234\npython3 -m verl.trainer.main_ppo",
        bad="export MSPROBE_SEED=0x10\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "E003",
        ERROR,
        VERL,
        _phase,
        fact="capture/switches.py parse_phase",
        en="DUMP_PHASE={value} is no phase: log_prob, update_actor or all",
        zh="DUMP_PHASE={value} 不是有效的阶段：应为 log_prob、update_actor 或 all",
        good="export DUMP_PHASE=log_prob\npython3 -m verl.trainer.main_ppo",
        bad="export DUMP_PHASE=logprob\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "E004",
        ERROR,
        (*VERL, SLIME),
        _on("DUMP_ON"),
        fact="both procedures; capture/switches.py: without it the training side dumps nothing",
        en="DUMP_ON is not on: the training side dumps nothing",
        zh="DUMP_ON 未打开：训练侧不会采集任何数据",
        good=_V,
        bad="trainer.nnodes=1",
    ),
    Rule(
        "E005",
        WARNING,
        (*VERL, SLIME),
        _on("PROMPTS_ONLY"),
        fact="both procedures: the inference engine's prefill holds the prompt alone, upstream's training forward the response too",
        en="PROMPTS_ONLY is not on: the training side's forwards hold responses, which no prefill does",
        zh="PROMPTS_ONLY 未打开：训练侧前向含有 response，而推理侧 prefill 没有",
        good=_V,
        bad="export DUMP_ON=1\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "E006",
        ERROR,
        (),
        _stranded(SHELL, lambda run: bool(run.scenario)),
        fact="a shell variable without export is inherited by no process",
        en="set in the shell without export, so that no process sees it: {names}",
        zh="在 shell 中设置但没有 export，任何进程都看不到：{names}",
        good="export DUMP_ON=1\npython3 -m verl.trainer.main_ppo",
        bad="DUMP_ON=1\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "E007",
        ERROR,
        (),
        _stranded(EXPORT, lambda run: run.submitted),
        fact="Ray: a submitted job's driver and workers have the job's runtime_env, and not the shell that submitted it",
        en="exported in the shell that submits the job, so that they stay behind: {names}",
        zh="只在提交作业的 shell 中 export，不会随作业下发：{names}",
        good=_SUBMIT % '"DUMP_ON": "1"',
        bad="export DUMP_ON=1\n" + _SUBMIT % "",
    ),
    Rule(
        "E008",
        WARNING,
        (*VERL, SLIME),
        _stranded(EXPORT, lambda run: not run.submitted),
        fact="verl 0.8.0: trainer/constants_ppo.py forwards a fixed list of variables; workers of a cluster that runs already "
        "have the environment it was started with",
        en="exported in the driver's shell alone, so that workers of a cluster that runs already, or of other nodes, lack them: {names}",
        zh="只在 driver 的 shell 中 export，已启动的 Ray 集群或其他节点上的工作进程看不到：{names}",
        good=f"python3 -m verl.trainer.main_ppo '{_RAY}DUMP_ON=\"1\"'",
        bad="export DUMP_ON=1\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "E009",
        ERROR,
        (),
        _no_text,
        fact="Ray: runtime_env's env_vars are a dictionary of texts, and anything else is refused",
        en="{name}={value} in env_vars is no text, which Ray refuses: quote it for Ray too",
        zh="env_vars 中的 {name}={value} 不是字符串，会被 Ray 拒绝：请再加一层引号",
        good=f"python3 -m verl.trainer.main_ppo '{_RAY}DUMP_ON=\"1\"'",
        bad=f"python3 -m verl.trainer.main_ppo {_RAY}DUMP_ON=1",
    ),
    Rule(
        "E010",
        ERROR,
        (SLIME,),
        _actor_file,
        fact="capture/switches.py actor_config: slime's training side has no path of its own",
        en="MSPROBE_CONFIG_PATH names no file: with DUMP_ON the training side stops at start-up",
        zh="MSPROBE_CONFIG_PATH 没有指定文件：打开 DUMP_ON 后训练侧启动时会报错退出",
        good=_SUBMIT % '"DUMP_ON": "1", "MSPROBE_CONFIG_PATH": "/home/config_actor.json"',
        bad=_SUBMIT % '"DUMP_ON": "1"',
    ),
    Rule(
        "E011",
        NOTE,
        VERL,
        _actor_file,
        fact="capture/switches.py actor_config: without it the documented /home/config_actor.json has to exist on every node",
        en="MSPROBE_CONFIG_PATH is not set: /home/config_actor.json has to be on every node",
        zh="未设置 MSPROBE_CONFIG_PATH：每个节点上都要有 /home/config_actor.json",
        good=f"python3 -m verl.trainer.main_ppo '{_RAY}DUMP_ON=\"1\"' {_RAY}MSPROBE_CONFIG_PATH=/data/config_actor.json",
        bad=_V,
    ),
    Rule(
        "E012",
        ERROR,
        (SLIME,),
        _generate_file,
        fact="capture/sglang.py: the inference side's file has no default",
        en="SGLANG_MSPROBE_DUMP is on and MSPROBE_GENERATE_CONFIG names no file: the inference side stops at start-up",
        zh="SGLANG_MSPROBE_DUMP 已打开而 MSPROBE_GENERATE_CONFIG 没有指定文件：推理侧启动时会报错退出",
        good=_SUBMIT % '"SGLANG_MSPROBE_DUMP": "1", "MSPROBE_GENERATE_CONFIG": "/home/config_generate.json"',
        bad=_SUBMIT % '"SGLANG_MSPROBE_DUMP": "1"',
    ),
    Rule(
        "E013",
        ERROR,
        VERL,
        _v2_runner,
        fact="vllm-ascend: the v2 model runner has no debugger in any version (vllm-project/vllm-ascend#16125); it is refused",
        en="vLLM's v2 model runner has no dump",
        zh="vLLM 的 v2 model runner 不支持 dump",
        good="export VLLM_USE_V2_MODEL_RUNNER=0\npython3 -m verl.trainer.main_ppo",
        bad="export VLLM_USE_V2_MODEL_RUNNER=1\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "E014",
        NOTE,
        (*VERL, SLIME),
        _run_id,
        fact="capture/folders.py join_run: without an id, processes of several hosts cannot tell their run from an earlier one",
        en="CONSISTENCY_RUN_ID is not set: with several hosts the second one is refused the dump folder",
        zh="未设置 CONSISTENCY_RUN_ID：多机运行时，第二台主机会被拒绝写入 dump 目录",
        good="export CONSISTENCY_RUN_ID=a\npython3 -m verl.trainer.main_ppo",
        bad="trainer.nnodes=1",
    ),
    Rule(
        "E015",
        NOTE,
        VERL,
        _on("CONSISTENCY_KEEP_ENDS"),
        fact="mindstudio-probe 8.3.3 and later leave out the first and the last module where verl is imported",
        en="CONSISTENCY_KEEP_ENDS is not on: the training side's lm_head, and so the logits, are not dumped",
        zh="CONSISTENCY_KEEP_ENDS 未打开：训练侧的 lm_head（即 logits）不会被采集",
        good="export DUMP_ON=1 CONSISTENCY_KEEP_ENDS=1\npython3 -m verl.trainer.main_ppo",
        bad=_V,
    ),
    Rule(
        "E016",
        WARNING,
        VERL,
        _dynamo,
        fact="both procedures; verl 0.8.0: actor.use_torch_compile is True; torch 2.9 _dynamo/eval_frame.py takes 1 alone for on",
        en="TORCHDYNAMO_DISABLE is not 1: compiled code runs past msprobe's hooks",
        zh="TORCHDYNAMO_DISABLE 不是 1：编译后的代码会绕过 msprobe 的钩子",
        good="export DUMP_ON=1 TORCHDYNAMO_DISABLE=1\npython3 -m verl.trainer.main_ppo",
        bad=_V,
    ),
    Rule(
        "E017",
        ERROR,
        VERL,
        _v2_no_number,
        fact="vLLM 0.18.0: envs.py gives the text to int(), which stops at false, at off and at an empty text",
        en="VLLM_USE_V2_MODEL_RUNNER={value}: vLLM reads a number here, and stops at any other text",
        zh="VLLM_USE_V2_MODEL_RUNNER={value}：vLLM 在此只接受数字，其他文本会使其报错退出",
        good="export VLLM_USE_V2_MODEL_RUNNER=0\npython3 -m verl.trainer.main_ppo",
        bad="export VLLM_USE_V2_MODEL_RUNNER=false\npython3 -m verl.trainer.main_ppo",
    ),
)
