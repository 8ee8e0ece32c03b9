"""Stand-in for torchvision, whose image decoder SGLang imports for every model; a call of anything in it fails by name.

The registry's torchvision is built for one release of torch and its CUDA build, and does not import beside another one.
"""

from __future__ import annotations

import refusing_kernels

__getattr__ = refusing_kernels.refusing(__name__)
refusing_kernels.serve_submodules(__name__)
