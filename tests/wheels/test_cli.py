"""``consistency wheels``: the closing table, one JSON object, and one line and a status where something is wrong."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from train_infer_consistency.cli.main import main
from train_infer_consistency.overlay import lock as locks
from train_infer_consistency.overlay import reading
from train_infer_consistency.wheels import stacks

from .small import Small, small
from .test_stacks import WOVEN, own_wheel


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    """The small upstream instead of the shipped ones."""
    case = small(tmp_path)
    monkeypatch.setattr(locks, "load_lock", lambda: case.lock)
    monkeypatch.setattr(reading, "load_upstreams", lambda: case.upstreams)
    defaults = {**(stacks.Factory.__init__.__kwdefaults__ or {}), "own": own_wheel}
    monkeypatch.setattr(stacks.Factory.__init__, "__kwdefaults__", defaults)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return case


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def arguments(case: Small, tmp_path: Path, *more: str) -> list[str]:
    return ["wheels", "--stack", "released", "--dest", str(tmp_path / "dist"), "--artifact", str(case.wheel), *more]


def test_closing_table(case: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(case, tmp_path)) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split() == ["built", "from", "sha256", "size", "seconds"]
    assert lines[1].split()[:2] == [WOVEN, "registry"]
    assert f"pip install --no-deps --require-hashes -r {tmp_path}/dist/requirements-released.txt" in shown.out
    assert "\033" not in shown.out
    assert shown.err == "demo 1.0: demo_pkg-1.0-py3-none-any.whl\n"


def test_one_json_object(case: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(case, tmp_path, "--json", "--bundle")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == 0
    assert [Path(wheel["file"]).name for wheel in found["wheels"]] == [WOVEN, "own-0-py3-none-any.whl"]
    assert found["requirements"] == {"released": f"{tmp_path}/dist/requirements-released.txt"}
    (bundle,) = found["bundles"]
    assert Path(bundle).parent == tmp_path
    assert Path(bundle).exists()


def test_missing_source_is_status_3(case: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wheels", "--stack", "all", "--dest", str(tmp_path / "dist"), "--artifact", str(case.wheel)]) == 3
    shown = capsys.readouterr()
    assert "not built: demo c0ffee (stack commit)" in shown.out
    assert WOVEN in shown.out
    (line,) = [line for line in shown.err.splitlines() if line.startswith("consistency: ")]
    assert "run it where git reaches that host, or set SOURCE_demo=PATH" in line


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        (["--stack", "none"], 2, "there is no stack 'none'; use one of released, commit, all"),
        (["--python", "3.9"], 2, "Python 3.9 is not supported; use 3.11 or newer"),
        (["--platform", "s390x"], 2, "no wheels are built for platform s390x"),
    ],
)
def test_wrong_command_line(
    case: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], status: int, words: str
) -> None:
    assert main(arguments(case, tmp_path, *more)) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not (tmp_path / "dist").exists()


def test_wheels_are_not_imported_for_help() -> None:
    code = "import sys; from train_infer_consistency.cli.main import main; main(['--help'])"
    code += "; print([name for name in sys.modules if '.wheels' in name], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.skipif(shutil.which("sh") is None, reason="a shell stands in for a slow build")
def test_polite_kill_leaves_nothing_half_made(tmp_path: Path) -> None:
    """SIGTERM while a wheel is written: the hidden part goes, the status is 4."""
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.wheels.small import small
from tests.wheels.test_stacks import own_wheel
from train_infer_consistency.overlay import lock, reading
from train_infer_consistency.wheels import repack, stacks
from train_infer_consistency.cli.main import main
case = small(Path({str(tmp_path)!r}))
lock.load_lock = lambda: case.lock
reading.load_upstreams = lambda: case.upstreams
stacks.Factory.__init__.__kwdefaults__["own"] = own_wheel
def slow(self):
    print("writing", flush=True); time.sleep(60)
repack.ArchiveWriter.close = slow
sys.exit(main(["wheels", "--stack", "released", "--dest", {str(tmp_path / "dist")!r}, "--artifact", str(case.wheel)]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "writing\n"
        assert any(name.endswith(".part") for name in names(tmp_path / "dist"))
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=30) == 4
        assert child.stderr.read().splitlines()[-1] == "consistency: interrupted; nothing half-written was left"
    assert names(tmp_path / "dist") == ["own-0-py3-none-any.whl"]
