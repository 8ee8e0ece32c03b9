"""One archive of a stack's wheels for hosts without a network; the same wheels give the same bytes.

It is a tar in a gzip whose blocks are stored: wheels are compressed already, and what a zlib makes of the
same input differs from build to build.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from .archive import file_digest, replacing
from .folder import SUMS, requirements_path

_STORED = 0xFFFF
_INSTALL = """\
Install
=======

On the host without a network, in this folder, with the Python of the environment that runs the stack:

    sha256sum -c SHA256SUMS
    pip install --no-deps --require-hashes -r {requirements}
    consistency doctor

No dependency is touched. Where verl or vllm-ascend are editable checkouts (the public Ascend images), or the
host is an A3, install only the train_infer_consistency wheel and lay the edits over the packages there:

    pip install --no-deps --no-index train_infer_consistency-*.whl
    consistency overlay apply --all

安装
====

在没有网络的主机上，于本目录中，用运行该软件栈的环境里的 Python 执行：

    sha256sum -c SHA256SUMS
    pip install --no-deps --require-hashes -r {requirements}
    consistency doctor

不会改动任何依赖。如果 verl 或 vllm-ascend 是可编辑安装的源码（公开的昇腾镜像即如此），或主机为 A3，
则只安装 train_infer_consistency 这一个 wheel，再把修改覆盖到已安装的包上：

    pip install --no-deps --no-index train_infer_consistency-*.whl
    consistency overlay apply --all
"""


def write_bundle(stack: str, wheels: Iterable[Path], label: str, dest: Path) -> Path:
    """Write ``train-infer-consistency-<stack>-<label>.tar.gz``.

    Args:
        stack: the stack's name; its requirements file lies beside the wheels.
        wheels: the wheels, all in one folder.
        label: what they serve, such as ``aarch64-py3.11``.
        dest: the folder for the archive.

    Raises:
        UnfinishedError: it cannot be written.
    """
    paths = sorted(wheels)
    requirements = requirements_path(paths[0].parent, stack)
    top = f"train-infer-consistency-{stack}-{label}"
    sums = "".join(f"{file_digest(path)}  {path.name}\n" for path in sorted([*paths, requirements]))
    texts = {"INSTALL.txt": _INSTALL.format(requirements=requirements.name), SUMS: sums}
    target = dest / f"{top}.tar.gz"
    with replacing(target) as file:
        packer = _StoredGzip(file)
        with tarfile.open(fileobj=packer, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, text in sorted(texts.items()):
                data = text.encode()
                tar.addfile(_entry(f"{top}/{name}", len(data)), io.BytesIO(data))
            for path in sorted([requirements, *paths]):
                with path.open("rb") as content:
                    tar.addfile(_entry(f"{top}/{path.name}", path.stat().st_size), content)
        packer.finish()
    return target


def _entry(name: str, size: int) -> tarfile.TarInfo:
    """An entry without owner or time: only its content may make two archives differ."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, 0
    return entry


class _StoredGzip(io.RawIOBase):
    """A gzip stream of stored blocks (RFC 1951, 3.2.4), each of 65,535 bytes but the last."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._crc = self._size = 0
        self._pending = bytearray()
        file.write(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")

    def writable(self) -> bool:
        """See :class:`io.RawIOBase`."""
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """See :class:`io.RawIOBase`."""
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._pending += data
        done = 0
        while len(self._pending) - done > _STORED:
            self._block(memoryview(self._pending)[done : done + _STORED].tobytes(), last=False)
            done += _STORED
        del self._pending[:done]
        return len(data)

    def finish(self) -> None:
        """Write the last block and the trailer."""
        self._block(bytes(self._pending), last=True)
        self._file.write(struct.pack("<2L", self._crc, self._size & 0xFFFFFFFF))

    def _block(self, data: bytes, *, last: bool) -> None:
        self._file.write(struct.pack("<B2H", last, len(data), len(data) ^ 0xFFFF) + data)
