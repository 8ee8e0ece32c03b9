"""The commonest lines of the request logs by their wording, recognised several times faster than JSON is parsed.

Whatever is worded otherwise, and every line that is not wholly as here, is left to the JSON parser.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import NamedTuple

from .steps import Decodes

# JSON has no number with a zero in front.
_COUNT = rb"(?:0|[1-9][0-9]{0,8})"
_HEAD = (
    rb'", ?"timestamp": ?"([0-9T:.+-]{0,40})", ?("pid": ?'
    + _COUNT + rb', ?"rank": ?' + _COUNT + rb'), ?"step": ?(' + _COUNT + rb"), ?"
)  # fmt: skip
_ID = rb'"([!#-\[\]-~]+)"'
# The documented lines of one new request, of cached ones that decode, and of one trained sample, whose parsing as JSON
# would take three quarters of the time. What is written otherwise takes the JSON parser.
DISPATCHED = re.compile(
    rb'\{"source": ?"dispatch_logger'
    + _HEAD
    + rb'"phase": ?"(decode|prefill)", ?"total_num_scheduled_tokens": ?' + _COUNT
    + rb', ?"requests": ?\[\{"request_id": ?' + _ID + rb', ?"type": ?"(new|cached)", ?"tokens": ?('
    + _COUNT + rb")\}(\]\}\n)?"
)  # fmt: skip
TRAINED = re.compile(
    rb'\{"source": ?"update_actor' + _HEAD + rb'"request_ids": ?\[' + _ID + rb'\], ?"num_requests": ?1\}\n'
)
# Our own loggers' lines of one request whose forward was dumped, from the timestamp on.
_NUMBER, _MAYBE = rb"(0|[1-9][0-9]{0,17})", rb"(null|0|[1-9][0-9]{0,17})"
_MORE = rb'((?:"[a-z_]+":(?:true|false|null|0|[1-9][0-9]{0,17}|"[!#-\[\]-~]*"),)*)'
_STAMPED = rb'"timestamp":"([0-9T:.+-]{0,40})",'
_DUMPED = rb'"step":' + _NUMBER + rb',"dump":' + _ID + rb',"skipped":null\}\n'
OUR_DISPATCHED = re.compile(
    _STAMPED
    + rb'"phase":"(prefill|decode)","total_num_scheduled_tokens":(?:0|[1-9][0-9]{0,17}),'
    + rb'"requests":\[\{"request_id":' + _ID + rb',"type":"new","tokens":' + _NUMBER
    + rb',"phase":"(prefill|decode)","computed_tokens":' + _NUMBER + rb',"prompt_length":' + _NUMBER
    + rb',"prompt_hash":' + _ID + rb'\}\],"weight_version":' + _MAYBE + b"," + _DUMPED
)  # fmt: skip
OUR_TRAINED = re.compile(
    _STAMPED
    + rb'"request_ids":\["[!#-\[\]-~]+"\],"num_requests":1,"requests":\[\{"request_id":' + _ID
    + rb',"prompt_length":' + _NUMBER + rb',"response_length":' + _NUMBER + rb',"prompt_hash":' + _ID
    + rb'(,"rollout_weight_versions":.*,)' + _DUMPED
)  # fmt: skip
# What that line says between the prompt and the step, which is the same for many.
OUR_WEIGHTS = re.compile(
    rb',"rollout_weight_versions":\[' + _MAYBE + b"," + _MAYBE + rb'\]\}\],"weight_version":' + _MAYBE + b","
    + _MORE + rb'"phase":"([a-z_]+)",' + _MORE
)  # fmt: skip
DOCUMENTED_END = b"}]}\n"
OUR_END = b'"step":null,"dump":null,"skipped":"decode"}\n'


def has_new(raw: bytes) -> bool:
    """Whether a line has a new request."""
    # A letter is looked for forty times faster than a word, and no other word of such a line has a w.
    return 119 in raw and b'"new"' in raw


def number_of(text: bytes) -> int | None:
    """A number, or null."""
    return None if text == b"null" else int(text)


class Form(NamedTuple):
    """How a process words its plain decodes.

    Attributes:
        head: how they begin: in our own form with the process, in the documented one with the second too.
        end: how they end.
        step_of: the step of a line with this head and end; None for one that is no plain decode after all.
        numbers: where their line numbers are kept.
        steps: where their steps are kept, -1 in our own form, which dumps no decode.
    """

    head: bytes
    end: bytes
    step_of: Callable[[bytes], int | None]
    numbers: array[int]
    steps: array[int]


def our_form(head: bytes, decodes: Decodes) -> Form:
    """The wording of a process's plain decodes in our own loggers' lines, of which nothing between the ends matters."""
    return Form(head, OUR_END, lambda _: -1, decodes.numbers, decodes.steps)


def documented_form(raw: bytes, match: re.Match[bytes], decodes: Decodes) -> Form:
    """The wording of a process's documented decodes: the next ones differ in step and requests alone.

    Args:
        raw: one of them.
        match: of :data:`DISPATCHED` on it.
        decodes: what they belong to.
    """
    begin, end = match.span(3)
    behind = raw[end : match.end(4) + 1]
    furthest = begin + 9 + len(behind)

    def step_of(line: bytes) -> int | None:
        digits = line[begin : line.find(behind, begin, furthest)]
        # With a zero in front it is step 0, or no JSON.
        if digits.isdigit() and digits >= b"1" and not (119 in line and has_new(line)):
            return int(digits)
        return None

    return Form(raw[:begin], DOCUMENTED_END, step_of, decodes.numbers, decodes.steps)
