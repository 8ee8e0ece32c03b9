"""The ``.pt`` reader: element types, views, byte orders; refusal of all else; no damaged byte goes unseen."""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train_infer_consistency.dumps.reader import read_rank
from train_infer_consistency.dumps.records import Leaf
from train_infer_consistency.dumps.tensors import read_leaf, read_tensor
from train_infer_consistency.errors import EvidenceError

from .pt_files import HOOKS, Call, Global, Persistent, contiguous, pickled, tensor, write

TYPES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
}


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("storage", TYPES)
def test_element_types_in_both_byte_orders(tmp_path: Path, storage: str, order: str) -> None:
    values = np.arange(12).astype(TYPES[storage]).reshape(3, 4)
    sign = "<" if order == "little" else ">"
    data = values.astype(np.dtype(f"{sign}{values.dtype.str[1:]}")).tobytes()
    path = write(tmp_path / "a.pt", pickled(tensor(storage, 12, (3, 4))), {"0": data}, byteorder=order)
    read = read_tensor(path)
    assert read.dtype == f"torch.{TYPES[storage]}"
    assert read.array.dtype == values.dtype
    np.testing.assert_array_equal(read.array, values)


@pytest.mark.parametrize("order", ["little", "big"])
def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path, order: str) -> None:
    # 1.0, -2.5, the largest, the smallest subnormal, infinity, and a NaN.
    halves = np.array([0x3F80, 0xC020, 0x7F7F, 0x0001, 0x7F80, 0x7FC1], "<u2" if order == "little" else ">u2")
    path = write(
        tmp_path / "a.pt", pickled(tensor("BFloat16Storage", 6, (6,))), {"0": halves.tobytes()}, byteorder=order
    )
    read = read_tensor(path)
    assert read.dtype == "torch.bfloat16"
    assert read.array.dtype == np.float32
    expected = [1.0, -2.5, 3.3895313892515355e38, 9.183549615799121e-41, np.inf, np.nan]
    np.testing.assert_array_equal(read.array, np.array(expected, np.float32))


def test_bool(tmp_path: Path) -> None:
    read = read_tensor(write(tmp_path / "a.pt", pickled(tensor("BoolStorage", 3, (3,))), {"0": b"\x00\x01\x01"}))
    assert read.dtype == "torch.bool"
    assert read.array.tolist() == [False, True, True]


@given(
    st.lists(st.integers(0, 4), max_size=4).flatmap(
        lambda shape: st.tuples(
            st.just(shape), st.lists(st.integers(0, 9), min_size=len(shape), max_size=len(shape)), st.integers(0, 9)
        )
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_view_of_a_storage_is_what_its_strides_say(tmp_path: Path, view: tuple[list[int], list[int], int]) -> None:
    shape, strides, offset = view
    flat = np.arange(200, dtype=np.int32)
    path = write(tmp_path / "a.pt", pickled(tensor("IntStorage", 200, shape, strides, offset)), {"0": flat.tobytes()})
    array = read_tensor(path).array
    assert array.shape == tuple(shape)
    for index in np.ndindex(*shape):
        assert array[index] == offset + sum(i * stride for i, stride in zip(index, strides, strict=True))


def test_two_tensors_of_one_storage_and_a_second_storage(tmp_path: Path) -> None:
    first, second = np.arange(6, dtype="<f4"), np.arange(6, 12, dtype="<f4")
    storages = {"0": first.tobytes(), "1": second.tobytes()}
    upper = write(tmp_path / "a.pt", pickled(tensor("FloatStorage", 6, (3,), offset=0)), storages)
    lower = write(tmp_path / "b.pt", pickled(tensor("FloatStorage", 6, (3,), offset=3)), storages)
    other = write(tmp_path / "c.pt", pickled(tensor("FloatStorage", 6, (2, 3), key="1")), storages, prefix="c")
    assert read_tensor(upper).array.tolist() == [0, 1, 2]
    assert read_tensor(lower).array.tolist() == [3, 4, 5]
    assert read_tensor(other).array.tolist() == [[6, 7, 8], [9, 10, 11]]


def test_a_file_without_byteorder_is_little_endian(tmp_path: Path) -> None:
    data = np.arange(3, dtype="<i8").tobytes()
    path = write(tmp_path / "a.pt", pickled(tensor("LongStorage", 3, (3,))), {"0": data}, byteorder=None)
    assert read_tensor(path).array.tolist() == [0, 1, 2]


def npu(*last: object) -> Call:
    """What torch_npu pickles of a tensor on a card; its last argument is the format there."""
    rebuild = Global(("torch_npu.utils.storage", "_rebuild_npu_tensor"))
    identity = Persistent(("storage", Global(("torch", "FloatStorage")), "0", "cpu", 4))
    return Call((rebuild, (identity, 0, (2, 2), (2, 1), False, HOOKS, *last)))


@pytest.mark.parametrize("form", [2, False, Call((Global(("torch_npu.npu._format", "Format")), (2,)))])
def test_a_tensor_saved_on_an_npu(tmp_path: Path, form: object) -> None:
    path = write(tmp_path / "a.pt", pickled(npu(form)), {"0": np.arange(4, dtype="<f4").tobytes()})
    assert read_tensor(path).array.tolist() == [[0, 1], [2, 3]]


def test_untyped_storage_with_its_dtype_apart_and_a_parameter(tmp_path: Path) -> None:
    identity = Persistent(("storage", Global(("torch.storage", "UntypedStorage")), "0", "cpu", 4))
    arguments = (identity, 0, (2,), (1,), False, HOOKS, Global(("torch", "uint16")))
    view = Call((Global(("torch._utils", "_rebuild_tensor_v3")), arguments))
    parameter = Call((Global(("torch._utils", "_rebuild_parameter")), (view, True, HOOKS)))
    path = write(tmp_path / "a.pt", pickled(parameter), {"0": b"\x01\x00\xff\xff"})
    assert read_tensor(path).dtype == "torch.uint16"
    assert read_tensor(path).array.tolist() == [1, 65535]


class Hostile:
    """Its pickle runs a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


HOSTILE = {
    "a command": pickle.dumps(Hostile(), 2),
    "a command in place of the hooks": pickled(
        Call(
            (
                Global(("torch._utils", "_rebuild_tensor_v2")),
                (
                    Persistent(("storage", Global(("torch", "FloatStorage")), "0", "cpu", 1)),
                    0,
                    (1,),
                    (1,),
                    False,
                    Call((Global(("os", "system")), ("touch pwned",))),
                ),
            )
        )
    ),
    "a state that is set": pickled(tensor("FloatStorage", 1, (1,)))[:-1] + b"}b.",
    "a class as storage": pickled(tensor("system", 1, (1,))),
    "eval": pickled(Call((Global(("builtins", "eval")), ("1",)))),
    "a list of tensors": b"\x80\x02]" + pickled(tensor("FloatStorage", 1, (1,)))[2:-1] + b"a.",
    "two tensors": pickled((tensor("FloatStorage", 1, (1,)), tensor("FloatStorage", 1, (1,)))),
    "no tensor": pickled((1, 2)),
    "an instruction for a huge memo": b"\x80\x02(r\xff\xff\xff\x7ft.",
    "float8": pickled(tensor("Float8_e4m3fnStorage", 1, (1,))),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_but_one_plain_tensor_is_read_and_nothing_is_called(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    path = write(tmp_path / "a.pt", HOSTILE[what], {"0": b"\0\0\0\0"})
    with pytest.raises(EvidenceError, match=r"a\.pt is (not read|damaged)"):
        read_tensor(path)
    assert not (tmp_path / "pwned").exists()
    assert not {name for name in set(sys.modules) - before if name.startswith("torch")}


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((5,), (1,), 0), ((2,), (1,), 3), ((2, 2), (3, 1), 0), ((1,), (1,), 2**40), ((2**30, 2**30), (0, 0), 5)],
)
def test_a_view_that_leaves_its_storage_is_damage(
    tmp_path: Path, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    pickle_of_view = pickled(tensor("FloatStorage", 4, shape, strides, offset))
    with pytest.raises(EvidenceError, match="is damaged"):
        read_tensor(write(tmp_path / "a.pt", pickle_of_view, {"0": bytes(16)}))


def test_compressed_and_missing_members_are_refused(tmp_path: Path) -> None:
    fine = pickled(tensor("FloatStorage", 1, (1,)))
    for path in (
        write(tmp_path / "packed.pt", fine, {"0": bytes(4)}, compression=zipfile.ZIP_DEFLATED),
        write(tmp_path / "storage.pt", fine, {"1": bytes(4)}),
        write(tmp_path / "order.pt", fine, {"0": bytes(4)}, byteorder="middle"),
    ):
        with pytest.raises(EvidenceError, match=r"is not read|is damaged"):
            read_tensor(path)
    with pytest.raises(EvidenceError, match=r"gone\.pt is missing"):
        read_tensor(tmp_path / "gone.pt")


def test_real_tensors_have_the_statistics_that_msprobe_wrote_beside_them(dumps: Path) -> None:
    count = 0
    for side in ("infer", "fsdp1"):
        dump = read_rank(dumps / "lookalike" / "tensor_pair" / side / "step0" / "rank0")
        for call in dump.calls:
            for leaf in (*call.inputs, *call.outputs, *call.parameters.values()):
                if leaf is None or leaf.file is None:
                    continue
                array, count = dump.tensor(leaf).array, count + 1
                assert array.shape == leaf.shape
                assert leaf.max == float(array.max())
                assert leaf.min == float(array.min())
                if leaf.norm is not None:
                    assert float(np.linalg.norm(array.astype(np.float64))) == pytest.approx(leaf.norm, rel=1e-6)
    assert count == 195


def test_a_file_must_be_what_its_leaf_says(tmp_path: Path) -> None:
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    write(folder / "a.pt", pickled(tensor("FloatStorage", 6, (2, 3))), {"0": bytes(24)})
    leaf = Leaf("torch.float32", (2, 3), file="a.pt")
    assert read_leaf(tmp_path, leaf).array.shape == (2, 3)
    for other in (leaf._replace(shape=(3, 2)), leaf._replace(dtype="torch.float16")):
        with pytest.raises(EvidenceError, match=r"its dump\.json says"):
            read_leaf(tmp_path, other)
    for name in ("../a.pt", "/etc/passwd", "..", "a\0.pt"):
        with pytest.raises(EvidenceError, match="is no name of a file"):
            read_leaf(tmp_path, leaf._replace(file=name))
    with pytest.raises(EvidenceError, match="has no file"):
        read_leaf(tmp_path, leaf._replace(file=None))


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_changed_byte_is_an_error_or_changes_nothing(tmp_path: Path, data: st.DataObject) -> None:
    values = np.arange(6, dtype="<f4")
    good = write(tmp_path / "good.pt", pickled(tensor("FloatStorage", 6, (2, 3))), {"0": values.tobytes()}).read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[place] ^= data.draw(st.integers(1, 255))
    (tmp_path / "bad.pt").write_bytes(changed)
    try:
        read = read_tensor(tmp_path / "bad.pt")
    except EvidenceError:
        pass
    else:
        # A time stamp, or another field that zip keeps twice: the elements are under a checksum.
        np.testing.assert_array_equal(read.array, values.reshape(2, 3))


@given(st.integers(0, 10**6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_file_cut_anywhere_is_an_error(tmp_path: Path, length: int) -> None:
    good = write(tmp_path / "good.pt", pickled(tensor("FloatStorage", 6, (2, 3))), {"0": bytes(24)}).read_bytes()
    (tmp_path / "cut.pt").write_bytes(good[: length % len(good)])
    with pytest.raises(EvidenceError, match=r"cut\.pt"):
        read_tensor(tmp_path / "cut.pt")


def test_contiguous_strides() -> None:
    assert contiguous((2, 3, 4)) == [12, 4, 1]
