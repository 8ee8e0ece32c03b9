"""M: msprobe's two configuration files in their run: paths, ranks, steps, folders, versions."""

from __future__ import annotations

import os

from ..inputs import NAMED
from ..rule import ERROR, OUT, WARNING, Found, NotChecked, Rule, release
from ..run import SLIME, VERL
from .msprobe import at, each, file_of, numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..rule import Answer
    from ..run import MsprobeFile, Run

_PATH_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-")


def _bad_path(path: str) -> bool:
    return not set(path) <= _PATH_SIGNS


def _dump_path_signs(file: MsprobeFile, _: Run) -> Found | None:
    path = file.value("dump_path")
    if isinstance(path, str) and _bad_path(path):
        good = "".join(sign if sign in _PATH_SIGNS else "_" for sign in path)
        return at(file, "dump_path", f'"{good}"', path=path)
    return None


def _config_path(judge: Callable[[str], bool]) -> Callable[[Run], Answer]:
    """A rule about the paths of msprobe's files, as the run names them."""

    def check(run: Run) -> Answer:
        found: list[Found] = []
        named = False
        for names in NAMED.values():
            for key in names:
                setting = run.hydra.get(key) or run.slime.get(key) or next(iter(run.env.get(key, ())), None)
                if setting is None or not key:
                    continue
                named = True
                if isinstance(setting.value, str) and setting.value and judge(setting.value):
                    found.append(Found(setting.origin, path=setting.value))
        return found or (None if named else OUT)

    return check


def _no_dump_path(file: MsprobeFile, _: Run) -> Found | None:
    path = file.value("dump_path")
    if isinstance(path, str) and path.startswith("/"):
        return None
    return at(file, "dump_path", f'"/dump_data/{file.side or "generate"}"', path=path)


def _ranks(run: Run) -> Answer:
    checked = False
    found: list[Found] = []
    for file in run.msprobe:
        wanted = numbers(file.value("rank")) or []
        if not wanted or not run.scenario or not file.side:
            continue
        checked = True
        world = world_size(run, file.side)
        missing = [rank for rank in wanted if rank >= world]
        if missing:
            found.append(at(file, "rank", "[]", missing=", ".join(map(str, missing)), side=file.side, last=world - 1))
    return found or (None if checked else OUT)


def world_size(run: Run, side: str) -> int:
    """How many ranks a side's processes have as msprobe sees them; an inference engine counts its own."""
    if run.scenario == SLIME:
        per_node = int(run.flag("actor_num_gpus_per_node", 8))
        return per_node if side == "generate" else per_node * int(run.flag("actor_num_nodes", 1))
    rollout = "actor_rollout_ref.rollout."
    if side == "generate":
        sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "data_parallel_size": 1}
        world = 1
        for name, default in sizes.items():
            world *= int(run.override(rollout + name, default))
        return world
    return int(run.override("trainer.n_gpus_per_node", 8)) * int(run.override("trainer.nnodes", 1))


def _steps_verl(file: MsprobeFile, _: Run) -> Found | None:
    steps = file.value("step")
    return at(file, "step", "[]", steps=steps) if steps else None


def _steps_slime(file: MsprobeFile, _: Run) -> Found | None:
    steps = numbers(file.value("step"))
    return at(file, "step", "[0]", steps=steps) if steps and 0 not in steps else None


def _effective(run: Run, side: str) -> str | None:
    """The folder in which a side's steps lie."""
    file = run.msprobe_of(side)
    path = None if file is None else file.value("dump_path")
    if not isinstance(path, str):
        return None
    path = os.path.normpath(path)
    return os.path.join(path, "old_log_prob") if run.scenario == SLIME and side == "actor" else path


def _folders(run: Run) -> Answer:
    generate, actor = _effective(run, "generate"), _effective(run, "actor")
    file = run.msprobe_of("generate")
    if generate is None or actor is None or file is None:
        return OUT
    apart = generate != actor and not generate.startswith(actor + "/") and not actor.startswith(generate + "/")
    if apart:
        return None
    above = os.path.dirname(actor) if run.scenario == SLIME else os.path.dirname(generate) or "/dump_data"
    return at(file, "dump_path", f'"{os.path.join(above, "generate")}"', generate=generate, actor=actor)


def _used_folder(run: Run) -> Answer:
    found: list[Found] = []
    seen = False
    for side in NAMED:
        folder, file = _effective(run, side), run.msprobe_of(side)
        if folder is None or file is None:
            continue
        names = run.listing(folder)
        if names is None:
            continue
        seen = True
        if any(name.startswith("step") or name.isdigit() for name in names):
            found.append(at(file, "dump_path", f'"{file.value("dump_path").rstrip("/")}_2"', folder=folder))
    if found or seen:
        return found or None
    if not run.msprobe:
        return OUT
    return NotChecked("the dump folders are not on this machine", "dump 目录不在本机上", target=True)


def _old(run: Run) -> Answer:
    version = run.stack.get("mindstudio-probe")
    if version is None:
        return OUT
    return Found(run.where(), version=version) if release(version) < (26, 0) else None


def _sides(run: Run) -> Answer:
    first, second = run.msprobe_of("generate"), run.msprobe_of("actor")
    if first is None or second is None:
        return OUT
    one, other = first.value("task"), second.value("task")
    return None if one == other else at(second, "task", f'"{one}"', one=one, other=other)


_HYBRID = {
    "run.sh": "export MSPROBE_CONFIG_PATH=/home/config_actor.json\npython3 -m verl.trainer.main_ppo "
    "trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.tensor_model_parallel_size=2 "
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.dump_config_path=/home/config_generate.json\n"
}
_SLIME = {"run.sh": "python3 train.py --hf-checkpoint /m --actor-num-gpus-per-node 4\n"}

RULES = (
    Rule(
        "M001",
        ERROR,
        (),
        each(_dump_path_signs),
        fact="mindstudio-probe 26.2.0: core/common/file_utils.py FileChecker; raised at the first start(), not before",
        en="dump_path {path} has signs that msprobe refuses inside the first forward; it takes letters, digits and _ . : / -",
        zh="dump_path {path} 含有 msprobe 在第一次前向时才拒绝的字符；只能用字母、数字和 _ . : / -",
        good=file_of(),
        bad=file_of('"dump_path": "/dump data/generate"'),
    ),
    Rule(
        "M002",
        ERROR,
        (),
        _config_path(_bad_path),
        fact="mindstudio-probe 26.2.0: core/common/file_utils.py FileChecker, on the configuration's real path",
        en="msprobe refuses the path of its file, {path}: it takes letters, digits and _ . : / -",
        zh="msprobe 拒绝其配置文件的路径 {path}：只能用字母、数字和 _ . : / -",
        good="export MSPROBE_CONFIG_PATH=/home/config_actor.json\npython3 -m verl.trainer.main_ppo",
        bad="export MSPROBE_CONFIG_PATH=/home/my+config.json\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "M003",
        ERROR,
        (),
        _config_path(lambda path: not path.endswith(".json")),
        fact="mindstudio-probe 26.2.0: the configuration is opened with the suffix .json demanded",
        en="msprobe's file {path} does not end in .json, which msprobe demands",
        zh="msprobe 配置文件 {path} 不以 .json 结尾，而 msprobe 要求如此",
        good="export MSPROBE_CONFIG_PATH=/home/config_actor.json\npython3 -m verl.trainer.main_ppo",
        bad="export MSPROBE_CONFIG_PATH=/home/config_actor.txt\npython3 -m verl.trainer.main_ppo",
    ),
    Rule(
        "M008",
        ERROR,
        (),
        each(_no_dump_path),
        fact="capture/preflight.py refuses a file without dump_path; a relative one is taken from each process's own folder",
        en="dump_path is {path}: name one absolute folder, because the processes of a run start in different ones",
        zh="dump_path 为 {path}：请写绝对路径，因为各进程的工作目录并不相同",
        good=file_of(),
        bad=file_of('"dump_path": "./dump"'),
    ),
    Rule(
        "M010",
        ERROR,
        (),
        _ranks,
        fact="vllm-project/vllm-ascend#6716; an inference engine's ranks begin at 0 in every replica",
        en="rank names {missing}, but the {side} side's ranks are 0 to {last}: nothing is dumped for them",
        zh="rank 写了 {missing}，但 {side} 侧的 rank 只有 0 到 {last}：对它们不会采集任何数据",
        good=_HYBRID | file_of('"rank": [1]'),
        bad=_HYBRID | file_of('"rank": [4, 5]'),
    ),
    Rule(
        "M011",
        WARNING,
        VERL,
        each(_steps_verl),
        fact="capture/session.py: a step is a forward, and whole prompts alone are dumped; their numbers differ on both sides",
        en="step is {steps}: steps count forwards, and the same prompt has different numbers on both sides",
        zh="step 为 {steps}：step 计的是前向次数，同一条 prompt 在两侧的编号不同",
        good=_HYBRID | file_of(),
        bad=_HYBRID | file_of('"step": [0]'),
    ),
    Rule(
        "M012",
        ERROR,
        (SLIME,),
        each(_steps_slime),
        fact="the training side's pass over the prompts is its step 0, and the only one",
        en="step is {steps}, and the prompt's forward is step 0",
        zh="step 为 {steps}，而 prompt 的前向是 step 0",
        good=_SLIME | file_of('"step": [0]'),
        bad=_SLIME | file_of('"step": [1]'),
    ),
    Rule(
        "M013",
        ERROR,
        (),
        _folders,
        fact="msprobe writes step<N>/rank<M> below each dump_path and overwrites; slime's training side adds old_log_prob",
        en="the two sides' steps lie in or below one folder: {generate} and {actor}",
        zh="两侧的 step 落在同一目录或其子目录中：{generate} 与 {actor}",
        good=_SLIME | file_of('"dump_path": "/d/generate"') | file_of('"dump_path": "/d"', "actor"),
        bad=_SLIME | file_of('"dump_path": "/d"') | file_of('"dump_path": "/d"', "actor"),
    ),
    Rule(
        "M014",
        ERROR,
        (),
        _used_folder,
        fact="mindstudio-probe 26.2.0: a rerun overwrites rank folders and leaves higher steps of the earlier run",
        en="{folder} holds dumps of another run",
        zh="{folder} 中已有另一次运行的 dump",
        good=file_of() | {"/dump_data/generate/notes.txt": ""},
        bad=file_of() | {"/dump_data/generate/step0/rank0/dump.json": "{}"},
    ),
    Rule(
        "M016",
        ERROR,
        (),
        _old,
        fact="mindstudio-probe before 26.0.0: start() takes no rank_id, and undistributed dumps share the folder rank",
        en="mindstudio-probe {version} is too old: install 26.0.0 or later",
        zh="mindstudio-probe {version} 版本过低：请安装 26.0.0 或更高版本",
        good=_HYBRID,
        bad=_HYBRID | {"stack": "mindstudio-probe=8.3.3"},
    ),
    Rule(
        "M022",
        WARNING,
        (),
        _sides,
        fact="docs/comparison.md: what is compared are quantities that both dumps have",
        en="the sides' tasks differ ({one} and {other}): compared is only what both have",
        zh="两侧的 task 不同（{one} 与 {other}）：只能比对两侧都有的内容",
        good=file_of() | file_of(side="actor"),
        bad=file_of() | file_of('"task": "tensor"', "actor"),
    ),
)
