"""The bundle: one archive, the same bytes each time, that installs where there is no network."""

from __future__ import annotations

import gzip
import subprocess
import tarfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from train_infer_consistency.wheels import bundle
from train_infer_consistency.wheels.bundle import write_bundle

from .small import make_wheel

TOP = "train-infer-consistency-demo-x86_64-py3.11"


def make(folder: Path, dest: Path) -> Path:
    wheels = [make_wheel(folder), make_wheel(folder, version="2")]
    (folder / "requirements-demo.txt").write_text("--no-index\n")
    (folder / "not-of-this-stack.whl").write_text("")
    return write_bundle("demo", wheels, "x86_64-py3.11", dest)


def test_holds_the_stack_and_how_to_install_it(tmp_path: Path) -> None:
    path = make(tmp_path / "wheels", tmp_path)
    assert path.name == f"{TOP}.tar.gz"
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    top = tmp_path / "out" / TOP
    assert {item.name for item in top.iterdir()} == {
        "INSTALL.txt",
        "SHA256SUMS",
        "demo_pkg-1.0-py3-none-any.whl",
        "demo_pkg-2-py3-none-any.whl",
        "requirements-demo.txt",
    }
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=top, check=True)
    text = (top / "INSTALL.txt").read_text()
    assert text.count("pip install --no-deps --require-hashes -r requirements-demo.txt") == 2
    assert "安装" in text


def test_same_wheels_give_the_same_bytes(tmp_path: Path) -> None:
    first = make(tmp_path / "a", tmp_path / "one").read_bytes()
    assert make(tmp_path / "b", tmp_path / "two").read_bytes() == first


@settings(max_examples=25, deadline=None)
@given(pieces=st.lists(st.binary(max_size=200), max_size=5), block=st.integers(1, 90))
def test_stored_gzip_is_gzip(pieces: list[bytes], block: int) -> None:
    import io

    out = io.BytesIO()
    size, bundle._STORED = bundle._STORED, block
    try:
        packer = bundle._StoredGzip(out)
        for piece in pieces:
            packer.write(piece)
        packer.finish()
    finally:
        bundle._STORED = size
    assert gzip.decompress(out.getvalue()) == b"".join(pieces)
