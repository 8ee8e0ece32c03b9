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
from train_infer_consistency.overlay.finding import Finding


def looked(monkeypatch: pytest.MonkeyPatch, rows: dict[str, str], *levels: str, stack: str = "verl-0.8") -> Report:
    """A report, where these upstreams are in these states and doctor finds something at each level."""
    run = Run(VERL_HYBRID)
    run.stack = versions(stack)
    report = Report([run])
    report.applied.add("V101")
    found = SimpleNamespace(
        upstreams=[SimpleNamespace(upstream=name, state=state) for name, state in rows.items()],
        findings=[Finding(level, "x", "is so", "mend it") for level in levels],  # type: ignore[arg-type]
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


def test_vllm_needs_the_overlay_where_there_is_no_vllm_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = looked(monkeypatch, {"vllm": "pristine", "verl": "woven"}, stack="verl-0.8-cuda").installed
    assert (one.level, one.subject, one.mend) == ("wrong", "vllm", "consistency overlay apply vllm")
    assert "dumps nothing that can be paired" in one.what


def test_what_msprobe_lacks_without_the_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = looked(monkeypatch, {"mindstudio-probe": "pristine"}).installed
    assert one.mend == "consistency overlay apply mindstudio-probe"
    assert "CONSISTENCY_KEEP_ENDS does nothing" in one.what


def test_only_a_pristine_upstream_lacks_the_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(monkeypatch, {"verl": "modified", "vllm-ascend": "absent"}).installed == []


def test_all_that_is_found_is_kept_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    report = looked(monkeypatch, {"verl": "pristine"}, "warning", "wrong")
    assert [(one.level, one.subject) for one in report.installed] == [
        ("wrong", "verl"), ("warning", "x"), ("wrong", "x"),
    ]  # fmt: skip
    assert [(one.what, one.mend) for one in report.installed[1:]] == [("is so", "mend it")] * 2


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("verl-0.8.0.dist-info", True),
        ("vllm_ascend-0.18.0.dist-info", True),
        ("vllm-0.18.0.dist-info", True),
        ("slime-0.2.2.dist-info", True),
        ("sglang-0.5.8.dist-info", True),
        ("mindstudio_probe-26.2.0.dist-info", True),
        ("verl-0.8.0.txt", False),
        ("verlx-0.8.0.dist-info", False),
        ("torch-2.9.0.dist-info", False),
    ],
)
def test_an_upstream_is_seen_by_its_metadata(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, there: bool
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr("sys.path", ["/nowhere", str(tmp_path)])
    assert installed.anything() is there


@pytest.mark.parametrize(
    ("level", "status", "kept"), [("wrong", 1, True), ("warning", 0, True), ("note", 0, False), ("waived", 0, False)]
)
def test_what_doctor_finds(monkeypatch: pytest.MonkeyPatch, level: str, status: int, kept: bool) -> None:
    report = looked(monkeypatch, {}, level)
    assert bool(report.installed) is kept
    assert report.status == status


def test_what_doctor_could_not_look_at_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    report = looked(monkeypatch, {}, "not checked")
    assert [said.text() for said in report.target] == ["installed packages: x: is so; mend it"]
    assert (report.installed, report.status) == ([], 0)


def test_where_nothing_is_installed_the_target_has_to_show_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path), "/nowhere"])
    report = Report([])
    installed.look(report)
    assert [said.key for said in report.target] == ["target-packages"]
    (tmp_path / "verl-0.8.0.dist-info").mkdir()
    assert installed.anything()
