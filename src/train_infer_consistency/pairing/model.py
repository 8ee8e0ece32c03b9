"""What pairing finds: pairs of forwards, and for every step of both sides why it was or was not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from ..dumps.steps import Decodes, LogLine, Request
from ..dumps.tokens import Tokens

SideName = Literal["inference", "training"]


class Reason(Enum):
    """Why a step is used or not; the value is its name in JSON, ``text`` the words for a person."""

    USED = "used"
    SEVERAL_REQUESTS = "several-requests"
    CHUNKED = "chunked"
    PREFIX_CACHE = "prefix-cache"
    DECODE = "decode"
    SPECULATIVE = "speculative"
    RESUMED = "resumed"
    DUMMY = "dummy"
    HEALTH = "health-request"
    EMPTY = "empty-step"
    NO_DUMP = "no-dump"
    NO_LOG_LINE = "no-log-line"
    ONE_SIDE = "one-side-only"
    SEVERAL_IDS = "several-ids"
    WEIGHTS = "weight-version"
    PHASE = "phase"
    OTHER_RUN = "other-run"
    AMBIGUOUS = "ambiguous"
    NO_ID = "no-request-id"
    REPEATED = "repeated"
    FILTERED = "filtered"
    FAILED = "failed"
    NO_TOKENS = "no-prompt-tokens"
    SHORT = "too-short"
    UNREADABLE = "unreadable"
    NOT_MAPPED = "not-mapped"
    SKIPPED = "skipped"

    @property
    def text(self) -> str:
        """What it means, in words."""
        return _TEXTS[self]


_TEXTS = {
    Reason.USED: "used",
    Reason.SEVERAL_REQUESTS: "several requests in one forward",
    Reason.CHUNKED: "a part of a prompt that was computed in several steps",
    Reason.PREFIX_CACHE: "a part of the prompt came from the prefix cache",
    Reason.DECODE: "decode",
    Reason.SPECULATIVE: "speculative decoding",
    Reason.RESUMED: "resumed after preemption: prompt and output computed anew",
    Reason.DUMMY: "no request: a dummy, profiling or idle forward",
    Reason.HEALTH: "the engine's own health request",
    Reason.EMPTY: "the dump is empty",
    Reason.NO_DUMP: "logged, but there is no dump",
    Reason.NO_LOG_LINE: "dumped, but no log line says of what",
    Reason.ONE_SIDE: "the request is on one side only",
    Reason.SEVERAL_IDS: "several requests in one micro-batch",
    Reason.WEIGHTS: "computed with different weights",
    Reason.PHASE: "another pass than the log_prob of the prompts",
    Reason.OTHER_RUN: "of another run",
    Reason.AMBIGUOUS: "ambiguous",
    Reason.NO_ID: "no request id and no prompt hash",
    Reason.REPEATED: "the same request again, the first one is used",
    Reason.FILTERED: "left out by msprobe's step or rank filter",
    Reason.FAILED: "the forward failed",
    Reason.NO_TOKENS: "the engine got no prompt tokens",
    Reason.SHORT: "shorter than MSPROBE_MIN_DUMP_TOKENS",
    Reason.UNREADABLE: "the dump or its log line cannot be read",
    Reason.NOT_MAPPED: "nothing says which ranks belong together",
    Reason.SKIPPED: "not dumped",
}


class StepVerdict(NamedTuple):
    """Why one step of one process was or was not used.

    Attributes:
        side: which side.
        process: host, process and rank as far as known: ``node7/3680237 rank0``.
        step: msprobe's step; None where nothing was dumped.
        reason: the name.
        detail: what is special in this case, in words; may be empty.
        request_id: the request, where it is one.
        place: the log line or folder.
    """

    side: SideName
    process: str
    step: int | None
    reason: Reason
    detail: str
    request_id: str | None
    place: str

    @property
    def used(self) -> bool:
        """Whether a pair has it."""
        return self.reason is Reason.USED

    def to_json(self) -> dict[str, Any]:
        """Its fields, the reason by its name."""
        return {**self._asdict(), "reason": self.reason.value}


@dataclass(frozen=True)
class Part:
    """One dump that a side of a pair consists of.

    Attributes:
        path: the folder of its ``dump.json``, or that file.
        name: the folder's name, ``rank0``.
        rank: the distributed rank, from the log, else from the folder's name; None where neither says.
        step: msprobe's step; None in a direct comparison of files.
        line: its log line, whose ``origin.parallel`` and ``extra`` say which shard it is; None without a log.
    """

    path: Path
    name: str
    rank: int | None
    step: int | None
    line: LogLine | None = None

    def parallel(self, name: str) -> int | None:
        """A size or rank of the process's parallelism (``tp_rank``, ``pp_size``); None where the log does not say."""
        return None if self.line is None else self.line.origin.size(name)

    @property
    def virtual_chunk(self) -> int | None:
        """Which of Megatron's virtual chunks this is; None where there is one, or the log does not say."""
        value = None if self.line is None else self.line.extra.get("virtual_chunk")
        return value if type(value) is int else None

    @property
    def first_layer(self) -> int | None:
        """The global number of the first layer of this part of the network; None where the log does not say."""
        value = None if self.line is None else self.line.extra.get("first_layer")
        return value if type(value) is int else None


@dataclass(frozen=True)
class Side:
    """One forward of one model: the dumps of all its shards.

    Attributes:
        process: as in :class:`StepVerdict`, of its first part.
        parts: by rank and step, never more than one of one rank and step.
        request: what the log says of the request; None without a log.
        sliced: msprobe has sliced a packed forward to this request.
        tokens: count and positions of its tokens as its first readable dump tells.
    """

    process: str
    parts: tuple[Part, ...]
    request: Request | None = None
    sliced: bool = False
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def step(self) -> int | None:
        """The first step of its parts."""
        return min((part.step for part in self.parts if part.step is not None), default=None)


@dataclass(frozen=True)
class Pair:
    """Two forwards of the same prompt.

    Attributes:
        request_id: the training side's id; None where the prompt's hash or the one-prompt rule joined them.
        prompt_hash: names the prompt's tokens; None where no log says.
        inference: one side.
        training: the other.
        replicas: further training forwards of the same prompt by data-parallel ranks: all must agree with ``training``.
        joined: what joined them.
        notes: what a reader of the result should know.
    """

    request_id: str | None
    prompt_hash: str | None
    inference: Side
    training: Side
    replicas: tuple[Side, ...] = ()
    joined: Literal["request-id", "prompt-hash", "one-prompt", "given"] = "request-id"
    notes: tuple[str, ...] = ()


class Steps(Protocol):
    """The steps of a logged side, which may be a million: their verdicts are made when they are asked for."""

    @property
    def name(self) -> SideName:
        """Which side."""

    @property
    def decodes(self) -> list[Decodes]:
        """The plain decodes among them."""

    def verdicts(self) -> Iterator[StepVerdict]:
        """A verdict on each, but for plain decodes."""

    def counts(self) -> Counter[Reason]:
        """How many of those verdicts have which reason."""

    def runs(self) -> set[str | None]:
        """The run ids of its log's lines."""


@dataclass(frozen=True)
class Pairing:
    """All that was found.

    Attributes:
        pairs: by inference process and step.
        folders: verdicts on the folders of sides without a log.
        logged: the sides that have one.
        problems: log lines and folders that could not be read, a line each.
    """

    pairs: list[Pair] = field(default_factory=list)
    folders: list[StepVerdict] = field(default_factory=list)
    logged: tuple[Steps, ...] = ()
    problems: list[str] = field(default_factory=list)

    @property
    def verdicts(self) -> list[StepVerdict]:
        """The verdicts on both sides' steps, but for plain decodes."""
        return [*self.folders, *(verdict for steps in self.logged for verdict in steps.verdicts())]

    @property
    def runs(self) -> set[str]:
        """The run ids of the pairs, as their logs have them; where there is no pair, those of all lines."""
        sides = [side for found in self.pairs for side in (found.inference, found.training, *found.replicas)]
        lines = [part.line for side in sides for part in side.parts]
        named = {line.origin.run_id for line in lines if line is not None}
        if not self.pairs:
            named.update(*(steps.runs() for steps in self.logged))
        return {run for run in named if run is not None}

    def steps(self, side: SideName) -> Iterator[StepVerdict]:
        """Every step of a side with its reason; decodes last."""
        yield from (verdict for verdict in self.folders if verdict.side == side)
        for steps in self.logged:
            if steps.name == side:
                yield from steps.verdicts()
                for decodes in steps.decodes:
                    yield from _decoded(side, decodes)

    def counts(self, side: SideName) -> Counter[Reason]:
        """How many steps of a side have which reason."""
        counts = Counter(verdict.reason for verdict in self.folders if verdict.side == side)
        for steps in self.logged:
            if steps.name == side:
                counts += steps.counts()
                counts += Counter({Reason.DECODE: sum(len(decodes.steps) for decodes in steps.decodes)})
        return counts


def _decoded(side: SideName, decodes: Decodes) -> Iterator[StepVerdict]:
    origin = decodes.origin
    process = process_name(decodes.path, origin.host, origin.pid, origin.rank)
    for number, step in zip(decodes.numbers, decodes.steps, strict=True):
        place = f"{decodes.path.name}:{number}"
        yield StepVerdict(side, process, None if step < 0 else step, Reason.DECODE, "", None, place)


def process_name(log: Path | None, host: str | None, pid: int | None, rank: int | None) -> str:
    """How a process is named to a person: host where known, else the log's folder; process id; rank."""
    who = f"{host}/{pid}" if host is not None else str(pid) if pid is not None else log.parent.name if log else "?"
    return who if rank is None else f"{who} rank{rank}"


def notes(inference: Side, training: Side) -> tuple[str, ...]:
    """What a reader of a pair's result should know."""
    made = []
    ours, theirs = inference.tokens.count, training.tokens.count
    if ours is not None and theirs is not None and ours != theirs:
        made.append(f"{ours} tokens on the inference side, {theirs} on the training side: a response, or padding")
    request = training.request
    lines = [part.line for part in training.parts if part.line is not None]
    if request is not None and request.response_length and not any(line.extra.get("prompt_only") for line in lines):
        made.append(f"the training side's forward has {request.response_length} tokens of the response too")
    if lines and len(lines[0].requests) > 1:
        made.append(f"the training side computed this prompt {len(lines[0].requests)} times in one step")
    return tuple(made)
