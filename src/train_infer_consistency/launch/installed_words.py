"""What ``consistency doctor`` says in English of the installed packages, in Chinese for ``check --lang zh``.

The doctor's sentences are written where they are found out; here each has its translation, with ``{}`` for what is
filled in. A test holds the table to the doctor's own source. What is not here stays English, and says so.
"""

from __future__ import annotations

import re

_SENTENCES = {
    # What is wrong.
    "is installed without the overlay: CONSISTENCY_KEEP_ENDS does nothing": (
        "未织入 overlay：CONSISTENCY_KEEP_ENDS 不起作用"
    ),
    "is installed without the overlay, and dumps nothing that can be paired": (
        "未织入 overlay，不会 dump 任何可配对的数据"
    ),
    "its files do not agree with their record": "其文件与安装记录不一致",
    "woven by consistency.{}, and this version is another": "由 consistency.{} 织入，与当前版本不同",
    "several versions are recorded: {}": "记录了多个版本：{}",
    "{} hides another copy, {}": "{} 遮住了另一份安装 {}",
    "an editable install of {}: a woven wheel would displace it": "是 {} 的可编辑安装：织入后的 wheel 会顶替它",
    "Python started in {} would import {}, and not {}": "在 {} 中启动的 Python 会导入 {}，而不是 {}",
    "not installed: nothing can be dumped": "未安装：无法 dump 任何数据",
    "{} is older than {}, the first that serves": "{} 早于最低可用版本 {}",
    "it imports {} when it starts, and that is not installed": "它启动时会导入 {}，而后者未安装",
    "this is {}, and what belongs to stack {} is for {}": "当前是 {}，而版本组合 {} 需要 {}",
    "train-infer-consistency itself is not in {}: with its switch on, a woven engine stops at start-up": (
        "{} 中没有 train-infer-consistency 本身：打开开关后，已织入的引擎会在启动时停止"
    ),
    "{}: no version satisfies all of them; installed is {}": "{}：没有版本能同时满足；已安装 {}",
    "{} requires {}, installed is {}": "{} 要求 {}，已安装 {}",
    "an 'overlay {}' was stopped half-way: run 'consistency overlay revert {}'": (
        "'overlay {}' 中途停止：请运行 'consistency overlay revert {}'"
    ),
    "{} is at work on it": "{} 正在处理它",
    "woven, but no journal and no provenance is there: it cannot be reverted": "已织入，但没有日志和来源记录：无法撤销",
    "only some of its files are woven": "只有部分文件已织入",
    # Of one file.
    "it was removed since": "之后被删除",
    "changed by someone else since": "之后被他人修改",
    "changed by someone else since the wheel was installed": "wheel 安装后被他人修改",
    "now {}": "现为 {}",
    "the original was put back, and not by 'overlay revert'": "原文件已被放回，但不是由 'overlay revert' 完成",
    "not the file that this version lays": "不是当前版本放置的文件",
    "the installed package does not have it": "已安装的软件包中没有它",
    "woven by consistency.{} and changed since": "由 consistency.{} 织入，之后被修改",
    "as its wheel has it, which is no pinned version": "与其 wheel 一致，但不是已锁定的版本",
    "no pinned file, but what is edited in it is as pinned": "不是已锁定的文件，但其中被编辑之处与锁定一致",
    "no pinned file: changed by someone else, or another version": "不是已锁定的文件：被他人修改，或是另一版本",
    # What to do.
    "reinstall it": "请重新安装它",
    "uninstall one of them": "请卸载其中之一",
    "start it in another folder": "请在其他目录中启动",
    "reinstall the upstream package, then apply the overlay again": "请重新安装上游软件包，再织入 overlay",
    "revert it and apply this version's overlay": "请撤销，再织入当前版本的 overlay",
    "use 'consistency overlay apply {}' instead of a wheel": "请用 'consistency overlay apply {}' 代替 wheel",
    "install the stack's wheels": "请安装该版本组合的 wheel",
    "install the stack's wheel of it": "请安装该版本组合中它的 wheel",
    "install its wheel there with pip install --no-deps": "请在那里用 pip install --no-deps 安装它的 wheel",
    "install one stack's wheels together": "请安装同一版本组合的全部 wheel",
    "install a {} that fits, or a {} that takes this one": "请安装合适的 {}，或能接受它的 {}",
    "use Python {}": "请使用 Python {}",
}
#: A command is the same in every language.
_COMMANDS = ("consistency ", "pip ")
_ENGLISH = "（doctor 的英文原文）"


def chinese(text: str) -> str:
    """A sentence, or several with "; " between them, in Chinese; marked as English where there is no translation."""
    whole = _translated(text)
    if whole is not None:
        return whole
    parts = [_translated(part) for part in text.split("; ")]
    known = [part for part in parts if part is not None]
    return "；".join(known) if len(known) == len(parts) else text + _ENGLISH


def _translated(text: str) -> str | None:
    if text.startswith(_COMMANDS):
        return text
    for english, translation in _SENTENCES.items():
        pattern = "(.+?)".join(map(re.escape, english.split("{}")))
        match = re.fullmatch(pattern, text)
        if match:
            return translation.format(*match.groups())
    path, sign, rest = text.partition(" is ")  # a file and what is said of it
    said = _SENTENCES.get(rest) if sign and " " not in path else None
    return None if said is None else f"{path}：{said}"
