"""What kernels are written in; only its constants are made outside of one."""

from __future__ import annotations

import refusing_kernels

__getattr__ = refusing_kernels.refusing(__name__)


class constexpr:  # noqa: N801
    """A constant of a kernel."""

    def __init__(self, value: object) -> None:
        self.value = value
