"""The training side's forwards by what joins them: a request's id, or where it has none its prompt's hash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from .judge import judge_training
from .model import Reason
from .units import Kind, LoggedSide, Unit

Starts = Callable[[int], bool | None]


def training_units(side: LoggedSide, starts: Starts) -> dict[Kind, dict[str, list[Unit]]]:
    """Judge every line and put together what is one forward.

    Lines of one request in one step are the shards of a model. Megatron's virtual chunks are forwards of their own,
    of one request in several steps; any other second step of a request repeats it.

    Args:
        side: the training side.
        starts: whether a line's dump has the embedding; None where that cannot be told.
    """
    side.judged = [judge_training(line) for line in side.log.lines]
    by_id: dict[str, list[int]] = defaultdict(list)
    by_prompt: dict[str, list[int]] = defaultdict(list)
    for number, (line, judgement) in enumerate(zip(side.log.lines, side.judged, strict=True)):
        if judgement is not None or not line.requests:
            continue
        request = line.requests[0]
        if request.request_id is not None:
            by_id[request.request_id].append(number)
        elif request.prompt_hash is not None:
            by_prompt[request.prompt_hash].append(number)
    return {
        # Ids first: a forward that an id joined is not to be joined by its prompt again.
        "request-id": {name: _units(side, numbers, starts) for name, numbers in by_id.items()},
        "prompt-hash": {name: _units(side, numbers, starts) for name, numbers in by_prompt.items()},
    }


def _units(side: LoggedSide, numbers: list[int], starts: Starts) -> list[Unit]:
    lines = side.log.lines
    if len(numbers) == 1:
        return [Unit((numbers[0],), lines[numbers[0]].requests[0])]
    units = []
    for model in side.models(numbers):
        taken: dict[tuple[int | None, int | None, object], int] = {}
        chunks = {lines[number].extra.get("virtual_chunk") for number in model}
        steps = sorted({lines[number].step or 0 for number in model})
        # Without the log's word, a second step that does not begin with the embedding as the first does is a chunk.
        first_ranks = [number for number in model if len(steps) > 1 and lines[number].origin.rank in (0, None)]
        heads = {lines[number].step: starts(number) for number in first_ranks}
        undeclared = chunks == {None} and heads.get(steps[0]) is True
        for number in sorted(model, key=lambda item: (lines[item].step or 0, side.order(item))):
            line = lines[number]
            chunk: object = line.extra.get("virtual_chunk")
            if undeclared and heads.get(line.step) is False:
                chunk = line.step
            place = (line.origin.rank, line.origin.pid if line.origin.rank is None else None, chunk)
            if place in taken:
                side.reject([Unit((number,), line.requests[0])], Reason.REPEATED)
            else:
                taken[place] = number
        first = lines[model[0]].requests[0]
        units.append(Unit(tuple(taken.values()), first))
    return units
