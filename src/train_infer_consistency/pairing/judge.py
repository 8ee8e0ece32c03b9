"""What one log line alone says about its forward: whether it could be one side of a pair, and if not, why not."""

from __future__ import annotations

from collections.abc import Sequence

from ..dumps.steps import LogLine, Request
from .model import Reason

Judgement = tuple[Reason, str]

# SGLang's ids of /health_generate begin with it in every version.
HEALTH_PREFIX = "HEALTH_CHECK"
#: The least that a prefix cache gives at once (vLLM's smallest block).
BLOCK = 16

# Our loggers' words for why nothing was dumped.
_SKIPPED = {
    "dummy": (Reason.DUMMY, ""),
    "idle": (Reason.DUMMY, "an idle rank beside a busy one"),
    "decode": (Reason.DECODE, ""),
    "speculative": (Reason.SPECULATIVE, ""),
    "draft": (Reason.SPECULATIVE, "the draft model's forward"),
    "packed": (Reason.SEVERAL_REQUESTS, ""),
    "resumed": (Reason.RESUMED, ""),
    "no-prompt-tokens": (Reason.NO_TOKENS, ""),
    "cached-prefix": (Reason.PREFIX_CACHE, ""),
    "chunked": (Reason.CHUNKED, ""),
    "health": (Reason.HEALTH, ""),
    "too-short": (Reason.SHORT, ""),
    "step-filter": (Reason.FILTERED, "by the step filter"),
    "rank-filter": (Reason.FILTERED, "by the rank filter"),
    "failed": (Reason.FAILED, ""),
    "phase": (Reason.PHASE, "DUMP_PHASE names another one"),
    "not-prompt-only": (Reason.PHASE, "with PROMPTS_ONLY only the added pass is dumped"),
    "reference": (Reason.PHASE, "the reference model's pass"),
}


def judge_inference(line: LogLine) -> Judgement | None:
    """Why an inference forward is no whole prompt of one request; None if it may be.

    Several requests are such a reason too, although msprobe may have sliced the dump to one of them.
    """
    early = _outcome(line)
    requests = line.requests
    if early is not None:
        return _with_numbers(early, requests)
    if not requests:
        return Reason.DUMMY, ""
    # Lists, and not any(): nearly every line has one request, for which a generator takes longer than the question.
    if [request for request in requests if (request.request_id or "").startswith(HEALTH_PREFIX)]:
        return Reason.HEALTH, ""
    if not [request for request in requests if is_prefill(request)]:
        # In the documented form a speculative decode is called a prefill, so only its phase tells the two apart.
        if any(request.drafts for request in requests) or (line.phase == "prefill" and _documented(requests)):
            return (Reason.SPECULATIVE, "") if len(requests) > 1 or requests[0].drafts else (Reason.CHUNKED, "")
        return Reason.DECODE, ""
    if len(requests) > 1:
        return Reason.SEVERAL_REQUESTS, _several(requests)
    return judge_prefill(requests[0])


def judge_prefill(request: Request) -> Judgement | None:
    """Why one request's prefill is not its whole prompt; None if it is, or if the line does not tell."""
    if request.resumed:
        return Reason.RESUMED, ""
    if request.phase is None:  # the documented form
        return None
    if request.prompt_length is None:
        return Reason.NO_TOKENS, ""
    if request.computed and request.type == "new":
        return _with_numbers((Reason.PREFIX_CACHE, ""), (request,))
    if request.type == "cached" or request.tokens != request.prompt_length:
        return _with_numbers((Reason.CHUNKED, ""), (request,))
    return None


def judge_training(line: LogLine) -> Judgement | None:
    """Why a training forward is no log_prob of one prompt; None if it may be."""
    early = _outcome(line)
    if early is not None:
        return early
    if line.phase not in (None, "log_prob"):
        return Reason.PHASE, f"it is {line.phase}"
    if len(line.requests) == 1 and line.requests[0].request_id is not None:
        return None  # as most lines are
    if len(line.requests) > 1:
        hashes = {request.prompt_hash for request in line.requests}
        if None in hashes or len(hashes) > 1 or any(request.request_id for request in line.requests):
            return Reason.SEVERAL_IDS, f"{len(line.requests)} of them"
    if all(request.request_id is None and request.prompt_hash is None for request in line.requests):
        return Reason.NO_ID, "the rollout did not hand the request id on"
    return None


def is_prefill(request: Request) -> bool:
    """Whether a request computes its prompt in this forward: as the line says, else if it is new."""
    return request.phase == "prefill" if request.phase is not None else request.type == "new"


def _outcome(line: LogLine) -> Judgement | None:
    if line.invalid:
        return Reason.FAILED, "its dump was set aside as invalid"
    if line.skipped is not None:
        return _SKIPPED.get(line.skipped, (Reason.SKIPPED, line.skipped))
    return None


def _documented(requests: Sequence[Request]) -> bool:
    return all(request.phase is None for request in requests)


def _with_numbers(judgement: Judgement, requests: Sequence[Request]) -> Judgement:
    """A judgement whose detail has the line's numbers, where it has none yet."""
    reason, detail = judgement
    if detail or not requests:
        return judgement
    if reason is Reason.SEVERAL_REQUESTS:
        return reason, _several(requests)
    request = requests[0]
    if reason is Reason.PREFIX_CACHE and request.computed:
        return reason, f"{request.computed} tokens came from the prefix cache"
    if reason is Reason.CHUNKED and request.tokens is not None and request.prompt_length is not None:
        return reason, f"{request.tokens} of {request.prompt_length} tokens in this step"
    return judgement


def _several(requests: Sequence[Request]) -> str:
    decodes = sum(not is_prefill(request) for request in requests)
    text = f"{len(requests)} requests"
    return f"{text}, {decodes} of them decoding" if decodes else text
