"""Bad input is said at start-up, in one line that names the thing and the mend."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.capture.conftest import Process
from train_infer_consistency.capture.preflight import check_config, check_path, check_rank_filter, msprobe_version
from train_infer_consistency.capture.switches import CaptureError

Refusal = Callable[[Callable[[], Any]], str]


@pytest.mark.parametrize("version", ["1.3.0", "8.3.3", "25.9.9"])
def test_an_old_msprobe_is_refused_by_its_version(process: Process, refusal: Refusal, version: str) -> None:
    process.install_msprobe(version)
    text = refusal(msprobe_version)
    assert version in text
    assert "26.0.0" in text


@pytest.mark.parametrize("version", ["26.0.0", "26.1.0.post1", "26.2.0+consistency.1", "27.0"])
def test_a_new_enough_msprobe(process: Process, version: str) -> None:
    process.install_msprobe(version)
    assert msprobe_version() == version


def test_no_msprobe(process: Process, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    for info in process.site.iterdir():
        (info / "METADATA").unlink()
        info.rmdir()
    monkeypatch.setattr("sys.path", [str(process.site)])
    assert "not installed" in refusal(msprobe_version)


def test_a_good_file_makes_its_folder(process: Process) -> None:
    assert check_config(str(process.config), "MSPROBE_CONFIG_PATH")["level"] == "L0"
    assert process.root.is_dir()


def test_bad_files(process: Process, refusal: Refusal, tmp_path: Path) -> None:
    def said(name: str, content: bytes | None) -> str:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        text = refusal(lambda: check_config(str(path), "MSPROBE_CONFIG_PATH"))
        assert f"MSPROBE_CONFIG_PATH={path}" in text
        return text

    assert "No such file" in said("missing.json", None)
    assert "no valid JSON" in said("broken.json", b'{"dump_path": ')
    assert "no valid JSON" in said("binary.json", b"\xff\xfe")
    assert "no dump_path" in said("empty.json", b"{}")
    assert "no dump_path" in said("list.json", b"[]")
    assert "no dump_path" in said("null.json", b'{"dump_path": null}')
    assert ".json" in said("config.yaml", b"{}")
    assert "refuses the path" in said("with space.json", b"{}")
    (tmp_path / "folder.json").mkdir()
    assert "cannot be read" in said("folder.json", None)


def test_hot_reload_is_refused_because_it_forgets_the_folder(process: Process, refusal: Refusal) -> None:
    process.write_config(dump_enable=True)
    assert "dump_enable" in refusal(lambda: check_config(str(process.config), "x"))


@pytest.mark.parametrize(
    ("key", "value"), [("level", "l0"), ("level", "L2"), ("level", None), ("rank", "0"), ("rank", 0), ("step", None)]
)
def test_values_that_msprobe_refuses_without_saying_which(
    process: Process, refusal: Refusal, key: str, value: object
) -> None:
    process.write_config(**{key: value})
    text = refusal(lambda: check_config(str(process.config), "MSPROBE_CONFIG_PATH"))
    assert f"{key} {value!r}" in text


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_levels(process: Process, level: str) -> None:
    process.write_config(level=level, rank=["0-3"], step=[0])
    check_config(str(process.config), "x")


@pytest.mark.parametrize("character", [" ", "+", "=", "@", "中", "~", "\n"])
def test_a_dump_path_that_msprobe_would_refuse_only_in_the_worker(
    process: Process, refusal: Refusal, tmp_path: Path, character: str
) -> None:
    process.write_config(dump_path=str(tmp_path / f"a{character}b"))
    text = refusal(lambda: check_config(str(process.config), "x"))
    assert "dump_path" in text
    assert "refuses the path" in text


def test_the_real_path_counts(tmp_path: Path) -> None:
    target = tmp_path / "bad name"
    target.mkdir()
    (tmp_path / "good").symlink_to(target)
    with pytest.raises(CaptureError, match="bad name"):
        check_path(str(tmp_path / "good"), "x")


def test_a_dump_path_that_is_a_file(process: Process, refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        process.write_config(dump_path=str(tmp_path / path))
        assert "cannot be made a folder" in refusal(lambda: check_config(str(process.config), "x"))


def test_a_dump_path_that_cannot_be_written(
    process: Process, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As root every folder can be written to, so the answer of the system is replaced.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in refusal(lambda: check_config(str(process.config), "x"))


def test_a_rank_filter_that_lets_nothing_through(refusal: Refusal) -> None:
    assert "0 to 1" in refusal(lambda: check_rank_filter([4, 5], 0, 2))
    assert "not initialised" in refusal(lambda: check_rank_filter([0], None, 1))
    for ranks, rank, size in (([], None, 1), ([0], 0, 2), ([1], 0, 2), ([1, 9], 0, 2)):
        check_rank_filter(ranks, rank, size)


def test_messages_keep_to_one_line(refusal: Refusal) -> None:
    def fail() -> None:
        raise CaptureError("two\nlines", json.dumps({"a": 1}, indent=1))

    assert refusal(fail) == 'train-infer-consistency: two lines; { "a": 1 }'
