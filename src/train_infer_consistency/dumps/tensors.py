"""The elements of dumped tensors as numpy arrays, without torch; needs the extra ``analysis`` (numpy)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import EvidenceError
from .pickled import StoredTensor, read_stored
from .records import FOLDER, Leaf

if TYPE_CHECKING:
    import numpy as np

# What numpy has itself.
_PLAIN = frozenset(
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)


@dataclass(frozen=True)
class TensorData:
    """A tensor's elements.

    Attributes:
        dtype: as msprobe writes it, ``torch.bfloat16``.
        array: read-only, in the tensor's shape. bfloat16 comes as float32, which holds each value exactly.
    """

    dtype: str
    array: np.ndarray[Any, Any]


def read_leaf(rank_folder: Path, leaf: Leaf) -> TensorData:
    """The elements of a leaf.

    Args:
        rank_folder: the folder of its ``dump.json``. The path in that file is one of the machine that dumped.
        leaf: with a file.

    Raises:
        EvidenceError: it has no file, numpy is missing, or the file is missing, damaged or not what the leaf says.
    """
    if leaf.file is None:
        raise EvidenceError(f"a tensor of {rank_folder} has no file", "dump with task: tensor")
    if not leaf.file.isprintable() or leaf.file in (".", "..") or "/" in leaf.file or "\\" in leaf.file:
        raise EvidenceError(f"{rank_folder}: {leaf.file[:80]!r} is no name of a file in {FOLDER}")
    path = rank_folder / FOLDER / leaf.file
    tensor = read_tensor(path)
    shape = tensor.array.shape
    if tensor.dtype != leaf.dtype or shape != leaf.shape:
        raise EvidenceError(
            f"{path} holds {tensor.dtype} {list(shape)}, its dump.json says {leaf.dtype} {list(leaf.shape)}",
            "the two are of different steps: copy or dump the step again",
        )
    return tensor


def read_tensor(path: Path) -> TensorData:
    """The elements of a ``.pt`` file that holds one tensor.

    Raises:
        EvidenceError: numpy is missing, or the file is missing, damaged or not a tensor of a plain type.
    """
    try:
        import numpy as np
    except ImportError:
        raise EvidenceError("reading tensors needs numpy", "install train-infer-consistency[analysis]") from None
    stored = read_stored(path)
    flat = _elements(np, stored)
    if flat is None:
        raise EvidenceError(f"{path} is not read: its elements are torch.{stored.dtype[:40]}")
    # All that can be reached: nothing where a size is 0.
    steps = [(size - 1) * stride for size, stride in zip(stored.shape, stored.strides, strict=True)]
    last = stored.offset + sum(steps) if prod(stored.shape) else -1
    if last >= flat.size:
        raise EvidenceError(f"{path} is damaged: its tensor reaches behind its storage", "copy or dump it again")
    if last < 0:
        return TensorData(f"torch.{stored.dtype}", np.empty(stored.shape, flat.dtype))
    strides = tuple(stride * flat.itemsize for stride in stored.strides)
    try:
        view = np.lib.stride_tricks.as_strided(flat[stored.offset :], stored.shape, strides, writeable=False)
    except (ValueError, MemoryError, OverflowError):
        raise EvidenceError(f"{path} is damaged: its shape is impossible", "copy or dump it again") from None
    return TensorData(f"torch.{stored.dtype}", view)


def _elements(np: Any, stored: StoredTensor) -> Any:
    """The storage as a flat array; None where its element type is not known."""
    sign = "<" if stored.little else ">"
    if stored.dtype == "bool":
        return np.frombuffer(stored.data, "u1") != 0
    if stored.dtype == "bfloat16":
        halves = np.frombuffer(_whole(stored.data, 2), f"{sign}u2")
        return (halves.astype("u4") << 16).view("f4")
    if stored.dtype not in _PLAIN:
        return None
    kind = np.dtype(stored.dtype).newbyteorder(sign)
    return np.frombuffer(_whole(stored.data, kind.itemsize), kind).astype(kind.newbyteorder("="), copy=False)


def _whole(data: bytes, size: int) -> bytes:
    """Only whole elements: a storage may be longer than its tensor."""
    return data[: len(data) - len(data) % size]
