"""The workflows: pinned actions, narrow rights, and the shell of their steps, run with stand-ins for gh and docker."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from .conftest import ROOT

FOLDER = ROOT / ".github" / "workflows"
NAMES = sorted(path.name for path in FOLDER.glob("*.yml"))
TEXTS = {name: (FOLDER / name).read_text(encoding="utf-8") for name in NAMES}
WORKFLOWS: dict[str, dict[str, Any]] = {name: YAML(typ="safe").load(text) for name, text in TEXTS.items()}
JOBS = [(name, job) for name in NAMES for job in WORKFLOWS[name]["jobs"]]
#: The rights of each job besides reading what is checked out.
RIGHTS = {
    ("drift.yml", "drift"): {"issues": "write"},
    ("release.yml", "ready"): {"actions": "read"},
    ("release.yml", "images"): {"packages": "write"},
    ("release.yml", "tags"): {"packages": "write"},
    ("release.yml", "release"): {"contents": "write"},
}
needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")


def step(name: str, job: str, title: str) -> str:
    """The shell of a step."""
    (found,) = [step["run"] for step in WORKFLOWS[name]["jobs"][job]["steps"] if step.get("name") == title]
    return str(found)


class Shell:
    """Runs a step in a folder of its own, with stand-ins that write down how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        (folder / "bin").mkdir()
        (folder / "calls").write_text("")

    def stand_in(self, program: str, script: str = "") -> None:
        path = self.folder / "bin" / program
        path.write_text(f'#!/bin/sh\necho "{program} $*" >> "{self.calls}"\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, script: str, **environment: str) -> tuple[int, str, list[str]]:
        """Return the status, what was printed, and the calls; the shell is the one of GitHub's runners."""
        variables = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "GITHUB_REF_NAME": "v1.2.3",
            "GITHUB_REPOSITORY_OWNER": "Some-Owner",
            **environment,
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        calls = self.calls.read_text().splitlines()
        self.calls.write_text("")
        return done.returncode, done.stdout, calls


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# ---------------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_pinned_by_commit_with_their_version_beside_it(name: str) -> None:
    used = re.findall(r"^\s*(?:- )?uses:\s*(.*)$", TEXTS[name], re.MULTILINE)
    assert used
    for text in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", text), text


def test_an_action_has_one_commit_everywhere() -> None:
    used = {line for text in TEXTS.values() for line in re.findall(r"uses:\s*(.*)$", text, re.MULTILINE)}
    assert len({line.partition("@")[0] for line in used}) == len(used)


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_a_job_has_a_limit_and_no_more_rights_than_it_needs(name: str, job: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {}
    content = WORKFLOWS[name]["jobs"][job]
    assert 0 < content["timeout-minutes"] <= 120
    assert {"contents": "read", **RIGHTS.get((name, job), {})}.items() >= content["permissions"].items()
    for item in content["steps"]:
        assert "${{" not in item.get("run", ""), "a value goes into a step through its environment"
        if item.get("uses", "").startswith("actions/checkout@"):
            assert item["with"]["persist-credentials"] is False


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_fails_where_a_part_of_it_does(name: str) -> None:
    """Without a shell named, a runner's has no pipefail; so the steps below are run as `bash` stands for."""
    assert WORKFLOWS[name]["defaults"] == {"run": {"shell": "bash"}}
    for job in WORKFLOWS[name]["jobs"].values():
        assert "defaults" not in job
        assert not any("shell" in item for item in job["steps"])


@pytest.mark.parametrize("name", NAMES)
def test_what_the_steps_call_is_there(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for job in WORKFLOWS[name]["jobs"].values():
        for item in job["steps"]:
            run = item.get("run", "")
            for line in re.findall(r"\bmake ([^\n]*)", run):
                for word in line.split():
                    if "=" not in word and word != "\\":
                        assert re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE), f"make {word}"
            for path in re.findall(r"(?<!\.venv/bin/python )\b(?:build|docker)/[\w.-]+\.\w+|\.ci/run", run):
                assert (ROOT / path).exists(), path


def test_nothing_is_called_latest() -> None:
    for job in WORKFLOWS["release.yml"]["jobs"].values():
        assert "latest" not in json.dumps(job)
    assert WORKFLOWS["release.yml"]["on"] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}


def test_nothing_is_made_before_the_tag_was_looked_at() -> None:
    jobs = WORKFLOWS["release.yml"]["jobs"]
    assert "ready" in jobs["wheels"]["needs"]
    assert "ready" in jobs["images"]["needs"]
    assert jobs["tags"]["needs"] == "images"
    assert jobs["release"]["needs"] == ["ready", "wheels", "images", "tags"]


# ---------------------------------------------------------------------------------------------------------------- drift


@pytest.mark.parametrize(
    ("status", "number", "wanted"),
    [
        ("1", "", ["gh issue create --title Overlays --body-file drift.md"]),
        ("3", "", ["gh issue create --title Overlays --body-file drift.md"]),
        ("0", "", []),
        ("1", "7", ["gh issue edit 7 --body-file drift.md"]),
        (
            "0",
            "7",
            ["gh issue edit 7 --body-file drift.md", "gh issue close 7 --comment Every newest release is a pin."],
        ),
    ],
)
def test_drift_keeps_one_issue(shell: Shell, status: str, number: str, wanted: list[str]) -> None:
    shell.stand_in("gh", f'[ "$2" != list ] || echo "{number}"')
    (shell.folder / "drift.md").write_text("table\n")
    done, _, calls = shell.run(step("drift.yml", "drift", "write the issue"), STATUS=status, TITLE="Overlays")
    assert done == 0
    assert [call for call in calls if " list " not in call] == wanted


def test_drift_without_a_table_leaves_the_issue_alone(shell: Shell) -> None:
    shell.stand_in("gh")
    assert shell.run(step("drift.yml", "drift", "write the issue"), STATUS="4", TITLE="x") == (0, "", [])


@pytest.mark.parametrize(("status", "ends"), [("0", 0), ("1", 0), ("2", 1), ("3", 1), ("4", 1)])
def test_drift_fails_where_something_was_not_looked_at(shell: Shell, status: str, ends: int) -> None:
    title = "a release that could not be looked at is a failure"
    assert shell.run(step("drift.yml", "drift", title), STATUS=status)[0] == ends


@pytest.mark.parametrize("status", [0, 1, 3])
def test_drift_hands_on_the_status_and_the_table(shell: Shell, status: int) -> None:
    python = shell.folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho table > drift.md\nexit {status}\n")
    python.chmod(0o755)
    assert shell.run(step("drift.yml", "drift", "look"))[0] == 0
    assert (shell.folder / "output").read_text() == f"status={status}\n"
    assert (shell.folder / "summary").read_text() == "table\n"


# -------------------------------------------------------------------------------------------------------------- release


@pytest.mark.parametrize(("passed", "ends"), [("0", 1), ("2", 0)])
def test_release_asks_for_the_commits_tests(shell: Shell, passed: str, ends: int) -> None:
    shell.stand_in("gh", f"echo {passed}")
    done, out, (call,) = shell.run(step("release.yml", "ready", "the tests of this commit passed"), GITHUB_SHA="abc")
    assert done == ends
    assert "--workflow tests.yml --commit abc --status success" in call
    assert ("::error::" in out) == bool(ends)


@needs_jq
def test_release_says_which_images_it_does_not_make(shell: Shell) -> None:
    python = shell.folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    matrix = {"include": [{"stack": "verl-0.8", "chip": "a2"}], "skipped": ["verl-0.8 a3: no digest"]}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(matrix)}'\n")
    python.chmod(0o755)
    done, out, _ = shell.run(step("release.yml", "ready", "which images, and which not"))
    assert (done, out) == (0, "::warning::no image: verl-0.8 a3: no digest\n")
    assert (shell.folder / "summary").read_text() == "- no image: verl-0.8 a3: no digest\n"
    images, count = (shell.folder / "output").read_text().splitlines()
    assert json.loads(images.removeprefix("images=")) == {"include": matrix["include"]}
    assert count == "count=1"


@needs_jq
@pytest.mark.parametrize(
    ("inspected", "ends"),
    [
        ("echo ERROR: ghcr.io/o/x:1: not found; exit 1", ""),
        ("exit 0", "a released name is never moved"),
        ("echo one; echo ERROR: 503 Service Unavailable; exit 1", "could not be looked up: ERROR: 503"),
    ],
    ids=["free", "taken", "no answer"],
)
def test_release_names_both_machines_images_once_and_never_moves_a_name(
    shell: Shell, inspected: str, ends: str
) -> None:
    shell.stand_in("docker", f'if [ "$3" = inspect ]; then {inspected}; fi')
    (shell.folder / "assets").mkdir()
    for chip, machine, digest in (("a2", "x86_64", "1"), ("a2", "aarch64", "2"), ("a3", "aarch64", "3")):
        row = {"image": "ghcr.io/o/verl-ascend", "stack": "verl-0.8", "chip": chip, "machine": machine}
        name = f"image-verl-0.8-{chip}-{machine}"
        (shell.folder / "assets" / f"{name}.digest.json").write_text(json.dumps({**row, "digest": f"sha256:{digest}"}))
        (shell.folder / "assets" / f"{name}.cdx.json").write_text("{}")
    done, out, calls = shell.run(step("release.yml", "tags", "tag"))
    made = [call.removeprefix("docker buildx imagetools create --tag ") for call in calls if " create " in call]
    if ends:
        assert (done, made) == (1, [])
        assert ends in out
    else:
        assert done == 0
        image = "ghcr.io/o/verl-ascend"
        assert made[0].split()[0] == f"{image}:1.2.3-verl-0.8-a2"
        assert set(made[0].split()[1:]) == {f"{image}@sha256:1", f"{image}@sha256:2"}
        assert made[1:] == [f"{image}:1.2.3-verl-0.8-a3 {image}@sha256:3"]


@needs_jq
def test_release_pushes_by_digest_and_keeps_the_digest_and_the_sbom(shell: Shell) -> None:
    shell.stand_in(
        "docker", 'case "$2" in bake) echo \'{"t-1": {"containerimage.digest": "sha256:9"}}\' > metadata.json;; esac'
    )
    context = shell.folder / "dist" / "image" / "verl-0.8-a2-aarch64"
    context.mkdir(parents=True)
    context.with_name(context.name + ".bake.json").write_text('{"target": {"t-1": {"args": {}}}}')
    context.with_name(context.name + ".cdx.json").write_text('{"sbom": 1}')
    done, out, calls = shell.run(
        step("release.yml", "images", "build and push, with SBOM and provenance"),
        STACK="verl-0.8", CHIP="a2", MACHINE="aarch64", NAME="verl-ascend",
    )  # fmt: skip
    assert done == 0, out
    assert "--provenance=mode=max" in calls[1]
    assert "--sbom" not in calls[1]  # its scanner has a moving tag
    assert "name=ghcr.io/some-owner/verl-ascend,push-by-digest=true,name-canonical=true,push=true" in calls[1]
    assert calls[1].endswith(" t-1")
    assets = {path.name: json.loads(path.read_text()) for path in (shell.folder / "assets").iterdir()}
    assert assets == {
        "image-verl-0.8-a2-aarch64.cdx.json": {"sbom": 1},
        "image-verl-0.8-a2-aarch64.digest.json": {
            "image": "ghcr.io/some-owner/verl-ascend", "stack": "verl-0.8", "chip": "a2", "machine": "aarch64",
            "digest": "sha256:9",
        },
    }  # fmt: skip


def test_release_has_wheels_of_both_machines_with_their_requirements(shell: Shell) -> None:
    shell.stand_in(
        "make",
        'machine=$(echo "$3" | cut -d= -f2); mkdir -p dist/wheels; touch dist/wheels/a-$machine.whl\n'
        'touch dist/wheels/p-any.whl "dist/b-$machine.tar.gz"\n'
        'echo "# pip -r requirements-s.txt" > dist/wheels/requirements-s.txt',
    )
    done, out, calls = shell.run(step("release.yml", "wheels", "weave"))
    assert done == 0, out
    assert [call.split()[1:4] for call in calls] == [
        ["bundle", "STACK=all", "PLATFORM=x86_64"],
        ["bundle", "STACK=all", "PLATFORM=aarch64"],
    ]
    assets = shell.folder / "assets"
    assert sorted(path.name for path in assets.iterdir()) == [
        "a-aarch64.whl", "a-x86_64.whl", "b-aarch64.tar.gz", "b-x86_64.tar.gz", "p-any.whl",
        "requirements-s-aarch64.txt", "requirements-s-x86_64.txt",
    ]  # fmt: skip
    assert (assets / "requirements-s-aarch64.txt").read_text() == "# pip -r requirements-s-aarch64.txt\n"


def test_a_wheel_that_is_missing_ends_the_release(shell: Shell) -> None:
    shell.stand_in("make", "exit 2")
    assert shell.run(step("release.yml", "wheels", "weave"))[0] == 2


@needs_jq
def test_releases_digests_and_notes(shell: Shell) -> None:
    assets = shell.folder / "assets"
    assets.mkdir()
    (assets / "p+l.whl").write_text("wheel")
    row = {"image": "ghcr.io/o/v", "stack": "s", "chip": "a2", "machine": "x86_64", "digest": "sha256:1"}
    (assets / "image-s.digest.json").write_text(json.dumps(row))
    python = shell.folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$2" = notes ] && echo "- New." || echo \'{"skipped": ["x a3: no digest"]}\'\n')
    python.chmod(0o755)
    shell.stand_in("make")
    digests = f"cd assets\n{step('release.yml', 'release', 'digests')}"
    assert shell.run(digests)[0] == 0
    lines = (assets / "SHA256SUMS").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["image-s.digest.json", "p+l.whl"]
    assert shell.run(step("release.yml", "release", "notes"))[0] == 0
    notes = (shell.folder / "notes.md").read_text()
    assert notes.startswith("- New.\n")
    assert "- `ghcr.io/o/v:1.2.3-s-a2`, x86_64: `sha256:1`\n" in notes
    assert "- no image: x a3: no digest\n" in notes
