"""Repacking: what changes changes as declared, everything else stays as it is, twice gives the same bytes."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from train_infer_consistency.errors import EvidenceError, FoundError, UnfinishedError
from train_infer_consistency.wheels.archive import ArchiveWriter, file_digest
from train_infer_consistency.wheels.record import WheelReader
from train_infer_consistency.wheels.repack import BuiltWheel, repack, weave_wheel

from .small import CORE, FILES, METADATA, Small, make_wheel, members_of, record_of, small

VERSION = "1.0+consistency.7"
DIST_INFO = f"demo_pkg-{VERSION}.dist-info"
PIP_INSTALL = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
ARTIFACT = {"file": "demo_pkg-1.0-py3-none-any.whl", "sha256": "ab" * 32, "version": "1.0"}


def build(case: Small, dest: Path, wheel: Path | None = None, *, vouched: bool = True) -> BuiltWheel:
    wheel = wheel or case.wheel
    weave = weave_wheel(case.upstream, wheel, case.lock)
    return repack(wheel, weave, VERSION, dest, artifact=ARTIFACT, vouched=vouched)


def test_what_a_woven_wheel_holds(tmp_path: Path) -> None:
    case = small(tmp_path)
    built = build(case, tmp_path / "out")
    assert built.path.name == f"demo_pkg-{VERSION}-py3-none-any.whl"
    assert (built.sha256, built.size) == (file_digest(built.path), built.path.stat().st_size)
    members = members_of(built.path)
    assert list(members) == [
        "demo/__init__.py",
        "demo/core.py",
        "demo/table, with comma.json",
        "demo/laid.py",
        f"{DIST_INFO}/METADATA",
        f"{DIST_INFO}/WHEEL",
        f"{DIST_INFO}/entry_points.txt",
        f"{DIST_INFO}/consistency.json",
        f"{DIST_INFO}/sboms/consistency.cdx.json",
        f"{DIST_INFO}/licenses/NOTICE.consistency.txt",
        f"{DIST_INFO}/RECORD",
    ]
    woven = members["demo/core.py"].decode()
    assert woven.startswith("# Modified by train-infer-consistency, overlay consistency.7;")
    assert "self.extra = None" in woven
    assert members["demo/laid.py"] == b"LAID = True\n"
    assert members[f"{DIST_INFO}/METADATA"] == METADATA.replace(b"Version: 1.0\n", f"Version: {VERSION}\n".encode(), 1)
    assert members[f"{DIST_INFO}/entry_points.txt"] == b"[console_scripts]\ndemo = demo.core:Core\n"
    with WheelReader(built.path) as wheel:  # refuses a RECORD of other members
        wheel.verify_all()


def test_untouched_members_are_not_recompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decompression is seen: only what is woven or read for its text is decompressed."""
    big = {**FILES, "demo/big.so": bytes(range(256)) * 400}
    wheel = make_wheel(tmp_path, big, modes={"demo/big.so": 0o100755})
    case = small(tmp_path / "case", wheel)
    opened: list[str] = []
    original = WheelReader.content

    def content(self: WheelReader, name: str) -> Iterator[bytes]:
        opened.append(name)
        return original(self, name)

    monkeypatch.setattr(WheelReader, "content", content)
    built = build(case, tmp_path / "out")
    assert "demo/core.py" in opened
    assert "demo/big.so" not in opened
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(built.path) as after:
        old, new = before.getinfo("demo/big.so"), after.getinfo("demo/big.so")
        assert (old.compress_size, old.CRC, old.date_time) == (new.compress_size, new.CRC, new.date_time)
        assert stat.S_IMODE(new.external_attr >> 16) == 0o755
        assert after.getinfo("demo/core.py").compress_type == zipfile.ZIP_STORED


def test_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    case = small(tmp_path)
    assert build(case, tmp_path / "a").sha256 == build(case, tmp_path / "b").sha256


def test_time_of_new_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = small(tmp_path)
    with zipfile.ZipFile(build(case, tmp_path / "a").path) as plain:
        assert {info.date_time for info in plain.infolist()} == {(2020, 2, 2, 0, 0, 0)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with zipfile.ZipFile(build(case, tmp_path / "b").path) as stamped:
        assert stamped.getinfo("demo/laid.py").date_time == (2023, 11, 14, 22, 13, 20)
        assert stamped.getinfo("demo/__init__.py").date_time == (2020, 2, 2, 0, 0, 0)
        assert b'"timestamp": "2023-11-14T22:13:20+00:00"' in stamped.read(f"{DIST_INFO}/sboms/consistency.cdx.json")


def test_provenance_has_every_edit_and_digest(tmp_path: Path) -> None:
    case = small(tmp_path)
    members = members_of(build(case, tmp_path / "out").path)
    record = json.loads(members[f"{DIST_INFO}/consistency.json"])
    assert record["artifact"] == ARTIFACT
    assert record["overlay"] == "consistency.7"
    files = {file["path"]: file for file in record["files"]}
    assert files["demo/core.py"]["edits"] == ["extra"]
    import hashlib

    assert files["demo/core.py"]["sha256_before"] == hashlib.sha256(CORE).hexdigest()
    assert files["demo/core.py"]["sha256_after"] == hashlib.sha256(members["demo/core.py"]).hexdigest()
    assert files["demo/laid.py"]["sha256_before"] is None


def test_change_is_stated_and_upstream_licence_kept(tmp_path: Path) -> None:
    dist_info = "demo_pkg-1.0.dist-info"
    wheel = make_wheel(tmp_path, {**FILES, f"{dist_info}/licenses/LICENSE": b"theirs"})
    case = small(tmp_path / "case", wheel, licence="MulanPSL-2.0")
    members = members_of(build(case, tmp_path / "out").path)
    notice = members[f"{DIST_INFO}/licenses/NOTICE.consistency.txt"].decode()
    assert f"demo-pkg {VERSION} is a modified version of demo-pkg (1.0)" in notice
    assert "Changed:\n  demo/core.py\nAdded:\n  demo/laid.py\n" in notice
    assert members[f"{DIST_INFO}/licenses/LICENSE"] == b"theirs"
    assert f"{DIST_INFO}/licenses/MulanPSL-2.0.txt" not in members


def test_licence_text_is_added_where_upstream_ships_none(tmp_path: Path) -> None:
    """Mulan PSL v2 asks that recipients get a copy; the registry's mindstudio-probe wheel has none."""
    case = small(tmp_path, licence="MulanPSL-2.0")
    text = members_of(build(case, tmp_path / "out").path)[f"{DIST_INFO}/licenses/MulanPSL-2.0.txt"].decode()
    assert "Mulan Permissive Software License，Version 2" in text
    assert "木兰宽松许可证" in text


def test_signature_over_record_is_not_carried_on(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, extra={"demo_pkg-1.0.dist-info/RECORD.jws": b"{}"})
    members = members_of(build(small(tmp_path / "case", wheel), tmp_path / "out").path)
    assert not [name for name in members if name.endswith(".jws")]


def test_package_below_purelib(tmp_path: Path) -> None:
    """slime's own build puts the package there, because it says it is not pure."""
    folder = "demo_pkg-1.0.data/purelib/"
    wheel = make_wheel(tmp_path, {folder + name: data for name, data in FILES.items()})
    members = members_of(build(small(tmp_path / "case", wheel), tmp_path / "out").path)
    new = f"demo_pkg-{VERSION}.data/purelib/demo"
    assert b"self.extra = None" in members[f"{new}/core.py"]
    assert members[f"{new}/laid.py"] == b"LAID = True\n"
    assert not [name for name in members if "demo_pkg-1.0." in name]


def test_folder_entries_are_renamed(tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        extra={"demo/": b"", "demo_pkg-1.0.dist-info/": b""},
        modes={"demo/": 0o40755, "demo_pkg-1.0.dist-info/": 0o40755},
    )
    members = members_of(build(small(tmp_path / "case", wheel), tmp_path / "out").path)
    assert f"{DIST_INFO}/" in members
    assert not [name for name in members if "demo_pkg-1.0." in name]


def test_woven_wheel_is_not_woven_again(tmp_path: Path) -> None:
    case = small(tmp_path)
    built = build(case, tmp_path / "out")
    with pytest.raises(EvidenceError, match="the wheel is woven already; give the upstream's own wheel"):
        build(case, tmp_path / "again", built.path)


def test_edited_file_must_agree_with_record(tmp_path: Path) -> None:
    case = small(tmp_path)
    other = {**FILES, "demo/core.py": CORE + b"# other\n"}
    wrong = make_wheel(tmp_path / "wrong", record=record_with(other))
    with pytest.raises(EvidenceError, match=r"does not agree with demo/core.py"):
        build(case, tmp_path / "out", wrong)


def record_with(files: dict[str, bytes]) -> bytes:
    dist_info = "demo_pkg-1.0.dist-info"
    wheel = b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    own = {"METADATA": METADATA, "WHEEL": wheel, "entry_points.txt": b"[console_scripts]\ndemo = demo.core:Core\n"}
    return record_of({**files, **{f"{dist_info}/{name}": data for name, data in own.items()}}, dist_info)


@pytest.mark.parametrize("vouched", [True, False])
def test_untouched_file_is_held_against_record_unless_the_wheel_is_vouched_for(tmp_path: Path, vouched: bool) -> None:
    case = small(tmp_path)
    wrong = make_wheel(tmp_path / "wrong", record=record_with({**FILES, "demo/__init__.py": b"other"}))
    if vouched:
        build(case, tmp_path / "out", wrong, vouched=True)
    else:
        with pytest.raises(EvidenceError, match=r"does not agree with demo/__init__.py"):
            build(case, tmp_path / "out", wrong, vouched=False)
        assert not (tmp_path / "out").exists()


def test_unknown_files_are_refused(tmp_path: Path) -> None:
    case = small(tmp_path)
    drifted = make_wheel(tmp_path / "drifted", {**FILES, "demo/core.py": CORE.replace(b"True", b"False")})
    with pytest.raises(FoundError, match=r"demo/core.py"):
        build(case, tmp_path / "out", drifted)


def test_full_disk_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up after some members; the folder is as before."""
    case = small(tmp_path)
    calls = 0
    original = ArchiveWriter._write

    def write(self: ArchiveWriter, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise OSError(28, "No space left on device")
        original(self, data)

    monkeypatch.setattr(ArchiveWriter, "_write", write)
    with pytest.raises(UnfinishedError, match="No space left on device; make room and run it again"):
        build(case, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_interrupt_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = small(tmp_path)

    def interrupt(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(ArchiveWriter, "close", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(case, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_pip_installs_it_with_its_entry_point(tmp_path: Path) -> None:
    built = build(small(tmp_path), tmp_path / "out")
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", *PIP_INSTALL, "--target", str(target), str(built.path)],
        check=True,
    )
    assert b"self.extra = None" in (target / "demo/core.py").read_bytes()
    assert (target / "bin" / "demo").exists()
    assert (target / DIST_INFO / "consistency.json").exists()
