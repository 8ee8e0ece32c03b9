"""What doctor finds in an environment, each finding made and unmade."""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from train_infer_consistency.overlay import doctor
from train_infer_consistency.overlay.apply import apply
from train_infer_consistency.overlay.doctor import Report, examine, lines
from train_infer_consistency.overlay.finding import Finding
from train_infer_consistency.overlay.lock import Lock, Stack, Waiver, load_lock
from train_infer_consistency.overlay.model import Refusal
from train_infer_consistency.overlay.reading import load_upstreams

from .in_place import (
    OTHER,
    SKEL,
    Known,
    bare_site,
    install,
    install_woven,
    make_editable,
    upstreams_and_lock,
    write_metadata,
    write_tree,
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment with nothing wrong in it."""
    return bare_site(tmp_path / "site")


def found(report: Report, subject: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.subject == subject]


def test_nothing_wrong(known: Known, site: Path) -> None:
    report = examine(*known, site)
    assert (report.status, report.findings) == (0, ())
    apply(*known, ["skel"], site=site)
    report = examine(*known, site)
    assert (report.status, report.findings) == (0, ())
    assert any("woven by consistency.1 (this version), agrees with its journal" in line for line in lines(report))
    assert json.loads(json.dumps(report.to_json()))["status"] == 0


def test_several_recorded_versions_are_a_warning(known: Known, site: Path) -> None:
    write_metadata(site, "torch", "2.8.0")
    write_metadata(site, "torch", "2.9.0")
    report = examine(*known, site)
    (finding,) = found(report, "torch")
    assert (finding.level, report.status) == ("warning", 0)
    assert "torch-2.8.0.dist-info, torch-2.9.0.dist-info" in finding.what


def test_nothing_to_look_at(known: Known, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    report = examine(*known, tmp_path / "empty")
    assert (report.status, report.upstreams) == (3, ())
    assert "none of the upstream packages is here" in lines(report)


def test_version_that_no_pin_knows(known: Known, site: Path) -> None:
    """One line for all its files, and the reason where it is refused by name."""
    newer = {path: data + b"#\n" for path, data in SKEL.items()}
    install(site, "skel", {**newer, "skel/refused.py": b""})
    (finding,) = found(examine(*known, site), "skel")
    assert (finding.level, finding.what) == (
        "note",
        "skel/deep/loop.py and 2 more: as its wheel has it, which is no pinned version",
    )
    refusal = Refusal("skel >= 2", "skel/refused.py", None, None, "never enters them", "use skel 1.0")
    upstreams = {**known[0], "skel": replace(known[0]["skel"], refusals=(refusal,))}
    levels = {finding.level: finding.what for finding in found(examine(upstreams, known[1], site), "skel")}
    assert "is skel >= 2, which is refused: never enters them; use skel 1.0" in levels["warning"]


def test_plain_tree_says_nothing_of_what_is_installed(known: Known, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", SKEL)
    apply(*known, ["skel"], site=tree)
    report = examine(*known, tree)
    assert [(finding.level, finding.subject) for finding in report.findings] == [("note", "skel")]
    assert report.status == 0


@pytest.mark.parametrize("record", ["journal", "wheel"])
def test_digests_against_the_record(known: Known, site: Path, record: str) -> None:
    if record == "journal":
        apply(*known, ["skel"], site=site)
    else:
        install_woven(site, known[0]["skel"], known[1], SKEL)
        (site / "skel_engine-1.0.dist-info/METADATA").unlink()
    assert examine(*known, site).status == 0
    with (site / "skel/runner.py").open("ab") as file:
        file.write(b"#\n")
    report = examine(*known, site)
    assert report.status == 1
    (finding,) = found(report, "skel")
    assert finding.level == "wrong"
    assert "skel/runner.py is changed by someone else since" in finding.what


def test_interrupted_and_other_version(known: Known, site: Path, tmp_path: Path) -> None:
    apply(*known, ["skel"], site=site)
    newer = upstreams_and_lock(tmp_path / "newer", 2)
    assert "woven by consistency.1" in found(examine(*newer, site), "skel")[0].what
    journal = site / ".train-infer-consistency/skel/journal.json"
    journal.write_text(journal.read_text().replace('"state": "applied"', '"state": "applying"'))
    (finding,) = found(examine(*known, site), "skel")
    assert (finding.level, finding.mend) == ("wrong", "consistency overlay revert skel")


@pytest.mark.parametrize(
    ("version", "level", "says"),
    [
        (None, "warning", "not installed"),
        ("8.3.0", "wrong", "older than 26.0.0"),
        ("25.9", "wrong", "older than 26.0.0"),
        ("26.0.0a4", None, ""),
        ("26.0.0", None, ""),
        ("26.1.0", "note", "null for Mean and Norm"),
        ("26.2.0+consistency.1", "note", "null for Mean and Norm"),
        ("27.0", "note", "null for Mean and Norm"),
    ],
)
def test_msprobe(known: Known, site: Path, version: str | None, level: str | None, says: str) -> None:
    for path in site.glob("mindstudio_probe*/METADATA"):
        path.unlink()
    if version is not None:
        write_metadata(site, "mindstudio-probe", version)
    report = examine(*known, site)
    got = found(report, "mindstudio-probe")
    assert [finding.level for finding in got] == ([] if level is None else [level])
    assert report.status == (1 if level == "wrong" else 0)
    assert not got or says in got[0].what


def test_editable_install_is_warned_of(known: Known, site: Path, tmp_path: Path) -> None:
    checkout = write_tree(tmp_path / "checkout", OTHER)
    make_editable(site, "other", checkout, "finder")
    report = examine(*known, site)
    (finding,) = found(report, "other")
    assert (finding.level, report.status) == ("warning", 0)
    assert "a woven wheel would displace it" in finding.what
    assert finding.mend == "use 'consistency overlay apply other' instead of a wheel"


def test_hidden_copy(known: Known, site: Path, tmp_path: Path) -> None:
    (site / "more.pth").write_text(f"{write_tree(tmp_path / 'second', SKEL)}\n")
    (finding,) = found(examine(*known, site), "skel")
    assert finding.level == "warning"
    assert f"hides another copy, {tmp_path / 'second/skel'}" in finding.what


def test_folder_in_the_way(known: Known, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    (tmp_path / "work/skel").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not found(examine(*known), "skel")
    monkeypatch.chdir(site)
    assert not found(examine(*known), "skel")
    monkeypatch.chdir(tmp_path / "work")
    (finding,) = found(examine(*known), "skel")
    assert f"would import {tmp_path / 'work/skel'}" in finding.what


def test_this_package_is_missing(known: Known, site: Path) -> None:
    (site / "train_infer_consistency/__init__.py").unlink()
    report = examine(*known, site)
    assert [finding.level for finding in found(report, "train-infer-consistency")] == ["warning"]
    apply(*known, ["skel"], site=site)
    report = examine(*known, site)
    assert [finding.level for finding in found(report, "train-infer-consistency")] == ["wrong"]
    assert report.status == 1


def test_device_that_vllm_ascend_was_built_for(tmp_path: Path) -> None:
    site = write_tree(tmp_path / "site", {"vllm_ascend/__init__.py": b""})
    write_metadata(site, "vllm-ascend", "0.18.0")
    upstreams, lock = load_upstreams(), load_lock()
    assert not any("built for" in f.what for f in examine(upstreams, lock, site).findings)
    (site / "vllm_ascend/_build_info.py").write_text("__soc_version__ = 'x'\n__device_type__ = 'A2'\n")
    said = [f for f in examine(upstreams, lock, site).findings if "built for A2" in f.what]
    assert [(finding.level, finding.subject) for finding in said] == [("note", "vllm-ascend")]


# ---- requirements ----


def requiring(site: Path, name: str, version: str, *requires: str) -> None:
    write_metadata(site, name, version, requires)


def waived(lock: Lock, *waivers: Waiver) -> Lock:
    stack = Stack("s", "t", "3.11", {}, (), (), waivers)
    return Lock(lock.revision, lock.overlays, lock.upstreams, {"s": stack})


TORCH = Waiver(
    "torch", ("torch==2.9.0 (skel-engine 1.0)", "torch==2.10.0 (vllm 0.18.0)"), "torch==2.9.0 (skel-engine 1.0)", "w"
)


@pytest.mark.parametrize("woven", ["", "+empty"])
def test_contradiction_and_its_waiver(known: Known, site: Path, woven: str) -> None:
    requiring(site, "skel-engine", "1.0", "torch==2.9.0", "numpy<2")
    requiring(site, "vllm", f"0.18.0{woven}", "torch==2.10.0", "numpy", "torch-extra==1; extra == 'more'")
    requiring(site, "torch", "2.9.0+cpu")
    requiring(site, "numpy", "1.26.4")
    report = examine(*known, site)
    (finding,) = found(report, "torch")
    assert (finding.level, report.status) == ("wrong", 1)
    assert "torch==2.9.0 (skel-engine 1.0) against torch==2.10.0 (vllm 0.18.0" in finding.what
    assert "no version satisfies all of them; installed is 2.9.0+cpu" in finding.what
    report = examine(known[0], waived(known[1], TORCH), site)
    (finding,) = found(report, "torch")
    assert (finding.level, report.status) == ("waived", 0)
    assert "torch==2.9.0 (skel-engine 1.0) wins, because w" in finding.what
    assert {f.subject for f in report.findings} == {"torch"}


@pytest.mark.parametrize(("have", "other"), [("2.10.0", "torch==2.10.0"), ("2.9.0", "torch==2.11.0")])
def test_waiver_that_does_not_cover_it(known: Known, site: Path, have: str, other: str) -> None:
    """Another version than the winner is installed, or another demand than the waived one loses."""
    requiring(site, "skel-engine", "1.0", "torch==2.9.0")
    requiring(site, "vllm", "0.18.0", other)
    requiring(site, "torch", have)
    (finding,) = found(examine(known[0], waived(known[1], TORCH), site), "torch")
    assert finding.level == "wrong"


@pytest.mark.parametrize(("third", "level"), [("torch>=2.9", "waived"), ("torch==2.11.0", "wrong")])
def test_waiver_where_the_package_is_not_installed(known: Known, site: Path, third: str, level: str) -> None:
    """It is the winner that the others are held against."""
    requiring(site, "skel-engine", "1.0", "torch==2.9.0")
    requiring(site, "vllm", "0.18.0", "torch==2.10.0")
    requiring(site, "torch-npu", "2.9.0", third)
    (finding,) = found(examine(known[0], waived(known[1], TORCH), site), "torch")
    assert (finding.level, "installed is none" in finding.what) == (level, True)


def test_requirement_that_is_not_met(known: Known, site: Path) -> None:
    requiring(site, "skel-engine", "1.0", "numpy<2.0.0", "absent-one>=1")
    requiring(site, "numpy", "2.4.6")
    report = examine(*known, site)
    (finding,) = found(report, "numpy")
    assert finding.what == "skel-engine 1.0 requires numpy<2.0.0, installed is 2.4.6"
    assert report.status == 1
    assert not found(report, "absent-one")


def test_requirement_on_what_has_no_version(known: Known, site: Path) -> None:
    requiring(site, "skel-engine", "1.0", "torch==2.9.0", "torch>=2")
    requiring(site, "torch", "2.9.0-npu")
    report = examine(*known, site)
    (finding,) = found(report, "torch")
    assert (finding.level, report.status) == ("not checked", 0)
    assert finding.what.startswith("torch==2.9.0 (skel-engine 1.0), torch>=2 (skel-engine 1.0): 2.9.0-npu is installed")


def test_distributions_outside_the_stack_are_no_matter(known: Known, site: Path) -> None:
    requiring(site, "somebody", "1", "numpy<2")
    requiring(site, "numpy", "2.4.6")
    assert examine(*known, site).findings == ()


def test_without_packaging(known: Known, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requiring(site, "skel-engine", "1.0", "numpy<2")
    requiring(site, "numpy", "2.4.6")
    real = builtins.__import__

    def refuse(name: str, *rest: object, **more: object) -> object:
        if name.split(".", maxsplit=1)[0] == "packaging":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    report = examine(*known, site)
    assert [(f.level, f.subject) for f in report.findings] == [("not checked", "requirements")]
    assert "packaging is not installed" in report.findings[0].what
    assert report.status == 0


@pytest.mark.download
def test_real_releases_and_the_waivers_of_the_lock(release: Callable[..., Path], tmp_path: Path) -> None:
    """The contradictions known from the field, in a stack as the release image has it, are waived and nothing else."""
    import zipfile

    site = tmp_path / "site"
    for name, version in (
        ("verl", "0.8.0"),
        ("vllm-ascend", "0.18.0"),
        ("vllm", "0.18.0"),
        ("mindstudio-probe", "26.2.0"),
    ):
        with zipfile.ZipFile(release(name, version)) as archive:
            wanted = [n for n in archive.namelist() if n.endswith(("METADATA", "/_build_info.py", "/RECORD"))]
            wanted += [n for n in archive.namelist() if re.fullmatch(r"(verl|vllm|vllm_ascend|msprobe)/.*\.py", n)]
            archive.extractall(site, wanted)
    requiring(site, "torch", "2.9.0")
    requiring(site, "torch-npu", "2.9.0.post2")
    upstreams, lock = load_upstreams(), load_lock()
    report = examine(upstreams, lock, site)
    assert {row.upstream: (row.state, row.pin) for row in report.upstreams} == {
        "mindstudio-probe": ("pristine", "26.2.0"),
        "verl": ("pristine", "0.8.0"),
        "vllm": ("pristine", "0.18.0"),
        "vllm-ascend": ("pristine", "0.18.0"),
    }
    levels = {finding.subject: finding.level for finding in report.findings}
    assert levels.get("torch") == levels.get("torch-npu") == "waived"
    assert any("built for A2" in finding.what for finding in report.findings)
    requiring(site, "numpy", "2.4.6")
    assert {f.level for f in found(examine(upstreams, lock, site), "numpy")} == {"wrong"}


# ---- the command ----


def test_command(known: Known, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from train_infer_consistency.cli.main import main

    monkeypatch.setattr("train_infer_consistency.overlay.reading.load_upstreams", lambda: known[0])
    monkeypatch.setattr("train_infer_consistency.overlay.lock.load_lock", lambda: known[1])
    assert main(["doctor", "--site", str(site)]) == 0
    assert "skel" in capsys.readouterr().out
    requiring(site, "mindstudio-probe", "8.3.0")
    (site / "mindstudio_probe-26.0.0.dist-info/METADATA").unlink()
    assert main(["doctor", "--site", str(site)]) == 1
    assert "wrong: mindstudio-probe: 8.3.0 is older than 26.0.0" in capsys.readouterr().out
    assert main(["doctor", "--site", str(site), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["status"], report["upstreams"][0]["upstream"]) == (1, "skel")
    assert report["findings"][0]["level"] == "wrong"
    assert main(["doctor", "--site", str(site / "missing")]) == 3
    assert doctor.OWN_PACKAGE == "train_infer_consistency"
