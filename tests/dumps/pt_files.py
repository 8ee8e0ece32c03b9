"""Files as ``torch.save`` writes them, made without torch: damaged, foreign and hostile ones too."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

Value = object


class Global(tuple[str, str]):
    """A name in a pickle."""

    __slots__ = ()


class Call(tuple[Global, tuple[Value, ...]]):
    """A call in a pickle."""

    __slots__ = ()


class Persistent(tuple[Value, ...]):
    """A reference to a storage in a pickle."""

    __slots__ = ()


def pickled(value: Value) -> bytes:
    """A pickle of protocol 2 of one value."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Value) -> bytes:
    if isinstance(value, Global):
        return f"c{value[0]}\n{value[1]}\n".encode()
    if isinstance(value, Call):
        return _opcodes(value[0]) + _opcodes(value[1]) + b"R"
    if isinstance(value, Persistent):
        return _opcodes(tuple(value)) + b"Q"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data
    if isinstance(value, str):
        return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()
    assert isinstance(value, tuple)
    return b"(" + b"".join(map(_opcodes, value)) + b"t"


HOOKS = Call((Global(("collections", "OrderedDict")), ()))


def tensor(
    storage: str,
    numel: int,
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    offset: int = 0,
    key: str = "0",
) -> Call:
    """What ``torch.save`` pickles of a tensor: a rebuild of a view of storage ``key``."""
    identity = Persistent(("storage", Global(("torch", storage)), key, "cpu", numel))
    view = (identity, offset, tuple(shape), tuple(contiguous(shape) if strides is None else strides))
    return Call((Global(("torch._utils", "_rebuild_tensor_v2")), (*view, False, HOOKS)))


def contiguous(shape: Sequence[int]) -> list[int]:
    """The strides of a tensor without gaps."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return strides


def write(
    path: Path,
    pickle: bytes,
    storages: dict[str, bytes],
    *,
    byteorder: str | None = "little",
    prefix: str = "archive",
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """Write an archive with torch's members."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{prefix}/data.pkl", pickle)
        if byteorder is not None:
            archive.writestr(f"{prefix}/byteorder", byteorder)
        for key, data in storages.items():
            archive.writestr(f"{prefix}/data/{key}", data)
        archive.writestr(f"{prefix}/version", "3\n")
    return path
