"""What an upstream's own build leaves wrong is mended, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.wheels.small import record_of, write_zip
from train_infer_consistency.wheels.complete import complete
from train_infer_consistency.wheels.record import WheelReader

INFO = "pack-1.0.dist-info"
WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux1_x86_64\n\n"
METADATA = b"Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n"


def _wheel(path: Path, members: dict[str, bytes], wheel: bytes = WHEEL) -> Path:
    files = {**members, f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": wheel}
    return write_zip(path, {**files, f"{INFO}/RECORD": record_of(files, INFO)})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a folder that has no ``__init__.py``, and a neighbour whose name begins alike."""
    for name in ("pack/__init__.py", "pack/a.py", "pack/kernels/fp8.py", "pack_plugins/__init__.py", "packer/x.py"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(f"NAME = {name!r}\n")
    return tmp_path / "tree"


def test_pure_python_with_a_platform_tag_becomes_a_wheel_for_every_platform(tmp_path: Path, tree: Path) -> None:
    data = {
        f"pack-1.0.data/purelib/{name}": (tree / name).read_bytes()
        for name in ("pack/__init__.py", "pack/a.py", "pack_plugins/__init__.py")
    }
    built = _wheel(tmp_path / "pack-1.0-cp311-cp311-manylinux1_x86_64.whl", data)
    mended, added = complete(built, tree, "pack", tmp_path / "mended")
    assert added == ("pack/kernels/fp8.py",)
    assert mended.name == "pack-1.0-py3-none-any.whl"
    with WheelReader(mended) as wheel:
        wheel.verify_all()
        assert b"Root-Is-Purelib: true\nTag: py3-none-any\n" in wheel.read(f"{INFO}/WHEEL")
        assert "pack/kernels/fp8.py" in wheel.members
        assert "packer/x.py" not in wheel.members
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*command, str(mended)], check=True)
    code = "import pack.kernels.fp8 as f; print(f.NAME)"
    done = subprocess.run([sys.executable, "-c", code], cwd=target, check=True, capture_output=True, text=True)
    assert done.stdout == "pack/kernels/fp8.py\n"


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, tree: Path) -> None:
    built = _wheel(tmp_path / "pack-1.0-cp311-cp311-manylinux1_x86_64.whl", {"pack/__init__.py": b""})
    one, two = (complete(built, tree, "pack", tmp_path / name)[0].read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_compiled_wheel_keeps_its_tag(tmp_path: Path, tree: Path) -> None:
    name = "pack-1.0-cp311-cp311-manylinux1_x86_64.whl"
    built = _wheel(tmp_path / name, {"pack/__init__.py": b"", "pack/c.so": b"\x7fELF"})
    mended, _ = complete(built, tree, "pack", tmp_path / "mended")
    assert mended.name == name
    with WheelReader(mended) as wheel:
        assert wheel.read(f"{INFO}/WHEEL") == WHEEL
        assert "pack/kernels/fp8.py" in wheel.members


def test_a_complete_pure_wheel_is_left_as_it_is(tmp_path: Path, tree: Path) -> None:
    pure = WHEEL.replace(b"cp311-cp311-manylinux1_x86_64", b"py3-none-any").replace(b"false", b"true")
    names = ["pack/__init__.py", "pack/a.py", "pack/kernels/fp8.py"]
    built = _wheel(tmp_path / "pack-1.0-py3-none-any.whl", dict.fromkeys(names, b""), pure)
    assert complete(built, tree, "pack", tmp_path / "mended") == (built, ())
    assert not (tmp_path / "mended").exists()
