"""RECORD, METADATA and file names: right ones kept, wrong ones refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import parse_wheel_filename

from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.wheels import record
from train_infer_consistency.wheels.record import Row, WheelName, WheelReader

from .small import FILES, METADATA, make_wheel, record_of, write_zip

DIST_INFO = "demo_pkg-1.0.dist-info"


def refused(path: Path) -> str:
    with pytest.raises(EvidenceError) as caught:
        WheelReader(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_right_wheel_is_read(tmp_path: Path) -> None:
    with WheelReader(make_wheel(tmp_path)) as wheel:
        assert wheel.dist_info == DIST_INFO
        assert list(wheel.rows)[:3] == list(FILES)
        wheel.verify_all()
        assert wheel.verified("demo/core.py") == FILES["demo/core.py"]


def test_wheel_without_record(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "demo_pkg-1.0-py3-none-any.whl", {**FILES, f"{DIST_INFO}/METADATA": METADATA})
    assert f"has no {DIST_INFO}/RECORD" in refused(path)


def test_wheel_without_metadata(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "demo_pkg-1.0-py3-none-any.whl", {f"{DIST_INFO}/RECORD": b""})
    assert f"has no {DIST_INFO}/METADATA" in refused(path)


def test_wheel_of_another_name(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    assert "must have one .dist-info folder of other" in refused(path.rename(tmp_path / "other-1.0-py3-none-any.whl"))


def test_member_that_record_leaves_out(tmp_path: Path) -> None:
    assert "leaves out demo/smuggled.py" in refused(make_wheel(tmp_path, extra={"demo/smuggled.py": b""}))


def test_member_that_record_invents(tmp_path: Path) -> None:
    right = make_wheel(tmp_path / "a")
    with WheelReader(right) as wheel:
        text = wheel.read(wheel.record_path) + b"demo/gone.py,sha256=AAAA,0\n"
    assert "names demo/gone.py, which it does not hold" in refused(make_wheel(tmp_path / "b", record=text))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"demo/core.py,,\n", "without a usable digest of demo/core.py"),
        (b"demo/core.py,md5=AAAA,1\n", "without a usable digest of demo/core.py"),
        (b"demo/core.py\n", "cannot be read"),
        (b'demo/"core.py,sha256=A,1\n"', "cannot be read"),
        (b"demo/core.py,sha256=A,1\ndemo/core.py,sha256=A,1\n", "names demo/core.py twice"),
        (b"\xff\xfe\n", "cannot be read"),
    ],
)
def test_record_that_is_no_record(tmp_path: Path, line: bytes, words: str) -> None:
    files = {name: data for name, data in FILES.items() if name != "demo/core.py"}
    right = make_wheel(tmp_path / "a", files)
    with WheelReader(right) as wheel:
        text = line + wheel.read(wheel.record_path)
    assert words in refused(make_wheel(tmp_path / "b", record=text))


@pytest.mark.parametrize("size", [0, 5])
def test_digest_or_size_of_another_content(tmp_path: Path, size: int) -> None:
    right = make_wheel(tmp_path / "a")
    changed = {**FILES, "demo/core.py": b"x" * size}
    with WheelReader(right) as wheel:
        text = wheel.read(wheel.record_path)
    with WheelReader(make_wheel(tmp_path / "b", changed, record=text)) as wheel:
        with pytest.raises(EvidenceError, match=r"RECORD that does not agree with demo/core.py"):
            wheel.verified("demo/core.py")
        with pytest.raises(EvidenceError, match=r"RECORD that does not agree with demo/core.py"):
            wheel.verify_all()


def test_wrong_size_alone_is_found(tmp_path: Path) -> None:
    right = make_wheel(tmp_path / "a")
    size = len(FILES["demo/core.py"])
    with WheelReader(right) as wheel:
        text = wheel.read(wheel.record_path).replace(f",{size}\n".encode(), f",{size + 1}\n".encode(), 1)
    with (
        WheelReader(make_wheel(tmp_path / "b", record=text)) as wheel,
        pytest.raises(EvidenceError, match=r"does not agree with demo/core.py"),
    ):
        wheel.verify_all()


def test_stronger_digests_and_crlf_are_understood(tmp_path: Path) -> None:
    import base64
    import hashlib

    right = make_wheel(tmp_path / "a")
    data = FILES["demo/core.py"]
    strong = base64.urlsafe_b64encode(hashlib.sha512(data).digest()).rstrip(b"=")
    with WheelReader(right) as wheel:
        text = wheel.read(wheel.record_path).replace(record.encoded_digest(data).encode(), b"sha512=" + strong)
    with WheelReader(make_wheel(tmp_path / "b", record=text.replace(b"\n", b"\r\n"))) as wheel:
        wheel.verify_all()


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), st.binary(max_size=10), max_size=5
    )
)
def test_record_comes_back_as_it_was_written(files: dict[str, bytes]) -> None:
    import csv
    import io

    text = record_of(files, "x.dist-info").decode()
    rows = [Row(*fields) for fields in csv.reader(io.StringIO(text, newline=""))]
    assert rows == [*(Row.of(path, data) for path, data in files.items()), Row("x.dist-info/RECORD", "", "")]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_the_version_changes_in_metadata(end: str) -> None:
    before = f"Metadata-Version: 2.1{end}Name: x{end}Version: 1.0{end}Summary: Version: 3{end}{end}Version: 9{end}"
    after = record.with_version(before.encode(), "1.0+consistency.1")
    assert after.decode() == before.replace(f"{end}Version: 1.0{end}", f"{end}Version: 1.0+consistency.1{end}", 1)
    assert record.metadata_version(after) == "1.0+consistency.1"


@pytest.mark.parametrize("text", [b"Name: x\n\nVersion: 1\n", b"Version: 1\nVersion: 2\n\n"])
def test_metadata_must_have_one_version(text: bytes) -> None:
    with pytest.raises(EvidenceError, match="Version lines, not one"):
        record.with_version(text, "2")


@pytest.mark.parametrize(
    "name",
    [
        "verl-0.8.0-py3-none-any.whl",
        "vllm_ascend-0.18.0-cp311-cp311-manylinux_2_24_aarch64.whl",
        "a-1-2-py2.py3-none-any.whl",
        "verl-0.8.0.dev0+gb7dabd83.consistency.1-py3-none-any.whl",
    ],
)
def test_file_names_are_read_as_packaging_reads_them(name: str) -> None:
    parsed = WheelName.parse(name)
    assert str(parsed) == name
    distribution, version, build, tags = parse_wheel_filename(name)
    assert record.canonical(parsed.distribution) == distribution
    assert parsed.version == str(version)
    assert parsed.build == "".join(str(part) for part in build)
    assert {f"{p}-{parsed.abi}-{parsed.platform}" for p in parsed.python.split(".")} == {str(tag) for tag in tags}


@pytest.mark.parametrize("name", ["verl-0.8.0.tar.gz", "verl.whl", "a-b-c-d.whl", "a--py3-none-any.whl"])
def test_other_file_names_are_refused(name: str) -> None:
    with pytest.raises(EvidenceError, match="not a wheel's file name"):
        WheelName.parse(name)


@pytest.mark.parametrize(
    ("tag", "python", "fits"),
    [
        ("py3-none-any", "3.14", True),
        ("py2.py3-none-any", "3.11", True),
        ("cp311-cp311-manylinux_2_24_x86_64", "3.11", True),
        ("cp311-cp311-manylinux_2_24_x86_64", "3.12", False),
        ("cp38-abi3-manylinux_2_31_x86_64", "3.13", True),
        ("cp312-abi3-manylinux_2_31_x86_64", "3.11", False),
        ("cp311-none-any", "3.12", True),
    ],
)
def test_which_python_a_wheel_serves(tag: str, python: str, fits: bool) -> None:
    assert WheelName.parse(f"a-1-{tag}.whl").fits_python(python) is fits


def test_which_machine_a_wheel_serves() -> None:
    name = WheelName.parse("a-1-cp311-cp311-manylinux2014_aarch64.manylinux_2_17_aarch64.whl")
    assert name.fits_platform("aarch64")
    assert not name.fits_platform("x86_64")
    assert WheelName.parse("a-1-py3-none-any.whl").fits_platform("x86_64")
