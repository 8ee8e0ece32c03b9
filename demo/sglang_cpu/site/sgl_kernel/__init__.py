"""Stand-in for SGLang's compiled kernels, which SGLang imports whatever the device; a call of one fails by name."""

from __future__ import annotations

import refusing_kernels

__getattr__ = refusing_kernels.refusing(__name__)
refusing_kernels.serve_submodules(__name__)
