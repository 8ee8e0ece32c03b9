"""The inference side's forwards that may be a whole prompt of one request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from ..dumps.steps import LogLine, Request
from .judge import is_prefill, judge_inference, judge_prefill
from .model import Reason
from .units import LoggedSide, Unit

# msprobe's request slicing exists from here on.
_SLICING = (26, 2)


def inference_units(
    side: LoggedSide, sliced: str | None, count: Callable[[int], int | None]
) -> tuple[list[Unit], dict[str, list[int]]]:
    """Judge every line, and put together what is one forward.

    Args:
        side: the inference side.
        sliced: the id that msprobe's configuration named, or None.
        count: how many tokens a line's dump has, by the line's number; None where it has none or does not tell.

    Returns:
        The units, and for ids in the documented form, which does not say how long a prompt is, the tokens of what may
        be further parts of their prefill.
    """
    lines = side.log.lines
    side.judged = [judge_inference(line) for line in lines]
    later: dict[str, list[int]] = defaultdict(list)
    # By the request's id, or where it has none by its step.
    alike: dict[str | int | None, list[int]] = defaultdict(list)
    slices: dict[int, Request] = {}
    for number, (line, judgement) in enumerate(zip(lines, side.judged, strict=True)):
        if line.phase == "prefill":
            _note_later(line, later)
        request = line.requests[0] if judgement is None else None
        if judgement is not None and judgement[0] is Reason.SEVERAL_REQUESTS and line.skipped is None:
            found = _sliced_to(line, sliced, count(number) if _can_slice(line) else None)
            if isinstance(found, str):
                side.judged[number] = Reason.AMBIGUOUS, found
            elif found is not None:
                side.judged[number], slices[number], request = None, found, found
        if request is not None:
            alike[line.step if request.request_id is None else request.request_id].append(number)
    units = []
    for numbers in alike.values():
        for unit in _forwards(side, numbers):
            request = slices.get(unit[0])
            units.append(Unit(unit, request or lines[unit[0]].requests[0], request is not None))
    return units, later


def _forwards(side: LoggedSide, numbers: list[int]) -> list[tuple[int, ...]]:
    """One request's lines, by forward: a model's ranks log the same step. A rank that is there twice is another's."""
    if len(numbers) == 1:
        return [(numbers[0],)]
    forwards = []
    for model in side.models(numbers):
        steps: dict[tuple[int | None, int], list[int]] = defaultdict(list)
        seen: dict[tuple[int | None, int | None], int] = defaultdict(int)
        for number in model:
            line = side.log.lines[number]
            place = line.step, line.origin.rank
            steps[line.step, seen[place]].append(number)
            seen[place] += 1
        forwards += [tuple(found) for found in steps.values()]
    return forwards


def _can_slice(line: LogLine) -> bool:
    if line.origin.msprobe is None:
        return True
    words = line.origin.msprobe.split(".")
    return tuple(int(word) if word.isascii() and word.isdigit() else 0 for word in words[:2]) >= _SLICING


def _sliced_to(line: LogLine, sliced: str | None, count: int | None) -> Request | str | None:
    """The request that a packed forward's dump was sliced to; words where that is ambiguous; None where it was not."""
    total = sum(request.tokens or 0 for request in line.requests)
    if count is None or count >= total:
        return None
    fitting = [
        request
        for request in line.requests
        if request.tokens == count and is_prefill(request) and judge_prefill(request) is None
    ]
    if sliced is not None:
        fitting = [request for request in fitting if sliced in (request.request_id, (request.request_id or "")[:-9])]
    if len(fitting) > 1:
        return f"{len(fitting)} of its requests have the dump's {count} tokens; name the sliced one with --request"
    return fitting[0] if fitting else None


def _note_later(line: LogLine, later: dict[str, list[int]]) -> None:
    for request in line.requests:
        if request.phase is None and request.type == "cached" and request.request_id and (request.tokens or 0) > 1:
            later[request.request_id].append(request.tokens or 0)
