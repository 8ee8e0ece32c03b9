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
    keyed: list[tuple[tuple[object, ...], int]] = []
    slices: dict[int, Request] = {}
    for number, line in enumerate(lines):
        _note_later(line, later)
        judgement = side.judged[number]
        if judgement is not None and judgement[0] is Reason.SEVERAL_REQUESTS and line.skipped is None:
            request = _sliced_to(line, sliced, count(number) if _can_slice(line) else None)
            if isinstance(request, str):
                side.judged[number] = Reason.AMBIGUOUS, request
            elif request is not None:
                side.judged[number], slices[number] = None, request
        if side.judged[number] is None:
            request = slices.get(number) or line.requests[0]
            name = request.request_id
            keyed.append(((name, line.step if name is None else None, *side.instance(number)), number))
    units = []
    for numbers in side.grouped(keyed):
        for unit in _by_step(side, numbers):
            request = slices.get(unit[0]) or lines[unit[0]].requests[0]
            units.append(Unit(unit, request, unit[0] in slices))
    return units, later


def _by_step(side: LoggedSide, numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One request's lines, by step: the ranks of a model log the same step. A rank that is there twice is another's."""
    if len(numbers) == 1:
        return [numbers]
    steps: dict[tuple[int | None, int], list[int]] = defaultdict(list)
    seen: dict[tuple[int | None, int | None], int] = defaultdict(int)
    for number in numbers:
        line = side.log.lines[number]
        place = line.step, line.origin.rank
        steps[line.step, seen[place]].append(number)
        seen[place] += 1
    return [tuple(found) for found in steps.values()]


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
    for request in line.requests if line.phase == "prefill" else ():
        if request.phase is None and request.type == "cached" and request.request_id and (request.tokens or 0) > 1:
            later[request.request_id].append(request.tokens or 0)
