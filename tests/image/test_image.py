"""`make image` for real, by buildah on stand-in bases: what is in the image, that it starts, and that it can be undone.

The Dockerfile, its context and the program are those of a real base; the stand-ins have the real, pristine upstreams.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from train_infer_consistency import __version__
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.wheels.archive import file_digest

from ..conftest import ROOT
from .conftest import Bases, given_source
from .standin import SITE, Form, Storage

pytestmark = pytest.mark.image

HOME = "/opt/train-infer-consistency"
SBOM = "/usr/share/train-infer-consistency/sbom.cdx.json"


@dataclass(frozen=True)
class Built:
    """What one run of `make image` said; ``digest`` and ``tag`` are empty where it stopped."""

    status: int
    tag: str
    digest: str
    last: str
    output: str


def build(storage: Storage, base: str, stack: str, chip: str = "a2") -> Built:
    """Run what `make image` runs."""
    command = [sys.executable, "-m", "build.image", "--stack", stack, "--chip", chip, "--base", base]
    command += ["--builder", "buildah", "--dest", str(storage.root / "out")]
    environment = {
        **storage.environment,
        "SOURCE_DATE_EPOCH": "1700000000",
        "IMAGE_SOURCE": "https://git.invalid/us/it",
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    last = (done.stderr.strip().splitlines() or [""])[-1]
    tag = f"localhost/{said['image']}" if "image" in said else ""
    return Built(done.returncode, tag, said.get("digest", ""), last, done.stdout + done.stderr)


class Container:
    """A working container of an image."""

    def __init__(self, storage: Storage, tag: str) -> None:
        self._storage = storage
        self.name = storage.call("buildah", "from", tag).stdout.strip()
        self.root = Path(storage.call("buildah", "mount", self.name).stdout.strip())

    def run(self, *command: str, user: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in it, with the environment that the image gives."""
        options = ["--user", user] if user else []
        return self._storage.call("buildah", "run", *options, self.name, "--", *command, check=False)


@contextmanager
def started(storage: Storage, tag: str) -> Iterator[Container]:
    """A container that is removed again."""
    container = Container(storage, tag)
    try:
        yield container
    finally:
        storage.call("buildah", "rm", container.name)


def config_of(storage: Storage, tag: str) -> dict[str, Any]:
    """The image's configuration, as a registry would hold it."""
    told = storage.call("skopeo", "inspect", "--config", "--raw", f"containers-storage:{tag}").stdout
    found: dict[str, Any] = json.loads(told)
    return found


def files_of(root: Path) -> set[str]:
    """Every file of a root file system."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def digests(root: Path, place: str, upstream: str) -> dict[str, str | None]:
    """The digest of each edited or laid file of an upstream, None for one that is not there."""
    paths = load_lock().pin(upstream, load_lock().stacks["verl-0.8"].pins[upstream]).files
    return {path: file_digest(file) if (file := root / place / path).exists() else None for path in paths}


def doctor_json(container: Container, user: str = "") -> dict[str, Any]:
    """What `consistency doctor --json` finds."""
    done = container.run("consistency", "doctor", "--json", user=user)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_woven(container: Container, upstreams: set[str]) -> None:
    """Doctor and status: every overlay of the stack is woven by this version and agrees with its record on the disk."""
    found = doctor_json(container)
    assert {
        row["upstream"] for row in found["upstreams"] if row["state"] == "woven" and row["this_version"]
    } == upstreams
    assert [finding for finding in found["findings"] if finding["level"] in ("wrong", "missing")] == []
    done = container.run("consistency", "overlay", "status", "--json")
    assert done.returncode == 0, done
    status = json.loads(done.stdout)
    rows = {row["upstream"]: row for row in status["upstreams"] if row["state"] != "absent"}
    assert (status["status"], set(rows)) == (0, upstreams)
    for name, row in rows.items():
        record = recorded(container.root, row)
        assert record, name
        for path, digest in record.items():
            assert file_digest(container.root / row["root"].lstrip("/") / path) == digest, path
        assert {file["path"] for file in row["files"] if file["state"] == "woven"} == set(record)


def recorded(root: Path, row: dict[str, Any]) -> dict[str, str]:
    """The digest of each woven file by the record: the journal beside the package, or the wheel's provenance."""
    place = root / row["root"].lstrip("/")
    if row["record"] == "journal":
        journal = json.loads((place / ".train-infer-consistency" / row["upstream"] / "journal.json").read_text())
        assert journal["state"] == "applied"
        return {file["path"]: file["after_sha256"] for file in journal["files"]}
    (found,) = place.glob(f"{row['distribution'].replace('-', '_')}-*.dist-info/consistency.json")
    return {file["path"]: file["sha256_after"] for file in json.loads(found.read_text())["files"]}


@dataclass(frozen=True)
class Image:
    """An image, a container of it, and the files of the base and of the image."""

    built: Built
    container: Container
    base_files: frozenset[str]
    files: frozenset[str]


@contextmanager
def image_of(storage: Storage, base: str, stack: str, chip: str) -> Iterator[Image]:
    """Build an image and start a container of it; the base's files are listed first."""
    with started(storage, base) as plain:
        before = frozenset(files_of(plain.root))
    built = build(storage, base, stack, chip)
    assert built.status == 0, built.output
    with started(storage, built.tag) as container:
        yield Image(built, container, before, frozenset(files_of(container.root)))


@pytest.fixture(scope="module")
def editable(storage: Storage, base: Bases) -> Iterator[Image]:
    """verl-0.8 for an A2, on editable checkouts, as the public images have them."""
    with image_of(storage, base("verl-0.8", "editable"), "verl-0.8", "a2") as image:
        yield image


@pytest.fixture(scope="module")
def installed(storage: Storage, base: Bases) -> Iterator[Image]:
    """verl-0.8 for an A3, on packages in site-packages."""
    with image_of(storage, base("verl-0.8", "site-packages"), "verl-0.8", "a3") as image:
        yield image


VERL = {"verl", "vllm-ascend", "mindstudio-probe"}


def test_own_command_reports_every_overlay_woven(storage: Storage, editable: Image) -> None:
    command = config_of(storage, editable.built.tag)["config"]["Cmd"]
    assert command == ["consistency", "doctor"]
    done = editable.container.run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    woven = re.findall(
        r"^  (\S+) .* woven by consistency\.\d+ \(this version\), agrees with its", done.stdout, re.MULTILINE
    )
    assert set(woven) == VERL
    assert_woven(editable.container, VERL)


def test_own_command_on_site_packages(installed: Image) -> None:
    assert_woven(installed.container, VERL)
    assert installed.container.run("consistency", "doctor", "--stack", "verl-0.8").returncode == 0


def test_labels(storage: Storage, editable: Image) -> None:
    found = config_of(storage, editable.built.tag)
    labels, lock = found["config"]["Labels"], load_lock()
    oci = {
        name.removeprefix("org.opencontainers.image."): text
        for name, text in labels.items()
        if "opencontainers" in name
    }
    own = {
        name.removeprefix("train-infer-consistency."): text
        for name, text in labels.items()
        if "opencontainers" not in name
    }
    assert oci["source"] == "https://git.invalid/us/it"
    assert oci["revision"].startswith(git_head())
    assert (oci["version"], oci["licenses"]) == (f"{__version__}-verl-0.8-a2", "Apache-2.0")
    assert oci["created"] == found["created"] == "2023-11-14T22:13:20Z"
    assert oci["base.name"] == "localhost/verl-0-8-editable:1"
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", oci["base.digest"])
    assert {"title", "description"} < set(oci)
    assert (own["stack"], own["chip"], own["overlay.revision"]) == ("verl-0.8", "a2", f"consistency.{lock.revision}")
    assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", own[name]) for name in ("inputs", "overlay.digest"))
    assert f"inputs: {own['inputs']}\n" in editable.built.output
    assert oci["base.digest"] in editable.built.output


def git_head() -> str:
    """The checkout's commit."""
    return subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("user", ["", "65534:65534", "1234"])
def test_health_check_for_any_user_and_writes_nothing(storage: Storage, editable: Image, user: str) -> None:
    config = config_of(storage, editable.built.tag)["config"]
    kind, *check = config["Healthcheck"]["Test"]
    assert (kind, check, config.get("User", "")) == ("CMD", ["consistency", "doctor"], "")
    before = files_of(editable.container.root)
    done = editable.container.run(*check, user=user)
    assert done.returncode == 0, done.stdout + done.stderr
    assert files_of(editable.container.root) == before


def test_tools_have_an_environment_of_their_own(dumps: Path, editable: Image) -> None:
    root = editable.container.root
    for name in ("vllm_fp32_stat", "verl_fsdp2_fp32_stat"):
        subprocess.run(["cp", "-r", str(dumps / "lookalike" / name), str(root / name)], check=True)
    done = editable.container.run(
        *("consistency", "compare", "/vllm_fp32_stat", "/verl_fsdp2_fp32_stat", "-o", "/report")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plotly" in (root / "report" / "report.html").read_text(encoding="utf-8").lower()
    training = editable.container.run("python3", "-c", "import plotly")
    assert "ModuleNotFoundError" in training.stderr


def test_training_environment_has_nothing_new_but_ours(editable: Image) -> None:
    def distributions(files: frozenset[str]) -> set[str]:
        return {name for path in files if (name := path.removeprefix(f"{SITE}/").split("/")[0]).endswith(".dist-info")}

    new = distributions(editable.files) - distributions(editable.base_files)
    assert {name.split("-")[0] for name in new} == {
        "mindstudio_probe",
        "train_infer_consistency",
    }


def test_nothing_is_left_behind(editable: Image) -> None:
    new = editable.files - editable.base_files
    assert [path for path in new if path.endswith((".pyc", ".whl")) or "/.cache/" in path or "/cache/" in path] == []
    assert {"/".join(path.split("/")[:2]) for path in new} == {
        *("opt/train-infer-consistency", "usr/share", "usr/local", "verl/verl", "verl/.train-infer-consistency"),
        *("vllm_ascend/vllm_ascend", "vllm_ascend/.train-infer-consistency"),
    }
    assert editable.base_files <= editable.files
    assert not (editable.container.root / "consistency-context").exists()


def test_bill_of_materials(storage: Storage, editable: Image) -> None:
    text = (editable.container.root / SBOM.lstrip("/")).read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    labels = config_of(storage, editable.built.tag)["config"]["Labels"]
    hashes = {part["bom-ref"]: part.get("hashes") for part in json.loads(text)["components"]}
    digest = labels["org.opencontainers.image.base.digest"].removeprefix("sha256:")
    assert hashes["base"] == [{"alg": "SHA-256", "content": digest}]


def test_same_digest_again(storage: Storage, base: Bases, editable: Image) -> None:
    again = build(storage, base("verl-0.8", "editable"), "verl-0.8")
    assert (again.status, again.digest) == (0, editable.built.digest), again.output
    assert f"digest: {again.digest}" in again.output


def test_changed_base_has_another_digest(editable: Image, installed: Image) -> None:
    assert editable.built.digest != installed.built.digest


@pytest.mark.parametrize(
    ("spoil", "status", "words"),
    [
        ("echo 'mine = True' >/verl/verl/workers/rollout/llm_server.py", 1, "verl"),
        (f"rm -r /vllm_ascend/vllm_ascend /{SITE}/vllm_ascend-*", 3, "vllm-ascend"),
        (f"sed -i s/2.9.0/2.8.0/ /{SITE}/torch-2.9.0.dist-info/METADATA", 1, "torch"),
        ("rm -r /usr/lib/python3.11/venv", 3, "no venv"),
    ],
    ids=["changed file", "missing package", "another version", "no venv"],
)
def test_base_that_is_not_the_stack_s_stops(storage: Storage, base: Bases, spoil: str, status: int, words: str) -> None:
    with started(storage, base("verl-0.8", "editable")) as container:
        assert container.run("sh", "-c", spoil).returncode == 0
        storage.call("buildah", "commit", "--format=docker", container.name, "localhost/spoilt:1")
    built = build(storage, "localhost/spoilt:1", "verl-0.8")
    assert built.status == status, built.output
    assert built.last.startswith("image: ")
    assert words in built.last
    assert "== wheels" not in built.output
    assert built.tag == ""


def test_base_that_is_nowhere_stops(storage: Storage) -> None:
    built = build(storage, "localhost/nowhere:1", "verl-0.8")
    assert (built.status, "could not be read" in built.last) == (3, True), built.output


def test_verl_at_the_commit_of_the_procedure(storage: Storage, base: Bases) -> None:
    given_source("verl")
    with image_of(storage, base("verl-0.8", "editable"), "verl-b7dabd83", "a2") as image:
        assert_woven(image.container, VERL)
        (row,) = (row for row in doctor_json(image.container)["upstreams"] if row["upstream"] == "verl")
        assert (row["pin"], row["kind"], row["root"]) == ("b7dabd83", "regular", f"/{SITE}")


@pytest.mark.parametrize(
    ("stack", "form", "chip"), [("slime-0.2.2", "editable", "a2"), ("slime-0.2.4", "site-packages", "a3")]
)
def test_slime(storage: Storage, base: Bases, stack: str, form: Form, chip: str) -> None:
    with image_of(storage, base(stack, form), stack, chip) as image:
        assert image.built.tag.startswith("localhost/slime-ascend:")
        assert_woven(image.container, {"slime", "sglang", "mindstudio-probe"})


def test_revert_gives_back_the_pristine_files(editable: Image, installed: Image) -> None:
    for image, places in (
        (editable, {"verl": "verl", "vllm-ascend": "vllm_ascend"}),
        (installed, {"verl": SITE, "vllm-ascend": SITE}),
    ):
        done = image.container.run("consistency", "overlay", "revert", "verl", "vllm-ascend")
        assert done.returncode == 0, done.stdout + done.stderr
        for name, place in places.items():
            pins = load_lock().pin(name, load_lock().stacks["verl-0.8"].pins[name]).files
            assert digests(image.container.root, place, name) == {path: pin.before for path, pin in pins.items()}
