"""`make image` without a builder: what is asked for, the context, its bill of materials, and what stops it early."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given, settings
from hypothesis import strategies as st

from build import image_builder
from build.image import ROOT, Base
from build.image_inputs import input_files, inputs_digest
from train_infer_consistency.errors import ConsistencyError, EvidenceError, FoundError, UnfinishedError, UsageError
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.wheels.archive import file_digest

DIGEST = f"sha256:{'ab' * 32}"
BASE = f"registry.invalid/base:1.0@{DIGEST}"
CHOICES = {"stack": "verl-0.8", "chip": "a2", "platform": "x86_64", "base": "b:1", "base digest": DIGEST}


def image(
    *arguments: str, limit: int = 0, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m build.image``; ``limit`` is the most bytes that a file may get."""

    def limited() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, "-m", "build.image", *arguments],
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **environment},
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that an error is; a step may have been announced before it."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("image: ")]
    assert len(lines) == 1, done.stderr
    assert done.stderr.rstrip().splitlines()[-1] == lines[0]
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def context(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The context of verl-0.8 for an A3, on each platform; the one that this machine is not is made and not run."""
    dest = tmp_path_factory.mktemp("contexts")
    arguments = ["--stack", "verl-0.8", "--chip", "a3", "--platform", request.param, "--base", BASE]
    done = image(*arguments, "--context-only", "--dest", str(dest))
    assert done.returncode == 0, done.stderr
    return dest / f"verl-0.8-a3-{request.param}"


def test_context_has_all_and_no_more(context: Path) -> None:
    names = {path.name for path in context.iterdir()}
    assert names == {
        *(
            "Dockerfile",
            "by-wheel",
            "consistency",
            "in-place",
            "install.sh",
            "python-version",
            "sbom.cdx.json",
            "wheels",
        )
    }
    assert (context / "in-place").read_text().split() == ["verl", "vllm-ascend"]
    machine = context.name.rpartition("-a3-")[2]
    wheels = sorted(path.name for path in (context / "wheels").glob("*.whl"))
    assert [name.split("-")[0] for name in wheels] == [
        *("mindstudio_probe", "narwhals", "numpy", "packaging", "plotly", "train_infer_consistency")
    ]
    assert all(name.endswith(("-none-any.whl", f"_{machine}.whl")) for name in wheels)


@pytest.mark.parametrize("stack", [name for name, stack in load_lock().stacks.items() if stack.images])
def test_no_context_has_a_vllm_ascend_wheel(stack: str) -> None:
    from build.image_context import Order

    found = load_lock().stacks[stack]
    for chip in found.images:
        order = Order(found, chip, "x86_64")
        assert "vllm-ascend" not in order.by_wheel
        assert set(order.by_wheel) | set(order.in_place) == set(found.pins)
        assert not set(order.by_wheel) & set(order.in_place)


def test_every_wheel_is_named_with_its_digest(context: Path) -> None:
    texts = [path.read_text() for path in sorted((context / "wheels").glob("requirements-*.txt"))]
    assert len(texts) == 2
    for wheel in (context / "wheels").glob("*.whl"):
        assert any(f"--hash=sha256:{file_digest(wheel)}" in text for text in texts), wheel.name
    assert all("--no-index" in text for text in texts)


def test_context_names_no_place_and_no_index(context: Path) -> None:
    for path in context.rglob("*"):
        if path.is_file() and path.suffix != ".whl":
            assert not re.search(r"/home/|/root/|/tmp/|trusted-host|index-url|:latest", path.read_text()), path.name


def test_bake_has_every_argument(context: Path) -> None:
    target = json.loads(context.with_name(f"{context.name}.bake.json").read_text())["target"]
    (arguments,) = (value["args"] for value in target.values())
    assert list(target) == [context.name.replace(".", "_")]
    declared = re.findall(r"^ARG (\w+)$", (context / "Dockerfile").read_text(), re.MULTILINE)
    assert sorted(arguments) == sorted(declared)
    assert all(arguments.values())
    assert arguments["BASE"] == f"registry.invalid/base@{DIGEST}"
    assert (arguments["CREATED"], arguments["SOURCE_DATE_EPOCH"]) == ("2023-11-14T22:13:20Z", "1700000000")


def test_bill_of_materials(context: Path) -> None:
    text = (context / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert context.with_name(f"{context.name}.cdx.json").read_text() == text
    parts = {part["bom-ref"]: part for part in json.loads(text)["components"]}
    assert parts["base"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert len(parts) == 1 + 6 + 2
    for name, version in (("verl", "0.8.0"), ("vllm-ascend", "0.18.0")):
        files = {
            file["name"]: file["hashes"][0]["content"] for file in parts[f"in-place:{name}@{version}"]["components"]
        }
        assert files == {path: file.after for path, file in load_lock().pin(name, version).files.items()}


def test_same_context_again(context: Path, tmp_path: Path) -> None:
    machine = context.name.rpartition("-a3-")[2]
    arguments = ["--chip", "a3", "--platform", machine, "--base", BASE, "--context-only", "--dest", str(tmp_path)]
    assert image(*arguments).returncode == 0
    again = tmp_path / context.name
    names = sorted(path.relative_to(context) for path in context.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
    assert [name for name in names if (context / name).read_bytes() != (again / name).read_bytes()] == []


def test_own_wheel_is_made_of_inputs_alone(context: Path) -> None:
    (wheel,) = (context / "wheels").glob("train_infer_consistency-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("train_infer_consistency/_shipped/VERSIONS.lock") == (ROOT / "VERSIONS.lock").read_bytes()
        names = archive.namelist()
    sources = {
        re.sub(r"^train_infer_consistency/(_shipped/)?", lambda m: "" if m[1] else f"src/{m[0]}", name)
        for name in names
    }
    rest = sources - set(input_files(ROOT))
    assert {name.split("/", 1)[1] for name in rest} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE")
    }
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE"} <= set(input_files(ROOT))


def test_whatever_makes_an_image_is_an_input() -> None:
    makers = [*(ROOT / "build").glob("image*.py"), ROOT / "docker/Dockerfile", ROOT / "docker/install.sh"]
    assert {path.relative_to(ROOT).as_posix() for path in makers} <= set(input_files(ROOT))


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--stack", "verl-9"], 2, "unknown; use one of verl-0.8, "),
        (["--stack", "verl-0.8-cuda"], 2, "has no image"),
        (["--chip", "a5"], 2, "use one of a2, a3"),
        (["--platform", "riscv64"], 2, "x86_64, aarch64"),
        (["--stack", "slime-0.2.4"], 2, "BASE=NAME:TAG"),
        (["--base", "quay.invalid/base"], 2, "NAME:TAG"),
        (["--base", "quay.invalid:5000/base:latest"], 2, "NAME:TAG"),
        (["--base", "quay.invalid/base@sha256:12"], 2, "NAME:TAG"),
        (["--release", "--base", "quay.invalid/base:1"], 3, "has no digest"),
        (["--builder", "kaniko", "--base", BASE], 2, "docker, buildah"),
    ],
)
def test_stops_before_anything(tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    done = image(*arguments, "--dest", str(tmp_path / "out"))
    assert (done.returncode, words in one_line(done)) == (status, True), done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("builder", "mend"), [("buildah", "apt install buildah skopeo"), ("docker", "BUILDER=buildah")]
)
def test_builder_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, builder: str, mend: str) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EvidenceError, match=mend):
        image_builder.choose(builder)


@pytest.mark.parametrize(("driver", "rewrites"), [("docker", False), ("docker-container", True)])
def test_docker_is_told_to_rewrite_times_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], driver: str, rewrites: bool
) -> None:
    """The engine's own BuildKit stops over it where its images are in containerd."""
    program = tmp_path / "docker"
    program.write_text(
        f"""#!/bin/sh
case $2 in inspect) printf 'Name:          b\\nDriver:        {driver}\\n\\nNodes:\\nDriver Options: x\\n'; exit ;; esac
echo "$*" >"{tmp_path}/told"
while [ "$1" != --metadata-file ]; do shift; done
echo '{{"containerimage.digest": "{DIGEST}"}}' >"$2"
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert image_builder.Docker().build(tmp_path, {"STACK": "verl-0.8"}, "a:1", "x86_64") == DIGEST
    told = (tmp_path / "told").read_text()
    assert (" --output type=docker,name=a:1 " in told) is not rewrites
    assert (" --output type=docker,name=a:1,rewrite-timestamp=true " in told) is rewrites
    assert ("note: " in capsys.readouterr().err) is not rewrites


def test_wheel_that_cannot_be_had(tmp_path: Path) -> None:
    nothing = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    environment = {**nothing, "XDG_CACHE_HOME": str(tmp_path)}
    done = image("--base", BASE, "--context-only", "--dest", str(tmp_path), environment=environment)
    assert (done.returncode, "mindstudio-probe==26.2.0" in one_line(done)) == (3, True)
    assert list(tmp_path.glob("verl-0.8-*")) == []  # whichever machine this is


def test_full_disk(tmp_path: Path) -> None:
    done = image("--base", BASE, "--context-only", "--platform", "x86_64", "--dest", str(tmp_path), limit=1 << 20)
    assert (done.returncode, bool(one_line(done))) == (4, True), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "name", "reference"),
    [
        ("a/b:1", "a/b:1", "a/b:1"),
        (f"host:5000/b@{DIGEST}", "host:5000/b", f"host:5000/b@{DIGEST}"),
        (f"host:5000/a/b:1.0@{DIGEST}", "host:5000/a/b:1.0", f"host:5000/a/b@{DIGEST}"),
    ],
)
def test_base(text: str, name: str, reference: str) -> None:
    base = Base.parse(text)
    assert (base.name, base.reference) == (name, reference)


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("echo '#9 1.20 image-stop 1: wrong: verl: changed'; exit 1", FoundError, "wrong: verl: changed"),
        ("echo 'image-stop 3: no python3; give one'; echo 'error building at STEP'; exit 1", EvidenceError, "give one"),
        ("echo 'write: No space left on device' >&2; echo 'image-stop 4: pip'; exit 1", UnfinishedError, "make room"),
        (
            "echo 'cannot reach https://user:word@host.invalid/v2'; exit 125",
            UnfinishedError,
            "status 125: cannot reach …",
        ),
    ],
)
def test_why_a_build_stopped(script: str, kind: type[ConsistencyError], words: str) -> None:
    with pytest.raises(kind, match=re.escape(words)) as caught:
        image_builder.stream(["sh", "-c", script])
    assert "image-stop" not in str(caught.value)


# The inputs' hash.


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all inputs at another place, with other times."""
    root = tmp_path_factory.mktemp("clone")
    for name in [*input_files(ROOT), "requirements/dev.txt"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, root / name)
        os.utime(root / name, (1, 1))
    return root


@settings(max_examples=40)
@given(data=st.data())
def test_any_byte_of_an_input_changes_the_hash(clone: Path, data: st.DataObject) -> None:
    before = inputs_digest(clone, CHOICES)
    path = clone / data.draw(st.sampled_from(sorted(input_files(clone))))
    content = path.read_bytes()
    at, bit = data.draw(st.integers(0, max(len(content) - 1, 0))), data.draw(st.integers(0, 7))
    changed = bytearray(content or b"\0")
    changed[at] ^= 1 << bit
    try:
        path.write_bytes(bytes(changed))
        assert inputs_digest(clone, CHOICES) != before
    finally:
        path.write_bytes(content)
    assert inputs_digest(clone, CHOICES) == before


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_every_choice_changes_the_hash(clone: Path, name: str) -> None:
    assert inputs_digest(clone, {**CHOICES, name: "another"}) != inputs_digest(clone, CHOICES)


def test_new_file_mode_and_backend_change_the_hash(clone: Path) -> None:
    seen = [inputs_digest(clone, CHOICES)]
    (clone / "src" / "train_infer_consistency" / "new.py").write_bytes(b"")
    seen.append(inputs_digest(clone, CHOICES))
    (clone / "docker" / "consistency").chmod(0o755)
    seen.append(inputs_digest(clone, CHOICES))
    pins = clone / "requirements" / "dev.txt"
    text = pins.read_text()
    pins.write_text(re.sub("hatchling==.*", "hatchling==0.0.1", text))
    seen.append(inputs_digest(clone, CHOICES))
    assert len(set(seen)) == 4
    (clone / "src" / "train_infer_consistency" / "new.py").unlink()
    (clone / "docker" / "consistency").chmod(0o644)
    pins.write_text(text)
    assert inputs_digest(clone, CHOICES) == seen[0]


@pytest.mark.parametrize(
    "name", ["docs/images.md", "tests/x.py", "dist/image/x", "src/a/__pycache__/b.pyc", ".git/HEAD"]
)
def test_nothing_else_changes_the_hash(clone: Path, name: str) -> None:
    before = inputs_digest(clone, CHOICES)
    assert before == inputs_digest(ROOT, CHOICES)
    (clone / name).parent.mkdir(parents=True, exist_ok=True)
    (clone / name).write_text(name)
    pins = clone / "requirements" / "dev.txt"
    pins.write_text(pins.read_text() + "another==1.0\n")
    assert inputs_digest(clone, CHOICES) == before


def test_missing_input_is_one_line(clone: Path) -> None:
    path = clone / "docker" / "install.sh"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(EvidenceError, match=r"docker/install\.sh"):
        inputs_digest(clone, CHOICES)
    path.write_bytes(content)


def test_every_program_of_the_image_is_an_input() -> None:
    files = set(input_files(ROOT))
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "build").glob("image*.py")} <= files
    copied = re.findall(r'"([\w.]+)"', (ROOT / "build" / "image_context.py").read_text().split("for name in (")[1][:60])
    assert {f"docker/{name}" for name in copied} <= files


def test_inputs_are_printed(tmp_path: Path) -> None:
    done = image("--inputs", "--platform", "aarch64", "--base", BASE)
    assert re.fullmatch(r"[0-9a-f]{64}  verl-0\.8-a2-aarch64\n", done.stdout)
    assert UsageError.status == image("--inputs", "--stack", "nothing").returncode
