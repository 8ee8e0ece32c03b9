"""A checkpoint engine for verl that sends weights between two processes of one host: its own ones need an accelerator.

verl loads it by name: ``checkpoint_engine.backend=zmq`` and ``checkpoint_engine.custom_backend_module=verl_cpu.sync``.
One trainer rank sends to one rollout rank, tensor by tensor, in the type that the trainer hands over.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import zmq.asyncio
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator


@CheckpointEngineRegistry.register("zmq")
class ZmqCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """A socket that is opened anew for each update.

    Args:
        bucket_size: not used; the tensors are small.
        is_master: whether this is the sender, as verl says it to the trainer's rank 0.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._sends = is_master
        self._socket: Any = None

    def prepare(self) -> dict[str, Any]:
        """Open the socket; return where the sender's is."""
        self._socket = zmq.asyncio.Context.instance().socket(zmq.PUSH if self._sends else zmq.PULL)
        if not self._sends:
            return {}
        return {"address": f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"}

    @classmethod
    def build_topology(
        cls, trainer_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tell the rollout where the sender is; ``metadata`` is what ``prepare`` returned, the trainer's first."""
        if (trainer_world_size, rollout_world_size) != (1, 1):
            raise NotImplementedError("one trainer rank and one rollout rank")
        return {"address": [None]}, {"address": [metadata[0]["address"]]}

    def init_process_group(self, address: str | None) -> None:
        """Connect; ``address`` is None for the sender."""
        if address is not None:
            self._socket.connect(address)

    def finalize(self) -> None:
        """Close the socket once all is sent."""
        self._socket.close(linger=-1)

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Send each tensor with its name, then None."""
        async for name, tensor in ensure_async_iterator(weights):
            await self._socket.send_pyobj((name, tensor.detach().cpu().contiguous()))
        await self._socket.send_pyobj(None)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield what was sent."""
        while (received := await self._socket.recv_pyobj()) is not None:
            yield received
