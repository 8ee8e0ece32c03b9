"""What stops a release: another version, a dirty tree, no date, and above all other bytes under a released revision."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from build import release as script
from train_infer_consistency import __version__
from train_infer_consistency.errors import EvidenceError, UsageError
from train_infer_consistency.overlay.lock import ImageBase, load_lock
from train_infer_consistency.overlay.locking import render_lock

from ..conftest import ROOT

LOCK = load_lock()
TEXT = render_lock(LOCK)
TAG = f"v{__version__}"
CHANGELOG = (
    f"# Changelog\n\n## {__version__} (2026-01-31)\n\n### Added\n\n- This.\n\n## 0.0.9 (2026-01-01)\n\n- That.\n"
)


def git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *settings, "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose lock was released as v0.0.9."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "VERSIONS.lock").write_text(TEXT)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "released")
    git(tmp_path, "tag", "v0.0.9")
    git(tmp_path, "tag", "v0.0.9-rc1")
    return tmp_path


def changed(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new, 1)


# ------------------------------------------------------------------------------------------------------------ revision


def test_same_lock_is_fine_and_says_with_what_it_was_compared(checkout: Path) -> None:
    assert script.revision_problems(checkout) == ([], 1)


def test_other_bytes_under_a_released_revision_are_refused(checkout: Path) -> None:
    pin = LOCK.pin("verl", "0.8.0")
    path, file = next((path, file) for path, file in pin.files.items() if file.before)
    text = changed(f'after = "{file.after}"', f'after = "{"0" * 64}"')
    problems, _ = script.revision_problems(checkout, text)
    assert problems == [f"verl 0.8.0: {path} is woven to other bytes than in v0.0.9"]
    raised = text.replace(f"revision = {LOCK.revision}\n", f"revision = {LOCK.revision + 1}\n", 1)
    assert script.revision_problems(checkout, raised) == ([], 0)


def test_file_that_came_or_went_and_another_source_are_refused(checkout: Path) -> None:
    pin = LOCK.pin("vllm", "0.18.0")
    path = next(path for path, file in pin.files.items() if file.before is None)
    table = f'[upstream.vllm."0.18.0".file."{path}"]\nafter = "{pin.files[path].after}"\n'
    assert script.revision_problems(checkout, changed(table, ""))[0] == [
        f"vllm 0.18.0: {path} is woven to other bytes than in v0.0.9"
    ]
    commit = LOCK.pin("slime", "0.2.4").commit
    assert script.revision_problems(checkout, changed(f'"{commit}"', f'"{"1" * 40}"'))[0] == [
        "slime 0.2.4: another commit than in v0.0.9"
    ]


def test_file_that_is_edited_as_well_is_refused(checkout: Path) -> None:
    path, file = next(iter(LOCK.pin("vllm", "0.18.0").files.items()))
    table = f'[upstream.vllm."0.18.0".file."{path}"]\nafter = "{file.after}"\n'
    (checkout / "VERSIONS.lock").write_text(changed(table, ""))
    git(checkout, "commit", "--quiet", "--all", "--message", "without it")
    git(checkout, "tag", "--force", "v0.0.9")
    problems = [f"vllm 0.18.0: {path} is woven to other bytes than in v0.0.9"]
    assert script.revision_problems(checkout, TEXT) == (problems, 1)


def test_another_wheels_version_is_refused_and_a_pin_may_go(checkout: Path) -> None:
    version = LOCK.pin("slime", "0.2.4").wheel_version
    assert script.revision_problems(checkout, changed(f'"{version}"', '"9"'))[0] == [
        "slime 0.2.4: another wheel-version than in v0.0.9"
    ]
    gone = TEXT[: TEXT.index('\n[upstream.slime."0.2.4"')] + TEXT[TEXT.index("\n[upstream.verl") :]
    assert script.revision_problems(checkout, gone) == ([], 1)


def test_new_pin_reason_or_stack_needs_no_new_revision(checkout: Path) -> None:
    head = '[upstream.verl."0.8.0"'
    text = TEXT + TEXT[TEXT.index(head) :].partition("\n[upstream.vllm")[0].replace(head, '[upstream.verl."0.8.1"')
    assert 'upstream.verl."0.8.1"' in text
    origin, digest = next(iter(LOCK.overlays.items()))
    text = text.replace(f'"{origin}" = "{digest}"', f'"{origin}" = "{"0" * 64}"')
    assert script.revision_problems(checkout, text) == ([], 1)


def test_lock_of_another_schema_is_compared_all_the_same(checkout: Path) -> None:
    (checkout / "VERSIONS.lock").write_text("schema = 99\n" + changed("schema = 1\n", ""))
    assert script.revision_problems(checkout) == ([], 1)
    with pytest.raises(EvidenceError, match=r"^VERSIONS.lock cannot be read: "):
        script.revision_problems(checkout, "revision = [")


def test_no_checkout_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"^git tag: not a git repository"):
        script.revision_problems(tmp_path, TEXT)


# --------------------------------------------------------------------------------------------------------------- ready


def test_ready(checkout: Path) -> None:
    assert script.ready_problems(checkout, TAG) == []


def test_every_reason_is_said(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "check_lock", lambda lock: ["stack x changed since the lock was written"])
    pin = LOCK.pin("verl", "0.8.0")
    file = next(file for file in pin.files.values() if file.before)
    (checkout / "VERSIONS.lock").write_text(changed(f'after = "{file.after}"', f'after = "{"0" * 64}"'))
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## 9.9.9 (unreleased)\n\n## 0.0.9\n- That.\n")
    found = script.ready_problems(checkout, "v9.9.9")
    assert [line.partition(":")[0] for line in found] == [
        f"the tag says 9.9.9, the package is {__version__}",
        "2 files are not as they were committed, CHANGELOG.md is one",
        "VERSIONS.lock",
        "verl 0.8.0",
        "CHANGELOG.md",
        "CHANGELOG.md",
    ]
    assert found[-2:] == [
        "CHANGELOG.md: '## 9.9.9 (unreleased)' has no date",
        "CHANGELOG.md: nothing is written below '## 9.9.9 (unreleased)'",
    ]


@pytest.mark.parametrize("tag", ["0.1.0", "v0.1", "v0.1.0rc1", "v0.1.0\n", "latest"])
def test_other_tags_are_refused(checkout: Path, tag: str) -> None:
    with pytest.raises(UsageError, match="is no release's tag"):
        script.ready_problems(checkout, tag)


def test_notes_are_the_versions_own(checkout: Path) -> None:
    assert script.changes(checkout, __version__) == (f"{__version__} (2026-01-31)", "### Added\n\n- This.")
    assert script.changes(checkout, "0.0.9")[1] == "- That."
    with pytest.raises(EvidenceError, match=r"^CHANGELOG.md has nothing of 0.0;"):
        script.changes(checkout, "0.0")


def test_this_repositorys_changelog_has_this_version() -> None:
    assert script.changes(ROOT, __version__)[1]


# -------------------------------------------------------------------------------------------------------------- images


def test_only_images_with_a_digest_are_made_and_all_others_are_named() -> None:
    base = {
        "a2": ImageBase("registry.example/verl:1-a2", "sha256:" + "0" * 64, "read"),
        "a3": ImageBase("registry.example/verl:1-a3", "", "nobody could read it"),
    }
    stacks = {
        "verl-0.8": replace(LOCK.stacks["verl-0.8"], images=base),
        "slime-0.2.4": replace(LOCK.stacks["slime-0.2.4"], images={"a2": ImageBase("", "", "the user's")}),
        "verl-0.8-cuda": replace(LOCK.stacks["verl-0.8-cuda"], images={}),
    }
    made, skipped = script.images(replace(LOCK, stacks=stacks))
    assert made == [
        {"stack": "verl-0.8", "chip": "a2", "machine": "x86_64", "name": "verl-ascend"},
        {"stack": "verl-0.8", "chip": "a2", "machine": "aarch64", "name": "verl-ascend"},
    ]
    assert skipped == [
        "verl-0.8 a3: VERSIONS.lock has no digest of registry.example/verl:1-a3",
        "slime-0.2.4 a2: its base is the user's, none is published",
        "verl-0.8-cuda: no image is made of this stack",
    ]


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["images"]) == 0
    out, err = capsys.readouterr()
    matrix = json.loads(out)
    assert set(matrix) == {"include", "skipped"}
    assert [f"no image: {line}" for line in matrix["skipped"]] == err.splitlines()
    assert script.main(["ready", "1.0"]) == 2
    assert capsys.readouterr().err == "release: '1.0' is no release's tag; it is v and three numbers, such as v0.1.0\n"
