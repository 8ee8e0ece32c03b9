"""Stand-ins for the public base images: Debian's Python 3.11, pristine upstream packages, and names of the rest.

What a stack only names (torch, CANN's Python packages, vLLM, ...) is there as metadata alone, so that versions can be
looked at; nothing of it can be imported. The upstreams that are edited are the real ones, without their dependencies.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from train_infer_consistency.wheels.record import WheelName
from train_infer_consistency.wheels.registry import cache_dir

Form = Literal["editable", "site-packages"]
#: Debian 12: its Python is the 3.11 of the stacks.
SUITE = "bookworm"
#: usr-is-merged stands for usrmerge, which would bring all of Perl.
PACKAGES = ("python3.11", "python3.11-venv", "usr-is-merged")
SITE = "usr/local/python3.11/lib/python3.11/site-packages"
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/lib/*/gconv/*")


def rootfs() -> Path:
    """The Debian packages as a tar, made once and kept in the user's cache."""
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=essential", f"--include={','.join(PACKAGES)}"]
    command += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    kept = cache_dir() / "stand-in" / f"{SUITE}-{hashlib.sha256(repr(command).encode()).hexdigest()[:16]}.tar"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part.tar")
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
        command += [SUITE, str(part), *_mirror()]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        part.rename(kept)
    return kept


def _mirror() -> list[str]:
    """Where the host takes Debian 12 from; nothing, for mmdebstrap's own choice, where it is another system."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    sources = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
    found = [path for path in sources if path.is_file() and path.stat().st_size]
    return [str(found[0])] if f"VERSION_CODENAME={SUITE}\n" in release and found else []


class Tree:
    """The files of a base above its Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / SITE
        self.site.mkdir(parents=True)

    def wheel(self, path: Path, form: Form) -> None:
        """Put an upstream's wheel there, as pip leaves it or as an editable checkout in ``/``.

        The public images have their upstreams as editable checkouts; the wheel's own files stand for those of one.
        """
        name = WheelName.parse(path.name)
        with zipfile.ZipFile(path) as archive:
            if form == "site-packages":
                archive.extractall(self.site)
                return
            checkout = self.root / name.distribution
            info = f"{name.distribution}-{name.version}.dist-info"
            archive.extractall(checkout, [one for one in archive.namelist() if not one.startswith(f"{info}/")])
            archive.extract(f"{info}/METADATA", self.site)
        self._editable(name.distribution, info, checkout)

    def checkout(self, name: str, git: Path, commit: str) -> None:
        """Put a commit's tree there as an editable checkout, with metadata that has its name and version alone."""
        checkout = self.root / name
        packed = subprocess.run(["git", "-C", str(git), "archive", commit], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tree:
            tree.extractall(checkout, filter="data")
        self.named({name: "0.0"})
        self._editable(name, f"{name}-0.0.dist-info", checkout)

    def _editable(self, name: str, info: str, checkout: Path) -> None:
        place = f"/{checkout.relative_to(self.root)}"
        origin = {"dir_info": {"editable": True}, "url": f"file://{place}"}
        (self.site / info / "direct_url.json").write_text(json.dumps(origin))
        (self.site / f"__editable__.{name}.pth").write_text(f"{place}\n")
        files = [f"{info}/METADATA", f"{info}/direct_url.json", f"__editable__.{name}.pth", f"{info}/RECORD"]
        (self.site / info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        (checkout / "pyproject.toml").touch()

    def named(self, versions: Mapping[str, str], commit: str = "", project: str = "") -> None:
        """Put packages there that are metadata alone; with a commit, as pip leaves what it installs from git."""
        for name, version in versions.items():
            info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            if commit:
                origin = {"url": f"https://git.invalid/{project}", "vcs_info": {"vcs": "git", "commit_id": commit}}
                (info / "direct_url.json").write_text(json.dumps(origin))


class Storage:
    """A storage of buildah's own for one run of the tests; gone afterwards."""

    def __init__(self, root: Path) -> None:
        self.root = root
        config = root / "storage.conf"
        config.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{root}/graph"\nrunroot = "{root}/run"\n')
        self.environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(config), "BUILDAH_ISOLATION": "chroot"}

    def call(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program on this storage."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=check)

    def python(self) -> str:
        """Build the part that all bases share; returns the image's name."""
        context = self.root / "python"
        context.mkdir()
        shutil.copyfile(rootfs(), context / "rootfs.tar")
        shutil.copyfile(Path(__file__).with_name("stand-in.Dockerfile"), context / "Dockerfile")
        self._build(context, "localhost/python:3.11")
        shutil.rmtree(context)
        return "localhost/python:3.11"

    def base(self, name: str, tree: Tree, on: str = "localhost/python:3.11") -> str:
        """Build a base of a tree; returns the image's name."""
        tag = f"localhost/{name}:1"
        (tree.root.parent / "Dockerfile").write_text(f"FROM {on}\nCOPY {tree.root.name} /\n")
        self._build(tree.root.parent, tag)
        shutil.rmtree(tree.root.parent)
        return tag

    def _build(self, context: Path, tag: str) -> None:
        done = self.call(
            *["buildah", "build", "--format=docker", "--network=host", "--timestamp=0", "--layers=false"],
            *["--identity-label=false", f"--tag={tag}", str(context)],
            check=False,
        )
        assert done.returncode == 0, done.stderr
