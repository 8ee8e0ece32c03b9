"""``consistency compare`` with its report options: what is written where, and what is refused before any work."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from train_infer_consistency.cli.main import main
from train_infer_consistency.reporting.files import write_text

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(planted_dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``consistency compare`` on the planted dumps: (status, standard output, standard error)."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        status = main(["compare", *map(str, planted_dumps), *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


def test_all_reports_at_once(call: Call, tmp_path: Path) -> None:
    page, table, junit, view = tmp_path / "a" / "b", tmp_path / "t.csv", tmp_path / "c" / "j.xml", tmp_path / "view"
    status, out, err = call("-o", page, "--csv", table, "--junit", junit, "--msprobe-view", view, "--lang", "zh")
    assert status == 1
    assert out.startswith("different: layers.1.mlp.down: output differs")
    assert err.splitlines() == [
        f"consistency: wrote {path}"
        for path in (
            table, junit, page / "modules.jsonl", page / "report.html",
            view / "generate", view / "train", view / "layer_mapping.yaml",
        )
    ]  # fmt: skip
    assert "</html>" in (page / "report.html").read_text(encoding="utf-8")
    modules = [json.loads(line)["module"] for line in (page / "modules.jsonl").read_text(encoding="utf-8").splitlines()]
    assert "layers.1.mlp.down" in modules
    with table.open(newline="", encoding="utf-8") as file:
        assert {row["module"] for row in csv.DictReader(file)} == set(modules)
    assert ET.parse(junit).getroot().tag == "testsuites"
    assert sorted(path.name for path in tmp_path.rglob(".*")) == []


def test_json_stays_one_object_on_standard_output(call: Call, tmp_path: Path) -> None:
    status, out, _ = call("--json", "-o", tmp_path, "--junit", tmp_path / "j.xml")
    assert status == 1
    assert json.loads(out)["verdict"] == "different"
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("extra", [(), ("--json",), ("--csv", "t.csv"), ("--junit", "j.xml"), ("--msprobe-view", "v")])
def test_without_plotly_everything_but_the_page_works(
    call: Call, extra: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    monkeypatch.chdir(tmp_path)
    assert call(*extra)[0] == 1
    status, out, err = call("-o", tmp_path / "page", *extra)
    assert status == 4
    assert err.count("\n") == 1
    assert "pip install 'train-infer-consistency[analysis]'" in err
    assert "different" not in out
    assert not (tmp_path / "page").exists()


def test_a_path_that_msprobe_would_refuse_is_refused_first(call: Call, tmp_path: Path) -> None:
    status, out, err = call("--msprobe-view", tmp_path / "has space")
    assert (status, out) == (2, "")
    assert "msprobe refuses" in err


@pytest.mark.parametrize(
    ("option", "words"), [("--csv", "is a folder"), ("--junit", "is a folder"), ("-o", "is a file")]
)
def test_a_file_for_a_folder_is_refused_first(call: Call, tmp_path: Path, option: str, words: str) -> None:
    (tmp_path / "file").touch()
    status, out, err = call(option, tmp_path / "file" if option == "-o" else tmp_path)
    assert (status, out) == (2, "")
    assert words in err


def test_a_report_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_text(path, ["old"])

    def pieces() -> Iterator[str]:
        yield "new"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_text(path, pieces())
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_report_can_be_read_by_others(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    write_text(tmp_path / "report.html", ["x"])
    assert (tmp_path / "report.html").stat().st_mode == plain.stat().st_mode
