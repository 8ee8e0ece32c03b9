"""Archives: members copied as they are, harmful archives refused, nothing half-written left."""

from __future__ import annotations

import errno
import io
import os
import resource
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_infer_consistency.errors import EvidenceError, UnfinishedError
from train_infer_consistency.wheels import archive
from train_infer_consistency.wheels.archive import ArchiveReader, ArchiveWriter, dos_time, replacing

from .small import write_zip

NAMES = st.text(st.characters(exclude_characters="\\/", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
PATHS = (
    st.lists(NAMES.filter(lambda part: part not in (".", "..")), min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda path: path[1:2] != ":")
)
MODES = st.sampled_from([0o100644, 0o100755, 0o100664, 0o644, 0])
MEMBERS = st.dictionaries(
    PATHS,
    st.tuples(st.binary(max_size=300), MODES, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])),
    max_size=6,
)


class Unseekable(io.RawIOBase):
    """Makes ``zipfile`` write data descriptors, as it does to a pipe."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self._file.write(data)


def copy_all(source: Path, dest: Path) -> str:
    with ArchiveReader(source) as reader, replacing(dest) as file:
        writer = ArchiveWriter(file)
        for name in reader.members:
            writer.copy(reader, name)
        return writer.close()


def raw_of(path: Path, info: zipfile.ZipInfo) -> bytes:
    data = path.read_bytes()
    name, extra = struct.unpack_from("<2H", data, info.header_offset + 26)
    start = info.header_offset + 30 + name + extra
    return data[start : start + info.compress_size]


@settings(max_examples=60, deadline=None)
@given(members=MEMBERS, streamed=st.booleans())
def test_any_members_come_through_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, members: dict[str, tuple[bytes, int, int]], streamed: bool
) -> None:
    folder = tmp_path_factory.mktemp("zip")
    source, copy = folder / "a.zip", folder / "b.zip"
    with source.open("wb") as file:
        target = Unseekable(file) if streamed else file
        with zipfile.ZipFile(target, "w") as out:
            for name, (data, mode, method) in members.items():
                info = zipfile.ZipInfo(name, (2021, 3, 4, 5, 6, 8))
                info.compress_type, info.external_attr = method, mode << 16
                out.writestr(info, data)
    copy_all(source, copy)
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(copy) as after:
        assert after.testzip() is None
        assert after.namelist() == before.namelist()
        for old, new in zip(before.infolist(), after.infolist(), strict=True):
            assert raw_of(source, old) == raw_of(copy, new)
            assert (old.external_attr, old.date_time, old.compress_type) == (
                new.external_attr,
                new.date_time,
                new.compress_type,
            )
            assert not new.flag_bits & 0x8, "a data descriptor was kept"
    with ArchiveReader(copy) as reader:
        assert {name: reader.read(name) for name in reader.members} == {n: m[0] for n, m in members.items()}


def test_digest_is_that_of_the_file(tmp_path: Path) -> None:
    source = write_zip(tmp_path / "a.zip", {"a": b"x" * 5000, "b/": b""})
    assert copy_all(source, tmp_path / "b.zip") == archive.file_digest(tmp_path / "b.zip")


def test_zip64_fields_of_a_member_are_read_and_left_out_where_not_needed(tmp_path: Path) -> None:
    source = tmp_path / "a.zip"
    with zipfile.ZipFile(source, "w") as out, out.open("big", "w", force_zip64=True) as member:
        member.write(b"not that big")
    copy_all(source, tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as copied:
        assert copied.read("big") == b"not that big"
        assert copied.getinfo("big").extract_version == 20


def test_more_members_than_a_plain_zip_can_count(tmp_path: Path) -> None:
    count = 0x10001
    with replacing(tmp_path / "many.zip") as file:
        writer = ArchiveWriter(file)
        for number in range(count):
            writer.add(f"{number}", b"", dos_time(0))
        writer.close()
    with zipfile.ZipFile(tmp_path / "many.zip") as many:
        assert len(many.infolist()) == count
    with ArchiveReader(tmp_path / "many.zip") as reader:
        assert len(reader.members) == count


def test_sizes_and_offsets_beyond_four_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered instead of writing that much: zip64 fields may be used for any size."""
    monkeypatch.setattr(archive, "_LIMIT32", 40)
    with replacing(tmp_path / "large.zip") as file:
        writer = ArchiveWriter(file)
        writer.add("a", b"a" * 100, dos_time(0))
        writer.add("b", b"b", dos_time(0))
        writer.close()
    data = (tmp_path / "large.zip").read_bytes()
    limit = struct.pack("<L", 40)
    patched = data.replace(limit, b"\xff\xff\xff\xff")  # a reader looks for the real mark
    assert patched.count(b"\xff\xff\xff\xff") == 2 + 2 + 1 + 2  # local, central, offset of b, end record
    (tmp_path / "large.zip").write_bytes(patched)
    with zipfile.ZipFile(tmp_path / "large.zip") as large:
        assert large.read("a") == b"a" * 100
        assert large.read("b") == b"b"


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/passwd", "C:/a", "c:a", "a\\..\\b", "a\\b", ".."])
def test_member_that_climbs_out_is_refused(tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "a.zip", {"ok": b"", name: b""})
    with pytest.raises(EvidenceError, match="climbs out of the folder") as caught:
        ArchiveReader(path)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a//b", "./a", "a/.", "//", "a\rb", "a\nb", "\x1b[31m"])
def test_member_without_a_usable_name_is_refused(tmp_path: Path, name: str) -> None:
    path = write_zip(tmp_path / "a.zip", {name: b""})
    with pytest.raises(EvidenceError, match=r"has no usable name|climbs out"):
        ArchiveReader(path)


def test_duplicate_member_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("same", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            out.writestr("same", b"2")
    with pytest.raises(EvidenceError, match="member 'same' occurs twice"):
        ArchiveReader(path)


def test_symbolic_link_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"link": b"/etc/passwd"}, {"link": 0o120777})
    with pytest.raises(EvidenceError, match="member 'link' is a symbolic link"):
        ArchiveReader(path)


def test_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"secret": b"x"})
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match="member 'secret' is encrypted"):
        ArchiveReader(path)


def test_local_header_of_another_name_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"first": b"x"})
    path.write_bytes(path.read_bytes().replace(b"first", b"other", 1))
    with pytest.raises(EvidenceError, match="local header of 'first' has another name"):
        ArchiveReader(path)


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    """Two central entries that share one local header: a small file that unpacks to a large one."""
    path = write_zip(tmp_path / "a.zip", {"aa": b"x" * 50, "ab": b"x" * 50})
    with zipfile.ZipFile(path) as both:
        second = both.getinfo("ab").header_offset
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    assert struct.unpack_from("<L", data, entry + 42)[0] == second
    struct.pack_into("<L", data, entry + 42, 0)
    data[entry + 46 : entry + 48] = b"aa"
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match=r"occurs twice|overlaps"):
        ArchiveReader(path)


@settings(max_examples=40, deadline=None)
@given(keep=st.floats(0, 0.999))
def test_truncated_archive_is_refused(tmp_path_factory: pytest.TempPathFactory, keep: float) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path = write_zip(folder / "a.zip", {f"m{number}": os.urandom(40) for number in range(5)})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(EvidenceError, match=r"not a complete zip archive .*; download it again"):
        ArchiveReader(path)


def test_middle_cut_out_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {f"m{number}": os.urandom(400) for number in range(5)})
    data = path.read_bytes()
    path.write_bytes(data[:300] + data[900:])
    with pytest.raises(EvidenceError, match="not a complete zip archive"):
        ArchiveReader(path)


def test_damaged_member_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"m": bytes(range(256))})
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    with ArchiveReader(path) as reader, pytest.raises(EvidenceError, match="member 'm'"):
        reader.read("m")


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"nothing.zip: No such file"):
        ArchiveReader(tmp_path / "nothing.zip")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, (1980, 1, 1, 0, 0, 0)), (1580601600, (2020, 2, 2, 0, 0, 0)), (1580601605, (2020, 2, 2, 0, 0, 4))],
)
def test_dos_time(seconds: int, shown: tuple[int, ...], tmp_path: Path) -> None:
    with replacing(tmp_path / "t.zip") as file:
        writer = ArchiveWriter(file)
        writer.add("t", b"", dos_time(seconds))
        writer.close()
    with zipfile.ZipFile(tmp_path / "t.zip") as out:
        assert out.getinfo("t").date_time == shown


def test_source_date_epoch_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(EvidenceError, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        archive.source_date_epoch()


def test_nothing_is_left_of_a_failed_write(tmp_path: Path) -> None:
    target = tmp_path / "out" / "a"
    target.parent.mkdir()
    target.write_bytes(b"before")

    def fail(error: BaseException) -> None:
        with replacing(target) as file:
            file.write(b"half")
            raise error

    for error in (ValueError(), KeyboardInterrupt(), EvidenceError("bad input")):
        with pytest.raises(type(error)):
            fail(error)
        assert [path.name for path in target.parent.iterdir()] == ["a"]
        assert target.read_bytes() == b"before"


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; it is met half-way, in a process of its own."""
    code = """
import sys
from pathlib import Path
from train_infer_consistency.errors import UnfinishedError
from train_infer_consistency.wheels.archive import replacing
try:
    with replacing(Path(sys.argv[1])) as file:
        for _ in range(100):
            file.write(b"x" * 10000)
except UnfinishedError as error:
    print(error)
"""
    target = tmp_path / "wheels" / "a.whl"
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000)),
    )
    assert done.stdout == f"{target}: not written: File too large; make room and run it again\n"
    assert list(target.parent.iterdir()) == []


def test_full_disk_says_to_make_room(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError, match="No space left on device; make room"), replacing(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnfinishedError, match="not written"), replacing(tmp_path / "file" / "a"):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed_half_way_the_old_file_stays_whole(tmp_path: Path, number: signal.Signals) -> None:
    code = """
import signal, sys, time
from pathlib import Path
from train_infer_consistency.wheels.archive import replacing
# What a shell starts in the background ignores it, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half"); file.flush(); print("there", flush=True); time.sleep(60)
"""
    target = tmp_path / "a.whl"
    target.write_bytes(b"before")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(number)
    assert target.read_bytes() == b"before"
    left = [path.name for path in tmp_path.iterdir() if path != target]
    assert left == [] if number == signal.SIGINT else all(name.endswith(".part") for name in left)
