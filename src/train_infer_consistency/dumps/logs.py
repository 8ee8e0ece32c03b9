"""Reads ``dispatch_log.jsonl`` and ``update_actor_log.jsonl``, as documented and with our own loggers' extra fields.

A rollout's log is mostly decodes, of which only the step matters, and every line of a process begins with the same
fields: both are read without parsing them again. A line that is no record becomes a problem, never an exception.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .fields import UnfitError, count_of, origin_of, parse, request_id_of, text_of
from .forms import (
    DISPATCHED,
    DOCUMENTED_END,
    OUR_DISPATCHED,
    OUR_END,
    OUR_TRAINED,
    OUR_WEIGHTS,
    TRAINED,
    Form,
    documented_form,
    has_new,
    number_of,
    our_form,
)  # fmt: skip
from .reader import paused_collector
from .steps import Decodes, Log, LogLine, LogProblem, Origin, Request

_EXTRA = frozenset(
    (
        "prompt_only",
        "backward",
        "virtual_chunk",
        "virtual_chunks",
        "first_layer",
        "sequence_parallel",
        "forward_mode",
        "attn_state",
        "rollout_id",
        "weights",
        "use_remove_padding",
        "failed_step",
        "trainer_step",
    )
)


def read_dispatch(paths: Iterable[Path]) -> Log:
    """Read the inference side's logs.

    Args:
        paths: the files; their order changes nothing but the order of lines.
    """
    return _read(paths, training=False)


def read_update_actor(paths: Iterable[Path]) -> Log:
    """Read the training side's logs, likewise."""
    return _read(paths, training=True)


def _read(paths: Iterable[Path], training: bool) -> Log:
    log = Log()
    for path in paths:
        try:
            with path.open("rb", buffering=_BUFFER) as file, paused_collector():
                _LogReader(path, training, log).read(file)
        except OSError as error:
            log.problems.append(LogProblem(path, 0, "unreadable", f"cannot be read ({error.strerror or error})"))
    return log


_Weights = tuple[tuple[int | None, int | None], int | None, str | None, dict[str, Any] | None]


class _LogReader:
    """Reads one file's lines."""

    def __init__(self, path: Path, training: bool, log: Log) -> None:
        self._path, self._training, self._log = path, training, log
        self._heads: dict[bytes, tuple[dict[str, Any] | None, Origin | None]] = {}
        self._origins: dict[tuple[Any, Any], Origin] = {}
        self._written: dict[bytes, Origin] = {}
        self._decodes: dict[bytes, Decodes] = {}
        self._form = _NO_FORM
        self._words: dict[str, str] = {}
        self._read_words: dict[bytes, str] = {}
        self._owners: dict[bytes, Origin | None] = {}
        self._known_weights: dict[bytes, _Weights] = {}

    def read(self, file: Iterable[bytes]) -> None:
        """Read all lines; an empty one is none."""
        append = self._log.lines.append
        quick = self._trained if self._training else self._dispatched
        # Nearly every line is a decode in the wording of the last one: what that takes is kept at hand.
        head, end, step_of, numbers, steps = self._form
        for number, raw in enumerate(file, 1):
            if raw.endswith(end) and raw.startswith(head) and (step := step_of(raw)) is not None:
                numbers.append(number)
                steps.append(step)
                continue
            line = quick(raw, number)
            head, end, step_of, numbers, steps = self._form
            if line is None and not raw.isspace():
                line = self._record(raw, number)
            if type(line) is LogLine:
                append(line)
        self._log.decodes.extend(self._decodes.values())

    def _dispatched(self, raw: bytes, number: int) -> LogLine | Decodes | None:
        """The line of one new request, or the decodes that a plain decode was added to; None for any other line."""
        if raw.endswith(OUR_END):
            head = raw[: raw.find(_STAMP)]
            decodes = self._decodes.get(head)
            if decodes is None:
                _, origin = self._head(head)
                if origin is None:
                    return None
                decodes = self._decodes[head] = Decodes(self._path, origin, array("q"), array("q"))
            self._form = our_form(head + _STAMP, decodes)
            decodes.numbers.append(number)
            decodes.steps.append(-1)
            return decodes
        match = DISPATCHED.match(raw)
        if match is None:
            return self._ours(raw, number)
        stamp, who, step, phase, name, kind, tokens, alone = match.groups()
        if kind == b"new":
            if alone is None or match.end() != len(raw) or name in _NO_IDS:
                return None
            request = Request(name.decode(), "new", int(tokens))
            return self._made(number, stamp, who, step, phase, request)
        # A new request in a decode is a prefill of one token.
        if phase != b"decode" or has_new(raw) or not raw.endswith(DOCUMENTED_END):
            return None
        decodes = self._decodes.get(who)
        if decodes is None:
            decodes = self._decodes[who] = Decodes(self._path, self._who(who), array("q"), array("q"))
        self._form = documented_form(raw, match, decodes)
        decodes.numbers.append(number)
        decodes.steps.append(int(step))
        return decodes

    def _trained(self, raw: bytes, number: int) -> LogLine | None:
        """The line of one trained sample in the documented form; None for any other line."""
        match = TRAINED.fullmatch(raw)
        if match is None:
            return self._ours(raw, number)
        stamp, who, step, name = match.groups()
        return None if name in _NO_IDS else self._made(number, stamp, who, step, None, Request(name.decode()))

    def _ours(self, raw: bytes, number: int) -> LogLine | None:
        """The line of one request that our own loggers wrote about its dump; None for any other line."""
        at = raw.find(_STAMP)
        match = (OUR_TRAINED if self._training else OUR_DISPATCHED).fullmatch(raw, at) if at > 0 else None
        origin = None if match is None else self._owner(raw[:at])
        if match is None or origin is None:
            return None
        extra: dict[str, Any] | None = _NOTHING
        weights: int | None
        if self._training:
            stamp, name, length, response, prompt, rest, step, dump = match.groups()
            versions, weights, phase, extra = self._weights(rest)
            kind = tokens = inner = computed = None
            answer: int | None = int(response)
        else:
            stamp, outer, name, scheduled, word, cached, length, prompt, rest, step, dump = match.groups()
            kind, tokens, inner, computed, answer = "new", int(scheduled), self._read_word(word), int(cached), None
            versions, weights, phase = _NO_VERSIONS, number_of(rest), self._read_word(outer)
        if extra is None or name in _NO_IDS:
            return None
        text, known = prompt.decode(), int(length)
        request = Request(name.decode(), kind, tokens, inner, computed, known, text, answer, False, 0, versions)
        time, place = self._read_word(stamp), dump.decode()
        return LogLine(
            self._path, number, origin, int(step), phase, (request,), time, place, None, False, weights, extra
        )

    def _owner(self, head: bytes) -> Origin | None:
        """The process that a line's beginning tells of; None where it tells of its forward as well."""
        if head not in self._owners:
            fields, origin = self._head(head)
            self._owners[head] = origin if fields is not None and _FORWARD.isdisjoint(fields) else None
        return self._owners[head]

    def _weights(self, text: bytes) -> _Weights:
        """The rollout's weight versions, the trainer's, the phase, and what only some engines say, of their JSON text.

        The last is None where the text says something else as well.
        """
        found = self._known_weights.get(text)
        if found is None:
            found = _NO_WEIGHTS
            if match := OUR_WEIGHTS.fullmatch(text):
                oldest, newest, weights, more, phase, rest = match.groups()
                fields = json.loads(b"{" + (more + rest)[:-1] + b"}")
                extra = {name: value for name, value in fields.items() if value is not None} or _NOTHING
                versions = number_of(oldest), number_of(newest)
                known = extra if fields.keys() <= _EXTRA else None
                found = versions, number_of(weights), phase.decode(), known
            self._known_weights[text] = found
        return found

    def _made(
        self, number: int, stamp: bytes, who: bytes, step: bytes, phase: bytes | None, request: Request
    ) -> LogLine:
        word = None if phase is None else self._read_word(phase)
        return LogLine(self._path, number, self._who(who), int(step), word, (request,), self._read_word(stamp))

    def _who(self, who: bytes) -> Origin:
        """The origin of ``"pid": 1, "rank": 0``."""
        origin = self._written.get(who)
        if origin is None:
            origin = self._written[who] = self._origin_of(json.loads(b"{" + who + b"}"))
        return origin

    def _record(self, raw: bytes, number: int) -> LogLine | None:
        """Any line; None, and a problem, where it is no record."""
        try:
            record, origin = self._parse(raw)
        except (ValueError, RecursionError):
            torn = not raw.endswith(b"\n")
            text = "the last line ends too early" if torn else "this line is no JSON"
            self._log.problems.append(LogProblem(self._path, number, "torn" if torn else "damaged", text))
            return None
        if type(record) is not dict:
            self._log.problems.append(LogProblem(self._path, number, "damaged", "this line is no JSON object"))
            return None
        try:
            return self._line(record, origin, number)
        except UnfitError as error:
            self._log.problems.append(LogProblem(self._path, number, "unfit", str(error)))
            return None

    def _parse(self, raw: bytes) -> tuple[Any, Origin | None]:
        """The line's fields; those before the timestamp, the same in every line of a process, are parsed once."""
        at = raw.find(_STAMP)
        head, origin = self._head(raw[:at]) if at > 0 else _NO_HEAD
        if head is None or origin is None:
            return parse(raw), None
        tail = parse(b"{" + raw[at:])
        return {**head, **tail} if type(tail) is dict else tail, origin

    def _head(self, head: bytes) -> tuple[dict[str, Any] | None, Origin | None]:
        """The fields of a line's beginning, None where it is not that of an object; its origin if it tells one."""
        known = self._heads.get(head)
        if known is None:
            fields, origin = None, None
            if head.rstrip().endswith(b","):
                with suppress(ValueError, RecursionError, UnfitError):
                    fields = json.loads(head.rstrip()[:-1] + b"}")
                    origin = origin_of(fields) if "pid" in fields else None
            known = self._heads[head] = (fields, origin)
        return known

    def _line(self, record: dict[str, Any], origin: Origin | None, number: int) -> LogLine:
        phase, stamp = text_of(record, "phase"), text_of(record, "timestamp") or ""
        skipped = text_of(record, "skipped")
        extra = _NOTHING
        if not _EXTRA.isdisjoint(record):
            extra = {name: record[name] for name in record.keys() & _EXTRA if record[name] is not None}
        return LogLine(
            self._path,
            number,
            origin or self._origin_of(record),
            count_of(record, "step"),
            None if phase is None else self._word(phase),
            self._requests(record),
            self._word(stamp),
            text_of(record, "dump"),
            None if skipped is None else self._word(skipped),
            record.get("invalid") is True,
            count_of(record, "weight_version"),
            extra or _NOTHING,
        )

    def _origin_of(self, record: dict[str, Any]) -> Origin:
        """The origin of a line; one object for all lines of a process in the documented form."""
        key = (record.get("pid"), record.get("rank"))
        if not record.keys() <= _DOCUMENTED or type(key[0]) is not int or type(key[1]) is not int:
            return origin_of(record)
        if key not in self._origins:
            self._origins[key] = origin_of(record)
        return self._origins[key]

    def _requests(self, record: dict[str, Any]) -> tuple[Request, ...]:
        entries = record.get("requests")
        ids = record.get("request_ids")
        if entries is None:
            if not self._training and "requests" not in record:
                raise UnfitError("'requests' is missing")
            if self._training and type(ids) is not list:
                raise UnfitError("'request_ids' is no list")
            count = count_of(record, "num_requests") or 0
            documented = [request_id_of(request_id) for request_id in ids or []]
            return tuple(Request(name) for name in [*documented, *[None] * (count - len(documented))][:_MOST])
        if type(entries) is not list or not all(type(entry) is dict for entry in entries):
            raise UnfitError("'requests' is no list of objects")
        return tuple(self._request(entry) for entry in entries)

    def _request(self, entry: dict[str, Any]) -> Request:
        kind = text_of(entry, "type")
        kind = None if kind is None else self._word(kind)
        if entry.keys() <= _DOCUMENTED_REQUEST:
            return Request(request_id_of(entry.get("request_id")), kind, count_of(entry, "tokens"))
        phase = text_of(entry, "phase")
        versions = entry.get("rollout_weight_versions")
        if not (type(versions) is list and len(versions) == 2):
            versions = [None, None]
        oldest, newest = (value if type(value) is int else None for value in versions)
        return Request(
            request_id_of(entry.get("request_id")),
            kind,
            count_of(entry, "tokens"),
            None if phase is None else self._word(phase),
            count_of(entry, "computed_tokens"),
            count_of(entry, "prompt_length"),
            text_of(entry, "prompt_hash"),
            count_of(entry, "response_length"),
            entry.get("resumed") is True,
            count_of(entry, "draft_tokens") or 0,
            (oldest, newest) if (oldest, newest) != (None, None) else _NO_VERSIONS,
            count_of(entry, "sample_index"),
        )

    def _read_word(self, raw: bytes) -> str:
        word = self._read_words.get(raw)
        if word is None:
            word = self._read_words[raw] = self._word(raw.decode())
        return word

    def _word(self, word: str) -> str:
        return self._words.setdefault(word, word)


# The published procedures' fields of a line and of a request in it.
_DISPATCH = frozenset(["phase", "total_num_scheduled_tokens", "requests"])
_UPDATE = frozenset(["request_ids", "num_requests"])
_DOCUMENTED = frozenset(["source", "timestamp", "pid", "rank", "step"]) | _DISPATCH | _UPDATE
# What a line says of its forward, and not of its process.
_FORWARD = _EXTRA | _DISPATCH | _UPDATE | {"timestamp", "step", "dump", "skipped", "invalid", "weight_version"}
_DOCUMENTED_REQUEST = frozenset(["request_id", "type", "tokens"])
_STAMP = b'"timestamp"'
_NO_IDS = frozenset([b"None", b"null"])
_NO_HEAD: tuple[dict[str, Any] | None, Origin | None] = (None, None)
_NOTHING: dict[str, Any] = {}
_NO_VERSIONS: tuple[int | None, int | None] = (None, None)
_NO_WEIGHTS: _Weights = (_NO_VERSIONS, None, None, None)
# No line begins so.
_NO_FORM = Form(b"\n\n", b"", lambda _: None, array("q"), array("q"))
# Fewer calls of the system than with the usual 8 KiB.
_BUFFER = 1 << 18
# A damaged count must not fill the memory.
_MOST = 1 << 16
