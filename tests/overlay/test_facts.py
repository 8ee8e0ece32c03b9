"""The version facts of a stack beside the metadata of installed packages: versions, commits, and what is not told."""

from __future__ import annotations

import json
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from train_infer_consistency.overlay import facts
from train_infer_consistency.overlay.cann import cann_version
from train_infer_consistency.overlay.facts import commit_of, compare_facts, facts_said
from train_infer_consistency.overlay.lock import Fact, Stack, load_lock

from .in_place import write_metadata

COMMIT = "3714d81d418c9f1bca4594fc35f9e8289f652862"


def stack_of(*facts: Fact) -> Stack:
    return Stack("s", "S", "3.11", {}, facts, (), ())


def judged(fact: Fact, version: str, site: Path) -> facts.Compared:
    info = write_metadata(site, "torch-npu", version)
    (one,) = compare_facts(stack_of(fact), {"torch-npu": PathDistribution(info)})
    return one


@pytest.mark.parametrize(
    ("value", "match", "installed", "verdict"),
    [
        ("2.9.0", "", "2.9.0", "agrees"),
        ("2.9.0", "", "2.9.0+cpu", "agrees"),
        ("2.9.0", "", "2.9", "agrees"),
        ("2.9.0", "", "2.9.0.post2", "differs"),
        ("2.9.0", "", "2.9.1", "differs"),
        ("2.9.0", "", "2.9.0rc1", "differs"),
        ("2.9.0.post2", "", "2.9.0.post2+git1f2e3d4", "agrees"),
        ("2.9.0.post2", "", "2.9.0", "differs"),
        ("2.9.0+cpu", "", "2.9.0", "differs"),
        ("2026.02.01", "", "2026.2.1", "agrees"),
        ("5.3.0.dev0", "", "5.3.0.dev0", "agrees"),
        ("core_v0.12.1", "==0.12.1", "0.12.1", "agrees"),
        ("core_v0.12.1", "==0.12.1", "0.12.1rc0", "differs"),
        ("core_r0.16.0", "==0.16.*", "0.16.0rc0", "agrees"),
        ("0.15.1", ">=0.15.1", "0.16", "agrees"),
        ("0.15.1", ">=0.15.1", "0.16rc1", "agrees"),
        ("0.15.1", ">=0.15.1", "0.15", "differs"),
        ("2.9.0", "", "no version", "not checked"),
    ],
)
def test_version_beside_the_stacks(value: str, match: str, installed: str, verdict: str, tmp_path: Path) -> None:
    one = judged(Fact("torch_npu", value, "s", "torch_npu", match), installed, tmp_path)
    assert one.verdict == verdict
    assert one.installed == installed


def test_accepted_version_is_waived_with_its_reason(tmp_path: Path) -> None:
    fact = Fact("torch_npu", "2.9.0", "s", "torch-npu", also=("==2.9.0.post2", ">=2.8,<2.9"), why="the base holds it")
    assert judged(fact, "2.9.0", tmp_path / "a").verdict == "agrees"
    for number, version in enumerate(("2.9.0.post2", "2.8.1", "2.8.1rc1")):
        one = judged(fact, version, tmp_path / str(number))
        assert (one.verdict, one.why) == ("waived", "the base holds it")
        (finding,) = facts_said([one], stack_of(fact))
        assert finding.level == "waived"
        assert f"installed is {version}, stack s has torch_npu 2.9.0 (waived: the base holds it)" in finding.what
    assert judged(fact, "2.7", tmp_path / "z").verdict == "differs"


def test_what_is_not_installed(tmp_path: Path) -> None:
    needed, optional = Fact("torch", "2.9.0", "s", "torch"), Fact("mbridge", "1", "s", "mbridge", optional=True)
    stack = stack_of(needed, optional, Fact("HDK", "26", "s"), Fact("note", "x", "s"))
    compared = compare_facts(stack, {})
    assert [one.verdict for one in compared] == ["missing", "missing", "not checked", "not checked"]
    said = {finding.subject: (finding.level, finding.what) for finding in facts_said(compared, stack)}
    assert said == {
        "torch": ("missing", "not installed: stack s has torch 2.9.0"),
        "mbridge": ("note", "not installed, and not every run needs it: stack s has mbridge 1"),
        "s": ("not checked", "HDK, note: no installed package tells"),
    }


def git(checkout: Path, head: str, **files: str) -> Path:
    (checkout / ".git/refs/heads").mkdir(parents=True)
    (checkout / ".git/HEAD").write_text(f"{head}\n")
    for name, text in files.items():
        (checkout / ".git" / name.replace("__", "/").replace("_", "-")).write_text(text)
    return checkout


def metadata(site: Path, origin: object) -> PathDistribution:
    info = write_metadata(site, "megatron-core", "0.16.0rc0")
    (info / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))
    return PathDistribution(info)


def test_commit_of_a_fact(tmp_path: Path) -> None:
    """As pip records it for a requirement with git+https, or as the editable checkout stands."""
    vcs = metadata(tmp_path / "vcs", {"url": "https://e", "vcs_info": {"vcs": "git", "commit_id": COMMIT}})
    assert commit_of(vcs) == COMMIT
    checkout = git(tmp_path / "a folder", COMMIT)
    editable = {"url": f"file://{tmp_path}/a%20folder", "dir_info": {"editable": True}}
    assert commit_of(metadata(tmp_path / "editable", editable)) == COMMIT
    (checkout / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert commit_of(metadata(tmp_path / "editable", editable)) is None
    (checkout / ".git/packed-refs").write_text(f"# pack-refs with: peeled\n{COMMIT} refs/heads/main\n")
    assert commit_of(metadata(tmp_path / "editable", editable)) == COMMIT
    (checkout / ".git/refs/heads/main").write_text("f" * 40 + "\n")
    assert commit_of(metadata(tmp_path / "editable", editable)) == "f" * 40
    # Installed from the checkout as it was once: where that stands now tells nothing.
    assert commit_of(metadata(tmp_path / "copied", {**editable, "dir_info": {"editable": False}})) is None
    assert commit_of(metadata(tmp_path / "copied", {**editable, "dir_info": {}})) is None


def test_commit_of_an_older_editable_install(tmp_path: Path) -> None:
    checkout = git(tmp_path, COMMIT)
    info = checkout / "megatron_core.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: megatron-core\nVersion: 0.16.0rc0\n\n")
    assert commit_of(PathDistribution(info)) == COMMIT


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "file:///gone", "dir_info": {"editable": True}},
        {"url": "https://e/a.whl", "archive_info": {}},
        {"url": "file:///gone", "dir_info": {}},
        "no json",
        [],
    ],
)
def test_commit_that_nothing_tells(origin: object, tmp_path: Path) -> None:
    distribution = metadata(tmp_path, origin)
    assert commit_of(distribution) is None
    fact = Fact("Megatron-LM", COMMIT, "s", "megatron-core", "commit")
    (one,) = compared = compare_facts(stack_of(fact), {"megatron-core": distribution})
    assert (one.verdict, one.installed) == ("not checked", None)
    (finding,) = facts_said(compared, stack_of(fact))
    assert (finding.level, finding.subject) == ("not checked", "megatron-core")
    assert "0.16.0rc0 is installed, and nothing tells its commit" in finding.what


@pytest.mark.parametrize(("value", "verdict"), [(COMMIT, "agrees"), (COMMIT[:8], "agrees"), ("89eb1088", "differs")])
def test_commit_is_compared_from_its_beginning(value: str, verdict: str, tmp_path: Path) -> None:
    distribution = metadata(tmp_path, {"url": "https://e", "vcs_info": {"vcs": "git", "commit_id": COMMIT}})
    fact = Fact("Megatron-LM", value, "s", "megatron-core", "commit")
    (one,) = compare_facts(stack_of(fact), {"megatron-core": distribution})
    assert (one.verdict, one.installed) == (verdict, COMMIT)


@pytest.mark.parametrize(
    ("here", "verdict"), [("9.0.0", "agrees"), ("8.5.0", "waived"), ("8.3.RC1", "differs"), (None, "not checked")]
)
def test_cann_by_its_own_file(here: str | None, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(tmp_path))
    if here is not None:
        (tmp_path / "compiler").mkdir()
        (tmp_path / "compiler/version.info").write_text(f"Version={here}\ntimestamp=1\n")
    fact = Fact("CANN", "9.0.0", "s", match="cann", also=("==8.5.*",), why="w")
    (one,) = compared = compare_facts(stack_of(fact), {})
    assert (one.verdict, one.installed) == (verdict, here)
    levels = {"agrees": [], "waived": ["waived"], "differs": ["wrong"], "not checked": ["not checked"]}
    assert [finding.level for finding in facts_said(compared, stack_of(fact))] == levels[verdict]
    assert all(finding.subject == "CANN" for finding in facts_said(compared, stack_of(fact)))


def test_cann_prefers_the_toolkits_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    for path, version in (("aarch64-linux/ascend_toolkit_install.info", "9.0.0"), ("a/version.info", "7.1")):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(f"package_name=x\nversion={version}\n")
    assert cann_version() == "9.0.0"
    (tmp_path / "aarch64-linux/ascend_toolkit_install.info").unlink()
    assert cann_version() == "7.1"


def test_locks_facts_that_name_a_package() -> None:
    """What the image of a stack is checked for."""
    compared = {
        name: {normal.fact for normal in compare_facts(stack, {}) if normal.verdict == "missing"}
        for name, stack in load_lock().stacks.items()
    }
    ascend = {
        "torch",
        "torch_npu",
        "torchvision",
        "transformers",
        "triton-ascend",
        "Megatron-LM",
        "MindSpeed",
        "mbridge",
    }
    assert compared["verl-0.8"] == compared["verl-b7dabd83"] == ascend | {"vllm", "tensordict"}
    assert compared["slime-0.2.4"] == ascend | {"sgl-kernel-npu"} == compared["slime-0.2.2"] - {"numpy"}
