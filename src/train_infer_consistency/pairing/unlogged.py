"""Joins trees of which one or both have no log: the published slime procedure runs one prompt, so there is one step."""

from __future__ import annotations

from collections import defaultdict

from ..dumps.tokens import Tokens
from ..dumps.tree import rank_number
from .dumped import Dumped
from .mapping import RankMap, rank_word
from .model import Pair, Part, Reason, Side, StepVerdict, notes
from .units import Unit


def pair_unlogged(
    infer: Dumped, train: Dumped, inference: list[Unit], training: list[Unit], mapping: RankMap | None
) -> tuple[list[Pair], list[StepVerdict]]:
    """Join by the one-prompt rule: exactly one step with data on each side, and ranks that are one or are mapped.

    Args:
        infer: the inference side.
        train: the training side.
        inference: its units, where it has a log.
        training: likewise.
        mapping: which ranks belong together.

    Returns:
        The pairs, and the verdicts on folders of a side without a log.
    """
    ours, verdicts = _logged(infer, inference) if infer.logged else _folders(infer, mapping, 0)
    theirs, more = _logged(train, training) if train.logged else _folders(train, mapping, 1)
    verdicts += more
    pairs, paired = [], set()
    for side in ours:
        fitting = [other for other in theirs if mapping is None or mapping.allows(side, other)]
        if fitting:
            pairs.append(Pair(None, None, side, fitting[0], tuple(fitting[1:]), "one-prompt", notes(side, fitting[0])))
            paired |= {id(side), *map(id, fitting)}
    for dumped, units, sides in ((infer, inference, ours), (train, training, theirs)):
        for side in sides:
            reason = Reason.USED if id(side) in paired else Reason.ONE_SIDE
            if not dumped.logged:
                verdicts += [_verdict(dumped, part, reason, "") for part in side.parts]
            elif reason is Reason.USED:
                for unit in units:
                    if unit.request is side.request:
                        dumped.side.use(unit)
    return pairs, verdicts


def _logged(dumped: Dumped, units: list[Unit]) -> tuple[list[Side], list[StepVerdict]]:
    """The sides of a logged side, if all of them are of one prompt."""
    usable = [unit for unit in units if dumped.side.why(unit) is None]
    prompts = {unit.request.prompt_hash or unit.request.request_id for unit in usable}
    if len(prompts) > 1:
        detail = f"{len(prompts)} prompts, and the other side has no log that says which one it dumped"
        dumped.side.reject(usable, Reason.AMBIGUOUS, detail)
        return [], []
    return [side for unit in usable if (side := dumped.side_of(unit)) is not None], []


def _folders(dumped: Dumped, mapping: RankMap | None, column: int) -> tuple[list[Side], list[StepVerdict]]:
    """The one step of a tree without a log, by groups of ranks; and verdicts on all else in it."""
    verdicts: list[StepVerdict] = []
    steps: dict[tuple[int | None, str | None, int], list[tuple[Part, Tokens]]] = defaultdict(list)
    for folder in dumped.tree.steps:
        for path in folder.ranks.values():
            found = dumped.peek(path)
            part = Part(path, path.name, rank_number(path.name), folder.step)
            if isinstance(found, Tokens):
                steps[folder.outer_step, folder.stage, folder.step].append((part, found))
            else:
                why = (Reason.EMPTY, "") if found is None else (Reason.UNREADABLE, str(found))
                verdicts.append(_verdict(dumped, part, *why))
        if not folder.ranks:
            part = Part(folder.path, folder.path.name, None, folder.step)
            verdicts.append(_verdict(dumped, part, Reason.EMPTY, ""))
    for key, parts in sorted(steps.items(), key=lambda item: str(item[0])):
        why_not = _no_prompt(parts)
        if why_not is not None:
            verdicts += [_verdict(dumped, part, *why_not) for part, _ in parts]
            del steps[key]
    if len(steps) > 1:
        detail = f"{len(steps)} steps have data, and no log says which one is the prompt"
        verdicts += [_verdict(dumped, part, Reason.AMBIGUOUS, detail) for found in steps.values() for part, _ in found]
        return [], verdicts
    sides: list[Side] = []
    for parts in steps.values():
        made, left = _grouped(parts, mapping, column)
        sides += made
        verdicts += [_verdict(dumped, part, Reason.NOT_MAPPED, detail) for part, detail in left]
    return sides, verdicts


def _no_prompt(parts: list[tuple[Part, Tokens]]) -> tuple[Reason, str] | None:
    tokens = next((found for _, found in parts if found.count is not None), Tokens())
    if tokens.count == 1 and not tokens.first:
        return Reason.HEALTH, "one token: a health or dummy request"
    if tokens.first:
        return (Reason.DECODE, "") if tokens.count == 1 else (Reason.PREFIX_CACHE, f"{tokens.first} tokens were cached")
    return None


def _grouped(
    parts: list[tuple[Part, Tokens]], mapping: RankMap | None, column: int
) -> tuple[list[Side], list[tuple[Part, str]]]:
    """The ranks of a step by model: one alone, or as the map has them."""
    if mapping is None:
        if len(parts) == 1:
            return [_side(parts)], []
        names = ", ".join(sorted(part.name for part, _ in parts))
        return [], [(part, f"{names}: say with --map which hold the same model as which") for part, _ in parts]
    sides, used = [], set()
    for ranks in dict.fromkeys(entry[column] for entry in mapping):
        chosen = [found for found in parts if rank_word(found[0].name) in ranks]
        if len(chosen) == len(ranks):
            sides.append(_side(chosen))
            used |= {id(part) for part, _ in chosen}
    return sides, [(part, "--map does not name it") for part, _ in parts if id(part) not in used]


def _side(parts: list[tuple[Part, Tokens]]) -> Side:
    ordered = sorted(parts, key=lambda item: (item[0].rank is None, item[0].rank or 0, str(item[0].path)))
    tokens = next((found for _, found in ordered if found.count is not None), Tokens())
    return Side(" ".join(part.name for part, _ in ordered), tuple(part for part, _ in ordered), None, False, tokens)


def _verdict(dumped: Dumped, part: Part, reason: Reason, detail: str) -> StepVerdict:
    return StepVerdict(dumped.side.name, part.name, part.step, reason, detail, None, dumped.shown(part.path))
