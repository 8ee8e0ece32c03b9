"""Stand-in for torchao, which SGLang 0.5.8 imports before it finds that nothing is to be quantized."""

from __future__ import annotations

import refusing_kernels

__getattr__ = refusing_kernels.refusing(__name__)
refusing_kernels.serve_submodules(__name__)
