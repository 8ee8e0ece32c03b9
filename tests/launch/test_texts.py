"""What is no plain text file is named at once, wherever it is named: it is never waited for, and never fine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from train_infer_consistency.launch.check import check
from train_infer_consistency.launch.inputs import read
from train_infer_consistency.launch.texts import is_here, read_text
from train_infer_consistency.launch.words import Said

RUN = "python3 -m verl.trainer.main_ppo a=1\n"


def why(path: Path) -> str:
    said = read_text(str(path))
    assert isinstance(said, Said)
    return str(said)


def said(path: Path) -> list[str]:
    return [f"{Path(origin.file).name}: {one}" for run in read([str(path)]) for origin, one in run.unread]


def test_a_text_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("a\r\n中\n".encode())
    assert read_text(str(path)) == "a\r\n中\n"


def test_what_is_no_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(5 << 30)
    assert why(tmp_path / "fifo") == why(tmp_path / "to-fifo") == why(Path("/dev/zero")) == "is no plain file"
    assert why(tmp_path) == "is a folder"
    assert why(tmp_path / "loop").startswith("cannot be read: ")
    assert why(tmp_path / "gone") == "cannot be read: No such file or directory"
    assert why(tmp_path / "nul") == why(tmp_path / "bytes") == "is no UTF-8 text"
    assert why(tmp_path / "large") == "is larger than 1 MB, which no script or configuration is"
    assert isinstance(read_text("a\0b"), Said)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(RUN, encoding="utf-8")
    (tmp_path / "run.sh").chmod(0)
    assert why(tmp_path / "run.sh") == "cannot be read: Permission denied"


def test_a_device_is_on_every_machine() -> None:
    assert not is_here("/dev/null")
    assert not is_here("/nowhere")
    assert is_here(__file__)


@pytest.mark.parametrize(
    "script",
    [
        "source ./fifo\n" + RUN,
        "source {}/fifo\n" + RUN,
        "export MSPROBE_CONFIG_PATH={}/fifo\n" + RUN,
        "ray job submit --runtime-env {}/fifo -- " + RUN,
    ],
)
def test_a_pipe_that_a_script_names(tmp_path: Path, script: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "run.sh").write_text(script.format(tmp_path), encoding="utf-8")
    assert "fifo: is no plain file" in said(tmp_path / "run.sh")


def test_a_pipe_that_is_given(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.sh")
    (run,) = read([str(tmp_path / "run.sh")])
    assert check(run).status == 3
    assert said(tmp_path) == ["run.sh: is no plain file"]


def test_signs_that_bash_does_not_overlook(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(b"true\n" + RUN.replace("\n", "\r\n").encode())
    (run,) = read([str(path)])
    assert [(origin.line, one.key) for origin, one in run.unread] == [(2, "carriage")]
    path.write_bytes(b"\xef\xbb\xbf" + RUN.encode())
    (run,) = read([str(path)])
    assert [(origin.line, one.key) for origin, one in run.unread] == [(1, "order-mark")]
    assert run.override("a") == 1  # and what it does is judged all the same


@pytest.mark.parametrize(("override", "text"), [("[", "["), ("{a:", '{"a":')])
def test_deep_nesting_is_named_wherever_it_stands(tmp_path: Path, override: str, text: str) -> None:
    many = 100_000
    command = ["python3", "-m", "verl.trainer.main_ppo", f"a={override * many}"]
    (run,) = read([], command)
    assert [str(one) for _, one in run.unread] == ["is nested too deeply to be read"]
    (tmp_path / "a.json").write_text(text * many, encoding="utf-8")
    (run,) = read([], ["env", f"MSPROBE_CONFIG_PATH={tmp_path}/a.json", *command[:3], "a=1"])
    assert [str(one) for _, one in run.unread] == ["is no valid JSON object"]
    given = ["ray", "job", "submit", f"--runtime-env-json={text * many}", "--", *command[:3], "a=1"]
    (run,) = read([], given)
    assert run.unread
