"""What a ``torch.save`` file says about its one tensor, without unpickling: a zip archive and a dozen opcodes.

The pickle inside is walked by an interpreter of its own that can call nothing. It knows the few names below, which
stand for data; a pickle that asks for anything else is refused.
"""

from __future__ import annotations

import pickletools
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import EvidenceError

# A tensor's pickle has about 200 bytes; one of a parameter subclass some more.
_MOST_PICKLE = 1 << 16

_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "BoolStorage": "bool",
    "UntypedStorage": "",
}
_STORAGE_MODULES = ("torch", "torch.storage")
# torch_npu's own rebuild, whose storage lies on the CPU and whose last argument names the format it had on the card.
_REBUILDS = {
    ("torch._utils", "_rebuild_tensor_v2"): (6, 7),
    ("torch._utils", "_rebuild_tensor_v3"): (7, 8),
    ("torch_npu.utils.storage", "_rebuild_npu_tensor"): (7, 7),
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the file describes it, with the bytes of its storage.

    Attributes:
        dtype: the storage's element type, ``bfloat16``.
        shape: sizes.
        strides: in elements; as many as sizes.
        offset: of the first element, in elements.
        data: the storage's bytes.
        little: whether they are little-endian.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    data: bytes
    little: bool


class _Global(NamedTuple):
    """A name the pickle mentions; it stands for nothing but itself."""

    module: str
    name: str


class _Storage(NamedTuple):
    dtype: str
    key: str


class _View(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


class _RefusedError(Exception):
    """The file is damaged, or asks for what no tensor needs."""


def read_stored(path: Path) -> StoredTensor:
    """Read a file that ``torch.save`` wrote of one tensor.

    Raises:
        EvidenceError: it is missing, damaged, or holds anything but one tensor of a plain type.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            view = _walk(_member(archive, "data.pkl", _MOST_PICKLE))
            order = _member(archive, "byteorder", 16) if _has(archive, "byteorder") else b"little"
            if order not in (b"little", b"big"):
                raise _RefusedError("its byte order is neither little nor big")
            data = _member(archive, f"data/{view.storage.key}", None)
    except FileNotFoundError:
        raise EvidenceError(f"{path} is missing", "the dump was not copied whole, or msprobe left it out") from None
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read ({error.strerror or error})") from None
    except _RefusedError as error:
        raise EvidenceError(f"{path} is not read: {error}") from None
    # zipfile and struct meet a damaged archive with any of these.
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, IndexError, RuntimeError, OverflowError):
        raise EvidenceError(f"{path} is damaged", "copy it again, or dump the step again") from None
    return StoredTensor(view.dtype, view.shape, view.strides, view.offset, data, order == b"little")


def _has(archive: zipfile.ZipFile, name: str) -> bool:
    return any(member.partition("/")[2] == name for member in archive.namelist())


def _member(archive: zipfile.ZipFile, name: str, most: int | None) -> bytes:
    """The bytes of ``<anything>/name``, which must be stored as they are; their CRC is checked."""
    found = [info for info in archive.infolist() if info.filename.partition("/")[2] == name]
    if len(found) != 1:
        raise _RefusedError(f"it has {len(found)} members {name!r}, so it is no file of torch.save")
    (info,) = found
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
        raise _RefusedError(f"its member {name!r} is compressed or encrypted, which torch.save never does")
    if most is not None and info.file_size > most:
        raise _RefusedError(f"its member {name!r} has {info.file_size} bytes, more than one tensor needs")
    return archive.read(info)


def _walk(pickle: bytes) -> _View:
    """Follow a pickle's opcodes on a stack of plain values."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(pickle):
        name = opcode.name
        if name in _PUSHES:
            stack.append(_PUSHES[name](argument))
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _MEMOS:
            if _MEMOS[name]:
                memo[argument] = stack[-1]
            else:
                stack.append(memo[argument])
        elif name in _TUPLES:
            start = marks.pop() if name == "TUPLE" else len(stack) - _TUPLES[name]
            stack[start:] = [tuple(stack[start:])]
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(_rebuild(stack.pop(), arguments))
        elif name not in ("PROTO", "STOP"):
            raise _RefusedError(f"its pickle has the opcode {name}, which a tensor's has not")
    if len(stack) != 1 or not isinstance(stack[0], _View):
        raise _RefusedError("it holds something else than one tensor")
    return stack[0]


def _global(argument: Any) -> _Global:
    module, _, name = argument.partition(" ")
    return _Global(module, name)


_PUSHES: dict[str, Callable[[Any], Any]] = {
    "GLOBAL": _global,
    "BINUNICODE": lambda text: text,
    "BININT": lambda number: number,
    "BININT1": lambda number: number,
    "BININT2": lambda number: number,
    "LONG1": lambda number: number,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "NONE": lambda _: None,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_DICT": lambda _: {},
}
# True puts into the memo, False gets from it.
_MEMOS = {"BINPUT": True, "LONG_BINPUT": True, "BINGET": False, "LONG_BINGET": False}
_TUPLES = {"TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _storage(identity: Any) -> _Storage:
    """A persistent id: ('storage', its class, its key, where it lay, its length)."""
    if not (type(identity) is tuple and len(identity) == 5 and identity[0] == "storage"):
        raise _RefusedError("its pickle refers to something else than a storage")
    kind, key = identity[1], identity[2]
    if type(kind) is not _Global or kind.module not in _STORAGE_MODULES or kind.name not in _STORAGES:
        raise _RefusedError(f"its storage is of the class {_shown(kind)}, which is not read")
    if not (type(key) is str and key.isascii() and key.isdigit()):
        raise _RefusedError("its storage has no number")
    return _Storage(_STORAGES[kind.name], key)


def _rebuild(function: Any, arguments: Any) -> Any:
    """What a call means: an empty dictionary, or the tensor that its arguments describe."""
    if type(function) is not _Global or type(arguments) is not tuple:
        raise _RefusedError("its pickle calls something that is no name")
    if function == ("collections", "OrderedDict") and not arguments:
        return {}
    if function == ("torch_npu.npu._format", "Format"):
        return None
    if function == ("torch._utils", "_rebuild_parameter") and len(arguments) == 3 and type(arguments[0]) is _View:
        return arguments[0]
    least, most = _REBUILDS.get(function, (0, -1))
    if not least <= len(arguments) <= most:
        raise _RefusedError(f"its pickle calls {_shown(function)}, which is not read")
    storage, offset, shape, strides = arguments[:4]
    if type(storage) is not _Storage:
        raise _RefusedError("its tensor has no storage")
    dtype = storage.dtype
    if function.name == "_rebuild_tensor_v3":
        named = arguments[6]
        dtype = named.name if type(named) is _Global and named.module == "torch" else ""
    if not dtype:
        raise _RefusedError("its tensor has no element type")
    if not (_is_sizes(shape) and _is_sizes(strides) and len(shape) == len(strides) and _is_sizes((offset,))):
        raise _RefusedError("its shape and strides are damaged")
    return _View(storage, offset, shape, strides, dtype)


def _is_sizes(value: Any) -> bool:
    return type(value) is tuple and all(type(size) is int and 0 <= size < 1 << 60 for size in value)


def _shown(value: Any) -> str:
    return f"{value.module}.{value.name}"[:120] if type(value) is _Global else repr(value)[:40]
