"""vLLM's and vllm-ascend's runners: a session in the debugger's place, and a line for each forward.

Only a forward of one whole prompt is dumped, unless CONSISTENCY_DUMP_ALL asks for more: everything else a rollout does
could not be compared with the training side and would fill the disk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from train_infer_consistency.capture.folders import process_folder
from train_infer_consistency.capture.log import (
    DISPATCH_LOG,
    JsonLines,
    identity,
    prompt_hash,
    request_phase,
    world_size,
)
from train_infer_consistency.capture.session import Make, Session, why_filtered
from train_infer_consistency.capture.session import open_session as _open_session
from train_infer_consistency.capture.switches import CaptureError, parse_switch, switches

CONFIG_KEY = "dump_config_path"
_NO_REQUESTS: dict[str, Any] = {"phase": None, "total_num_scheduled_tokens": 0, "requests": []}


class Requests:
    """What a worker knows about its requests: vLLM tells a prompt once, later steps refer to it by id."""

    def __init__(self) -> None:
        self._prompt_lengths: dict[str, int | None] = {}

    def describe(self, scheduler_output: Any) -> dict[str, Any]:
        """The documented fields of one ``SchedulerOutput``, and what each request does in this forward.

        A request's entry has ``request_id``, ``type`` (``new`` or ``cached``) and ``tokens`` as documented,
        and ``phase``, ``computed_tokens`` (in the cache before this forward) and ``prompt_length``; a new one
        ``prompt_hash``; ``resumed`` and ``draft_tokens`` appear where they are not false and not 0.
        """
        entries = [*self._new(scheduler_output), *self._cached(scheduler_output)]
        for request_id in scheduler_output.finished_req_ids:
            # A request may finish and its id be scheduled anew in one message.
            if request_id not in scheduler_output.num_scheduled_tokens:
                self._prompt_lengths.pop(request_id, None)
        prefill = any(entry["phase"] == "prefill" for entry in entries)
        return {
            "phase": "prefill" if prefill else "decode",
            "total_num_scheduled_tokens": scheduler_output.total_num_scheduled_tokens,
            "requests": entries,
        }

    def _new(self, scheduler_output: Any) -> Iterator[dict[str, Any]]:
        scheduled = scheduler_output.num_scheduled_tokens
        for request in scheduler_output.scheduled_new_reqs:
            ids = request.prompt_token_ids
            length = None if ids is None else len(ids)
            self._prompt_lengths[request.req_id] = length
            yield {
                "request_id": request.req_id,
                "type": "new",
                "tokens": scheduled.get(request.req_id, 0),
                "phase": request_phase(request.num_computed_tokens, length, 0),
                "computed_tokens": request.num_computed_tokens,
                "prompt_length": length,
                "prompt_hash": None if ids is None else prompt_hash(ids),
            }

    def _cached(self, scheduler_output: Any) -> Iterator[dict[str, Any]]:
        cached, scheduled = scheduler_output.scheduled_cached_reqs, scheduler_output.num_scheduled_tokens
        resumed = _resumed(cached)
        drafts: Mapping[str, list[int]] = getattr(scheduler_output, "scheduled_spec_decode_tokens", None) or {}
        outputs = getattr(cached, "num_output_tokens", None) or [None] * len(cached.req_ids)
        lengths = self._prompt_lengths
        for request_id, computed, output in zip(cached.req_ids, cached.num_computed_tokens, outputs, strict=True):
            length = lengths.get(request_id)
            entry = {
                "request_id": request_id,
                "type": "cached",
                "tokens": scheduled.get(request_id, 0),
                "phase": request_phase(computed, length, output),
                "computed_tokens": computed,
                "prompt_length": length,
            }
            if request_id in resumed:
                entry["resumed"] = True
            if request_id in drafts:
                entry["draft_tokens"] = len(drafts[request_id])
            yield entry


def why_not_whole_prompt(line: Mapping[str, Any]) -> str | None:
    """Why a forward is not one whole prompt's prefill; None if it is.

    Args:
        line: what :meth:`Requests.describe` gave.
    """
    entries = line["requests"]
    if not entries:
        return "dummy"
    if line["phase"] == "decode":
        return "speculative" if any(entry.get("draft_tokens") for entry in entries) else "decode"
    if len(entries) > 1:
        return "packed"
    (entry,) = entries
    if entry.get("resumed"):
        return "resumed"
    if entry["prompt_length"] is None:
        return "no-prompt-tokens"
    if entry["type"] == "new" and entry["computed_tokens"]:
        return "cached-prefix"
    if entry["type"] == "cached" or entry["tokens"] != entry["prompt_length"]:
        return "chunked"
    return None


class DispatchLogger:
    """The published procedure's logger: a line for each forward in ``{dump_path}/{pid}/dispatch_log.jsonl``.

    Args:
        dump_path: the folder the msprobe file names.
        pid: this process; where its folder is taken, ``<host>-<pid>`` takes its place.
        rank: the distributed rank.
        log: a session's open file, for the logger to write to in place of one of its own.
    """

    def __init__(self, dump_path: str, pid: int, rank: int = 0, *, log: JsonLines | None = None) -> None:
        self._requests = Requests()
        self._next = 0
        if log is None:
            constants = identity("dispatch_logger", "vllm", rank, {}, run_id=switches().run_id)
            log = JsonLines(process_folder(Path(dump_path), pid) / DISPATCH_LOG, constants)
        self._log = log

    def log_step(self, scheduler_output: Any, attn_state: object, step: int | None = None) -> None:
        """Write the line of one forward; call it before the debugger's ``stop``.

        Args:
            scheduler_output: the forward's ``SchedulerOutput``.
            attn_state: the runner's attention state, logged by its name; the phase comes from the tokens.
            step: msprobe's step; None to ask msprobe, or to count where there is none in this process.
        """
        skipped = None
        if step is None:
            step, skipped = self._current_step()
        outcome = {"step": step, "skipped": skipped, "attn_state": getattr(attn_state, "name", None)}
        self._log.write({**self._requests.describe(scheduler_output), **outcome})

    def _current_step(self) -> tuple[int | None, str | None]:
        module: Any = sys.modules.get("msprobe.pytorch")
        debugger = None if module is None else module.PrecisionDebugger._instance
        if debugger is None:
            self._next += 1
            return self._next - 1, None
        # Behind its step filter msprobe says the same step for ever, and dumps nothing.
        skipped = why_filtered(debugger.service)
        return None if skipped else debugger.service.current_iter, skipped

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._log.close()


class VllmSession(Session):
    """The session of one runner; it has the debugger's methods, so that the runner's own calls reach it."""

    def __init__(self, debugger: Any, engine: str, runner: Any) -> None:
        super().__init__(debugger, engine)
        self._requests = Requests()
        self._scheduled: dict[str, Any] | None = None
        self._runner = runner
        self._weight_loads = 0
        self._watched: Any = None

    def scheduled(self, scheduler_output: Any) -> None:
        """Learn what the next forward computes; one that is still open has failed before its stop."""
        self.fail()
        self._scheduled = self._requests.describe(scheduler_output)

    def start(self, model: Any = None, rank_id: int | None = None) -> None:
        """Start the forward that was scheduled; what was not scheduled is a dummy."""
        line, self._scheduled = self._scheduled, None
        if line is None:
            line = dict(_NO_REQUESTS)
        self._watch_weights()
        line["weight_version"] = self._weight_loads
        skipped = None if switches().dump_all and line["requests"] else why_not_whole_prompt(line)
        given: dict[str, Any] = {"model": model} if rank_id is None else {"model": model, "rank_id": rank_id}
        self.begin(line, skipped, **given)

    def dummy(self, tokens: int) -> None:
        """Write the line of a forward without requests, as an idle data-parallel rank and a starting engine run.

        Args:
            tokens: how many tokens it computes.
        """
        line = {**_NO_REQUESTS, "total_num_scheduled_tokens": tokens, "weight_version": self._weight_loads}
        self.leave_out(line, "dummy")

    def forward(
        self, execute_model: Callable[..., Any], runner: Any, scheduler_output: Any, *args: Any, **kw: Any
    ) -> Any:
        """Run vLLM's ``execute_model`` as one forward; a message without tokens runs none and has no line."""
        self.scheduled(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return execute_model(runner, scheduler_output, *args, **kw)
        self.start(model=runner.model)
        try:
            output = execute_model(runner, scheduler_output, *args, **kw)
            self.stop()
        except BaseException:
            self.fail()
            raise
        self.step()
        return output

    def take_over(self, runner: Any) -> None:
        """Serve another runner: a second engine of one process, after the first is gone."""
        self.fail()
        self._runner, self._requests = runner, Requests()

    def _watch_weights(self) -> None:
        """Count the loads of new weights: inside a worker nothing else tells one version from the next."""
        model = self._runner.model
        if model is self._watched or not hasattr(model, "load_weights"):
            return
        self._watched, load = model, model.load_weights

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._weight_loads += 1
            return load(*args, **kwargs)

        model.load_weights = counted


def open_session(
    runner: Any, make_debugger: Make | None = None, dump_config_path: str | None = None
) -> VllmSession | None:
    """Open the session of a runner at its construction, and set ``runner._dispatch_logger``.

    Args:
        runner: vllm-ascend's NPUModelRunner, or a runner of vLLM itself.
        make_debugger: the runner's own construction of the debugger; None to decide here whether to make one.
        dump_config_path: the msprobe file that goes with ``make_debugger``, else from vLLM's ``additional_config``.

    Returns:
        The session, or None where no dump is asked for, or where a runner from outside vLLM has a debugger of
        its own.

    Raises:
        CaptureError: graphs, the v2 runner, or anything of :func:`~.session.open_session`.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(runner).__mro__}
    engine = "vllm-ascend" if "vllm_ascend" in packages else "vllm"
    if make_debugger is None:
        dump_config_path = _additional_config(runner).get(CONFIG_KEY)
        if not dump_config_path or type(runner).__module__.partition(".")[0] != "vllm":
            return None
    if not isinstance(dump_config_path, str):
        raise CaptureError(f"{CONFIG_KEY}={dump_config_path!r} is no path", "name the msprobe JSON file")
    if parse_switch("VLLM_USE_V2_MODEL_RUNNER", os.environ.get("VLLM_USE_V2_MODEL_RUNNER")):
        raise CaptureError("the v2 model runner dumps nothing", "unset VLLM_USE_V2_MODEL_RUNNER")
    if not runner.model_config.enforce_eager:
        raise CaptureError("a dump needs eager mode, and graphs are on", "set enforce_eager=True")
    session, new = _open_session(
        lambda debugger: VllmSession(debugger, engine, runner),
        dump_config_path,
        CONFIG_KEY,
        switches().seed,
        make_debugger,
    )
    if new:
        session.open_log(DISPATCH_LOG, "dispatch_logger", _parallel(runner))
    else:
        session.take_over(runner)
    runner._dispatch_logger = DispatchLogger(str(session.root), os.getpid(), log=session.log)
    return session


def _additional_config(runner: Any) -> Mapping[str, Any]:
    config = getattr(runner.vllm_config, "additional_config", None)
    return config if isinstance(config, Mapping) else {}


def _parallel(runner: Any) -> dict[str, int]:
    config = runner.vllm_config.parallel_config
    sizes = {
        "world_size": world_size(),
        "tp_size": config.tensor_parallel_size,
        "pp_size": config.pipeline_parallel_size,
        "dp_size": config.data_parallel_size,
        "dp_rank": config.data_parallel_rank,
    }
    state: Any = sys.modules.get("vllm.distributed.parallel_state")
    for name in ("tp", "pp"):
        group = None if state is None else getattr(state, f"_{name.upper()}", None)
        if group is not None:
            sizes[f"{name}_rank"] = group.rank_in_group
    return sizes


def _resumed(cached: Any) -> frozenset[str]:
    ids = getattr(cached, "resumed_req_ids", None)
    if ids is not None:
        return frozenset(ids)
    # Before vLLM 0.14 it was a list of flags beside the ids.
    flags = getattr(cached, "resumed_from_preemption", None) or []
    return frozenset(request_id for request_id, flag in zip(cached.req_ids, flags, strict=False) if flag)
