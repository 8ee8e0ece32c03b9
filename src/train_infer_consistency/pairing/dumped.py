"""The dumps of one side's forwards: where they are, whether anything is in them, and which of them no line explains."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from ..dumps.reader import peek
from ..dumps.steps import Decodes
from ..dumps.tokens import Tokens, tokens_of
from ..dumps.tree import Tree
from ..errors import EvidenceError
from .folders import Folders
from .judge import Judgement
from .model import Part, Reason, Side, SideName, StepVerdict, process_name
from .units import LoggedSide, Unit, shard_count

#: What the first calls of a rank folder tell; None where it is empty or missing, the error where it is unreadable.
Look = Callable[[Path], Tokens | EvidenceError | None]


class Dumped:
    """One side's dumps beside its log."""

    def __init__(self, side: LoggedSide, tree: Tree, look: Look) -> None:
        self.side, self.tree = side, tree
        self._look = look
        self._folders = Folders(tree)
        self._paths = [self._folders.find(line) for line in side.log.lines]
        self._peeked: dict[Path, Tokens | EvidenceError | None] = {}

    @property
    def logged(self) -> bool:
        """Whether there is a log at all."""
        return bool(self.side.log.lines or self.side.log.decodes)

    def count(self, number: int) -> int | None:
        """How many tokens a line's dump has; None where it has none or does not tell."""
        tokens = self.tokens(number)
        return None if tokens is None else tokens.count

    def settle_claims(self) -> None:
        """Where several lines claim one dump, only the newest can be right: a later run writes over an earlier dump."""
        claims: dict[Path, list[int]] = defaultdict(list)
        for number, path in enumerate(self._paths):
            if path is not None:
                claims[path].append(number)
        lines, judged = self.side.log.lines, self.side.judged
        for numbers in claims.values():
            newest = max(lines[number].timestamp for number in numbers)
            last = [number for number in numbers if lines[number].timestamp == newest]
            for number in numbers:
                if lines[number].timestamp != newest:
                    judged[number] = Reason.OTHER_RUN, "a later run wrote over its dump"
                    self._paths[number] = None
                elif len({lines[other].requests for other in last}) > 1:
                    judged[number] = Reason.AMBIGUOUS, f"{len(last)} log lines claim its dump"

    def has_folder(self, number: int) -> bool:
        """Whether there is a folder for a line's dump."""
        return self._paths[number] is not None

    def tokens(self, number: int) -> Tokens | None:
        """What a line's dump tells of its tokens; None where there is no readable dump, or an empty one."""
        path = self._paths[number]
        found = None if path is None else self.peek(path)
        return found if isinstance(found, Tokens) else None

    def side_of(self, unit: Unit) -> Side | None:
        """The dumps of a unit; None, and its lines say why, where one is missing, empty or not to be read."""
        parts = self._parts(unit)
        if isinstance(parts, tuple):
            self.side.reject([unit], *parts)
            return None
        line = self.side.first(unit)
        ranks, count = len({part.rank for part, _ in parts}), shard_count(line)
        if count is not None and ranks < count:
            self.side.reject([unit], Reason.NO_DUMP, f"only {ranks} of {count} ranks have one")
            return None
        parts.sort(key=lambda item: (item[0].rank is None, item[0].rank or 0, item[0].step or 0, str(item[0].path)))
        tokens = next((found for _, found in parts if found.count is not None), Tokens())
        process = process_name(line.path, line.origin.host, line.origin.pid, line.origin.rank)
        return Side(process, tuple(part for part, _ in parts), unit.request, unit.sliced, tokens)

    def _parts(self, unit: Unit) -> list[tuple[Part, Tokens]] | Judgement:
        parts = []
        for number in unit.lines:
            line, path = self.side.log.lines[number], self._paths[number]
            of_rank = "" if len(unit.lines) == 1 else f"rank {line.origin.rank}"
            if path is None:
                return Reason.NO_DUMP, of_rank
            found = self.peek(path)
            if found is None:
                return Reason.EMPTY, of_rank
            if isinstance(found, EvidenceError):
                return Reason.UNREADABLE, str(found)
            parts.append((Part(path, path.name, line.origin.rank, line.step, line), found))
        return parts

    @property
    def name(self) -> SideName:
        """Which side."""
        return self.side.name

    @property
    def decodes(self) -> list[Decodes]:
        """The plain decodes in its log."""
        return self.side.log.decodes

    def runs(self) -> set[str | None]:
        """The run ids in its log."""
        log = self.side.log
        return {line.origin.run_id for line in log.lines} | {decodes.origin.run_id for decodes in log.decodes}

    def verdicts(self) -> Iterator[StepVerdict]:
        """A verdict for each line, each dump that no line explains, and each folder that was set aside."""
        yield from self.side.verdicts()
        yield from self._unexplained()

    def counts(self) -> Counter[Reason]:
        """How many of the verdicts have which reason."""
        return self.side.counts() + Counter(verdict.reason for verdict in self._unexplained())

    def _unexplained(self) -> Iterator[StepVerdict]:
        claimed = [path for path in self._paths if path is not None]
        if self.logged:
            for folder, path in self._folders.unclaimed(claimed, self.decodes):
                yield self.of_folder(path, folder.step, folder.process)
        logged_failures = any(line.invalid for line in self.side.log.lines)
        for folder in self.tree.steps if not logged_failures else ():
            for path in folder.invalid:
                yield self._verdict(path, folder.step, folder.process, Reason.FAILED, "its dump was set aside")

    def of_folder(self, path: Path, step: int, process: str | None) -> StepVerdict:
        """The verdict on a dump that no line explains."""
        found = self.peek(path)
        reason, detail = Reason.NO_LOG_LINE, ""
        if found is None:
            reason = Reason.EMPTY
        elif isinstance(found, EvidenceError):
            reason, detail = Reason.UNREADABLE, str(found)
        return self._verdict(path, step, process, reason, detail)

    def _verdict(self, path: Path, step: int, process: str | None, reason: Reason, detail: str) -> StepVerdict:
        words = [process] if process else []
        name = " ".join([*words, path.name]) if path.name.startswith(("rank", "proc", "invalid")) else process or "?"
        return StepVerdict(self.side.name, name, step, reason, detail, None, self.shown(path))

    def shown(self, path: Path) -> str:
        """A path as a person knows it: below the folder that was given."""
        roots = [root.resolve() for root in self.tree.roots]
        root = next((root for root in roots if path.is_relative_to(root)), None)
        return str(path if root is None else path.relative_to(root))

    def peek(self, path: Path) -> Tokens | EvidenceError | None:
        """What a rank folder tells, see :data:`Look`; each is looked into once."""
        if path not in self._peeked:
            self._peeked[path] = self._look(path)
        return self._peeked[path]


def look(path: Path) -> Tokens | EvidenceError | None:
    """A :data:`Look` on this machine."""
    if path.is_dir() and not (path / "dump.json").is_file():
        return None
    try:
        dump = peek(path)
    except EvidenceError as error:
        return error
    return None if dump.empty else tokens_of(dump.calls)


def starts_model(tokens: Tokens | None) -> bool | None:
    """Whether a dump has the embedding; None where there is no dump."""
    return None if tokens is None else tokens.count is not None
