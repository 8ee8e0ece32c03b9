"""Stand-in for Triton, whose kernels SGLang defines whatever the device; the real one takes a gigabyte and no CPU.

Definitions go through (``@triton.jit``, ``@triton.autotune``); a launch fails with the kernel's name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import refusing_kernels

__version__ = "0"
__getattr__ = refusing_kernels.refusing(__name__)
refusing_kernels.serve_submodules(__name__)


def jit(kernel: Any = None, **_options: object) -> Any:
    """Define a kernel; with and without options, as Triton's."""
    return jit if kernel is None else refusing_kernels.Refusing(f"Triton's {kernel.__module__}.{kernel.__qualname__}")


def autotune(*_arguments: object, **_options: object) -> Callable[[Any], Any]:
    """Leave a kernel as it is."""
    return lambda kernel: kernel


heuristics = autotune


class Config(dict[str, Any]):
    """A choice of block sizes, which nobody reads."""

    def __init__(self, *_arguments: object, **options: object) -> None:
        super().__init__(options)


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()
