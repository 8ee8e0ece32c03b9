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


def test_run_script_has_what_the_base_s_own_entrypoint_would_read_in(tmp_path: Path) -> None:
    """An entrypoint of compose's takes the place of the base's, which reads in CANN's settings."""
    files = ["ascend-toolkit/set_env.sh", "cann-9.0.0/share/info/ascendnpu-ir/bin/set_env.sh", "nnal/atb/set_env.sh"]
    for number, file in enumerate(files):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(f'export CANN="${{CANN-}}{number}:$# "\n')
    (tmp_path / "consistency").symlink_to("/bin/true")
    (tmp_path / "run.sh").write_text('echo "$CANN$*"\n')
    words = [word.replace("$$", "$").replace("/usr/local/Ascend", str(tmp_path)) for word in SERVICE["entrypoint"]]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run([*words, "x"], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0:0 1:0 2:0 x\n"), done.stderr


# --------------------------------------------------------------------------------------------------------- the wrapper


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["compare", "a", "b c"], "tools none compare a b c"),
        (["pairs"], "tools none pairs"),
        (["compare", "--ray"], "training /cann compare --ray"),
        (["doctor"], "training /cann doctor"),
        ([], "training /cann"),
    ],
)
def test_each_verb_goes_to_its_python_and_the_tools_see_nothing_of_the_base_s(
    tmp_path: Path, arguments: list[str], answer: str
) -> None:
    for name in ("training", "tools/bin/python"):
        python = tmp_path / name
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f'#!/bin/sh\nshift 4\necho {name.partition("/")[0]} "${{PYTHONPATH-none}}" "$@"\n')
        python.chmod(0o755)
    (tmp_path / "training-python").write_text(f"{tmp_path}/training\n")
    script = tmp_path / "consistency"
    script.write_text((DOCKER / "consistency").read_text().replace("/opt/train-infer-consistency", str(tmp_path)))
    done = subprocess.run(
        ["sh", str(script), *arguments], env={"PYTHONPATH": "/cann"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{answer}\n"


# --------------------------------------------------------------------------------------------------------- install.sh


@pytest.mark.parametrize(("user", "stops"), [("1000", "the base's user is not root"), ("0", "has no pip")])
def test_install_asks_for_root_and_pip_reads_no_settings_of_the_base(tmp_path: Path, user: str, stops: str) -> None:
    """The stand-in for Python has no pip, and writes down where that would have read its settings."""
    (tmp_path / "install.sh").write_bytes((DOCKER / "install.sh").read_bytes())
    (tmp_path / "python-version").write_text("3.11\n")
    for name, text in {
        "id": f"echo {user}",
        "python3": f'[ "$1" = -c ] && echo 3.11 && exit; echo "$PIP_CONFIG_FILE" >{tmp_path}/settings; exit 1',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PIP_CONFIG_FILE": "/etc/theirs", "STACK": "verl-0.8"}
    done = subprocess.run(
        ["sh", str(tmp_path / "install.sh")], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.startswith("image-stop 3: ")) == (3, True), done.stderr
    assert stops in done.stdout
    if user == "0":
        assert (tmp_path / "settings").read_text() == "/dev/null\n"


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
