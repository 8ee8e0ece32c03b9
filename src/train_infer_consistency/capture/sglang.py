"""SGLang's ModelRunner: a dump of each real prompt prefill, and a line for every forward.

A real prompt prefill is mode EXTEND of one request with its whole prompt, nothing of it from the prefix
cache, no health probe and no draft model; whatever else passes through the runner has another input than the
training side's prompt.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate, pairwise
from typing import Any

from train_infer_consistency.capture.log import DISPATCH_LOG, prompt_hash, request_phase, world_size
from train_infer_consistency.capture.session import Session, find_session
from train_infer_consistency.capture.session import open_session as _open_session
from train_infer_consistency.capture.switches import CaptureError, switches

#: What the request ids of ``/health_generate`` begin with in every SGLang version.
HEALTH_PREFIX = "HEALTH_CHECK"
_PREFILLS = frozenset({"EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND"})
_MODES = {
    "DECODE": "decode",
    "IDLE": "idle",
    "MIXED": "packed",
    "TARGET_VERIFY": "speculative",
    "DRAFT_EXTEND": "draft",
    "DRAFT_EXTEND_V2": "draft",
}
_WEIGHT_UPDATES = tuple(f"update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc"))


class SglangSession(Session):
    """The session of the runners of one scheduler process."""

    def __init__(self, debugger: Any, runner: Any) -> None:
        super().__init__(debugger, "sglang")
        self._weight_updates = 0
        self._seen: set[str] = set()
        self._chunk_end: int | None = None
        for name in _WEIGHT_UPDATES:
            self._count_updates(runner, name)

    @contextmanager
    def around(self, runner: Any, region: AbstractContextManager[Any], forward_batch: Any) -> Iterator[Any]:
        """Make the runner's forward one forward of the session.

        Args:
            runner: the ModelRunner, which may be the draft worker's.
            region: upstream's own context manager around the forward; its value is passed on.
            forward_batch: the ``ForwardBatch``.
        """
        line = self._describe(forward_batch)
        skipped = self._why_not(runner, forward_batch, line)
        self._remember(line, skipped)
        if skipped not in (None, "draft", "idle") and switches().dump_all:
            skipped = None
        with (
            region as value,
            self.recording(line, skipped, model=runner.model, rank_id=runner.gpu_id),
        ):
            yield value

    def _describe(self, batch: Any) -> dict[str, Any]:
        mode = batch.forward_mode.name
        entries = list(_extended(batch) if mode in _PREFILLS else _decoded(batch))
        prefill = any(entry["phase"] == "prefill" for entry in entries)
        return {
            "phase": "prefill" if prefill else "decode",
            "total_num_scheduled_tokens": sum(entry["tokens"] for entry in entries),
            "requests": entries,
            "forward_mode": mode,
            "weight_version": self._weight_updates,
        }

    def _why_not(self, runner: Any, batch: Any, line: dict[str, Any]) -> str | None:
        """Why a forward is no real prompt prefill; None if it is."""
        mode, entries = batch.forward_mode.name, line["requests"]
        if runner.is_draft_worker:
            return "draft"
        if any((entry["request_id"] or "").startswith(HEALTH_PREFIX) for entry in entries):
            return "health"
        if mode != "EXTEND":
            return _MODES.get(mode) or str(mode).lower()
        if len(entries) != 1:
            return "packed"
        (entry,) = entries
        if entry["computed_tokens"]:
            return "chunked" if entry["computed_tokens"] == self._chunk_end else "cached-prefix"
        if entry["request_id"] in self._seen:
            return "resumed"
        if entry["tokens"] != entry["prompt_length"]:
            return "chunked"
        return "too-short" if entry["tokens"] < switches().min_dump_tokens else None

    def _remember(self, line: dict[str, Any], skipped: str | None) -> None:
        if skipped == "draft":
            # It repeats what its target computes, and lies between two chunks of it.
            return
        self._chunk_end = None
        for entry in line["requests"] if line["phase"] == "prefill" else ():
            if entry["request_id"] is not None:
                # A request that was pushed out of memory comes back as one prefill of prompt and output.
                self._seen.add(entry["request_id"])
            end = entry["computed_tokens"] + entry["tokens"]
            if end < (entry["prompt_length"] or 0):
                self._chunk_end = end

    def _count_updates(self, runner: Any, name: str) -> None:
        update = getattr(runner, name, None)
        if update is None:
            return

        @functools.wraps(update)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._weight_updates += 1
            return update(*args, **kwargs)

        setattr(runner, name, counted)


def open_session(runner: Any) -> SglangSession | None:
    """Open the session of a scheduler process at the end of its ModelRunner's construction.

    Args:
        runner: the ModelRunner; a draft worker's joins the session of its target, or has none.

    Returns:
        The session, or None where SGLANG_MSPROBE_DUMP is off.

    Raises:
        CaptureError: graphs are on, MSPROBE_GENERATE_CONFIG is unset, or anything of
            :func:`~.session.open_session`.
    """
    if not switches().sglang_dump:
        return None
    if runner.is_draft_worker:
        return find_session(SglangSession)
    path = switches().generate_config
    if path is None:
        raise CaptureError(
            "SGLANG_MSPROBE_DUMP is set, MSPROBE_GENERATE_CONFIG is not",
            "set it to the inference side's msprobe JSON file",
        )
    _refuse_graphs(runner)
    session, new = _open_session(
        lambda debugger: SglangSession(debugger, runner),
        path,
        "MSPROBE_GENERATE_CONFIG",
        switches().seed_or_default(),
    )
    if new:
        session.open_log(DISPATCH_LOG, "dispatch_logger", _parallel(runner), dumps=session.root, rank_id=runner.gpu_id)
    return session


def _refuse_graphs(runner: Any) -> None:
    args = runner.server_args
    if runner.device == "cpu":
        return
    if not args.disable_cuda_graph:
        raise CaptureError("a dump needs eager mode, and graphs are on", "start SGLang with --disable-cuda-graph")
    # 0.5.6 to 0.5.9 have it off by default; from 0.5.10 on it is on, and --disable-cuda-graph leaves it on.
    piecewise = getattr(args, "enable_piecewise_cuda_graph", not getattr(args, "disable_piecewise_cuda_graph", True))
    if piecewise and runner.device == "cuda":
        raise CaptureError(
            "the prefill would run as a piecewise graph, in which msprobe sees almost nothing",
            "start SGLang with --disable-piecewise-cuda-graph, or without --enable-piecewise-cuda-graph",
        )


def _parallel(runner: Any) -> dict[str, Any]:
    args = runner.server_args
    names = ("tp_rank", "tp_size", "pp_rank", "pp_size", "gpu_id")
    return {
        "world_size": world_size(),
        **{name: getattr(runner, name, None) for name in names},
        "dp_size": args.dp_size,
        # Then the MLP of every rank sees all ranks' tokens.
        "dp_attention": bool(args.enable_dp_attention),
        "node_rank": args.node_rank,
        "port": args.port,
    }


def _extended(batch: Any) -> Iterator[dict[str, Any]]:
    """The requests of a batch that computes several tokens of each."""
    lengths, prefixes = list(batch.extend_seq_lens_cpu), list(batch.extend_prefix_lens_cpu)
    ids = [] if batch.input_ids is None else batch.input_ids.tolist()
    wholes = _tolist(batch.orig_seq_lens) or [None] * len(lengths)
    spans = pairwise(accumulate(lengths, initial=0))
    for rid, tokens, computed, whole, (begin, end) in zip(
        _rids(batch, len(lengths)), lengths, prefixes, wholes, spans, strict=True
    ):
        complete = computed == 0 and tokens == whole
        yield {
            "request_id": rid,
            "type": "cached" if computed else "new",
            "tokens": tokens,
            "phase": request_phase(computed, whole, 0),
            "computed_tokens": computed,
            "prompt_length": whole,
            "prompt_hash": prompt_hash(ids[begin:end]) if complete else None,
        }


def _decoded(batch: Any) -> Iterator[dict[str, Any]]:
    count = batch.batch_size
    # One token each, or as many as a draft proposed for each.
    tokens = 0 if batch.input_ids is None or not count else len(batch.input_ids) // count
    for rid in _rids(batch, count):
        yield {
            "request_id": rid,
            "type": "cached",
            "tokens": tokens,
            "phase": "decode",
            "computed_tokens": None,
        }


def _rids(batch: Any, count: int) -> list[str | None]:
    # SGLang's from 0.5.10 on, before by an edit; padding for attention parallelism may add requests without one.
    rids = list(getattr(batch, "rids", None) or [])
    return (rids + [None] * count)[:count]


def _tolist(tensor: Any) -> list[Any]:
    return [] if tensor is None else list(tensor.tolist())
