"""The lines of the two request logs as typed records."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Origin:
    """What the lines of one process have in common.

    Documented are pid and rank; all else our own loggers add, and is None or empty in a log in the documented form.

    Attributes:
        pid: the process's id, which another host may have too.
        rank: the distributed rank, which every replica's group counts from 0.
        engine: ``vllm``, ``vllm-ascend``, ``sglang``, ``verl-fsdp``, ``verl-megatron``, ``slime-megatron``.
        host: the host's name.
        replica: verl's rollout replica.
        run_id: CONSISTENCY_RUN_ID.
        msprobe: its version.
        parallel: sizes and ranks: ``tp_size``, ``tp_rank`` and so on.
    """

    pid: int | None = None
    rank: int | None = None
    engine: str | None = None
    host: str | None = None
    replica: str | None = None
    run_id: str | None = None
    msprobe: str | None = None
    parallel: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def size(self, name: str) -> int | None:
        """A number of ``parallel``; None where it is not there."""
        value = self.parallel.get(name)
        return value if type(value) is int else None


class Request(NamedTuple):
    """A request in one inference forward, or a sample in one training forward.

    Attributes:
        request_id: None where the line has null, ``"None"`` or nothing.
        type: ``new`` or ``cached``; None on the training side.
        tokens: scheduled in this forward; None on the training side.
        phase: ``prefill`` or ``decode`` of this request; None in the documented form.
        computed: tokens in the cache before this forward; None where unknown.
        prompt_length: tokens of its prompt; None where unknown.
        prompt_hash: names the prompt's tokens; None where unknown.
        response_length: tokens of its response (training); None where unknown.
        resumed: it was pushed out of memory and comes back.
        drafts: tokens a draft model proposed.
        versions: the oldest and newest weight version the rollout generated it with (training).
        sample_index: slime's number of the sample.
    """

    request_id: str | None
    type: str | None = None
    tokens: int | None = None
    phase: str | None = None
    computed: int | None = None
    prompt_length: int | None = None
    prompt_hash: str | None = None
    response_length: int | None = None
    resumed: bool = False
    drafts: int = 0
    versions: tuple[int | None, int | None] = (None, None)
    sample_index: int | None = None


class LogLine(NamedTuple):
    """One forward of one process, as its log tells it.

    Attributes:
        path: the log.
        number: its line, from 1.
        origin: the process.
        step: msprobe's step; None where nothing was dumped.
        phase: ``prefill`` or ``decode``; ``log_prob`` or ``update_actor``; None where unknown.
        requests: all in this forward.
        timestamp: as written.
        dump: the rank folder, relative to the folder above the process's; None where the line does not say.
        skipped: why nothing was dumped, in our loggers' words; None where something was, or where it does not say.
        invalid: the forward failed and its dump was set aside.
        weight_version: the process's count or number of its weights; None where unknown.
        extra: what only some engines say: ``prompt_only``, ``virtual_chunk``, ``first_layer``, ``forward_mode``, ...
    """

    path: Path
    number: int
    origin: Origin
    step: int | None
    phase: str | None
    requests: tuple[Request, ...] = ()
    timestamp: str = ""
    dump: str | None = None
    skipped: str | None = None
    invalid: bool = False
    weight_version: int | None = None
    extra: Mapping[str, Any] = {}

    @property
    def place(self) -> str:
        """The file and line, for messages."""
        return f"{self.path.name}:{self.number}"


class Decodes(NamedTuple):
    """Steps of one log that decode only: most of a rollout, of which nothing but the numbers matters.

    Attributes:
        path: the log.
        origin: the process.
        numbers: their lines, from 1.
        steps: msprobe's steps, as many; -1 where nothing was dumped.
    """

    path: Path
    origin: Origin
    numbers: array[int]
    steps: array[int]


class LogProblem(NamedTuple):
    """A line that is no record.

    Attributes:
        path: the log.
        number: its line, from 1; 0 for the file as a whole.
        kind: ``torn`` (the last line ends too early), ``damaged`` (no JSON object), ``unfit`` (fields of a wrong kind),
            ``unreadable`` (the file).
        text: what is wrong.
    """

    path: Path
    number: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number}: {self.text}"


@dataclass(frozen=True)
class Log:
    """What was read of one side's logs.

    Attributes:
        lines: in the order of files and lines; plain decodes are not among them.
        decodes: the plain decodes, by log and process.
        problems: lines that are no records.
    """

    lines: list[LogLine] = field(default_factory=list)
    decodes: list[Decodes] = field(default_factory=list)
    problems: list[LogProblem] = field(default_factory=list)
