"""Joins the two sides of a run: by request id, by the prompt's hash, or without logs by the one-prompt rule.

Nothing depends on the order of files and lines, and no rank is ever paired by its place in a sorted list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ..dumps.logs import read_dispatch, read_update_actor
from ..dumps.reader import paused_collector
from ..dumps.tree import Tree
from .dumped import Dumped, Look, look, starts_model
from .ids import base_id
from .inference import inference_units
from .judge import BLOCK, Judgement
from .mapping import RankMap
from .model import Pair, Pairing, Reason, Side, StepVerdict, notes
from .training import training_units
from .units import Kind, LoggedSide, Unit
from .unlogged import pair_unlogged
from .weights import counts_as_the_rollout, weights_differ


def pair(
    inference: Tree,
    training: Tree,
    *,
    mapping: RankMap | None = None,
    sliced: str | None = None,
    look: Look = look,
) -> Pairing:
    """Find the pairs of two trees.

    Args:
        inference: the rollout's side.
        training: the trainer's side.
        mapping: which ranks belong together, where the logs do not say; pairs of other ranks are not used.
        sliced: the request that msprobe's ``request_id`` named, where a packed dump's token count fits several.
        look: looks into a rank folder, which may be on another host; the logs are on this one.
    """
    with paused_collector():
        infer = LoggedSide("inference", read_dispatch(inference.dispatch_logs))
        train = LoggedSide("training", read_update_actor(training.update_logs))
        join = _Join(Dumped(infer, inference, look), Dumped(train, training, look), sliced)
        if join.infer.logged and join.train.logged:
            pairs, more = join.pairs(mapping), list[StepVerdict]()
        else:
            units = [unit for named in join.training.values() for found in named.values() for unit in found]
            pairs, more = pair_unlogged(join.infer, join.train, join.inference, units, mapping)
    problems = [*inference.problems, *training.problems, *map(str, infer.log.problems), *map(str, train.log.problems)]
    pairs.sort(key=lambda found: (found.inference.process, found.inference.step or 0, found.training.process))
    return Pairing(pairs, more, (join.infer, join.train), problems)


class _Join:
    def __init__(self, infer: Dumped, train: Dumped, sliced: str | None) -> None:
        self.infer, self.train = infer, train
        self.inference, self._later = inference_units(infer.side, sliced, infer.count)
        self.training = training_units(train.side, lambda number: starts_model(train.tokens(number)))
        infer.settle_claims()
        train.settle_claims()
        # Every id of the training side counts, whatever became of its step: a suffix is one all the same.
        self._known = {request.request_id for line in train.side.log.lines for request in line.requests}
        self._first_tokens: dict[str, int] = {}
        by_id: dict[str, list[Unit]] = defaultdict(list)
        by_prompt: dict[str, list[Unit]] = defaultdict(list)
        for unit in self.inference:
            name, prompt = unit.request.request_id, unit.request.prompt_hash
            if name is not None and (base := base_id(name, self._known)) is not None:
                by_id[base].append(unit)
            if prompt is not None and self.training["prompt-hash"]:
                by_prompt[prompt].append(unit)
        self._named: dict[Kind, dict[str, list[Unit]]] = {"request-id": by_id, "prompt-hash": by_prompt}

    def pairs(self, mapping: RankMap | None) -> list[Pair]:
        """Join what both logs know."""
        pairs: list[Pair] = []
        offset = self._usual_lag()
        for kind, named in self.training.items():
            others = self._named[kind]
            for name, found in named.items():
                units = others.get(name)
                if units is None or self._undumped(units, found, offset):
                    continue
                units, usable = self._fit(kind, name, units, found, offset)
                if units and usable:
                    pairs += self._made(kind, name, units, usable, mapping)
        self._explain_missing()
        return pairs

    def _undumped(self, units: list[Unit], found: list[Unit], offset: int) -> bool:
        """Settle what nearly every request of a long log is: a line on each side that fits, and no dump of it.

        :meth:`_fit` and :meth:`_made` would say the same, but with many more questions.
        """
        infer, train = self.infer.side, self.train.side
        mine, theirs = units[0].lines, found[0].lines
        if not len(units) == len(found) == len(mine) == len(theirs) == 1 or self.train.has_folder(theirs[0]):
            return False
        line = train.log.lines[theirs[0]]
        if (
            infer.judged[mine[0]] is None
            and train.judged[theirs[0]] is None
            and infer.log.lines[mine[0]].origin.run_id == line.origin.run_id
            and (line.weight_version is None or weights_differ(line, found[0].request, offset) is None)
        ):
            train.judged[theirs[0]], infer.judged[mine[0]] = _NO_DUMP, _NO_DUMP_ACROSS
            return True
        return False

    def _fit(
        self, kind: Kind, name: str, units: list[Unit], found: list[Unit], offset: int
    ) -> tuple[list[Unit], list[Unit]]:
        """Take out of one request's units, by the logs alone, those that cannot be used."""
        infer, train = self.infer.side, self.train.side
        for unit in found:
            if (detail := weights_differ(train.first(unit), unit.request, offset)) is not None:
                train.reject([unit], Reason.WEIGHTS, detail)
        units = [unit for unit in units if infer.why(unit) is None]
        found = [unit for unit in found if train.why(unit) is None]
        runs = {train.first(unit).origin.run_id for unit in found}
        fitting = [unit for unit in units if _same_run(infer.first(unit).origin.run_id, runs)]
        if units and not fitting and found:
            infer.reject(units, Reason.OTHER_RUN, "the training side's is of another run")
            train.reject(found, Reason.OTHER_RUN, "the inference side's is of another run")
        if len(found) > 1:
            found.sort(key=lambda unit: train.order(unit.lines[0]))
        if len(fitting) <= 1:
            return fitting, found
        fitting.sort(key=lambda unit: infer.order(unit.lines[0]))
        names = {unit.request.request_id for unit in fitting}
        copies = {infer.instance(unit.lines[0]) for unit in fitting}
        detail = None
        if kind == "request-id" and len(names) > 1:
            detail = f"{' and '.join(sorted(map(str, names)))} both stand for {name}"
        elif kind == "request-id" and len(fitting) > 1:
            detail = f"{max(len(copies), 2)} forwards are logged as {name}"
        elif len({infer.first(unit).weight_version for unit in fitting}) > len(copies):
            detail = "the rollout computed this prompt with different weights"
        if detail is not None:
            infer.reject(fitting, Reason.AMBIGUOUS, detail)
            train.reject(found, Reason.AMBIGUOUS, detail)
            return [], []
        return fitting, found

    def _made(self, kind: Kind, name: str, units: list[Unit], found: list[Unit], mapping: RankMap | None) -> list[Pair]:
        """The pairs of one request's units, as far as their dumps allow."""
        infer, train = self.infer.side, self.train.side
        sides = [(unit, side) for unit in found if (side := self.train.side_of(unit)) is not None]
        if not sides:
            reason, detail = train.why(found[0]) or (Reason.NO_DUMP, "")
            infer.reject(units, *_across("training", reason, detail))
            return []
        pairs: list[Pair] = []
        done: set[object] = set()
        for unit in units:
            if infer.instance(unit.lines[0]) in done:
                infer.reject([unit], Reason.REPEATED)
                continue
            part_of = self._not_whole(unit, sides[0][1])
            if part_of is not None:
                infer.reject([unit], *part_of)
            side = None if part_of is not None else self.infer.side_of(unit)
            if side is None:
                continue
            chosen = next((own for own in sides if mapping is None or mapping.allows(side, own[1])), None)
            if chosen is None:
                infer.reject([unit], Reason.NOT_MAPPED, "--map does not join its ranks to the training side's")
                continue
            done.add(infer.instance(unit.lines[0]))
            infer.use(unit)
            others = tuple(own for _, own in sides if own is not chosen[1])
            prompt = unit.request.prompt_hash or found[0].request.prompt_hash
            request_id = name if kind == "request-id" else None
            pairs.append(Pair(request_id, prompt, side, chosen[1], others, kind, notes(side, chosen[1])))
        if pairs:
            for unit, _ in sides:
                train.use(unit)
        else:
            reason, detail = infer.why(units[0]) or (Reason.NO_DUMP, "")
            train.reject(found, *_across("inference", reason, detail))
        return pairs

    def _not_whole(self, unit: Unit, training: Side) -> Judgement | None:
        """Why an inference forward is a part of the prompt only, or not what its line says, as its dump tells."""
        tokens = self.infer.tokens(unit.lines[0])
        wanted = unit.request.tokens
        if tokens is not None and tokens.first and unit.request.phase is None:
            return Reason.PREFIX_CACHE, f"{tokens.first} tokens came from the prefix cache"
        if tokens is not None and tokens.count is not None and wanted is not None and tokens.count < wanted:
            if tokens.count == 1:
                return (
                    Reason.DUMMY,
                    f"the log says {wanted} tokens, the dump has 1: a dummy run took this step's number",
                )
            return (
                Reason.AMBIGUOUS,
                f"the log says {wanted} tokens, the dump has {tokens.count}: they are of two forwards",
            )
        length = training.request.prompt_length if training.request is not None else None
        if wanted is None or unit.request.phase is not None:
            return None
        return _documented_part(wanted, length, self._later.get(unit.request.request_id or "", []))

    def _usual_lag(self) -> int:
        """How far the weight number of old logs is ahead of the rollout's where both mean the same weights.

        verl's trainer counts a step before its rollout, which then has the number before; the fully asynchronous one
        numbers the weights themselves. The smallest distance in the run tells which it is.
        """
        lags = [
            line.weight_version - request.versions[0]
            for line in self.train.side.log.lines
            for request in line.requests
            if line.weight_version is not None and request.versions[0] is not None and not counts_as_the_rollout(line)
        ]
        return 1 if min(lags, default=0) == 1 else 0

    def _explain_missing(self) -> None:
        """Say of training steps without a partner what became of their request on the inference side."""
        infer, train = self.infer.side, self.train.side
        if None not in train.judged:
            return
        reasons: dict[str, Judgement] = {}
        for line, judgement in zip(infer.log.lines, infer.judged, strict=True):
            if judgement is None or judgement[0] in (Reason.USED, Reason.DECODE):
                continue
            for request in line.requests:
                base = None if request.request_id is None else base_id(request.request_id, self._known)
                if base is not None and request.type != "cached":
                    reasons.setdefault(base, judgement)
                    if request.tokens is not None:
                        self._first_tokens.setdefault(base, request.tokens)
        for name, units in ((name, units) for named in self.training.values() for name, units in named.items()):
            reason = reasons.get(name)
            if reason is not None:
                length, tokens = units[0].request.prompt_length, self._first_tokens.get(name)
                if reason[0] is Reason.SEVERAL_REQUESTS and length is not None and tokens is not None:
                    reason = _documented_part(tokens, length, []) or reason
                train.reject(units, *_across("inference", *reason))


def _same_run(run: str | None, others: Iterable[str | None]) -> bool:
    return run is None or any(other in (None, run) for other in others)


def _across(side: str, reason: Reason, detail: str) -> Judgement:
    """A judgement on one side that holds for the other: told once, however often it is handed on."""
    text = detail or reason.text
    return reason, text if text.startswith("on the ") else f"on the {side} side: {text}"


_NO_DUMP: Judgement = Reason.NO_DUMP, ""
_NO_DUMP_ACROSS = _across("training", *_NO_DUMP)


def _documented_part(tokens: int, length: int | None, later: list[int]) -> Judgement | None:
    """In the documented form, whether a new request's tokens are its prompt; None if they are, or if nothing tells."""
    if length is None:
        if later and max(later) <= tokens:
            return Reason.CHUNKED, f"prefill in {1 + len(later)} steps"
        return None
    if tokens >= length:
        return None
    if later and tokens + sum(later) >= length:
        return Reason.CHUNKED, f"prefill in {1 + len(later)} steps"
    missing = length - tokens
    if missing % BLOCK:
        return Reason.CHUNKED, f"prefill in 2 steps or more: {tokens} of {length} tokens in the first"
    return Reason.PREFIX_CACHE, f"{missing} tokens came from the prefix cache"
