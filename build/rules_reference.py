"""Write docs/rules.md and docs/rules.zh-CN.md from the rules themselves: ``python build/rules_reference.py``."""

from __future__ import annotations

from pathlib import Path

from train_infer_consistency.launch.rule import Rule
from train_infer_consistency.launch.rules import all_rules
from train_infer_consistency.launch.run import SCENARIOS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"en": DOCS / "rules.md", "zh": DOCS / "rules.zh-CN.md"}
GROUPS = {
    "V": ("verl", "verl"),
    "S": ("slime", "slime"),
    "M": ("msprobe's files", "msprobe 配置文件"),
    "E": ("Environment", "环境变量"),
    "N": ("NPU features", "NPU 特性"),
}
WORDS = {
    "title": ("Rules of `consistency check`", "`consistency check` 的规则"),
    "error": ("error", "错误"),
    "warning": ("warning", "警告"),
    "note": ("note", "提示"),
    "all": ("every run", "所有运行"),
    "fact": ("Fact", "依据"),
    "found": ("Found in", "会报告"),
    "good": ("Not in", "不报告"),
}
#: Sentences at the head of the page.
WRITTEN = (
    [
        "Written from the rules by `python build/rules_reference.py`: do not edit this page.",
        "An error or a warning is a broken rule (status 1), a note is not.",
        "Versions are those of the run's stack: `--stack`, `plan.toml`, or the scenario's own.",
        "The fact is where one can see what the rule says.",
    ],
    [
        "本页由 `python build/rules_reference.py` 根据规则生成，请勿手工修改。",
        "错误与警告算违反规则（退出码 1），提示不算。",
        "版本取自本次运行的版本组合：`--stack`、`plan.toml` 或场景默认值。",
        "“依据”指明何处可以看到规则所述的事实。",
    ],
)


def page(language: str) -> str:
    """One page, in Markdown."""
    column = 0 if language == "en" else 1
    lines = [f"# {WORDS['title'][column]}", "", *WRITTEN[column]]
    for letter, title in GROUPS.items():
        lines += ["", f"## {title[column]}"]
        for rule in all_rules():
            if rule.code.startswith(letter):
                lines += ["", *entry(rule, column)]
    return "\n".join(lines) + "\n"


def entry(rule: Rule, column: int) -> list[str]:
    """One rule."""
    scenarios = WORDS["all"][column] if rule.scenarios in ((), SCENARIOS) else ", ".join(rule.scenarios)
    needs = "".join(f"; {name} {wanted}" for name, wanted in rule.needs.items())
    text = (rule.en, rule.zh)[column]
    return [
        f"### {rule.code}",
        "",
        f"{WORDS[rule.severity][column]} · {scenarios}{needs}",
        "",
        text.replace("{", "`<").replace("}", ">`"),
        "",
        f"- {WORDS['fact'][column]}: {rule.fact}",
        f"- {WORDS['found'][column]}: {shown(rule.bad)}",
        f"- {WORDS['good'][column]}: {shown(rule.good)}",
    ]


def shown(example: str | dict[str, str]) -> str:
    """An example on one line."""
    if isinstance(example, str):
        return f"`{'; '.join(example.strip().splitlines())}`"
    return "; ".join(f"{name}: `{'; '.join(text.strip().splitlines())}`" for name, text in example.items())


def main() -> None:
    """Write both pages."""
    for language, path in PAGES.items():
        path.write_text(page(language), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
