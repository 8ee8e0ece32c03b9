"""The ``.pt`` reader against ``torch.load(weights_only=True)``: the same elements, shape and type, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train_infer_consistency.dumps.reader import read_rank
from train_infer_consistency.dumps.tensors import TensorData, read_tensor
from train_infer_consistency.errors import EvidenceError

pytestmark = pytest.mark.engines

FLOATS = ("bfloat16", "float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def made(torch: Any, dtype: str, *shape: int) -> Any:
    """Random bits of a type, with its non-finite values among them."""
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, shape).bool()
    generator = torch.Generator().manual_seed(7)
    size = kind.itemsize
    bits = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8, generator=generator)
    return bits.view(kind)


def check(torch: Any, path: Path) -> TensorData:
    """Compare the two readings of a file."""
    expected = torch.load(path, weights_only=True)
    read = read_tensor(path)
    assert read.dtype == str(expected.dtype)
    assert read.array.shape == tuple(expected.shape)
    if expected.dtype is torch.bfloat16:
        expected = expected.float()
    expected = expected.detach().contiguous().numpy()
    assert read.array.dtype == expected.dtype
    # Bytes, because a NaN's bits count too.
    assert np.ascontiguousarray(read.array).tobytes() == expected.tobytes()
    return read


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_every_type(torch: Any, tmp_path: Path, dtype: str) -> None:
    torch.save(made(torch, dtype, 3, 4), tmp_path / "a.pt")
    check(torch, tmp_path / "a.pt")


VIEWS = {
    "transposed": lambda base: base.T,
    "every other column": lambda base: base[:, ::2],
    "from the middle": lambda base: base[2:, 3:],
    "expanded": lambda base: base[:1].expand(5, -1),
    "as strided": lambda base: base.as_strided((3, 2, 2), (7, 1, 3), 4),
    "one element": lambda base: base[1, 1],
    "empty": lambda base: base[:0],
    "empty in the middle": lambda base: base[:, :0].unsqueeze(0),
    "five dimensions": lambda base: base.reshape(2, 2, 1, 3, 2).permute(4, 0, 3, 1, 2),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "bool"])
@pytest.mark.parametrize("view", VIEWS)
def test_views_that_are_not_contiguous(torch: Any, tmp_path: Path, view: str, dtype: str) -> None:
    torch.save(VIEWS[view](made(torch, dtype, 4, 6)), tmp_path / "a.pt")
    check(torch, tmp_path / "a.pt")


def test_views_of_one_storage_saved_apart(torch: Any, tmp_path: Path) -> None:
    base = made(torch, "float32", 4, 6)
    for name, view in (("upper", base[:2]), ("lower", base[2:])):
        torch.save(view, tmp_path / name)
        check(torch, tmp_path / name)


def test_parameters_and_gradients(torch: Any, tmp_path: Path) -> None:
    torch.save(torch.nn.Parameter(made(torch, "bfloat16", 2, 3)), tmp_path / "parameter.pt")
    check(torch, tmp_path / "parameter.pt")
    leaf = torch.ones(3, requires_grad=True)
    (leaf * 2).sum().backward()
    torch.save(leaf.grad, tmp_path / "grad.pt")
    check(torch, tmp_path / "grad.pt")


def test_both_byte_orders(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = made(torch, "bfloat16", 2, 3)
    torch.save(tensor, tmp_path / "little.pt")
    little = check(torch, tmp_path / "little.pt")
    swapped = tensor.view(torch.uint8).reshape(-1, 2).flip(1).reshape(2, 6).view(torch.bfloat16)
    monkeypatch.setattr("sys.byteorder", "big")
    torch.save(swapped, tmp_path / "big.pt")
    monkeypatch.undo()
    big = check(torch, tmp_path / "big.pt")
    assert big.array.tobytes() == little.array.tobytes()


@pytest.mark.parametrize("what", ["a list", "a dict", "a module", "two tensors", "complex", "float8", "old format"])
def test_what_torch_may_read_and_this_reader_refuses(torch: Any, tmp_path: Path, what: str) -> None:
    tensor = torch.ones(2)
    saved = {
        "a list": [tensor],
        "a dict": {"a": tensor},
        "a module": torch.nn.Linear(1, 1),
        "two tensors": (tensor, tensor),
        "complex": torch.ones(2, dtype=torch.complex64),
        "float8": tensor.to(torch.float8_e4m3fn),
        "old format": tensor,
    }[what]
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=what != "old format")
    with pytest.raises(EvidenceError, match=r"a\.pt is (not read|damaged)"):
        read_tensor(tmp_path / "a.pt")


def test_real_dumps(torch: Any, dumps: Path) -> None:
    count = 0
    for path in sorted((dumps / "lookalike" / "tensor_pair").rglob("*.pt")):
        check(torch, path)
        count += 1
    assert count == 195
    for side in ("infer", "fsdp1"):
        assert read_rank(dumps / "lookalike" / "tensor_pair" / side / "step0" / "rank0").task == "tensor"
