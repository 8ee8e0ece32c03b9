"""The launch script of a plan: every setting with its reason, the user's own arguments between them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ... import __version__
from ..run import SLIME
from . import slime, verl
from .answers import Answers
from .msprobe_files import folders
from .setting import Given, hydra, shell

_SENTENCES: dict[str, tuple[str, str]] = {
    "what": (
        "{scenario}: a collection run, planned by train-infer-consistency {version}; README.md says how to use it.",
        "{scenario}：采集运行，由 train-infer-consistency {version} 生成；用法见 README.zh-CN.md。",
    ),
    "yours": (
        "Data, reward and all else of your own are this script's arguments.",
        "数据、奖励等您自己的参数作为本脚本的参数传入。",
    ),
    "defaults": ("Your own arguments may set these otherwise.", "以下各项可由您自己的参数改写。"),
    "capture": (
        "What the capture needs. It stands last, so that it wins.",
        "采集所必需的设置。放在最后，因此以它们为准。",
    ),
    "name": (
        "The dumps name their plan: `consistency compare` finds this copy and says which run it compares.",
        "dump 旁保留本方案的副本：`consistency compare` 据此说明比对的是哪次运行。",
    ),
    "old": (
        "A folder that holds another run's dumps is refused.",
        "已有其他运行的 dump 的目录不再使用。",
    ),
    "there": (
        "is there already; move it away, or plan with another --dump-root",
        "已存在；请将其移走，或用另一个 --dump-root 重新生成方案",
    ),
}


def sentence(key: str, language: str, **values: object) -> str:
    """A comment of the script."""
    return _SENTENCES[key][language == "zh"].format(**values)


def render(answers: Answers, plan: str, variables: dict[str, str], language: str) -> str:
    """The script.

    Args:
        answers: the run's.
        plan: the plan's folder, as the target machine has it.
        variables: for Ray's workers.
        language: of the comments.
    """
    config = f"{plan}/config_generate.json"
    slime_ = answers.scenario == SLIME
    root = shlex.quote(answers.dump_root.rstrip("/"))
    before = slime.before(answers) if slime_ else verl.before(answers)
    after = slime.after(answers, config) if slime_ else verl.after(answers, config, variables)
    lines = [
        "#!/usr/bin/env bash",
        f"# {sentence('what', language, scenario=answers.scenario, version=__version__)}",
        f"# {sentence('yours', language)}",
        "set -euo pipefail",
        "",
        f"# {sentence('old', language)}",
        f"for folder in {' '.join(map(shlex.quote, folders(answers).values()))}; do",
        '  if [ -e "$folder" ]; then',
        f'    echo "run.sh: $folder {sentence("there", language)}" >&2',
        "    exit 2",
        "  fi",
        "done",
        "",
        f"# {sentence('name', language)}",
        f"mkdir -p {root}",
        f"cp {shlex.quote(f'{plan}/plan.toml')} {root}/",
        "",
        f"# {sentence('defaults', language)}",
        *_array("DEFAULTS", before, language),
        "",
        f"# {sentence('capture', language)}",
        *_array("CAPTURE", after, language),
        "",
        *_command(answers, plan),
    ]
    return "\n".join(lines) + "\n"


def _array(name: str, groups: Sequence[Given], language: str) -> list[str]:
    lines = [f"{name}=("]
    for group in groups:
        lines.append(f"  # {group.why(language)}")
        lines += ["  " + " ".join(map(shell, _words(*pair))) for pair in group.settings.items()]
    return [*lines, ")"]


def _words(key: str, value: object) -> list[str]:
    if not key.startswith("--"):
        return [hydra(key, value)]
    return [key] if value is True else [key, str(value)]


def _command(answers: Answers, plan: str) -> list[str]:
    log = shlex.quote(f"{plan}/run.log")
    arguments = '"${DEFAULTS[@]}" "$@" "${CAPTURE[@]}"'
    if answers.scenario != SLIME:
        return [f"python3 -m {verl.MODULES[answers.scenario]} \\", f"  {arguments} 2>&1 | tee {log}"]
    return [
        'ray job submit --address="${RAY_ADDRESS:-http://127.0.0.1:8265}" \\',
        f"  --runtime-env {shlex.quote(f'{plan}/runtime_env.json')} \\",
        f"  -- python3 train.py {arguments} 2>&1 | tee {log}",
    ]
