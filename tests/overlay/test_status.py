"""Every state a package and a file of it can be in is told apart, with and without a record."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from train_infer_consistency.cli import overlay_in_place
from train_infer_consistency.overlay.apply import apply
from train_infer_consistency.overlay.journal import FOLDER, Store, hold, with_state
from train_infer_consistency.overlay.locate import environment
from train_infer_consistency.overlay.status import UpstreamStatus, exit_status, status, table

from .in_place import SKEL, SKEL_WOVEN, Known, install, install_woven, upstreams_and_lock, write_tree


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install(tmp_path / "site", "skel", SKEL)
    return tmp_path / "site"


def look(known: Known, site: Path, name: str = "skel") -> UpstreamStatus:
    (row,) = status(*known, environment(site), [name])
    return row


def states(row: UpstreamStatus) -> dict[str, str]:
    return {file.path: file.state for file in row.files}


def test_absent_pristine_woven(known: Known, site: Path) -> None:
    row = look(known, site, "other")
    assert (row.state, row.root, exit_status([row])) == ("absent", None, 3)
    row = look(known, site)
    assert (row.state, row.pin, row.version, row.kind, row.record) == ("pristine", "1.0", "1.0", "regular", None)
    assert states(row) == dict.fromkeys(sorted(SKEL_WOVEN), "pristine")
    apply(*known, ["skel"], site=site)
    row = look(known, site)
    assert (row.state, row.revision, row.this_version, row.record, row.pin) == ("woven", 1, True, "journal", "1.0")
    assert states(row) == dict.fromkeys(sorted(SKEL_WOVEN), "woven")
    assert exit_status([row]) == 0


def test_woven_by_another_version(known: Known, site: Path, tmp_path: Path) -> None:
    apply(*known, ["skel"], site=site)
    row = look(upstreams_and_lock(tmp_path / "newer", 2), site)
    assert (row.state, row.revision, row.this_version) == ("woven", 1, False)
    assert "woven by consistency.1 (another version)" in table([row])


def test_changed_since(known: Known, site: Path) -> None:
    apply(*known, ["skel"], site=site)
    (site / "skel/runner.py").write_text("# mine\n")
    (site / "skel/deep/hook.py").unlink()
    (site / "skel/deep/loop.py").write_bytes(SKEL["skel/deep/loop.py"])
    (site / "skel/deep/pool.py").unlink()
    row = look(known, site)
    assert (row.state, exit_status([row])) == ("changed", 1)
    assert states(row) == {
        "skel/deep/hook.py": "pristine",
        "skel/deep/loop.py": "pristine",
        "skel/deep/pool.py": "absent",
        "skel/runner.py": "changed",
    }
    assert "skel/runner.py: changed (changed by someone else since)" in table([row])


@pytest.mark.parametrize(("state", "verb"), [("applying", "apply"), ("reverting", "revert")])
def test_interrupted(known: Known, site: Path, state: str, verb: str) -> None:
    apply(*known, ["skel"], site=site)
    store = Store(site, "skel")
    journal = store.read()
    assert journal is not None
    store.write(with_state(journal, state))  # type: ignore[arg-type]
    (site / "skel/runner.py").write_bytes(SKEL["skel/runner.py"])
    row = look(known, site)
    assert (row.state, exit_status([row])) == ("interrupted", 1)
    assert f"'overlay {verb}' was stopped half-way: run 'consistency overlay revert skel'" in row.notes[0]
    notes = {file.path: file.note for file in row.files}
    assert (notes["skel/runner.py"], notes["skel/deep/loop.py"]) == ("now pristine", "now woven")
    with hold([site]):
        assert f"pid {os.getpid()}" in look(known, site).notes[0]


def test_unreadable_journal_is_said(known: Known, site: Path) -> None:
    apply(*known, ["skel"], site=site)
    (site / FOLDER / "skel/journal.json").write_text("{")
    row = look(known, site)
    assert row.state == "changed"
    assert "journal.json cannot be used" in row.notes[0]


def test_woven_wheel_agrees_with_its_provenance(known: Known, tmp_path: Path) -> None:
    site = tmp_path / "woven"
    install_woven(site, known[0]["skel"], known[1], SKEL)
    row = look(known, site)
    assert (row.state, row.record, row.version, row.pin) == ("woven", "wheel", "1.0+consistency.1", "1.0")
    with (site / "skel/runner.py").open("ab") as file:
        file.write(b"#\n")
    (site / "skel/deep/pool.py").unlink()
    row = look(known, site)
    assert row.state == "changed"
    assert states(row)["skel/runner.py"] == "changed"
    assert states(row)["skel/deep/pool.py"] == "absent"


def test_without_any_record(known: Known, site: Path) -> None:
    apply(*known, ["skel"], site=site)
    shutil.rmtree(site / FOLDER)
    row = look(known, site)
    assert (row.state, row.revision, row.this_version, row.record) == ("woven", 1, True, None)
    assert "cannot be reverted" in row.notes[0]
    (site / "skel/deep/loop.py").write_bytes(SKEL["skel/deep/loop.py"])
    row = look(known, site)
    assert row.state == "changed"
    assert "only some of its files are woven" in row.notes
    with (site / "skel/runner.py").open("ab") as file:
        file.write(b"#\r\n")
    (site / "skel/deep/hook.py").write_text("REVISION = 7\n")
    row = look(known, site)
    notes = {file.path: (file.state, file.note) for file in row.files}
    assert notes["skel/runner.py"] == ("changed", "woven by consistency.1 and changed since")
    assert notes["skel/deep/hook.py"] == ("changed", "not the file that this version lays")


def test_files_that_no_pin_knows(known: Known, tmp_path: Path) -> None:
    """Told apart: changed after installation, another release as its wheel has it, and a change beside the edits."""
    other = {**SKEL, "skel/deep/pool.py": b"POOL = []\n\n\ndef fill(n=1):\n    POOL.append(1)\n"}
    site = tmp_path / "site"
    install(site, "skel", other, "1.1")
    with (site / "skel/runner.py").open("ab") as file:
        file.write(b"\r\ndef more():\r\n    return 1\r\n")
    (site / "skel/deep/loop.py").write_bytes(b"def loop(n):\n    return sum(range(n))\n")
    files = {file.path: (file.state, file.note) for file in look(known, site).files}
    assert files["skel/deep/pool.py"] == ("pristine", "as its wheel has it, which is no pinned version")
    assert files["skel/runner.py"] == ("pristine", "no pinned file, but what is edited in it is as pinned")
    assert files["skel/deep/loop.py"][0] == "changed"


def test_plain_tree(known: Known, tmp_path: Path) -> None:
    row = look(known, write_tree(tmp_path / "tree", SKEL))
    assert (row.state, row.kind, row.version) == ("pristine", "tree", None)
    del (files := dict(SKEL))["skel/runner.py"]
    row = look(known, write_tree(tmp_path / "less", files))
    assert states(row)["skel/runner.py"] == "absent"
    assert row.state == "changed"


def test_command(known: Known, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from train_infer_consistency.cli.main import main

    monkeypatch.setattr("train_infer_consistency.overlay.reading.load_upstreams", lambda: known[0])
    monkeypatch.setattr("train_infer_consistency.overlay.lock.load_lock", lambda: known[1])
    assert main(["overlay", "status", "--site", str(site)]) == 0
    out = capsys.readouterr().out
    assert "other  absent" in out
    assert "skel   pristine" in out
    assert main(["overlay", "apply", "--all", "--site", str(site)]) == 0
    out, err = capsys.readouterr()
    assert "woven by consistency.1 (pin 1.0, base known)" in out
    assert "running workers keep" in err
    assert main(["overlay", "apply", "skel", "--site", str(site), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcomes"][0]["action"] == "already"
    assert main(["overlay", "status", "--site", str(site), "--json"]) == 0
    assert {row["upstream"]: row["state"] for row in json.loads(capsys.readouterr().out)["upstreams"]} == {
        "other": "absent",
        "skel": "woven",
    }
    assert main(["overlay", "revert", "--all", "--site", str(site)]) == 0
    assert "every file is as it was" in capsys.readouterr().out
    assert main(["overlay", "revert", "--all", "--site", str(site)]) == 0
    assert "no overlay is applied here" in capsys.readouterr().out
    assert main(["overlay", "status", "other", "--site", str(site)]) == 3
    for wrong in (["apply"], ["apply", "skel", "--all"], ["apply", "skull"], ["status", "skull"]):
        assert main(["overlay", *wrong, "--site", str(site)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert overlay_in_place.run_apply.__doc__
