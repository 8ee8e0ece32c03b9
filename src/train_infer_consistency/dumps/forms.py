"""The commonest lines of the request logs by their wording, recognised several times faster than JSON is parsed.

Whatever is worded otherwise, and every line that is not wholly as here, is left to the JSON parser.
"""

from __future__ import annotations

import re

from .steps import Decodes

# The documented lines of one new request, of cached ones that decode, and of one trained sample, whose parsing as JSON
# would take three quarters of the time. What is written otherwise takes the JSON parser.
_HEAD = (
    rb'", ?"timestamp": ?"([0-9T:.+-]{0,40})", ?("pid": ?[0-9]{1,12}, ?"rank": ?[0-9]{1,9}), ?"step": ?([0-9]{1,9}), ?'
)
_ID = rb'"([!#-\[\]-~]+)"'
DISPATCHED = re.compile(
    rb'\{"source": ?"dispatch_logger'
    + _HEAD
    + rb'"phase": ?"(decode|prefill)", ?"total_num_scheduled_tokens": ?[0-9]+, ?'
    rb'"requests": ?\[\{"request_id": ?' + _ID + rb', ?"type": ?"(new|cached)", ?"tokens": ?([0-9]{1,9})\}(\]\}\n)?'
)
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
    + rb',"rollout_weight_versions":\[' + _MAYBE + b"," + _MAYBE + rb'\]\}\],"weight_version":' + _MAYBE + b","
    + _MORE + rb'"phase":"([a-z_]+)",' + _MORE + _DUMPED
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


class DecodeForm:
    """The wording of one process's documented decodes: its next ones differ in time, step and requests alone."""

    def __init__(self, raw: bytes, match: re.Match[bytes], decodes: Decodes) -> None:
        self.numbers, self.steps = decodes.numbers, decodes.steps
        (stamp, end), (number, after) = match.span(1), match.span(3)
        self._before, self._stamp = raw[:stamp], end
        self._between, self._number = raw[end:number], number
        self._behind = raw[after : match.end(4) + 1]

    def step_of(self, raw: bytes) -> int | None:
        """The step of a line of this wording; None for any other line."""
        number = self._number
        after = raw.find(b",", number)
        if (
            number < after < number + 10
            and raw.startswith(self._behind, after)
            and raw.startswith(self._between, self._stamp)
            and raw.startswith(self._before)
            and raw.endswith(DOCUMENTED_END)
            and not (119 in raw and has_new(raw))
        ):
            digits = raw[number:after]
            return int(digits) if digits.isdigit() else None
        return None


class OurForm:
    """The wording of one process's plain decodes in our own loggers' lines, which have no step."""

    def __init__(self, head: bytes, decodes: Decodes) -> None:
        self.numbers, self.steps = decodes.numbers, decodes.steps
        self._head = head

    def step_of(self, raw: bytes) -> int | None:
        """-1 for a line of this wording; None for any other."""
        return -1 if raw.endswith(OUR_END) and raw.startswith(self._head) else None
