"""``consistency plan``: from a few answers, everything that a collection run needs, in one folder."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..errors import UnfinishedError, UsageError
from .planning import msprobe_files, script, text
from .planning.answers import Answers, check_path
from .planning.costs import Costs, estimate
from .run import VERL

#: What msprobe's seed_all takes where no seed is given, and both published procedures use.
_SEED = "1234"


@dataclass(frozen=True)
class Plan:
    """A plan, not yet written.

    Attributes:
        answers: it was made from.
        folder: where it goes, absolute.
        files: name -> text.
        costs: as expected.
        warnings: what to know before it is run.
    """

    answers: Answers
    folder: str
    files: dict[str, str]
    costs: Costs
    warnings: list[str]


def variables(answers: Answers, folder: str) -> dict[str, str]:
    """The environment of the workers of both sides.

    Args:
        answers: the run's.
        folder: the plan's, as the target machine has it.
    """
    found = {
        "DUMP_ON": "1",
        "PROMPTS_ONLY": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "MSPROBE_SEED": _SEED,
        "MSPROBE_CONFIG_PATH": f"{folder}/{msprobe_files.ACTOR}",
        "CONSISTENCY_RUN_ID": answers.run_id,
    }
    if answers.scenario in VERL:
        return found | {"DUMP_PHASE": "log_prob", "CONSISTENCY_KEEP_ENDS": "1"}
    # Megatron asks for it where a model is split.
    found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if not answers.native_sglang:
        found |= {
            "SGLANG_MSPROBE_DUMP": "1",
            "MSPROBE_GENERATE_CONFIG": f"{folder}/{msprobe_files.GENERATE}",
            "MSPROBE_MIN_DUMP_TOKENS": "2",
        }
    return found


def make_plan(answers: Answers, output: Path, language: str = "en") -> Plan:
    """Make a plan; nothing is written.

    Args:
        answers: judged ones.
        output: the folder that it will be written to.
        language: of the comments and of the README, "en" or "zh".

    Raises:
        UsageError: msprobe would refuse the folder's path, or it lies where a side dumps.
    """
    folder = os.path.abspath(output)
    check_path(folder, "-o")
    for dumps in msprobe_files.folders(answers).values():
        if folder == dumps or folder.startswith(dumps + "/"):
            raise UsageError(f"-o {folder} lies in {dumps}, where a side dumps", "write the plan beside it")
    workers = variables(answers, folder)
    costs = estimate(answers)
    warnings = text.warnings(answers, language)
    files = {
        name: msprobe_files.render(msprobe_files.configuration(answers, side))
        for side, name in (("generate", msprobe_files.GENERATE), ("actor", msprobe_files.ACTOR))
    }
    files["runtime_env.json"] = json.dumps({"env_vars": workers}, indent=2) + "\n"
    files["run.sh"] = script.render(answers, folder, workers, language)
    files["plan.toml"] = _toml(answers, folder)
    files["README.zh-CN.md" if language == "zh" else "README.md"] = text.readme(
        answers, folder, costs, warnings, language
    )
    return Plan(answers, folder, files, costs, warnings)


def write_plan(plan: Plan) -> None:
    """Write a plan's folder: it is there whole, or not at all.

    Raises:
        UsageError: there is something already.
        UnfinishedError: it cannot be written.
    """
    target = Path(plan.folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"-o {target} is there and not empty", "name a new folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise UnfinishedError(f"-o {target} cannot be made ({error.strerror})", "name another folder") from None
    try:
        for name, content in plan.files.items():
            (made / name).write_text(content, encoding="utf-8")
        (made / "run.sh").chmod(0o755)
        made.chmod(0o755)
        made.rename(target)
    except OSError as error:
        raise UnfinishedError(f"-o {target} cannot be written ({error.strerror})", "name another folder") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _toml(answers: Answers, folder: str) -> str:
    command = f"consistency plan {answers.scenario} --answers plan.toml -o FOLDER"
    lines = [
        f"# Made by train-infer-consistency {__version__}; `{command}` makes it again, for another folder.",
        f"scenario = {json.dumps(answers.scenario)}",
        f"stack = {json.dumps(answers.stack)}",
        f"run_id = {json.dumps(answers.run_id)}",
        f"folder = {json.dumps(folder)}",
        f"made_by = {json.dumps(__version__)}",
        "",
        "[versions]",
        *(f"{name} = {json.dumps(version)}" for name, version in answers.versions.items()),
        "",
        "[answers]",
        # JSON's texts, numbers, true and false are TOML's too.
        *(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in answers.as_toml().items()),
    ]
    return "\n".join(lines) + "\n"
