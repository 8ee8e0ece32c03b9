"""docker-bake.hcl, compose.yaml and the Dockerfile's lint: what they name is there, and what they promise holds."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import hcl2
import pytest
from hcl2 import SerializationOptions
from ruamel.yaml import YAML

from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.wheels.registry import MACHINES

from ..conftest import ROOT

DOCKER = ROOT / "docker"
DOCKERFILES = [DOCKER / "Dockerfile", *sorted((ROOT / "tests" / "image").glob("*.Dockerfile"))]
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
HADOLINT = Path(sysconfig.get_path("scripts"), "hadolint")


def bake() -> dict[str, dict[str, Any]]:
    """Every image's target as bake makes it of the matrix, by name; in VERSION and PREFIX stands the word itself."""
    text = (DOCKER / "docker-bake.hcl").read_text(encoding="utf-8")
    data = hcl2.loads(text, serialization_options=SerializationOptions(strip_string_quotes=True))
    found = {}
    for block in data["target"]:
        ((_, target),) = block.items()
        matrix = target.get("matrix")
        for values in itertools.product(*matrix.values()) if matrix else ():
            chosen = dict(zip(matrix, values, strict=True))
            texts = {key: fill(target[key], chosen) for key in ("name", "context", "tags")}
            assert target["platforms"] == ['${machine == "x86_64" ? "linux/amd64" : "linux/arm64"}']
            assert texts["name"] not in found
            found[texts["name"]] = {**target, **texts, "platform": PLATFORMS[chosen["machine"]], **chosen}
    return found


def fill(text: str, values: dict[str, str]) -> str:
    """Write a matrix's values into one of its target's texts."""
    text = text.replace('${replace(stack, ".", "_")}', values["stack"].replace(".", "_"))
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    return text


# ----------------------------------------------------------------------------------------------------------------- bake


def test_every_image_of_the_lock_has_a_target_and_no_other() -> None:
    wanted = {
        f"{stack.name}-{chip}-{machine}".replace(".", "_"): f"dist/image/{stack.name}-{chip}-{machine}"
        for stack in load_lock().stacks.values()
        for chip in stack.images
        for machine in MACHINES
    }
    assert {name: target["context"] for name, target in bake().items()} == wanted


def test_names_say_stack_chip_and_machine_and_never_latest() -> None:
    for target in bake().values():
        word = target["stack"].partition("-")[0]
        tag = f"${{PREFIX}}{word}-ascend:${{VERSION}}-{target['stack']}-{target['chip']}-{target['machine']}"
        assert target["tags"] == f'${{VERSION == "" ? [] : ["{tag}"]}}'
        assert "latest" not in tag


def test_the_arguments_are_those_of_the_dockerfile() -> None:
    """`make image` writes them beside the context; a target itself has none, so that nothing is said twice."""
    from build.image import Base, arguments_for, choose_order

    lock = load_lock()
    for target in bake().values():
        assert "args" not in target
        order = choose_order(lock, target["stack"], target["chip"], target["machine"])
        assert order.name.replace(".", "_") == target["name"]
        declared = re.findall(r"^ARG (\w+)$", (DOCKER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        arguments = arguments_for(order, Base("registry.example/base:1", "sha256:" + "0" * 64), lock)
        assert set(arguments) == set(declared)


# -------------------------------------------------------------------------------------------------------------- compose

SERVICE: dict[str, Any] = YAML(typ="safe").load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"][
    "collect"
]


def test_devices_and_driver_of_an_ascend_host() -> None:
    cards = [f"/dev/davinci{number}" for number in range(8)]
    wanted = [*cards, "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert SERVICE["devices"] == [f"{name}:{name}" for name in wanted]
    mounts = {mount["source"]: mount for mount in SERVICE["volumes"]}
    for path in (
        "/usr/local/Ascend/driver/lib64",
        "/usr/local/Ascend/driver/version.info",
        "/etc/ascend_install.info",
        "/usr/local/dcmi",
        "/usr/local/bin/npu-smi",
    ):
        assert mounts[path]["target"] == path
        assert mounts[path]["read_only"] is True


def test_every_mount_has_the_same_path_inside_and_is_never_made_by_docker() -> None:
    for mount in SERVICE["volumes"]:
        assert mount["type"] == "bind"
        assert re.sub(r":\?[^}]*", "", mount["source"]) == re.sub(r":\?[^}]*", "", mount["target"])
        assert mount["bind"] == {"create_host_path": False}
    writable = [mount["target"] for mount in SERVICE["volumes"] if not mount.get("read_only")]
    assert writable == ["${PLAN}", "${DUMPS}"]


def test_no_right_beyond_the_devices() -> None:
    assert not {"privileged", "cap_add", "pid", "security_opt"} & SERVICE.keys()
    assert SERVICE["ipc"] == "private"
    assert SERVICE["shm_size"]


@pytest.mark.parametrize("woven", [True, False])
def test_run_script_gets_its_arguments_once_doctor_is_content(tmp_path: Path, woven: bool) -> None:
    doctor = tmp_path / "consistency"
    doctor.write_text(f'#!/bin/sh\n[ "$*" = doctor ] || exit 9\nexit {0 if woven else 1}\n')
    doctor.chmod(0o755)
    (tmp_path / "run.sh").write_text('printf "%s\\n" "$0" "$@"\n')
    words = [word.replace("$$", "$") for word in SERVICE["entrypoint"]]
    done = subprocess.run(
        [*words, "data.train_files=/data/a b.parquet", "x"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if woven:
        assert (done.returncode, done.stdout.splitlines()) == (0, ["run.sh", "data.train_files=/data/a b.parquet", "x"])
    else:
        assert (done.returncode, done.stdout) == (1, "")


# ------------------------------------------------------------------------------------------------------------- hadolint


def lint(path: Path) -> str:
    """What hadolint finds in a file, with this repository's configuration."""
    command = [str(HADOLINT), "--no-color", "--config", str(ROOT / ".hadolint.yaml"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_no_finding_and_every_ignored_one_is_explained(path: Path, tmp_path: Path) -> None:
    assert lint(path) == ""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if "hadolint ignore" in line or "shellcheck disable" in line:
            above = lines[number - 1]
            assert above.startswith("# "), f"{path.name}:{number + 1} is not explained"
            bare = tmp_path / "Dockerfile"
            bare.write_text("\n".join([*lines[:number], "#", *lines[number + 1 :]]) + "\n")
            assert lint(bare), f"{path.name}:{number + 1} ignores nothing"


def test_no_rule_is_ignored_everywhere(tmp_path: Path) -> None:
    assert set(YAML(typ="safe").load((ROOT / ".hadolint.yaml").read_text(encoding="utf-8"))) == {"failure-threshold"}
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian:latest\nRUN cd /tmp && apt-get install x\n")
    assert {"DL3007", "DL3003", "DL3008"} <= set(re.findall(r"DL\d+", lint(bad)))
