"""From a pairing to results: each pair's dumps are read, put together and compared; replicas must agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..dumps.reader import paused_collector, read_rank
from ..dumps.tree import kind_of
from ..errors import EvidenceError, UsageError
from ..pairing.direct import given
from ..pairing.model import Pair, Pairing
from ..pairing.model import Side as PairSide
from .compare import Options, compare_sides, measure_noise, summarise
from .names import sort_key
from .quantity import HIDDEN, Side
from .record import INSUFFICIENT, Comparison, PairResult
from .rows import Shard
from .shards import disagreement
from .side import build_side

_JOINED = {"request-id": "request id", "prompt-hash": "prompt hash", "one-prompt": "", "given": ""}


def compare(pairing: Pairing, options: Options, noise: Path | None = None) -> Comparison:
    """Compare all pairs of a pairing.

    Args:
        pairing: the pairs, and why other steps are not used.
        options: how to compare.
        noise: one dump, rank or step of a third run of the same prompt.
    """
    results = [compare_pair(pair, options, noise) for pair in pairing.pairs]
    return summarise(results, rejected(pairing))


def compare_pair(pair: Pair, options: Options, noise: Path | None = None) -> PairResult:
    """Compare one pair; what cannot be read makes it insufficient, with the reason.

    Args:
        pair: the dumps of both sides.
        options: how to compare.
        noise: see :func:`compare`.

    Raises:
        UsageError: ``noise`` is a whole tree.
        EvidenceError: ``noise`` cannot be used for this pair.
    """
    with paused_collector():
        try:
            inference = build_side("inference", shards(pair.inference), options.dialects)
            training = build_side("training", shards(pair.training), options.dialects)
        except EvidenceError as error:
            return PairResult(name_of(pair), INSUFFICIENT, str(error))
        for replica in pair.replicas:
            _check_replica(training, pair.training.process, replica, options)
        if noise is not None:
            options = replace(options, noise=_noise(noise, inference, training, options))
        result = compare_sides(
            inference, training, options, request_id=name_of(pair), joined_by=_JOINED.get(pair.joined, "")
        )
    result.notes += pair.notes
    return result


def shards(side: PairSide) -> list[Shard]:
    """Read the dumps of one side of a pair; its chunks by the log, else in the order of their steps.

    Raises:
        EvidenceError: one cannot be read.
    """
    found: list[Shard] = []
    free = max((part.rank for part in side.parts if part.rank is not None), default=-1) + 1
    unnumbered = {part.name: free + index for index, part in enumerate(p for p in side.parts if p.rank is None)}
    chunks: dict[int, int] = {}
    for part in sorted(side.parts, key=lambda part: (part.step is None, part.step or 0)):
        rank = unnumbered[part.name] if part.rank is None else part.rank
        chunk = chunks.setdefault(rank, 0) if part.virtual_chunk is None else part.virtual_chunk
        chunks[rank] = chunks.get(rank, 0) + 1
        found.append(Shard(rank, chunk, read_rank(part.path), part.first_layer))
    return found


def rejected(pairing: Pairing) -> Iterator[dict[str, Any]]:
    """Every step that was not used, plain decodes of the inference side aside, and why."""
    for verdict in pairing.verdicts:
        if not verdict.used:
            yield {**verdict.to_json(), "text": verdict.reason.text}


def name_of(pair: Pair) -> str | None:
    """What a pair is called: its request id, else its prompt's hash."""
    return pair.request_id or pair.prompt_hash


def _check_replica(training: Side, own: str, replica: PairSide, options: Options) -> None:
    """Note on the training side where a data-parallel replica that saw the same prompt disagrees with it.

    Args:
        training: the replica that is compared with the inference side.
        own: its name.
        replica: the other's dumps.
        options: the dialects.
    """
    name = replica.process
    try:
        other = build_side("training", shards(replica), options.dialects)
    except EvidenceError as error:
        training.problems.append(f"data-parallel replica {name} cannot be checked: {error}")
        return
    training.problems += other.problems
    if other.refusal or not _same_ids(training, other):
        why = other.refusal or f"its token ids are not those of {own}"
        training.problems.append(f"data-parallel replica {name} cannot be checked: {why}")
        return
    training.notes.append(f"{name} saw the same prompt and was checked against {own}")
    first = ""
    for module in sorted(training.modules.values(), key=lambda module: sort_key(module.template, module.numbers)):
        rows = other.modules[module.name].rows if module.name in other.modules else {}
        for kind, row in module.rows.items():
            if row.gap or kind.startswith(HIDDEN):
                continue
            theirs = rows.get(kind)
            if theirs is None or theirs.gap:
                training.problems.append(f"data-parallel replica {name} lacks {module.name} {kind}")
            elif found := disagreement([(own, row), (name, theirs)]):
                module.rows[kind] = disputed = row.copy()
                disputed.conflict = f"data-parallel replicas: {found}"
                first = first or f"{module.name} {kind}"
    if first:
        training.problems.append(f"data-parallel replicas {own} and {name} differ, first at {first}")


def _same_ids(one: Side, two: Side) -> bool:
    if one.ids is None or two.ids is None:
        return one.tokens == two.tokens
    return one.ids.numel == two.ids.numel and not disagreement([("", one.ids), ("", two.ids)])


def _noise(path: Path, inference: Side, training: Side, options: Options) -> dict[tuple[str, str], float]:
    if kind_of(path) == "tree":
        raise UsageError(f"--noise {path} is a whole tree", "name one step, rank or dump.json of the same prompt")
    (third,) = given(path, path).pairs
    return measure_noise(build_side("noise", shards(third.inference), options.dialects), [inference, training])
