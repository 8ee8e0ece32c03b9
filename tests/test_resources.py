"""The shipped files are found in a checkout and in an installed wheel, and the wheel lacks no file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from train_infer_consistency import resources
from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.overlay.reading import load_upstreams

from .conftest import ROOT

PACKAGE = ROOT / "src" / "train_infer_consistency"


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }


def test_checkout_has_them_at_its_root() -> None:
    assert resources.overlays_dir() == ROOT / "overlays"
    assert resources.lock_path() == ROOT / "VERSIONS.lock"


def test_wheel_has_every_file(own_wheel: Path) -> None:
    expected = {f"train_infer_consistency/{name}" for name in files_below(PACKAGE)}
    shipped = {f"train_infer_consistency/_shipped/overlays/{name}" for name in files_below(ROOT / "overlays")}
    with ZipFile(own_wheel) as archive:
        names = set(archive.namelist())
        lock = archive.read("train_infer_consistency/_shipped/VERSIONS.lock")
    dist_info = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert shipped
    assert names - dist_info == expected | shipped | {"train_infer_consistency/_shipped/VERSIONS.lock"}
    assert lock == (ROOT / "VERSIONS.lock").read_bytes()


def test_wheel_states_licence_command_and_no_dependency(own_wheel: Path) -> None:
    with ZipFile(own_wheel) as archive:
        texts = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
        metadata = archive.read(texts["METADATA"]).decode().splitlines()
        commands = archive.read(texts["entry_points.txt"]).decode()
    assert {"licenses/LICENSE", "licenses/NOTICE"} <= texts.keys()
    assert "License-Expression: Apache-2.0" in metadata
    needed = [line for line in metadata if line.startswith("Requires-Dist")]
    assert [line for line in needed if "; extra == " not in line] == []
    extras = {
        extra: {line.split()[1].partition("<")[0] for line in needed if f"extra == '{extra}'" in line}
        for extra in ("analysis", "all")
    }
    assert extras == {"analysis": {"numpy", "plotly"}, "all": {"numpy", "plotly"}}
    assert "consistency = train_infer_consistency.cli.main:main" in commands


def test_sdist_can_build_the_wheel_and_run_the_tests(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], cwd=ROOT, check=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive}
    for folder in ("src", "overlays", "tests", "requirements"):
        assert {f"{folder}/{name}" for name in files_below(ROOT / folder)} <= names
    assert {"VERSIONS.lock", "hatch_build.py", "pyproject.toml", "Makefile", "LICENSE", "NOTICE"} <= names
    assert not [name for name in names if name.startswith((".venv", "dist/"))]


def test_installed_wheel_finds_what_it_ships(own_wheel: Path, tmp_path: Path) -> None:
    with ZipFile(own_wheel) as archive:
        archive.extractall(tmp_path)
    script = "import train_infer_consistency.resources as r; print(r.overlays_dir(), r.lock_path(), sep='\\n')"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    shipped = tmp_path / "train_infer_consistency" / "_shipped"
    assert run.stdout.splitlines() == [str(shipped / "overlays"), str(shipped / "VERSIONS.lock")]
    assert files_below(shipped / "overlays") == files_below(ROOT / "overlays")


@pytest.mark.parametrize("name", ["overlays", "VERSIONS.lock"])
def test_missing_file_is_one_line_with_the_mend(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A site-packages that lost _shipped/; a folder of that name two levels up must not be taken for it.
    package = tmp_path / "lib" / "site-packages" / "train_infer_consistency"
    package.mkdir(parents=True)
    (tmp_path / "lib" / name).mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", package)
    with pytest.raises(EvidenceError, match=r"is missing from this installation .*; install") as caught:
        (resources.overlays_dir if name == "overlays" else resources.lock_path)()
    assert str(caught.value).startswith(name)
    assert "\n" not in str(caught.value)


#: What the table calls a package whose distribution has another name.
_DISTRIBUTIONS = {"vllm_ascend": "vllm-ascend", "msprobe": "mindstudio-probe"}


def rows_of(page: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """The table of what was run: upstream with its versions, the files of a row, and the cells behind them."""
    upstream, folder = "", ""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if not line.endswith(" | |"):
            continue
        first, names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        upstream, files = first or upstream, []
        for name in re.findall("`([^`]+)`", names):
            # A bare name lies in the folder of the one before it.
            folder = name.rpartition("/")[0] if "/" in name else folder
            files.append(f"{folder}/{name.rpartition('/')[2]}")
        yield upstream, files, cells


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_every_edited_file_has_its_row_in_the_table_of_what_was_run(page: str) -> None:
    upstreams = load_upstreams()
    edited = {file.path for upstream in upstreams.values() for file in upstream.files}
    packages = {upstream.package for upstream in upstreams.values()}
    rows = list(rows_of(page))
    found = [
        f"{package}/{file}"
        for upstream, files, _ in rows
        for package in packages
        if upstream.lower().startswith(f"{_DISTRIBUTIONS.get(package, package)} ")
        for file in files
    ]
    assert sorted(found) == sorted(edited)
    assert all(len(cells) == 5 and all(cells[:3]) and not cells[4] for _, _, cells in rows)
    for name, upstream in upstreams.items():
        pins = {pin.version for pin in upstream.pins if not pin.tested_only and pin.variant_of is None}
        said = " ".join(first for first, _, _ in rows if first.lower().startswith(f"{name.removesuffix('-cpu')} "))
        assert pins <= set(re.split("[ ,]+", said)), name
