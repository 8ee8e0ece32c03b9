"""``torch.npu`` of the CPU stand-in: one idle queue, and a memory that is only counted.

``ASCEND_CPU_DEVICES`` (default 1) is the number of cards that are said to be there.
"""

# the signatures are those of the operators that this stands for

from __future__ import annotations

import contextlib
import itertools
import os
import types
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

#: The first number of the A2 series, which the registry's wheels of vllm-ascend are built for.
_SOC_A2 = 220
_TOTAL = 512 << 20
_shrinking = itertools.count(1)
_current = 0


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"the CPU stand-in for torch_npu has no 'npu.{name}'")


class Event:
    """An event that has always happened."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def record(self, stream: object = None) -> None:
        """Do nothing: work is done when it is asked for."""

    def wait(self, stream: object = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Say that it has happened."""
        return True


class Stream:
    """A queue of work that is always done."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def wait_stream(self, stream: object) -> None:
        """Do nothing."""

    def wait_event(self, event: object) -> None:
        """Do nothing."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return the event, which has happened."""
        return event or Event()

    def synchronize(self) -> None:
        """Do nothing."""


class _NoGraph:
    """Named in annotations; a graph cannot be captured here."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("the CPU stand-in has no graphs: use enforce_eager=True")


ExternalEvent = NPUGraph = _NoGraph

_stream = Stream()
config = types.SimpleNamespace(allow_internal_format=False)
# Named in annotations of the sleep mode, which is not written here.
memory = types.SimpleNamespace(NPUPluggableAllocator=object, MemPool=object)


def is_available() -> bool:
    """Say yes."""
    return True


def is_initialized() -> bool:
    """Say yes."""
    return True


def device_count() -> int:
    """Return ``ASCEND_CPU_DEVICES``."""
    return int(os.environ.get("ASCEND_CPU_DEVICES", "1"))


def set_device(device: Any) -> None:
    """Do nothing: every card is the host."""


def current_device() -> torch.device:
    """Return the host: what is made "on the current device" is a CPU tensor."""
    return torch.device("cpu")


def get_device_name(device: object = None) -> str:
    """Name what this is."""
    return "CPU stand-in for an Ascend NPU"


def get_soc_version() -> int:
    """Return the number of an A2."""
    return _SOC_A2


def current_stream(device: object = None) -> Stream:
    """Return the one queue."""
    return _stream


default_stream = current_stream


def set_stream(stream: object) -> None:
    """Do nothing."""


@contextlib.contextmanager
def stream(stream: object) -> Iterator[None]:
    """Do nothing."""
    yield


@contextlib.contextmanager
def device(device: object) -> Iterator[None]:
    """Do nothing."""
    yield


def synchronize(device: object = None) -> None:
    """Do nothing: work is done when it is asked for."""


def is_current_stream_capturing() -> bool:
    """Say no."""
    return False


def empty_cache() -> None:
    """Do nothing."""


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Return free and total bytes; each call finds a little less, as NPUWorker expects after its profile run."""
    return _TOTAL - (next(_shrinking) << 20), _TOTAL


def memory_stats(device: object = None) -> dict[str, int]:
    """Return nothing counted."""
    return {}


def memory_reserved(device: object = None) -> int:
    """Return 0."""
    return 0


def max_memory_allocated(device: object = None) -> int:
    """Return 0."""
    return 0


def memory_allocated(device: object = None) -> int:
    """Return 0."""
    return 0


def reset_peak_memory_stats(device: object = None) -> None:
    """Do nothing."""


def set_compile_mode(jit_compile: bool = False) -> None:
    """Do nothing."""


def _is_in_bad_fork() -> bool:
    """Say no: there is no device to lose. torch asks before it seeds."""
    return False


def manual_seed(seed: int) -> None:
    """Seed nothing: the host's generator is torch's own."""


manual_seed_all = manual_seed


def get_rng_state_all() -> list[Any]:
    """Return no state: the cards have none of their own."""
    return []


def set_rng_state_all(states: list[Any]) -> None:
    """Do nothing."""
