"""``consistency check``: what it prints, its statuses, and that the quick reading of its options is argparse's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train_infer_consistency.cli import check
from train_infer_consistency.cli.main import main
from train_infer_consistency.launch import installed

GOOD = '{"task": "statistics", "dump_path": "/d/generate", "rank": [], "step": [], "level": "L0"}'


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "anything", lambda: False)
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(
        "python3 -m verl.trainer.main_ppo \\\n  actor_rollout_ref.rollout.enforce_eager=False\n", encoding="utf-8"
    )
    return path


def test_a_broken_rule(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(script)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"{script}:1: verl-hybrid, versions verl 0.8.0 vllm-ascend 0.18.0 vllm 0.18.0 mindstudio-probe 26.2.0"
    )
    (row,) = [line for line in lines if line.startswith("V101")]
    assert f"{script}:2" in row
    assert "graph mode" in row
    assert lines[lines.index(row) + 1].strip() == "write:  actor_rollout_ref.rollout.enforce_eager=True"
    assert lines[-1].split(", ")[1].endswith("broken")


def test_all_rules_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config_generate.json"
    path.write_text(GOOD, encoding="utf-8")
    assert main(["check", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "not checked here: installed packages: run `consistency doctor` on the target machine" in lines
    assert "not checked here: M014: the dump folders are not on this machine" in lines
    assert lines[-1].endswith("rules applied, 0 broken, 0 not checked; 0 not read")


def test_chinese(script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert main(["check", str(script)]) == 1
    chinese = capsys.readouterr().out
    assert "rollout 以图模式运行" in chinese
    assert "改为：actor_rollout_ref.rollout.enforce_eager=True" in chinese
    assert "适用规则" in chinese
    assert main(["check", str(script), "--lang", "en"]) == 1
    assert "graph mode" in capsys.readouterr().out


def test_json_is_one_object(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", str(script)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == 1
    (one,) = [finding for finding in found["findings"] if finding["code"] == "V101"]
    assert (one["file"], one["line"], one["severity"]) == (str(script), 2, "error")
    assert one["mends"] == [{"kind": "hydra", "remove": False, "text": "actor_rollout_ref.rollout.enforce_eager=True"}]
    assert "V101" in found["applied"]
    assert found["target_only"]


def test_diff_corrects_until_nothing_more_can_be(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--diff", str(script)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "-  actor_rollout_ref.rollout.enforce_eager=False" in lines
    assert "+  actor_rollout_ref.rollout.enforce_eager=True" in lines
    assert lines[0].startswith("--- a/")


def test_a_command_line_behind_two_hyphens(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["python3", "-m", "verl.trainer.main_ppo", "--config-name=x", "trainer.nnodes=1", "--json"]
    assert main(["check", "--", *command]) in (1, 3)
    assert capsys.readouterr().out.startswith("command line: verl-hybrid")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--stack", "verl=", "x.sh"],
        ["--stack", "=", "x.sh"],
        ["--stack", "torch=2.9", "x.sh"],
        ["--stack", "verl-7", "x.sh"],
        ["--lang", "fr", "x.sh"],
        ["--stack"],
        ["--wrong", "x.sh"],
    ],
)
def test_a_wrong_command_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 2
    assert capsys.readouterr().err


def test_what_is_missing_is_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "gone.sh")]) == 3
    out = capsys.readouterr().out
    assert "not read: cannot be read" in out
    assert out.splitlines()[-1] == "no rule applied: nothing was checked"


def test_a_stack_by_its_pins(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", str(script), "--stack", "verl=0.9.1,vllm-ascend=0.23.0"])
    assert "versions verl 0.9.1 vllm-ascend 0.23.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["a", "b"],
        ["--json", "a"],
        ["a", "--diff", "--lang", "zh"],
        ["--stack", "verl-0.8", "a"],
        ["a", "--", "x", "-y"],
    ],
)
def test_the_quick_options_are_those_of_argparse(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, object]] = []

    def run(options: object) -> int:
        seen.append({name: getattr(options, name) for name in ("inputs", "behind", "stack", "lang", "diff", "json")})
        return 0

    monkeypatch.setattr(check, "run", run)
    assert main(["check", *words]) == 0
    monkeypatch.setattr(check, "plain_options", lambda words: None)
    assert main(["check", *words]) == 0
    assert seen[0] == seen[1]


def test_what_is_installed_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "site" / "verl-0.8.0.dist-info"
    info.mkdir(parents=True)
    monkeypatch.undo()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert not installed.anything()
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "site")])
    assert installed.anything()


def test_what_one_unknown_word_leaves_open_is_one_line(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(script.read_text(encoding="utf-8").rstrip() + " $EXTRA\n", encoding="utf-8")
    assert main(["check", str(script)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "$EXTRA" in line]
    assert len(lines) == 1
    assert "V104" in lines[0]
    assert main(["check", "--json", str(script)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "V104" in [one["code"] for one in found["not_checked"]]


def test_doctors_words_in_a_chinese_line(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = installed.Installed("wrong", "verl", "only some of its files are woven", "consistency overlay apply verl")
    monkeypatch.setattr(installed, "look", lambda report: report.installed.append(found))
    assert main(["check", "--lang", "zh", str(script)]) == 1
    line = "此处已安装的软件包：错误：verl：只有部分文件已织入；consistency overlay apply verl"
    assert line in capsys.readouterr().out
    assert main(["check", "--lang", "zh", "--json", str(script)]) == 1
    (said,) = json.loads(capsys.readouterr().out)["installed"]
    assert (said["what"], said["mend"]) == ("只有部分文件已织入", "consistency overlay apply verl")
    assert main(["check", "--lang", "en", str(script)]) == 1
    line = "installed here: error: verl: only some of its files are woven; consistency overlay apply verl"
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[" * 100000),
        ("a.toml", "scenario = " + "[" * 3000),
        ("a.sh", "python3 -m verl.trainer.main_ppo a=" + "[" * 3000),
        ("b.sh", "python3 -m verl.trainer.main_ppo a=" + "${A:-" * 3000),
    ],
)
def test_what_is_nested_too_deeply_is_named(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert main(["check", str(tmp_path / name)]) == 3
    assert f"{name}: not read: " in capsys.readouterr().out


def test_a_broken_rule_outranks_an_input_that_is_not_here(script: Path, tmp_path: Path) -> None:
    assert main(["check", str(script), str(tmp_path / "gone.json")]) == 1
    assert main(["check", str(tmp_path / "gone.json")]) == 3
