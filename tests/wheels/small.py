"""A small upstream of our own: its wheels, overlay and lock, and a git repository that builds without a network."""

from __future__ import annotations

import io
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from train_infer_consistency.overlay.lock import Artifact, Lock, Stack
from train_infer_consistency.overlay.locking import make_pin
from train_infer_consistency.overlay.model import PinSource, Upstream
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import MappingTree
from train_infer_consistency.wheels.archive import file_digest
from train_infer_consistency.wheels.record import Row, write_record

CORE = b"""class Core:
    def __init__(self):
        self.ready = True

    def run(self, x):
        return x + 1
"""
AT_COMMIT = CORE + b"\n\nLATER = True\n"
FILES = {"demo/__init__.py": b"", "demo/core.py": CORE, "demo/table, with comma.json": b"{}"}
METADATA = b"Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n\nVersion: this is prose\n"
COMMIT = "0" * 40

_TOML = """
schema = 1
why = "a test"
switch = "DEMO"
upstream-status = "Inappropriate [test]"
until = "never"
"""
_EDIT = """
[[edit]]
id = "extra"
kind = "after"
scope = "Core.__init__"
anchor = "self.ready = True"
lines = "self.extra = None"
why = "so that there is something to see"
"""
_LAY = """
[[edit]]
id = "laid"
kind = "lay"
lay = "laid.py"
why = "so that a file is laid"
"""


def overlays(root: Path, licence: str = "Apache-2.0") -> Path:
    """Write the overlay of the small upstream; returns the folder."""
    folder = root / "overlays"
    package = folder / "demo" / "demo"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "overlays.toml").write_text("schema = 1\nrevision = 7\n")
    (folder / "demo" / "upstream.toml").write_text(
        f'schema = 1\npackage = "demo"\ndistribution = "demo-pkg"\nlicence = "{licence}"\n'
        '[[pin]]\nversion = "1.0"\nregistry = "demo-pkg==1.0"\n'
        f'[[pin]]\nversion = "c0ffee"\ngit = "https://git.invalid/demo"\ncommit = "{COMMIT}"\n'
        'built-version = "1.0.dev0"\nwheel-version = "1.0.dev0+gc0ffee.consistency.{N}"\n'
    )
    (package / "core.py.toml").write_text(_TOML + _EDIT)
    (package / "laid.py.toml").write_text(_TOML + _LAY)
    (package / "laid.py").write_text("LAID = True\n")
    return folder


def record_of(files: Mapping[str, bytes], dist_info: str) -> bytes:
    """A right RECORD for the given members."""
    return write_record([Row.of(path, data) for path, data in files.items()], f"{dist_info}/RECORD")


def write_zip(path: Path, members: Mapping[str, bytes], modes: Mapping[str, int] | None = None) -> Path:
    """Deflated members in the given order, regular files of mode 0644 unless said otherwise."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (2020, 2, 2, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (modes or {}).get(name, 0o100644) << 16
            archive.writestr(info, data)
    return path


def make_wheel(
    folder: Path,
    files: Mapping[str, bytes] = FILES,
    *,
    name: str = "demo_pkg",
    version: str = "1.0",
    tag: str = "py3-none-any",
    metadata: bytes = METADATA,
    record: bytes | None = None,
    extra: Mapping[str, bytes] | None = None,
    modes: Mapping[str, int] | None = None,
) -> Path:
    """A wheel of demo-pkg (or ``name``); ``record`` replaces the right RECORD, which leaves out ``extra`` members."""
    dist_info = f"{name}-{version}.dist-info"
    wheel = b"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\n" + f"Tag: {tag}\n".encode()
    members = {
        **files,
        f"{dist_info}/METADATA": metadata,
        f"{dist_info}/WHEEL": wheel,
        f"{dist_info}/entry_points.txt": b"[console_scripts]\ndemo = demo.core:Core\n",
    }
    members[f"{dist_info}/RECORD"] = record_of(members, dist_info) if record is None else record
    folder.mkdir(parents=True, exist_ok=True)
    return write_zip(folder / f"{name}-{version}-{tag}.whl", {**members, **(extra or {})}, modes)


@dataclass(frozen=True)
class Small:
    """The small upstream, its lock, and the wheels that the lock knows."""

    upstream: Upstream
    lock: Lock
    wheel: Path

    @property
    def upstreams(self) -> dict[str, Upstream]:
        return {self.upstream.name: self.upstream}

    def with_git(self, url: str, commit: str) -> Small:
        """The same with the commit's pin taken from a repository that exists."""
        pins = dict(self.lock.upstreams["demo"])
        pins["c0ffee"] = replace(pins["c0ffee"], git=url, commit=commit)
        return replace(self, lock=replace(self.lock, upstreams={"demo": pins}))


def small(folder: Path, *wheels: Path, licence: str = "Apache-2.0") -> Small:
    """Lock the given wheels of version 1.0, a pure one by default."""
    paths = list(wheels) or [make_wheel(folder / "registry")]
    root = overlays(folder, licence)
    upstream = load_upstreams(root)["demo"]
    bare = Lock(7, {}, {}, {})
    pins = {}
    for version, core in (("1.0", CORE), ("c0ffee", AT_COMMIT)):
        tree = MappingTree("demo", {**FILES, "demo/core.py": core})
        source = upstream.pin(version)
        assert isinstance(source, PinSource)
        artifacts = [Artifact(path.name, file_digest(path), path.stat().st_size) for path in paths]
        pins[version] = make_pin(upstream, source, tree, artifacts if source.registry else [], bare)
    stacks = {
        name: Stack(name, name, "3.11", {"demo": version}, (), (), ())
        for name, version in (("released", "1.0"), ("commit", "c0ffee"))
    }
    return Small(upstream, Lock(7, {}, {"demo": pins}, stacks), paths[0])


_BACKEND = """
# A build backend without requirements: the wheel is the package as it lies here, and the rest was made beforehand.
import pathlib, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = {name!r}
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted([*pathlib.Path("demo").glob("*.py"), *pathlib.Path("demo").glob("*.json")]):
            write(out, path.as_posix(), path.read_bytes())
        for path, data in {rest!r}.items():
            write(out, path, data)
        rows = [row(path, out.read(path)) for path in out.namelist()]
        write(out, {record!r}, "".join([*rows, {record!r} + ",,\\n"]).encode())
    return name

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    for path, data in {rest!r}.items():
        pathlib.Path(metadata_directory, path).parent.mkdir(exist_ok=True)
        pathlib.Path(metadata_directory, path).write_bytes(data)
    return pathlib.Path({record!r}).parent.name

def write(out, name, data):
    out.writestr(zipfile.ZipInfo(name, (2020, 2, 2, 0, 0, 0)), data)

def row(path, data):
    import base64, hashlib
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f'"{{path}}",sha256={{digest}},{{len(data)}}\\n'
"""


def make_checkout(folder: Path, *, tag: str = "py3-none-any", commit: bool = True) -> tuple[Path, str]:
    """A source tree of the small upstream that builds without a network; its path, and its commit if it has one."""
    dist_info = "demo_pkg-1.0.dev0.dist-info"
    rest = {
        f"{dist_info}/METADATA": b"Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0.dev0\n",
        f"{dist_info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    name = f"demo_pkg-1.0.dev0-{tag}.whl"
    for member, data in {**FILES, "demo/core.py": AT_COMMIT}.items():
        path = folder / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "demo-pkg"\nversion = "1.0.dev0"\n'
    )
    (folder / "backend.py").write_text(_BACKEND.format(name=name, rest=rest, record=f"{dist_info}/RECORD"))
    return folder, commit_all(folder) if commit else ""


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder with an author of its own."""
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.invalid", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *settings, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(folder: Path) -> str:
    """Commit everything in a folder, made a repository if it is none; returns the commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a commit")
    return git(folder, "rev-parse", "HEAD")


def members_of(path: Path) -> dict[str, bytes]:
    """Every member's bytes, each checked by its CRC."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}
