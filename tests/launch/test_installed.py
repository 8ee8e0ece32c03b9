"""What is installed here becomes part of a check: upstreams without the overlay, and what doctor calls wrong."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from train_infer_consistency.launch import installed
from train_infer_consistency.launch.check import Report
from train_infer_consistency.launch.run import VERL_HYBRID, Run
from train_infer_consistency.launch.stacks import versions
from train_infer_consistency.overlay import doctor


def looked(monkeypatch: pytest.MonkeyPatch, rows: dict[str, str], *levels: str) -> Report:
    """A report, where these upstreams are in these states and doctor finds something at each level."""
    run = Run(VERL_HYBRID)
    run.stack = versions("verl-0.8")
    report = Report([run])
    report.applied.add("V101")
    found = SimpleNamespace(
        upstreams=[SimpleNamespace(upstream=name, state=state) for name, state in rows.items()],
        findings=[doctor.Finding(level, "x", "is so", "mend it") for level in levels],  # type: ignore[arg-type]
    )
    monkeypatch.setattr(installed, "anything", lambda: True)
    monkeypatch.setattr(doctor, "examine", lambda upstreams, lock: found)
    installed.look(report)
    return report


@pytest.mark.parametrize(
    ("rows", "said", "status"),
    [
        ({"verl": "woven", "vllm-ascend": "woven"}, [], 0),
        ({"verl": "pristine", "vllm-ascend": "woven"}, [("wrong", "verl")], 1),
        ({"mindstudio-probe": "pristine"}, [("warning", "mindstudio-probe")], 0),
        ({"vllm": "pristine", "slime": "pristine"}, [], 0),  # vLLM below vllm-ascend, and another stack's
    ],
)
def test_upstreams_without_the_overlay(
    monkeypatch: pytest.MonkeyPatch, rows: dict[str, str], said: list[tuple[str, str]], status: int
) -> None:
    report = looked(monkeypatch, rows)
    assert [(one.level, one.subject) for one in report.installed] == said
    assert report.status == status
    assert report.target == []


@pytest.mark.parametrize(
    ("level", "status", "kept"), [("wrong", 1, True), ("warning", 0, True), ("note", 0, False), ("waived", 0, False)]
)
def test_what_doctor_finds(monkeypatch: pytest.MonkeyPatch, level: str, status: int, kept: bool) -> None:
    report = looked(monkeypatch, {}, level)
    assert bool(report.installed) is kept
    assert report.status == status


def test_where_nothing_is_installed_the_target_has_to_show_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path), "/nowhere"])
    report = Report([])
    installed.look(report)
    assert [said.key for said in report.target] == ["target-packages"]
    (tmp_path / "verl-0.8.0.dist-info").mkdir()
    assert installed.anything()
