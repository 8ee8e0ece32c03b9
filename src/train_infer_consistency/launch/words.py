"""What checking says that is not a rule's own text, in English and Chinese. A test holds both complete."""

from __future__ import annotations

LANGUAGES = ("en", "zh")
WORDS: dict[str, tuple[str, str]] = {
    # What could not be read.
    "not-here": ("{path} is not here", "此处没有 {path}"),
    "failed": ("cannot be read: {why}", "无法读取：{why}"),
    "folder": ("is a folder", "是一个目录"),
    "no-file": ("is no plain file", "不是普通文件"),
    "too-large": ("is larger than {limit} MB, which no script or configuration is", "大于 {limit} MB，不是脚本或配置"),
    "carriage": (
        "has Windows line ends, which bash takes for a part of its words: convert it with sed -i 's/\\r$//' {path}",
        "含 Windows 换行符，bash 会把它当作单词的一部分：请用 sed -i 's/\\r$//' {path} 转换",
    ),
    "order-mark": (
        "begins with a byte-order mark, which bash takes for a part of its first word: save it without",
        "以 BOM 开头，bash 会把它当作第一个单词的一部分：请保存为无 BOM 的 UTF-8",
    ),
    "no-utf8": ("is no UTF-8 text", "不是 UTF-8 文本"),
    "too-deep": ("is nested too deeply to be read", "嵌套过深，无法读取"),
    "no-end": ("{what} has no end", "{what} 没有结束"),
    "unexpected": ("bash does not take {what} here", "bash 不接受此处的 {what}"),
    "no-command": (
        "holds no command that starts verl's main_ppo or fully_async_main, or slime's train.py",
        "其中没有启动 verl 的 main_ppo 或 fully_async_main、或 slime 的 train.py 的命令",
    ),
    "hidden": (
        "starts a run inside {name}, where it is not read: give the command that it starts there",
        "在 {name} 内启动运行，未读取：请直接给出其中的命令",
    ),
    "other-trainer": (
        "{name} is neither main_ppo nor fully_async_main: its step has no prompt-only pass, and no rule was tried",
        "{name} 不是 main_ppo 或 fully_async_main：它的训练步骤没有仅含 prompt 的前向，没有检查任何规则",
    ),
    "no-json": ("is no valid JSON object", "不是有效的 JSON 对象"),
    "no-toml": ("is no valid TOML ({why})", "不是有效的 TOML（{why}）"),
    "no-yaml": (
        "is not read: no YAML parser is installed here, or it is no YAML mapping",
        "未读取：此处没有安装 YAML 解析器，或它不是 YAML 映射",
    ),
    "env-no-json": ("runtime_env is no JSON ({why})", "runtime_env 不是 JSON（{why}）"),
    "env-unknown": ("runtime_env is unknown here: {why}", "runtime_env 在此无法得知：{why}"),
    "other-json": ("is neither an msprobe file nor a runtime_env", "既不是 msprobe 配置，也不是 runtime_env"),
    "other-yaml": (
        "is neither a dumped Hydra configuration nor a runtime_env",
        "既不是导出的 Hydra 配置，也不是 runtime_env",
    ),
    "no-scenario": ("names no scenario of {names}", "没有写明场景（{names} 之一）"),
    "no-plan": ("holds no plan: no run.sh and no msprobe file", "不是方案目录：没有 run.sh，也没有 msprobe 配置"),
    "stray": ("{word} belongs to no flag", "{word} 不属于任何参数"),
    "no-override": ("Hydra takes {word} for no override", "{word} 不是 Hydra 的覆盖项"),
    "hydra": (
        "Hydra cannot read {text}: {sign} is wrong or missing there",
        "Hydra 无法读取 {text}：其中 {sign} 有误或缺失",
    ),
    # What was not checked.
    "unknown": ("{name} is unknown here: {why}", "{name} 的值在此无法得知：{why}"),
    "maybe": ("{name} may be set by {why}, which is unknown here", "{name} 可能由 {why} 设置，而后者在此无法得知"),
    "maybe-many": (
        "{count} rules are not checked, since what they look at may be set by {why}, which is unknown here: {codes}",
        "{count} 条规则未检查，因为它们所看的设置可能由 {why} 给出，而后者在此无法得知：{codes}",
    ),
    "assumed": ("arguments of the script are taken as not given: {what}", "按未给脚本传参数处理：{what}"),
    "target-file": ("{path}: a file of the target machine", "{path}：目标机器上的文件"),
    "target-packages": (
        "installed packages: run `consistency doctor` on the target machine",
        "已安装的软件包：请在目标机器上运行 `consistency doctor`",
    ),
    "target-doctor": (
        "installed packages: {what}",
        "已安装的软件包（doctor 的英文原文）：{what}",
    ),
    # The report.
    "installed": (
        "installed here: {level}: {subject}: {what}",
        "此处已安装的软件包：{level}：{subject}：{what}",
    ),
    "error": ("error", "错误"),
    "warning": ("warning", "警告"),
    "note": ("note", "提示"),
    "write": ("write:  {text}", "改为：{text}"),
    "write-env": ("for the workers:  {text}", "为工作进程设置：{text}"),
    "remove": ("remove: {text}", "删去：{text}"),
    "unread": ("not read: {text}", "未读取：{text}"),
    "not-checked": ("not checked: {text}", "未检查：{text}"),
    "target": ("not checked here: {text}", "此处未检查：{text}"),
    "run": ("{where}: {scenario}, versions {versions}", "{where}：{scenario}，版本 {versions}"),
    "summary": (
        "{applied} rules applied, {broken} broken, {unchecked} not checked; {unread} not read",
        "适用规则 {applied} 条，违反 {broken} 条，未检查 {unchecked} 条；未读取 {unread} 项",
    ),
    "nothing": ("no rule applied: nothing was checked", "没有适用的规则：什么也没有检查"),
    "by-hand": ("to be changed by hand:", "需手工修改："),
    "no-change": ("nothing to change", "无需修改"),
}


#: So much of what a file holds is enough to know it by.
_LENGTH = 300


def _short(text: str) -> str:
    return text if len(text) <= _LENGTH else text[: _LENGTH - 1] + "…"


class Said:
    """A sentence to be said in one of the languages."""

    __slots__ = ("key", "values")

    def __init__(self, key: str, **values: object) -> None:
        self.key = key
        self.values = values

    def text(self, language: str = "en") -> str:
        """The sentence."""
        values = {name: _short(str(value)) for name, value in self.values.items()}
        return WORDS[self.key][LANGUAGES.index(language)].format(**values)

    def __str__(self) -> str:
        return self.text()


def say(language: str, key: str, **values: object) -> str:
    """A sentence in a language."""
    return Said(key, **values).text(language)


def language_of(environment: dict[str, str]) -> str:
    """The language of a locale: "zh" for a Chinese one, else "en"."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if environment.get(name):
            return "zh" if environment[name].lower().startswith("zh") else "en"
    return "en"
