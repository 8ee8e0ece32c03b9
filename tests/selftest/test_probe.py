"""What is looked for: versions, drivers by their files, and a device that may be missing."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from train_infer_consistency import __version__
from train_infer_consistency.selftest import probe


def test_everything_is_written_as_json(tmp_path: Path) -> None:
    probe.main(str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["versions"]["train-infer-consistency"] == __version__
    assert found["device"]["kind"] in ("none", "cpu", "cuda", "npu")
    assert set(found) == {"python", "platform", "versions", "packages", "drivers", "device"}


@pytest.mark.parametrize(
    "place", ["x86_64-linux/ascend_toolkit_install.info", "compiler/version.info"], ids=["install file", "component"]
)
def test_cann_is_read_from_the_toolkit(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text("package_name=Ascend-cann-toolkit\nVersion=8.5.0\nos=linux\n")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert probe.drivers()["CANN"] == "8.5.0"


def fake_torch(monkeypatch: pytest.MonkeyPatch, **parts: object) -> None:
    torch = types.ModuleType("torch")
    vars(torch).update(version=types.SimpleNamespace(cuda=None), **parts)
    monkeypatch.setitem(sys.modules, "torch", torch)


def card(available: bool, name: str = "a card") -> object:
    return types.SimpleNamespace(is_available=lambda: available, get_device_name=lambda _: name, device_count=lambda: 8)


def test_an_npu_goes_before_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, npu=card(True, "Ascend910B"), cuda=card(True))
    assert probe.device() == {"kind": "npu", "name": "Ascend910B", "count": 8}


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, cuda=card(True))
    assert probe.device()["kind"] == "cuda"


def test_no_card_is_a_cpu_and_says_what_torch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch, npu=card(False), cuda=card(False))
    found = probe.device()
    assert found["kind"] == "cpu"
    assert "torch is a CPU build" in found["name"]


def test_a_driver_that_fails_is_told_and_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("driver too old")

    fake_torch(monkeypatch, cuda=types.SimpleNamespace(is_available=broken))
    found = probe.device()
    assert found["kind"] == "cpu"
    assert "cuda: driver too old" in found["name"]


def test_no_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert probe.device()["kind"] == "none"
