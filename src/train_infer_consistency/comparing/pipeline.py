"""Pipeline stages in line: which ranks make up a stage, and the global number of each stage's first layer.

vLLM, SGLang and transformers number layers through the whole model. Megatron numbers them anew in every stage and in
every chunk of a virtual pipeline, and numbers its ranks stage by stage.
"""

from __future__ import annotations

from ..dumps.records import Call
from .quantity import Side
from .rows import PlacedCall, Shard

Offsets = dict[tuple[int, int], int]


def tokens_of(placed: list[PlacedCall]) -> int:
    """The tokens of a forward pass, from the embedding's input; 0 where this rank has none."""
    for call, plan, _ in placed:
        if plan.template == "embed":
            leaf = next((leaf for leaf in call.inputs if leaf is not None), None)
            if leaf is not None:
                return leaf.numel
    return 0


def chunk_of(shard: Shard, call: Call) -> int:
    """The chunk of a virtual pipeline that a call belongs to: its step's, and its place in a list of models."""
    return shard.chunk + (call.list_index or 0)


def line_up(side: Side, shards: list[Shard], placed: list[list[PlacedCall]]) -> tuple[list[list[int]], Offsets]:
    """Sort one side's shards into pipeline stages.

    Args:
        side: gets a problem where the ranks that are there cannot be whole stages, and what msprobe leaves out.
        shards: its dumps.
        placed: their calls.

    Returns:
        Indices of shards by stage, and the global number of the first layer of each (rank, chunk).
    """
    if not side.dialect.local_layers:
        by_layers: dict[frozenset[int], list[int]] = {}
        for index, calls in enumerate(placed):
            layers = frozenset(numbers[0] for _, plan, numbers in calls if plan.template.startswith("layers.#"))
            by_layers.setdefault(layers, []).append(index)
        return list(by_layers.values()), {}
    told: Offsets = {(s.rank, s.chunk): s.first_layer for s in shards if s.first_layer is not None}
    stages = _stages(side, shards, placed, complete=len(told) < len(shards))
    members = [[index for index, shard in enumerate(shards) if shard.rank in stage] for stage in stages]
    return members, {**_offsets(side, stages, _layer_counts(shards, placed)), **told}


def stages_of(firsts: list[bool]) -> list[list[int]] | None:
    """Ranks in stages of equal size, from whether each has the embedding; None where they cannot be whole stages."""
    size = sum(firsts)
    if not size or len(firsts) % size or not all(firsts[:size]):
        return None
    return [list(range(start, start + size)) for start in range(0, len(firsts), size)]


def _stages(side: Side, shards: list[Shard], placed: list[list[PlacedCall]], *, complete: bool) -> list[list[int]]:
    """Ranks by stage; that all must be there is only needed where no log tells the layers."""
    has_first = dict.fromkeys(sorted({shard.rank for shard in shards}), False)
    for shard, calls in zip(shards, placed, strict=True):
        if any(plan.template == "embed" for _, plan, _ in calls):
            has_first[shard.rank] = True
    ranks = list(has_first)
    stages = stages_of(list(has_first.values()))
    names = ", ".join(map(str, ranks))
    if stages is None and not complete:
        first = {shard.rank: shard.first_layer for shard in shards}
        return [[rank for rank in ranks if first[rank] == number] for number in sorted({*first.values()}, key=str)]
    if stages is None:
        side.refusal = (
            f"ranks {names} of the {side.label} side are not whole pipeline stages: "
            "layers are numbered anew in each, so their global numbers are unknown"
        )
        return [ranks]
    if complete and len(stages) > 1 and ranks != list(range(len(ranks))):
        side.refusal = f"ranks of the {side.label} side are missing: only {names} are there"
    return [[ranks[index] for index in stage] for stage in stages]


def _layer_counts(shards: list[Shard], placed: list[list[PlacedCall]]) -> Offsets:
    counts: Offsets = {}
    for shard, calls in zip(shards, placed, strict=True):
        for call, plan, numbers in calls:
            if plan.layered:
                key = (shard.rank, chunk_of(shard, call))
                counts[key] = max(counts.get(key, 0), numbers[0] + 1)
    return counts


def _offsets(side: Side, stages: list[list[int]], counts: Offsets) -> Offsets:
    """Chunk by chunk and stage by stage: the first chunks of all stages come before the second ones."""
    offsets: Offsets = {}
    first = 0
    for chunk in sorted({chunk for _, chunk in counts}):
        for stage in stages:
            offsets.update({(rank, chunk): first for rank in stage})
            size = max((counts.get((rank, chunk), 0) for rank in stage), default=0)
            first += size
            if size and side.dialect.skipped_last:
                side.excused.add(f"layers.{first - 1}.{side.dialect.skipped_last}")
    return offsets
