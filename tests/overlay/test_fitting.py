"""Whether an environment fits a stack: its pins by their digests, before the overlay is laid and after; versions."""

from __future__ import annotations

import builtins
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from train_infer_consistency.cli.main import main
from train_infer_consistency.errors import UsageError
from train_infer_consistency.overlay.apply import apply
from train_infer_consistency.overlay.doctor import Report, examine, lines
from train_infer_consistency.overlay.lock import Fact, Stack, Waiver, load_lock
from train_infer_consistency.overlay.reading import load_upstreams

from .in_place import (
    OTHER,
    SKEL,
    Known,
    bare_site,
    install,
    install_woven,
    upstreams_and_lock,
    write_metadata,
    write_tree,
)

STACK = Stack(
    "s", "S", "3.11", {"skel": "1.0", "other": "1.0"}, (Fact("torch", "2.9.0", "x", "torch"),), (), (), {}, {}
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment that fits the stack, and has nothing woven."""
    site = bare_site(tmp_path / "site")
    install(site, "other", OTHER)
    write_metadata(site, "torch", "2.9.0+cpu")
    return site


def said(report: Report, *levels: str) -> dict[str, tuple[str, str]]:
    """The findings of these levels by their subjects; each subject has one."""
    wanted = levels or ("wrong", "missing")
    found: dict[str, tuple[str, str]] = {
        finding.subject: (finding.level, finding.what) for finding in report.findings if finding.level in wanted
    }
    assert len(found) == len([finding for finding in report.findings if finding.level in wanted])
    assert all(finding.mend for finding in report.findings if finding.level in ("wrong", "missing"))
    return found


def test_fits_before_the_overlay_is_laid_and_after(known: Known, site: Path) -> None:
    report = examine(*known, site, STACK)
    assert (report.status, said(report), report.stack) == (0, {}, "s")
    assert said(report, "note") == dict.fromkeys(("skel", "other"), ("note", "fits, and is not woven yet"))
    assert "stack s: torch 2.9.0+cpu as in the lock" in lines(report)
    apply(*known, ["skel", "other"], site=site)
    report = examine(*known, site, STACK)
    assert (report.status, report.findings) == (0, ())


def test_fits_with_a_woven_wheel(known: Known, site: Path) -> None:
    (site / "skel_engine-1.0.dist-info/METADATA").unlink()
    install_woven(site, known[0]["skel"], known[1], SKEL)
    apply(*known, ["other"], site=site)
    assert examine(*known, site, STACK).status == 0


def test_half_of_the_stack_is_woven(known: Known, site: Path) -> None:
    """Only one side of a run would dump."""
    apply(*known, ["skel"], site=site)
    report = examine(*known, site, STACK)
    assert said(report) == {"other": ("wrong", "not woven, while skel is")}
    assert (report.status, report.findings[0].mend) == (1, "consistency overlay apply other")
    assert examine(*known, site, STACK, ["other"]).status == 0


def test_pin_that_is_not_there(known: Known, site: Path) -> None:
    shutil.rmtree(site / "other")
    report = examine(*known, site, STACK)
    assert said(report) == {"other": ("missing", "not here: stack s has other 1.0")}
    assert report.status == 3


def test_something_wrong_outranks_what_is_missing(known: Known, site: Path) -> None:
    shutil.rmtree(site / "other")
    write_metadata(site, "torch", "2.10.0")
    (site / "torch-2.9.0+cpu.dist-info/METADATA").unlink()
    report = examine(*known, site, STACK)
    assert said(report) == {
        "other": ("missing", "not here: stack s has other 1.0"),
        "torch": ("wrong", "installed is 2.10.0, stack s has torch 2.9.0"),
    }
    assert report.status == 1
    assert [finding.level for finding in report.findings[:2]] == ["wrong", "missing"]


def test_nothing_of_the_stack_is_there(known: Known, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    report = examine(*known, tmp_path / "empty", STACK)
    assert set(said(report)) == {"skel", "other", "torch"}
    assert report.status == 3


def test_another_pin_than_the_stacks(known: Known, site: Path) -> None:
    stack = replace(STACK, pins={**STACK.pins, "skel": "2.0"})
    report = examine(*known, site, stack)
    assert said(report) == {"skel": ("wrong", "its files are those of 1.0, stack s has 2.0")}
    assert report.status == 1
    assert examine(*known, site, replace(stack, in_place={"skel": ("0.9", "1.0")})).status == 0
    apply(*known, ["skel", "other"], site=site)
    assert said(examine(*known, site, stack)) == {"skel": ("wrong", "its files are those of 1.0, stack s has 2.0")}


def test_no_pinned_version(known: Known, site: Path) -> None:
    """As its wheel has it, which an environment without a stack is free to hold."""
    install(site, "skel", {**SKEL, "skel/runner.py": b"class Runner:\n    pass\n"})
    assert examine(*known, site).status == 0
    report = examine(*known, site, STACK)
    assert said(report) == {"skel": ("wrong", "its files are those of no pinned version, stack s has 1.0")}


def test_edited_scopes_as_pinned(known: Known, site: Path) -> None:
    """A branch that moved on elsewhere in the edited files fits, and it is said."""
    install(site, "skel", {**SKEL, "skel/deep/pool.py": SKEL["skel/deep/pool.py"] + b"\n\ndef more():\n    pass\n"})
    (site / "skel_engine-1.0.dist-info/RECORD").unlink()
    report = examine(*known, site, STACK)
    assert (report.status, said(report)) == (0, {})
    notes = [finding.what for finding in report.findings if finding.subject == "skel"]
    assert "skel/deep/pool.py: no pinned file, but what is edited in it is as pinned" in notes


def test_changed_by_someone(known: Known, site: Path) -> None:
    write_tree(site, {"skel/runner.py": SKEL["skel/runner.py"].replace(b"x + 1", b"x + 2")})
    report = examine(*known, site, STACK)
    assert report.status == 1
    assert "skel/runner.py is no pinned file: changed by someone else, or another version" in said(report)["skel"][1]


def test_woven_by_another_revision(known: Known, site: Path, tmp_path: Path) -> None:
    apply(*upstreams_and_lock(tmp_path / "newer", 2), ["skel", "other"], site=site)
    assert said(examine(*known, site, STACK)) == dict.fromkeys(
        ("skel", "other"), ("wrong", "woven by consistency.2, and this version is another")
    )


def test_what_is_left_out_is_not_looked_at(known: Known, site: Path) -> None:
    write_tree(site, {"skel/runner.py": b"changed\n"})
    requires = ("torch==1.0",)
    (site / "skel_engine-1.0.dist-info/METADATA").unlink()
    write_metadata(site, "skel-engine", "0.9", requires)
    assert examine(*known, site, STACK).status == 1
    report = examine(*known, site, STACK, ["skel"])
    assert (report.status, said(report)) == (0, {})
    assert [row.upstream for row in report.upstreams] == ["other"]
    with pytest.raises(UsageError, match="--without skell: stack s has no such upstream; use one of skel, other"):
        examine(*known, site, STACK, ["skell"])


def test_msprobe_that_is_brought_later(known: Known, site: Path) -> None:
    """What a base has of it is replaced, so an old one is no finding."""
    write_metadata(site, "mindstudio-probe", "8.3.0")
    (site / "mindstudio_probe-26.0.0.dist-info/METADATA").unlink()
    stack = replace(STACK, pins={**STACK.pins, "mindstudio-probe": "26.2.0"})
    upstreams = {**known[0], "mindstudio-probe": replace(load_upstreams()["mindstudio-probe"], imports=())}
    report = examine(upstreams, known[1], site, stack)
    assert [(f.level, f.subject) for f in report.findings[:2]] == [
        ("wrong", "mindstudio-probe"),
        ("missing", "mindstudio-probe"),
    ]
    report = examine(upstreams, known[1], site, stack, ["mindstudio-probe"])
    assert report.status == 0
    assert not [finding for finding in report.findings if finding.subject == "mindstudio-probe"]


def test_waivers_are_those_of_the_stack(known: Known, site: Path) -> None:
    write_metadata(site, "other-engine", "1.0", ("numpy<2",))
    write_metadata(site, "skel-engine", "1.0", ("numpy>=2",))
    write_metadata(site, "numpy", "2.2")
    waiver = Waiver(
        "numpy", ("numpy<2 (other-engine 1.0)", "numpy>=2 (skel-engine 1.0)"), "numpy>=2 (skel-engine 1.0)", "w"
    )
    lock = replace(known[1], stacks={"s": STACK, "t": replace(STACK, name="t", waivers=(waiver,))})
    assert said(examine(known[0], lock, site)) == {}
    assert set(said(examine(known[0], lock, site, lock.stacks["s"]))) == {"numpy"}
    assert said(examine(known[0], lock, site, lock.stacks["t"])) == {}


def test_without_packaging_nothing_was_compared(known: Known, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: object, **more: object) -> object:
        if name.split(".", maxsplit=1)[0] == "packaging":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    report = examine(*known, site, STACK)
    assert (report.status, report.facts) == (3, ())
    assert set(said(report)) == {"packaging"}


def test_python_of_the_stack(known: Known, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    for version, warned in (("3.11.7", False), ("3.12.1", True), ("3.1.1", True), ("3.110.0", True)):
        monkeypatch.setattr("platform.python_version", lambda version=version: version)
        warnings = [f for f in examine(*known, None, STACK).findings if f.subject == "Python"]
        assert [finding.level for finding in warnings] == ["warning"] * warned


# ---- what is imported at start ----


def test_what_an_upstream_imports_at_its_start(known: Known, site: Path) -> None:
    upstreams = {**known[0], "skel": replace(known[0]["skel"], imports=("einops", "PyYAML"))}
    for name in ("einops", "pyyaml"):
        write_metadata(site, name)
    assert examine(upstreams, known[1], site).findings == ()
    for name in ("einops", "pyyaml"):
        (site / f"{name}-1.0.dist-info/METADATA").unlink()
    (finding,) = examine(upstreams, known[1], site).findings
    assert (finding.level, finding.subject) == ("wrong", "skel")
    assert finding.what == "it imports einops, PyYAML when it starts, and that is not installed"
    assert finding.mend == "pip install einops PyYAML"
    # Brought later it is without its requirements too, so the base has to have them.
    (later,) = said(examine(upstreams, known[1], site, STACK, ["skel"])).values()
    assert later == ("wrong", finding.what)
    assert examine(known[0], known[1], site, STACK, ["skel"]).status == 0


@pytest.mark.download
def test_what_msprobe_imports_is_of_its_requirements(release: Callable[..., Path]) -> None:
    with zipfile.ZipFile(release("mindstudio-probe", "26.2.0")) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        required = re.findall(r"(?m)^Requires-Dist: ([\w.-]+)(?!.*extra)", archive.read(name).decode())
    assert set(load_upstreams()["mindstudio-probe"].imports) < {name.lower() for name in required}


# ---- real releases ----

#: The rest of an environment that fits verl-0.8, as its release image is said to hold it.
ASCEND = {"torch": "2.9.0+cpu", "torch-npu": "2.9.0.post2", "triton-ascend": "3.2.1", "tensordict": "0.10.0"}


def unpack(upstream: str, wheel: Path, site: Path) -> None:
    """The part of a wheel that doctor looks at."""
    known = load_upstreams()[upstream]
    looked_at = {f"{known.package}/__init__.py", *(file.path for file in known.files)}
    looked_at |= {refusal.file for refusal in known.refusals}
    looked_at |= {f"{path.rpartition('/')[0]}/__init__.py" for path in looked_at}
    with zipfile.ZipFile(wheel) as archive:
        wanted = [n for n in archive.namelist() if n in looked_at or n.endswith((".dist-info/METADATA", "/RECORD"))]
        archive.extractall(site, wanted)


@pytest.fixture(scope="module")
def ascend(release: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """verl 0.8.0, vllm-ascend and vLLM from their wheels, and metadata of what is around them."""
    site = tmp_path_factory.mktemp("ascend") / "site"
    for name, version in (("verl", "0.8.0"), ("vllm-ascend", "0.18.0"), ("vllm", "0.18.0")):
        unpack(name, release(name, version), site)
    for name in load_upstreams()["mindstudio-probe"].imports:
        write_metadata(site, name, "26.0")
    shutil.rmtree(site / "numpy-26.0.dist-info")
    for name, version in {**ASCEND, "transformers": "5.3.0.dev0", "numpy": "1.26.4", "megatron-core": "0.16.0"}.items():
        write_metadata(site, name, version)
    return site


@pytest.fixture
def ascend_copy(ascend: Path, tmp_path: Path) -> Path:
    return shutil.copytree(ascend, tmp_path / "site", copy_function=shutil.copy)


def of_stack(name: str, site: Path, *without: str) -> Report:
    lock = load_lock()
    return examine(load_upstreams(), lock, site, lock.stack(name), without)


@pytest.mark.download
def test_release_image_fits_its_stack(ascend_copy: Path) -> None:
    """The base of an image, before anything is laid; then with the overlay in place, and with msprobe missing."""
    report = of_stack("verl-0.8", ascend_copy, "mindstudio-probe")
    assert (report.status, said(report)) == (0, {})
    verdicts = {one.fact: one.verdict for one in report.facts}
    assert verdicts["torch"] == verdicts["torch_npu"] == verdicts["vllm"] == "agrees"
    assert verdicts["transformers"] == verdicts["Megatron-LM"] == "waived"
    upstreams, lock = load_upstreams(), load_lock()
    write_tree(ascend_copy, {"train_infer_consistency/__init__.py": b""})
    apply(upstreams, lock, ["verl", "vllm-ascend"], site=ascend_copy)
    assert of_stack("verl-0.8", ascend_copy, "mindstudio-probe").status == 0
    report = of_stack("verl-0.8", ascend_copy)
    assert (report.status, said(report)) == (
        3,
        {"mindstudio-probe": ("missing", "not here: stack verl-0.8 has mindstudio-probe 26.2.0")},
    )


@pytest.mark.download
@pytest.mark.parametrize(
    ("name", "version", "level", "what"),
    [
        ("torch", "2.10.0", "wrong", "installed is 2.10.0, stack verl-0.8 has torch 2.9.0"),
        ("torch-npu", "2.8.0.post2", "wrong", "installed is 2.8.0.post2, stack verl-0.8 has torch_npu 2.9.0.post2"),
        ("vllm", "0.18.1", "wrong", "installed is 0.18.1, stack verl-0.8 has vllm 0.18.0"),
        ("tensordict", "0.9.1", "wrong", "installed is 0.9.1, stack verl-0.8 has tensordict 0.10.0"),
        ("triton-ascend", None, "missing", "not installed: stack verl-0.8 has triton-ascend 3.2.1"),
        ("megatron-core", "0.13.0", "wrong", "installed is 0.13.0, stack verl-0.8 has Megatron-LM core_v0.12.1"),
    ],
)
def test_version_that_does_not_fit(
    ascend: Path, tmp_path: Path, name: str, version: str | None, level: str, what: str
) -> None:
    """In front of the environment, as in a user's folder, another version of one package."""
    site = tmp_path / "site"
    shutil.copytree(ascend, site, copy_function=shutil.copy)
    (info,) = site.glob(f"{name.replace('-', '_')}-*.dist-info")
    shutil.rmtree(info)
    if version is not None:
        write_metadata(site, name, version)
    report = of_stack("verl-0.8", site, "mindstudio-probe")
    assert (level, what) in [(f.level, f.what) for f in report.findings if f.subject == name]
    assert report.status == (1 if level == "wrong" else 3)


@pytest.mark.download
def test_base_of_another_stack(ascend: Path) -> None:
    """verl b7dabd83 is laid over a base that has verl 0.8.0: with verl left out it fits, with it it does not."""
    report = of_stack("verl-b7dabd83", ascend, "mindstudio-probe")
    assert said(report) == {"verl": ("wrong", "its files are those of 0.8.0, stack verl-b7dabd83 has b7dabd83")}
    report = of_stack("verl-b7dabd83", ascend, "mindstudio-probe", "verl")
    assert (report.status, said(report)) == (0, {})
    assert {one.fact for one in report.facts if one.verdict == "waived"} >= {"torch_npu", "triton-ascend"}
    assert of_stack("slime-0.2.2", ascend, "mindstudio-probe").status == 1


@pytest.mark.download
@pytest.mark.parametrize("version", ["0.5.8", "0.5.9"])
def test_sglang_of_another_stack(release: Callable[..., Path], tmp_path: Path, version: str) -> None:
    unpack("sglang", release("sglang", version), tmp_path)
    for name in load_upstreams()["mindstudio-probe"].imports:
        write_metadata(tmp_path, name, "1.26.0")
    report = of_stack("slime-0.2.2", tmp_path, "mindstudio-probe", "slime")
    wrong = said(report)
    assert ("sglang" in wrong) == (version == "0.5.9")
    assert report.status == (3 if version == "0.5.8" else 1)


# ---- the command ----


def test_command(known: Known, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lock = replace(known[1], stacks={"s": STACK})
    monkeypatch.setattr("train_infer_consistency.overlay.reading.load_upstreams", lambda: known[0])
    monkeypatch.setattr("train_infer_consistency.overlay.lock.load_lock", lambda: lock)
    command = ["doctor", "--stack", "s", "--site", str(site)]
    assert main(command) == 0
    assert "stack s: torch 2.9.0+cpu as in the lock" in capsys.readouterr().out
    shutil.rmtree(site / "other")
    assert main(command) == 3
    assert "missing: other: not here: stack s has other 1.0; install other 1.0" in capsys.readouterr().out
    assert main([*command, "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["status"], report["stack"]) == (3, "s")
    assert report["facts"][0] == {
        "fact": "torch",
        "wanted": "2.9.0",
        "distribution": "torch",
        "installed": "2.9.0+cpu",
        "verdict": "agrees",
        "optional": False,
        "why": "",
    }
    assert main([*command, "--without", "other"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stack", "verl-0.7"], "there is no stack 'verl-0.7'; use one of verl-0.8, verl-0.8-cuda, verl-b7dabd83"),
        (["--stack", "verl-0.8", "--without", "sglang"], "--without sglang: stack verl-0.8 has no such upstream"),
        (["--without", "verl"], "--without needs --stack"),
        (["--stack", "verl-0.8", "--ray"], "--stack looks at one environment"),
    ],
)
def test_bad_input(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
