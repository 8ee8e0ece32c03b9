"""Seeds, deterministic mode and random state: set for a dump, and kept around a pass that was added.

torch is looked up, never imported, in the functions that only keep a state: a process without torch has none.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# What msprobe's seed_all writes into the environment (26.2.0).
_VARIABLES = (
    "PYTHONHASHSEED",
    "HCCL_DETERMINISTIC",
    "LCCL_DETERMINISTIC",
    "CLOSE_MATMUL_K_SHIFT",
    "ATB_LLM_LCOC_ENABLE",
    "CUBLAS_WORKSPACE_CONFIG",
)


def seed_everything(seed: int) -> None:
    """Seed all generators through msprobe and turn deterministic algorithms on, without two of their harms.

    A missing deterministic kernel only warns: a sampler's cumsum must not end the run. And fresh memory is not filled:
    torch would put NaN into padding rows and unused slots, which then show in every maximum and mean.
    """
    importlib.import_module("msprobe.pytorch").seed_all(seed=seed, mode=True)
    torch = importlib.import_module("torch")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Give every generator, on all devices, back the state it had on entry, also after an exception."""
    restores = [*_random_states()]
    try:
        yield
    finally:
        for restore in restores:
            restore()


@contextmanager
def kept_determinism() -> Iterator[None]:
    """Restore the deterministic settings that :func:`seed_everything` changes, also after an exception."""
    restores = [*_deterministic_settings()]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def _random_states() -> Iterator[Callable[[], None]]:
    python = random.getstate()
    yield lambda: random.setstate(python)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state()
        yield lambda: numpy.random.set_state(state)
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    cpu = torch.get_rng_state()
    yield lambda: torch.set_rng_state(cpu)
    for name in ("cuda", "npu"):
        device: Any = getattr(torch, name, None)
        if device is not None and device.is_available():
            yield _device_restore(device, device.get_rng_state_all())


def _device_restore(device: Any, states: Any) -> Callable[[], None]:
    return lambda: device.set_rng_state_all(states)


def _deterministic_settings() -> Iterator[Callable[[], None]]:
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    yield lambda: _restore_environment(variables)
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    on, warn = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    yield lambda: torch.use_deterministic_algorithms(on, warn_only=warn)
    for owner, name in (
        (torch.utils.deterministic, "fill_uninitialized_memory"),
        (torch.backends.cudnn, "deterministic"),
        (torch.backends.cudnn, "benchmark"),
    ):
        yield _attribute_restore(owner, name, getattr(owner, name))


def _attribute_restore(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _restore_environment(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
