"""One side's ranks into one model: dialect, pipeline stages, replicas, shards, fused parts, and what residuals hide."""

from __future__ import annotations

from collections.abc import Sequence

from ..dumps.records import Call
from ..errors import EvidenceError
from .dialect import Dialect, Rule, choose
from .names import layer_of, template_of
from .quantity import POSITIONS, Module, Quantity, Side
from .rows import Key, PlacedCall, Row, Shard, build_rows, placed_calls
from .shards import disagreement, merge_parts, merge_ranks, replica_groups, stages_of

# The parts of a fused output that stay rows of their own: another engine may show them before they are fused.
_LOOSE_PARTS = {"v"}


def build_side(label: str, shards: Sequence[Shard], own: tuple[Dialect, ...] = ()) -> Side:
    """Put one side's model together.

    Args:
        label: ``inference`` or ``training``.
        shards: its ranks, and chunks of virtual pipelines.
        own: dialects given by the user.

    Raises:
        EvidenceError: nothing was dumped on this side.
    """
    shards = sorted(shards, key=lambda shard: (shard.rank, shard.chunk))
    full = [shard for shard in shards if not shard.dump.empty]
    if not full:
        raise EvidenceError(
            f"the {label} dump {shards[0].dump.path if shards else ''} has no data: "
            "the process ended between start and stop, or the engine ran no forward",
            "dump this step again",
        )
    modules = {(c.module, c.cls) for shard in full for c in shard.dump.calls if c.kind == "Module"}
    side = Side(label, choose(modules, own), {}, dumps=[shard.dump for shard in shards])
    for shard in shards:
        side.problems += shard.dump.problems
        if shard.dump.empty:
            side.problems.append(f"{shard.dump.path} has no data, other ranks of its step have")
        elif not shard.dump.complete:
            side.problems.append(f"{shard.dump.path} is incomplete: what is missing is unknown")
    placed = [placed_calls(shard.dump, side.dialect, side.notes) for shard in full]
    side.tokens = max((_tokens(calls) for calls in placed), default=0)
    stages, offsets = _stages(side, full, placed)
    seen: dict[str, Rule | None] = {}
    parts: dict[tuple[str, str], dict[str, Quantity]] = {}
    for stage in stages:
        _merge_stage(side, [(full[i], placed[i]) for i in stage], offsets, seen, parts)
    _assemble(side, seen, parts)
    return side


def _tokens(placed: list[PlacedCall]) -> int:
    for call, place in placed:
        if place.rule is not None and place.rule.target == "embed":
            leaf = next((leaf for leaf in call.inputs if leaf is not None), None)
            if leaf is not None:
                return leaf.numel
    return 0


def _chunk(shard: Shard, call: Call) -> int:
    return shard.chunk if call.list_index is None else shard.chunk + call.list_index


def _stages(
    side: Side, shards: list[Shard], placed: list[list[PlacedCall]]
) -> tuple[list[list[int]], dict[tuple[int, int], int]]:
    """Pipeline stages as indices of shards, and the global number of each (rank, chunk)'s first layer."""
    ranks = sorted({shard.rank for shard in shards})
    if not side.dialect.local_layers:
        by_layers: dict[frozenset[int], list[int]] = {}
        for index, calls in enumerate(placed):
            layers = frozenset(p.numbers[0] for _, p in calls if p.numbers and "layers.#" in p.template)
            by_layers.setdefault(layers, []).append(index)
        return list(by_layers.values()), {}
    counts: dict[tuple[int, int], int] = {}
    has_first: dict[int, bool] = dict.fromkeys(ranks, False)
    for shard, calls in zip(shards, placed, strict=True):
        for call, place in calls:
            if place.rule is not None and place.rule.target == "embed":
                has_first[shard.rank] = True
            if place.numbers and "layers.#" in place.template:
                key = (shard.rank, _chunk(shard, call))
                counts[key] = max(counts.get(key, 0), place.numbers[0] + 1)
    grouped = stages_of([has_first[rank] for rank in ranks], ranks)
    if grouped is None:
        if len(ranks) > 1:
            side.problems.append(
                f"ranks {', '.join(map(str, ranks))} of the {side.label} side are not whole pipeline stages: "
                "layers are numbered anew in each, so their global numbers are unknown"
            )
        grouped = [list(range(len(ranks)))]
    elif ranks != list(range(len(ranks))):
        side.problems.append(f"ranks of the {side.label} side are missing: {', '.join(map(str, ranks))} are there")
    offsets, first = {}, 0
    for chunk in sorted({chunk for _, chunk in counts}):
        for stage in grouped:
            for index in stage:
                offsets[ranks[index], chunk] = first
            size = max((counts.get((ranks[index], chunk), 0) for index in stage), default=0)
            first += size
            if size and side.dialect.skipped_last:
                side.excused.add(f"layers.{first - 1}.{side.dialect.skipped_last}")
    members = [
        [index for index, shard in enumerate(shards) if shard.rank in {ranks[i] for i in stage}] for stage in grouped
    ]
    return members, offsets


def _merge_stage(
    side: Side,
    members: list[tuple[Shard, list[PlacedCall]]],
    offsets: dict[tuple[int, int], int],
    seen: dict[str, Rule | None],
    parts: dict[tuple[str, str], dict[str, Quantity]],
) -> None:
    """Add one pipeline stage's rows, whole over its ranks."""
    by_rank: dict[int, dict[Key, Row]] = {}
    for shard, calls in members:
        rows = build_rows(
            shard.dump, calls, side.dialect, side.tokens,
            lambda call, shard=shard: offsets.get((shard.rank, _chunk(shard, call)), 0),  # type: ignore[misc]
            seen,
        )  # fmt: skip
        by_rank[shard.rank] = {**rows, **by_rank.get(shard.rank, {})}
    ranks = sorted(by_rank)
    groups = [[index] for index in range(len(ranks))] if side.dialect.replicas else replica_groups([by_rank[r] for r in ranks])
    if groups is None:
        side.problems.append(f"ranks {', '.join(map(str, ranks))} of the {side.label} side are no even replicas of one model")
        groups = [[0]]
    side.parallel = max(side.parallel, len(groups[0]))
    replicas = [_merge_group([(ranks[index], by_rank[ranks[index]]) for index in group], side) for group in groups]
    merged = replicas[0]
    if len(replicas) > 1:
        names = [f"rank {ranks[group[0]]}" for group in groups]
        _check_replicas(side, names, replicas)
        side.notes.append(f"{len(replicas)} data-parallel replicas on the {side.label} side")
    for key, quantity in merged.items():
        parts.setdefault((key.module, key.kind), {}).setdefault(key.part, quantity)


def _merge_group(ranks: list[tuple[int, dict[Key, Row]]], side: Side) -> dict[Key, Quantity]:
    if len(ranks) == 1:
        return {key: row.quantity for key, row in ranks[0][1].items()}
    keys = {key: None for _, rows in ranks for key in rows}
    return {
        key: merge_ranks(key, [(rank, rows[key]) for rank, rows in ranks if key in rows], len(ranks), side.tokens)
        for key in keys
    }


def _check_replicas(side: Side, names: list[str], replicas: list[dict[Key, Quantity]]) -> None:
    keys = {key: None for replica in replicas for key in replica}
    ids = next((key for key in keys if key.module == "embed" and key.kind == "input"), None)
    if ids is not None and all(ids in replica for replica in replicas):
        found = disagreement([(name, replica[ids]) for name, replica in zip(names, replicas, strict=True)])
        if found or len({replica[ids].tokens for replica in replicas}) > 1:
            side.problems.append(f"the data-parallel ranks of the {side.label} side had different prompts: name one rank")
            return
    for key in keys:
        have = [(name, replica[key]) for name, replica in zip(names, replicas, strict=True) if key in replica]
        if len(have) < len(replicas):
            side.problems.append(f"{key.module} {key.kind}: only {', '.join(name for name, _ in have)} dumped it")
        elif found := disagreement(have):
            have[0][1].conflict = f"data-parallel replicas: {found}"


def _assemble(side: Side, seen: dict[str, Rule | None], parts: dict[tuple[str, str], dict[str, Quantity]]) -> None:
    """Parts into wholes, rows into modules; ids, positions and rebuilt rows into their places."""
    for name, rule in seen.items():
        side.modules[name] = Module(name, rule)
        if rule is None:
            side.unknown.add(name)
    for (name, kind), found in parts.items():
        if kind == "@" + POSITIONS:
            side.positions += [(name, quantity) for quantity in found.values()]
            continue
        module = side.modules.get(name)
        if module is None:  # lent by another module, such as a norm fused into the next product
            module = side.modules[name] = Module(name, Rule(target=template_of(name)))
        if kind == "output" and len(found) > 1:
            module.rows.update({part: found[part] for part in _LOOSE_PARTS & found.keys()})
        module.rows[kind] = merge_parts(list(found.items()), kind)
    side.layers = max((layer + 1 for layer in map(layer_of, side.modules) if layer is not None), default=0)
    embed = side.modules.get("embed")
    if embed is not None:
        side.ids = embed.rows.pop("input", None)
    core_values = [(name, module) for name, module in side.modules.items() if name.endswith(".attn.core") and "v" in module.rows]
    for name, module in core_values:
        target = side.modules.get(name.removesuffix("core") + "qkv")
        if target is not None:
            target.rows.setdefault("v", module.rows["v"])
    _rebuild_residuals(side)


def _rebuild_residuals(side: Side) -> None:
    """What engines with residual-fused norms do not show as such: a norm's input, and a layer's output.

    Such a norm takes a branch and the residual, and returns the normed sum and the sum. So its second output is its
    true input, and the second output of the next layer's first norm is this layer's true output.
    """
    for name, module in side.modules.items():
        total = module.rows.get("_residual")
        if total is None or layer_of(name) is not None and name == f"layers.{layer_of(name)}":
            continue
        module.rows["input"] = _derived(total, f"{name} output.1")
    for layer in range(side.layers):
        module = side.modules.get(f"layers.{layer}")
        if module is None or "output" in module.rows or "_residual" not in module.rows:
            continue
        last = layer == side.layers - 1
        next_norm = side.modules.get("final_norm" if last else f"layers.{layer + 1}.input_norm")
        total = None if next_norm is None else next_norm.rows.get("_residual")
        if total is not None and next_norm is not None:
            module.rows["output"] = _derived(total, f"{next_norm.name} output.1, the sum of branch and residual")


def _derived(quantity: Quantity, source: str) -> Quantity:
    return Quantity(
        quantity.dtype, quantity.tokens, quantity.features, quantity.stats, quantity.crc, quantity.merged, quantity.gap,
        quantity.groups, quantity.conflict, source,
    )  # fmt: skip
