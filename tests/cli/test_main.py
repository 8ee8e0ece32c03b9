"""The entry point: exit statuses by the table, one line per error, one JSON object, and nothing imported in vain."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from train_infer_consistency import __version__
from train_infer_consistency.cli.main import VERBS, main
from train_infer_consistency.cli.output import paint, table
from train_infer_consistency.errors import (
    ConsistencyError,
    EvidenceError,
    FoundError,
    UnfinishedError,
    UsageError,
)

PROGRAM = [sys.executable, "-m", "train_infer_consistency.cli.main"]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException | int], None]:
    """Let the verb ``doctor`` end with a status or an error."""

    def end(outcome: BaseException | int) -> None:
        def run(options: object) -> int:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--json", action="store_true")

        fake = types.ModuleType("doctor")
        vars(fake).update(add_arguments=add_arguments, run=run)
        monkeypatch.setitem(sys.modules, "train_infer_consistency.cli.doctor", fake)

    return end


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (3, 3, ""),
        (FoundError("a differs", "mend it"), 1, "a differs; mend it"),
        (UsageError("wrong word", "use that"), 2, "wrong word; use that"),
        (EvidenceError("b is missing", "give it"), 3, "b is missing; give it"),
        (UnfinishedError("c is full", "make room"), 4, "c is full; make room"),
        (ConsistencyError("d"), 4, "d"),
        (FoundError("two\nlines"), 1, "two lines"),
        (KeyboardInterrupt(), 4, "interrupted; nothing half-written was left"),
        (OSError(28, "No space left on device", "/x/y"), 4, "No space left on device (/x/y); mend that"),
        (PermissionError(13, "Permission denied", "/x"), 4, "Permission denied (/x); mend that and run it again"),
        (OSError("odd"), 4, "odd; mend that"),
        (KeyError("key"), 4, "bug: KeyError: 'key'; CONSISTENCY_TRACEBACK=1 shows where, please report it"),
        (ValueError("a\nb"), 4, "bug: ValueError: a b; "),
        (RecursionError("deep"), 4, "bug: RecursionError: deep"),
    ],
)
def test_status_and_line_of_every_ending(
    outcome: BaseException | int,
    status: int,
    said: str,
    verb: Callable[[BaseException | int], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CONSISTENCY_TRACEBACK", raising=False)
    verb(outcome)
    assert main(["doctor"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    if isinstance(outcome, int):
        assert err == ""
        return
    assert err.count("\n") == 1
    assert err.startswith(f"consistency: {said}")
    assert "Traceback" not in err

    verb(outcome)
    assert main(["doctor", "--json"]) == status
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["status"] == status
    assert found["error"].startswith(said)
    assert err.count("\n") == 1


def test_traceback_on_request(verb: Callable[[BaseException | int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSISTENCY_TRACEBACK", "1")
    verb(KeyError("key"))
    with pytest.raises(KeyError):
        main(["doctor"])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["overlay"],
        ["overlay", "nonsense"],
        ["--nonsense"],
        ["overlay", "list", "--nonsense"],
        ["lock"],
    ],
)
def test_wrong_command_line_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: consistency" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--help"], ["overlay", "--help"], ["overlay", "check", "--help"]])
def test_help_is_status_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: consistency")
    assert err == ""


def test_help_names_every_verb_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in VERBS:
        assert f"\n    {name} " in out
    for number in range(5):
        assert f"{number} " in out.partition("exit status:")[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"train-infer-consistency {__version__}\n"


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_a_module(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"usage: consistency {name}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_nothing_of_a_verb_is_imported_before_it_is_run(arguments: list[str]) -> None:
    program = (
        "import sys; from train_infer_consistency.cli.main import main; main(sys.argv[1:])\n"
        "print(*sorted(n for n in sys.modules if n.startswith('train_infer_consistency')), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    name = "train_infer_consistency"
    wanted = [name, f"{name}.cli", f"{name}.cli.main", f"{name}.errors"]
    assert run.stderr.splitlines()[-1].split() == wanted


# A short output is only written when everything else is done.
@pytest.mark.parametrize("more", [[], ["--json"], ["--upstream", "mindstudio-probe"]])
def test_closed_pipe_is_quiet(more: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [*PROGRAM, "overlay", "list", *more]
    run = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
# A short output is only written when everything else is done.
@pytest.mark.parametrize("more", [[], ["--json"], ["--upstream", "mindstudio-probe"]])
def test_full_disk_is_one_line(more: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*PROGRAM, "overlay", "list", *more]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert run.returncode == 4
    assert run.stderr == "consistency: No space left on device; mend that and run it again\n"


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert paint("x", "bad") == "x"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert paint("x", "bad") == "\033[31mx\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", "bad") == "x"


def test_table_cuts_nothing() -> None:
    assert table(("A", "LONG"), [("wide cell", "x"), ("y", "")]) == "A          LONG\nwide cell  x\ny"
    assert table(("A",), []) == "A"


def test_what_the_locale_has_no_signs_for_is_escaped(tmp_path: Path) -> None:
    file = tmp_path / "config_generate.json"
    file.write_text('{"task": "statistics", "dump_path": "/d/\\ud800", "level": "\\ud800"}', encoding="utf-8")
    for more in ([], ["--json"], ["--diff"]):
        command = [*PROGRAM, "check", str(file), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "")
        assert "\\ud800" in done.stdout
