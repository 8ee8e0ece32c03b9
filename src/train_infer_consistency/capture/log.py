"""The two request logs, ``dispatch_log.jsonl`` and ``update_actor_log.jsonl``: a JSON line for each forward.

All fields the published procedures document are there in their documented meaning; the others are what
pairing needs. Where nothing was dumped ``step`` is null and ``skipped`` says why.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_infer_consistency.capture.folders import host_name
from train_infer_consistency.capture.switches import CaptureError

DISPATCH_LOG = "dispatch_log.jsonl"
UPDATE_ACTOR_LOG = "update_actor_log.jsonl"

# The records are trees made here: looking for cycles in 512 requests' entries would cost a tenth of the line.
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def prompt_hash(token_ids: Iterable[int]) -> str:
    """Name a prompt by its tokens: sha256 of the ids as little-endian int64, its first 16 hex digits."""
    ids = array("q", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return hashlib.sha256(ids).hexdigest()[:16]


def request_phase(computed: int, prompt_length: int | None, output_tokens: int | None) -> str:
    """What a request does in a forward: ``prefill`` while prompt tokens are left to compute, else ``decode``.

    Decided from the tokens alone, because an engine's batch-wide attention state calls a one-token prefill a
    decode and a speculative decode a prefill.

    Args:
        computed: tokens of the request that are in the cache already.
        prompt_length: tokens of its prompt; None if this process never learned it.
        output_tokens: tokens it has generated; None if the engine does not say.
    """
    if prompt_length is not None:
        return "prefill" if computed < prompt_length else "decode"
    return "decode" if output_tokens else "prefill"


def distributed_rank() -> int | None:
    """The rank in torch.distributed; None where torch is not loaded or not initialised."""
    group = _distributed()
    return None if group is None else int(group.get_rank())


def world_size() -> int:
    """The number of ranks in torch.distributed; 1 where it is not initialised."""
    group = _distributed()
    return 1 if group is None else int(group.get_world_size())


def megatron_parallel() -> dict[str, Any]:
    """Sizes and ranks of Megatron's parallel groups; empty where Megatron is not initialised."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    names = {
        "tp": "tensor_model_parallel",
        "pp": "pipeline_model_parallel",
        "cp": "context_parallel",
        "dp": "data_parallel",
    }
    return {
        f"{short}_{what}": getattr(state, f"get_{name}_{call}")()
        for short, name in names.items()
        for what, call in (("rank", "rank"), ("size", "world_size"))
    }


def identity(source: str, engine: str, rank: int | None, parallel: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The fields that are the same in every line of one process.

    Args:
        source: ``dispatch_logger`` or ``update_actor``, as documented.
        engine: which engine this is, such as ``vllm-ascend`` or ``verl-fsdp``.
        rank: the distributed rank; None is written as 0, as documented.
        parallel: sizes and ranks of the engine's own parallelism.
        more: further constants, such as run_id and the versions.
    """
    return {
        "source": source,
        "pid": os.getpid(),
        "rank": rank or 0,
        "engine": engine,
        "host": host_name(),
        "replica": os.environ.get("VERL_REPLICA_RANK"),
        "parallel": dict(parallel),
        **more,
    }


class JsonLines:
    """A new JSONL file that only this object writes to; one line is one write, so a kill leaves whole lines.

    Args:
        path: the file; it must not exist.
        constants: fields that every line repeats, encoded once.

    Raises:
        CaptureError: the file exists or cannot be made.
    """

    def __init__(self, path: Path, constants: Mapping[str, Any]) -> None:
        self.path = path
        self._head = _encode(dict(constants)).encode()[:-1] + b","
        try:
            self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise CaptureError(
                f"{path} cannot be made ({error.strerror})",
                "a dump without its log is useless: use another dump_path",
            ) from None
        self._size = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line: the constants, a timestamp, then ``record``.

        Raises:
            CaptureError: it could not be written whole; the file ends with the last whole line then.
        """
        if self._descriptor is None:
            raise CaptureError(f"{self.path} is closed")
        stamped = {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime()), **record}
        line = self._head + _encode(stamped).encode()[1:] + b"\n"
        try:
            written = os.write(self._descriptor, line)
            reason = "the disk is full"
        except OSError as error:
            written, reason = 0, error.strerror or str(error)
        if written != len(line):
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise CaptureError(
                f"a line of {self.path} could not be written ({reason})",
                "a dump without its log is useless: make room, and start the run anew in another dump_path",
            )
        self._size += written

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _distributed() -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
