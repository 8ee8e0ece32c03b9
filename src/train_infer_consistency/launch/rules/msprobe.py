"""M: what an msprobe configuration must hold, so that it dumps what can be compared. Its place in a run: msprobe_run."""

from __future__ import annotations

from ..rule import ERROR, NOTE, OUT, WARNING, Found, Rule, drop_msprobe, set_msprobe
from ..run import UnknownValueError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..rule import Answer
    from ..run import MsprobeFile, Run

_LEVELS = ("L0", "L1", "mix")
_TASKS = ("statistics", "tensor")
_MODES = ("all", "input", "output", "forward", "backward")
_SUMMARIES = ("statistics", "md5", "xor")
_KEYS = frozenset(
    (
        "task",
        "dump_path",
        "rank",
        "step",
        "level",
        "dump_enable",
        "extra_info",
        "async_dump",
        "precision",
        "risk_level",
        "custom_op_namespaces",
        "load",
        "statistics",
        "tensor",
        "acc_check",
        "structure",
        "nan_check",
        "diff_check",
    )
)
_TASK_KEYS = frozenset(
    (
        "scope",
        "list",
        "tensor_list",
        "data_mode",
        "summary_mode",
        "slice",
        "request_id",
        "diff_nums",
        "bench_path",
        "white_list",
        "black_list",
        "error_data_path",
    )
)


def each(judge: Callable[[MsprobeFile, Run], Found | None]) -> Callable[[Run], Answer]:
    """A rule that looks at one msprobe file at a time."""

    def check(run: Run) -> Answer:
        if not run.msprobe:
            return OUT
        found: list[Found] = []
        unknown: UnknownValueError | None = None
        for file in run.msprobe:
            try:
                one = judge(file, run)
            except UnknownValueError as error:
                unknown = error
            else:
                found += [] if one is None else [one]
        if unknown is not None and not found:
            raise unknown
        return found or None

    return check


def section(file: MsprobeFile) -> dict[str, Any]:
    """The part of the file that belongs to its task."""
    task = file.value("task")
    found = file.value(task if isinstance(task, str) else "statistics")
    return found if isinstance(found, dict) else {}


def at(file: MsprobeFile, key: str, value: str | None, /, **values: object) -> Found:
    """Found at a key of the file, which is to have this JSON value; None takes the key away."""
    name = file.origin.file
    mend = drop_msprobe(name, key) if value is None else set_msprobe(name, key, value)
    return Found(file.at(key), mend, **values)


def _level(file: MsprobeFile, _: Run) -> Found | None:
    level = file.value("level")
    if level in _LEVELS:
        return None
    right = next((one for one in _LEVELS if one.lower() == str(level).lower()), "L0")
    return at(file, "level", f'"{right}"', level=level)


def _no_modules(file: MsprobeFile, _: Run) -> Found | None:
    return at(file, "level", '"L0"') if file.value("level") == "L1" else None


def _unknown_keys(file: MsprobeFile, _: Run) -> Found | None:
    stray = [key for key in file.content if key not in _KEYS]
    stray += [key for key in section(file) if key not in _TASK_KEYS]
    return at(file, stray[0], None, keys=", ".join(stray)) if stray else None


def _task(file: MsprobeFile, _: Run) -> Found | None:
    task = file.value("task")
    return None if task in _TASKS else at(file, "task", '"statistics"', task=task)


def _filters(file: MsprobeFile, _: Run) -> Found | None:
    for key in ("rank", "step"):
        if key in file.content and numbers(file.value(key)) is None:
            return at(file, key, "[]", key=key, value=file.value(key))
    return None


def numbers(value: object) -> list[int] | None:
    """msprobe's ``rank`` or ``step`` as numbers: [0, "3-5"] is 0, 3, 4, 5; None where msprobe refuses it."""
    if not isinstance(value, list):
        return [] if value is None else None
    found: list[int] = []
    for item in value:
        first, sign, last = str(item).partition("-")
        if isinstance(item, bool) or not isinstance(item, int | str) or not first.isdigit():
            return None
        if sign and (not last.isdigit() or int(last) < int(first)):
            return None
        found += range(int(first), int(last or first) + 1)
    return found


def _precision(file: MsprobeFile, _: Run) -> Found | None:
    return at(file, "precision", '"low"') if file.value("precision") == "high" else None


def _dump_enable(file: MsprobeFile, _: Run) -> Found | None:
    return at(file, "dump_enable", None) if "dump_enable" in file.content else None


def _summary(file: MsprobeFile, _: Run) -> Found | None:
    mode = section(file).get("summary_mode", "statistics")
    return None if mode in ("statistics", "md5") else at(file, "summary_mode", '"statistics"', mode=mode)


def _data_mode(file: MsprobeFile, _: Run) -> Found | None:
    modes = section(file).get("data_mode")
    if modes is None or (isinstance(modes, list) and set(modes) <= set(_MODES) and _has_output(modes)):
        return None
    return at(file, "data_mode", '["all"]', modes=modes)


def _has_output(modes: list[str]) -> bool:
    if "all" in modes:
        return len(modes) == 1
    return not modes or (set(modes) != {"input"} and "backward" not in modes) or {"forward", "backward"} <= set(modes)


def _narrow(file: MsprobeFile, _: Run) -> Found | None:
    for key in ("scope", "list"):
        if section(file).get(key):
            return at(file, key, "[]", key=key)
    return None


def _load(file: MsprobeFile, _: Run) -> Found | None:
    return at(file, "load", None) if "load" in file.content else None


def file_of(extra: str = "", side: str = "generate") -> dict[str, str]:
    """An msprobe file for the examples; in JSON the last of two equal keys holds."""
    text = '{"task": "statistics", "dump_path": "/dump_data/%s", "rank": [], "step": [], "level": "L0"%s}'
    return {f"config_{side}.json": text % (side, f", {extra}" if extra else "")}


RULES = (
    Rule(
        "M004",
        ERROR,
        (),
        each(_level),
        fact="mindstudio-probe 26.2.0: core/dump/common_config.py; case matters, a missing level is L1, L2 and debug dump no modules",
        en="level is {level}: a comparison needs L0 or mix, and the case matters",
        zh="level 为 {level}：比对需要 L0 或 mix，且区分大小写",
        good=file_of(),
        bad=file_of('"level": "l0"'),
    ),
    Rule(
        "M005",
        ERROR,
        (),
        each(_no_modules),
        fact="mindstudio-probe 26.2.0: level L1 writes API calls alone; docs/comparison.md compares modules",
        en="level L1 dumps API calls and no modules, and modules are what is compared",
        zh="level L1 只采集 API 调用而没有模块，而比对的正是模块",
        good=file_of(),
        bad=file_of('"level": "L1"'),
    ),
    Rule(
        "M006",
        WARNING,
        (),
        each(_unknown_keys),
        fact="mindstudio-probe 26.2.0: keys that it does not know are ignored without a word",
        en="msprobe does not know and silently ignores: {keys}",
        zh="msprobe 不认识并会默默忽略：{keys}",
        good=file_of(),
        bad=file_of('"Level": "L0"'),
    ),
    Rule(
        "M007",
        ERROR,
        (),
        each(_task),
        fact="mindstudio-probe 26.2.0: of its tasks, statistics and tensor write values",
        en="task is {task}: only statistics and tensor write values that can be compared",
        zh="task 为 {task}：只有 statistics 与 tensor 会写出可比对的数值",
        good=file_of(),
        bad=file_of('"task": "structure"'),
    ),
    Rule(
        "M009",
        ERROR,
        (),
        each(_filters),
        fact="mindstudio-probe 26.2.0: core/common/utils.py get_real_step_or_rank",
        en="{key} is {value}: msprobe takes a list of numbers and of ranges such as 0-3, each range a text",
        zh="{key} 为 {value}：msprobe 只接受列表，元素为数字或形如 0-3 的范围字符串",
        good=file_of('"rank": [0, "2-3"]'),
        bad=file_of('"rank": "0"'),
    ),
    Rule(
        "M015",
        ERROR,
        (),
        each(_precision),
        needs={"mindstudio-probe": ">=26.1"},
        fact="mindstudio-probe 26.1.0, 26.1.0.post1 and 26.2.0: Mean and Norm of PyTorch tensors are null with precision high",
        en="precision high writes null for Mean and Norm in this version of msprobe",
        zh="此版本的 msprobe 在 precision 为 high 时，Mean 与 Norm 均写为 null",
        good=file_of('"precision": "low"'),
        bad=file_of('"precision": "high"'),
    ),
    Rule(
        "M017",
        ERROR,
        (),
        each(_dump_enable),
        fact="mindstudio-probe 26.2.0: its hot reload makes the configuration anew and forgets a process's own folder",
        en="dump_enable mixes the dumps of several processes",
        zh="dump_enable 会把多个进程的 dump 混在一起",
        good=file_of(),
        bad=file_of('"dump_enable": true'),
    ),
    Rule(
        "M018",
        WARNING,
        (),
        each(_summary),
        fact="mindstudio-probe 26.2.0: xor writes checksums without statistics; others are refused",
        en="summary_mode is {mode}: statistics and md5 are what can be compared",
        zh="summary_mode 为 {mode}：可比对的是 statistics 与 md5",
        good=file_of('"statistics": {"summary_mode": "md5"}'),
        bad=file_of('"statistics": {"summary_mode": "xor"}'),
    ),
    Rule(
        "M019",
        ERROR,
        (),
        each(_data_mode),
        fact="mindstudio-probe 26.2.0: core/dump/common_config.py; a comparison needs the outputs of forwards",
        en="data_mode is {modes}: the outputs of forwards are left out, or msprobe refuses it",
        zh="data_mode 为 {modes}：缺少前向的输出，或被 msprobe 拒绝",
        good=file_of('"statistics": {"data_mode": ["forward", "output"]}'),
        bad=file_of('"statistics": {"data_mode": ["input"]}'),
    ),
    Rule(
        "M020",
        NOTE,
        (),
        each(_narrow),
        fact="mindstudio-probe 26.2.0: scope and list name modules as one side calls them; the sides' names differ",
        en="{key} narrows the dump to modules by name, and the two sides name modules differently",
        zh="{key} 按名称限定了采集的模块，而两侧的模块名称并不相同",
        good=file_of('"statistics": {"list": []}'),
        bad=file_of('"statistics": {"list": ["self_attn"]}'),
    ),
    Rule(
        "M021",
        ERROR,
        (),
        each(_load),
        fact="mindstudio-probe 26.2.0: core/dump/common_config.py LoadConfig puts stored tensors in place of a module's inputs",
        en="load replaces the inputs of modules with stored ones, so the dump is not the run's own",
        zh="load 会用已存的张量替换模块的输入，dump 就不再是本次运行的数据",
        good=file_of(),
        bad=file_of('"load": {"path": "/d", "modules": ["Module.a.forward.0"]}'),
    ),
)
