"""The few answers that a plan needs: read from options or a TOML file, and refused where no run can come of them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...errors import EvidenceError, UsageError
from .. import stacks
from ..rule import within
from ..run import SCENARIOS, SLIME, VERL_FULLY_ASYNC

#: Of verl's training side, the first is the default; slime has Megatron alone.
ENGINES = ("fsdp2", "fsdp", "megatron")
#: The upstream versions whose sources the overlays fit (VERSIONS.lock).
_FITTING = {"verl": ">=0.8,<0.9", "slime": ">=0.2.2,<0.3"}
#: msprobe matches the paths of its files and of its dumps against this, the latter only at the first forward.
_PATH = re.compile(r"[a-zA-Z0-9_.:/-]+")
_RUN_ID = re.compile(r"[a-zA-Z0-9_.-]+")


@dataclass(frozen=True)
class Answers:
    """What was answered.

    Attributes:
        scenario: one of :data:`~train_infer_consistency.launch.run.SCENARIOS`.
        model: a folder or a name, as the engines take it; nothing of it is fetched.
        world_size: processes of the training side.
        dump_root: below it both sides dump; an absolute path of the target machine.
        tp, pp, cp: tensor, pipeline and context parallel sizes of the training side; tp of the rollout too.
        prompt_length: in tokens, the longest.
        per_node: cards of a node.
        engine: one of :data:`ENGINES`.
        stack: a stack's name, or pins; "" for the scenario's default.
        tensors: whole tensors in place of statistics.
        md5: a checksum of each tensor beside its statistics.
        dp_attention, allow_dp_attention: SGLang's DP attention, and that its reason was read.
        run_id: names the run.
    """

    scenario: str
    model: str
    world_size: int
    dump_root: str
    tp: int = 1
    pp: int = 1
    cp: int = 1
    prompt_length: int = 1024
    per_node: int = 8
    engine: str = ENGINES[0]
    stack: str = ""
    tensors: bool = False
    md5: bool = False
    dp_attention: bool = False
    allow_dp_attention: bool = False
    run_id: str = field(default_factory=lambda: f"plan-{secrets.token_hex(4)}")

    @property
    def dp(self) -> int:
        """Data-parallel size: how many training processes see prompts of their own."""
        return self.world_size // (self.tp * self.pp * self.cp if self.megatron else 1)

    @property
    def megatron(self) -> bool:
        """Whether the training side is Megatron."""
        return self.scenario == SLIME or self.engine == "megatron"

    @property
    def nodes(self) -> int:
        """Nodes of the training side."""
        return max(1, self.world_size // self.per_node)

    @property
    def versions(self) -> dict[str, str]:
        """The upstreams' versions."""
        return stacks.versions(self.stack)

    @property
    def native_sglang(self) -> bool:
        """Whether SGLang has an msprobe switch of its own, which the overlay's takes no part in."""
        return self.scenario == SLIME and within(self.versions.get("sglang", "0"), ">=0.5.11")

    def as_toml(self) -> dict[str, Any]:
        """The answers by their names in a TOML file, without the scenario and the stack."""
        left_out = ("scenario", "stack", "run_id", *(("engine",) if self.scenario == SLIME else ()))
        return {one.name.replace("_", "-"): getattr(self, one.name) for one in fields(self) if one.name not in left_out}


def read_answers(path: Path) -> dict[str, Any]:
    """Read a TOML file of answers, or a plan.toml, whose table ``answers`` holds them.

    Raises:
        EvidenceError: it cannot be read, or is no TOML.
        UsageError: it holds a name that is none of an answer.
    """
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror})", "name a TOML file of answers") from None
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path} is no valid TOML ({error})", "mend the file") from None
    if not isinstance(content.get("answers", {}), dict):
        raise UsageError(f"{path}: answers is no table", "write [answers] above them, or no such name")
    given = {name.replace("-", "_"): value for name, value in {**content, **content.get("answers", {})}.items()}
    for name in ("answers", "versions", "folder", "made_by", "run_id"):
        given.pop(name, None)
    known = [one.name for one in fields(Answers)]
    for name, value in given.items():
        if name not in known:
            names = ", ".join(sorted(one.replace("_", "-") for one in known if one != "run_id"))
            raise UsageError(f"{path}: {name} is no answer", f"the answers are {names}")
        wanted = {"int": int, "bool": bool, "str": str}[str(Answers.__annotations__[name])]
        if type(value) is not wanted:
            raise UsageError(f"{path}: {name.replace('_', '-')} = {value!r} is no {_WORDS[wanted]}", "mend the file")
    return given


_WORDS: dict[type, str] = {int: "whole number", bool: "true or false", str: "text"}


def make_answers(given: Mapping[str, Any]) -> Answers:
    """The answers, judged.

    Args:
        given: by field; a field that is not there has its default.

    Raises:
        UsageError: one is missing, or no run can come of them.
    """
    missing = [name for name in ("scenario", "model", "world_size", "dump_root") if not given.get(name)]
    if missing:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise UsageError(f"not answered: {names}", "give it as an option, or in the file of --answers")
    if given["scenario"] not in SCENARIOS:
        raise UsageError(f"no scenario {given['scenario']!r}", f"use one of {', '.join(SCENARIOS)}")
    answers = Answers(**{**given, "stack": given.get("stack") or stacks.DEFAULT[given["scenario"]]})
    _judge_sizes(answers)
    _judge_stack(answers)
    _judge_engine(answers)
    check_path(answers.dump_root, "--dump-root")
    if not answers.model.isprintable():
        raise UsageError("--model holds a character that cannot be printed", "name the model's folder")
    if not _RUN_ID.fullmatch(answers.run_id):
        raise UsageError(f"--run-id {answers.run_id}: only letters, digits and _ . - are for a name", "name another")
    if answers.tensors and answers.md5:
        raise UsageError("--md5 is of statistics, and --tensors dumps none", "use one of the two")
    return answers


def check_path(path: str, option: str) -> None:
    """Refuse a path that msprobe would refuse in the first forward.

    Raises:
        UsageError: not absolute, through ``.`` or ``..``, or with another character than msprobe takes.
    """
    if not path.startswith("/") or path.strip("/") == "":
        raise UsageError(f"{option} {path} is no absolute path below /", "the same one must do on every node")
    if {".", ".."} & set(path.split("/")):
        raise UsageError(f"{option} {path} has a part . or ..", "write the folder that it leads to")
    if not _PATH.fullmatch(path):
        raise UsageError(
            f"{option} {path!r}: msprobe refuses such a path", "use only letters, digits and _ . : / - in it"
        )


def _judge_sizes(answers: Answers) -> None:
    for name in ("world_size", "tp", "pp", "cp", "prompt_length", "per_node"):
        if getattr(answers, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(answers, name)} is less than 1", "give its size")
    world, model = answers.world_size, answers.tp * answers.pp * answers.cp
    if world % model:
        raise UsageError(
            f"--world-size {world} cannot be divided by TP*PP*CP = {model}", "DP = world size / TP / PP / CP"
        )
    if world > answers.per_node and world % answers.per_node:
        raise UsageError(
            f"--world-size {world} is no multiple of --per-node {answers.per_node}", "give the cards of a node"
        )
    if answers.tp * answers.pp > answers.per_node:
        raise UsageError(
            f"a rollout engine of {answers.tp * answers.pp} cards does not fit a node of {answers.per_node}",
            "use a smaller --tp or --pp, or a larger --per-node",
        )


def _judge_stack(answers: Answers) -> None:
    try:
        versions = answers.versions
    except KeyError:
        raise UsageError(f"no stack {answers.stack!r}", f"use one of {', '.join(stacks.STACKS)}, or pins") from None
    upstream = "slime" if answers.scenario == SLIME else "verl"
    if upstream not in versions:
        raise UsageError(f"stack {answers.stack} has no {upstream}", f"{answers.scenario} runs with {upstream}")
    if not within(versions[upstream], _FITTING[upstream]):
        raise UsageError(
            f"there are no overlays for {upstream} {versions[upstream]}", f"they fit {upstream} {_FITTING[upstream]}"
        )


def _judge_engine(answers: Answers) -> None:
    if answers.engine not in ENGINES:
        raise UsageError(f"no engine {answers.engine!r}", f"use one of {', '.join(ENGINES)}")
    if answers.dp_attention and answers.scenario != SLIME:
        raise UsageError("--dp-attention is of SGLang, which slime uses", "leave it out")
    if answers.dp_attention and not answers.allow_dp_attention:
        raise UsageError(
            "with DP attention SGLang's MLP still sees all ranks' rows and is split over them, and some models (Qwen2, "
            "Llama) sum different requests: nothing beyond attention is the training side's computation",
            "use engines of the training side's TP, which is the default; --allow-dp-attention if attention is meant",
        )
    if answers.megatron:
        return
    if answers.pp > 1 or answers.cp > 1:
        raise UsageError("FSDP has no pipeline or context parallel ranks", "use --engine megatron, or leave them at 1")
    if answers.scenario == VERL_FULLY_ASYNC and answers.engine == "fsdp":
        raise UsageError(
            "fully asynchronous training with bypass_mode off keeps weights that only FSDP2 can give",
            "use --engine fsdp2 or megatron",
        )
