"""One side's ranks into one model: dialect, pipeline stages, replicas, shards, fused parts, and what residuals hide."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import EvidenceError
from .dialect import Dialect, choose
from .names import layer_of
from .pipeline import Offsets, chunk_of, line_up, tokens_of
from .quantity import POSITIONS, Quantity, Side
from .rows import Key, PlacedCall, Shard, build_rows, named_calls, place_calls
from .shards import disagreement, merge_parts, merge_ranks, replica_groups

# The parts of a fused output that stay rows of their own: another engine may show them before they are fused.
_LOOSE_PARTS = ("v",)
Parts = dict[tuple[str, str], dict[str, Quantity]]


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
    named = [named_calls(shard.dump) for shard in full]
    if not any(named):
        level = full[0].dump.level
        raise EvidenceError(
            f"the {label} dump {full[0].dump.path} has no forward of a module"
            + (": level L1 records API calls alone" if level == "L1" else f" (level {level})" if level else ""),
            "dump with level L0 or mix",
        )
    dialect = choose({(template, call.cls) for calls in named for call, template, _ in calls}, own)
    side = Side(label, dialect, {}, dumps=[shard.dump for shard in shards])
    for shard in shards:
        side.problems += shard.dump.problems
        if shard.dump.empty:
            side.problems.append(f"{shard.dump.path} has no data, other ranks of its step have")
        elif not shard.dump.complete:
            side.problems.append(f"{shard.dump.path} is incomplete: what is missing is unknown")
    placed = [place_calls(calls, dialect, side.notes) for calls in named]
    side.tokens = max((tokens_of(calls) for calls in placed), default=0)
    stages, offsets = line_up(side, full, placed)
    parts: Parts = {}
    for stage in stages:
        _merge_stage(side, [(full[i], placed[i]) for i in stage], offsets, parts)
    _assemble(side, parts)
    return side


def _merge_stage(side: Side, members: list[tuple[Shard, list[PlacedCall]]], offsets: Offsets, parts: Parts) -> None:
    """Add one pipeline stage's rows, whole over its ranks."""
    by_rank: dict[int, dict[Key, Quantity]] = {}
    for shard, calls in members:
        offset = {chunk: first for (rank, chunk), first in offsets.items() if rank == shard.rank}
        rows = build_rows(
            shard.dump,
            calls,
            side.tokens,
            lambda call, shard=shard, offset=offset: offset.get(chunk_of(shard, call), 0),  # type: ignore[misc]
            side.modules,
        )
        by_rank[shard.rank] = {**rows, **by_rank[shard.rank]} if shard.rank in by_rank else rows
    ranks = sorted(by_rank)
    if side.dialect.replicas:
        groups: list[list[int]] | None = [[index] for index in range(len(ranks))]
    else:
        groups = replica_groups([by_rank[rank] for rank in ranks])
    if groups is None:
        names = ", ".join(map(str, ranks))
        side.refusal = f"ranks {names} of the {side.label} side are no even replicas of one model"
        groups = [[0]]
    side.parallel = max(side.parallel, len(groups[0]))
    replicas = [_merge_group([(ranks[index], by_rank[ranks[index]]) for index in group], side) for group in groups]
    if len(replicas) > 1:
        _check_replicas(side, [f"rank {ranks[group[0]]}" for group in groups], replicas)
        side.notes.append(f"{len(replicas)} data-parallel replicas")
    modules = side.modules
    for (module, kind, part), quantity in replicas[0].items():
        if not part and kind[0] != "@":
            modules[module].rows.setdefault(kind, quantity)
            continue
        found = parts.get((module, kind))
        if found is None:
            parts[module, kind] = {part: quantity}
        elif part not in found:
            found[part] = quantity


def _merge_group(ranks: list[tuple[int, dict[Key, Quantity]]], side: Side) -> dict[Key, Quantity]:
    if len(ranks) == 1:
        return ranks[0][1]
    keys = {key: None for _, rows in ranks for key in rows}
    return {
        key: merge_ranks(key[1], [(rank, rows[key]) for rank, rows in ranks if key in rows], len(ranks), side.tokens)
        for key in keys
    }


def _check_replicas(side: Side, names: list[str], replicas: list[dict[Key, Quantity]]) -> None:
    keys = {key: None for replica in replicas for key in replica}
    ids = next((key for key in keys if key[:2] == ("embed", "input")), None)
    if ids is not None and all(ids in replica for replica in replicas):
        found = disagreement([(name, replica[ids]) for name, replica in zip(names, replicas, strict=True)])
        if found or len({replica[ids].tokens for replica in replicas}) > 1:
            side.problems.append(
                f"the data-parallel ranks of the {side.label} side had different prompts: name one rank"
            )
            return
    for key in keys:
        have = [(name, replica[key]) for name, replica in zip(names, replicas, strict=True) if key in replica]
        if len(have) < len(replicas):
            side.problems.append(f"{key[0]} {key[1]}: only {', '.join(name for name, _ in have)} dumped it")
        elif found := disagreement(have):
            have[0][1].conflict = f"data-parallel replicas: {found}"


def _assemble(side: Side, parts: Parts) -> None:
    """Parts into wholes, rows into modules; ids, positions and rebuilt rows into their places."""
    modules = side.modules
    for (name, kind), found in parts.items():
        if kind == "@" + POSITIONS:
            side.positions += [(name, quantity) for quantity in found.values()]
            continue
        rows = modules[name].rows
        if len(found) > 1 and kind == "output":
            rows.update({part: found[part] for part in _LOOSE_PARTS if part in found})
        rows.setdefault(kind, merge_parts(found))
    layers = [module.numbers[0] for module in modules.values() if module.template.startswith("layers.#")]
    side.layers = max(layers, default=-1) + 1
    if "embed" in modules:
        side.ids = modules["embed"].rows.pop("input", None)
    for layer in range(side.layers):
        core, target = modules.get(f"layers.{layer}.attn.core"), modules.get(f"layers.{layer}.attn.qkv")
        if core is not None and target is not None and "v" in core.rows:
            target.rows.setdefault("v", core.rows["v"])
    _rebuild_residuals(side)


def _rebuild_residuals(side: Side) -> None:
    """What engines with residual-fused norms do not show as such: a norm's input, and a layer's output.

    Such a norm takes a branch and the residual, and returns the normed sum and the sum. So its second output is its
    true input, and the second output of the next layer's first norm is this layer's true output.
    """
    for name, module in side.modules.items():
        total = module.rows.get("_residual")
        if total is not None and name != f"layers.{layer_of(name)}":
            module.rows["input"] = _derived(total, f"{name} output.1")
    for number in range(side.layers):
        layer = side.modules.get(f"layers.{number}")
        following = side.modules.get("final_norm" if number == side.layers - 1 else f"layers.{number + 1}.input_norm")
        if layer is None or following is None or "output" in layer.rows:
            continue
        total = following.rows.get("_residual")
        if total is not None and "_residual" in layer.rows:
            layer.rows["output"] = _derived(total, f"{following.name} output.1, the sum of branch and residual")


def _derived(quantity: Quantity, source: str) -> Quantity:
    found = quantity.copy()
    found.derived = source
    return found
