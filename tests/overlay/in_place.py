"""Two small upstreams of our own, their overlays, and ways to install them, for the tests of the in-place overlay."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from train_infer_consistency.overlay.inspect import inspect_upstream, weave_upstream
from train_infer_consistency.overlay.lock import FilePin, Lock, Pin
from train_infer_consistency.overlay.model import Upstream
from train_infer_consistency.overlay.provenance import FILE_NAME, provenance, render
from train_infer_consistency.overlay.reading import load_upstreams, overlay_revision
from train_infer_consistency.overlay.trees import MappingTree

SKEL = {
    "skel/__init__.py": b"__version__ = '1.0'\n",
    "skel/runner.py": b"class Runner:\r\n    def run(self, x):\r\n        y = x + 1\r\n        return y\r\n",
    "skel/deep/__init__.py": b"",
    "skel/deep/loop.py": b"def loop(n):\n    total = sum(range(n))\n    return total\n",
    "skel/deep/pool.py": b"POOL = []\n\n\ndef fill():\n    POOL.append(1)\n",
}
SKEL_WOVEN = ("skel/deep/hook.py", "skel/deep/loop.py", "skel/deep/pool.py", "skel/runner.py")
OTHER = {"other/__init__.py": b"", "other/main.py": b"def main():\n    status = 0\n    return status\n"}

_FILE = """schema = 1
why = "w"
switch = "SWITCH"
upstream-status = "Inappropriate [test]"
until = "never"
[[edit]]
id = "only"
why = "w"
"""
_TOMLS = {
    "skel/skel/runner.py": 'scope = "Runner.run"\nkind = "before"\nanchor = "return y"\nlines = "self.seen = y"\n',
    "skel/skel/deep/loop.py": 'scope = "loop"\nkind = "wrap"\nanchor = "sum(...)"\nlines = "({} + 0)"\n',
    "skel/skel/deep/pool.py": 'scope = "fill"\nkind = "after"\nanchor = "POOL.append(1)"\nlines = "POOL.append(2)"\n',
    "skel/skel/deep/hook.py": 'kind = "lay"\nlay = "hook.py"\n',
    "other/other/main.py": 'scope = "main"\nkind = "before"\nanchor = "return status"\nlines = "assert status == 0"\n',
}


#: The upstreams of these overlays, and their lock.
Known = tuple[dict[str, Upstream], Lock]


def write_overlays(root: Path, revision: int = 1) -> Path:
    """Write the overlays of both upstreams; the revision is also in what is inserted, so that versions differ."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "overlays.toml").write_text(f"schema = 1\nrevision = {revision}\n")
    for name in ("skel", "other"):
        (root / name).mkdir(exist_ok=True)
        (root / name / "upstream.toml").write_text(
            f'schema = 1\npackage = "{name}"\ndistribution = "{name}-engine"\nlicence = "Apache-2.0"\n'
            f'[[pin]]\nversion = "1.0"\nregistry = "{name}-engine==1.0"\n'
        )
    for path, edit in _TOMLS.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{path}.toml").write_text(_FILE + edit)
    (root / "skel/skel/deep/hook.py").write_text(f"REVISION = {revision}\n")
    return root


def upstreams_and_lock(folder: Path, revision: int = 1) -> tuple[dict[str, Upstream], Lock]:
    """Return both upstreams, and a lock that knows the trees above as their pin 1.0."""
    root = write_overlays(folder, revision)
    upstreams = load_upstreams(root)
    pins = {}
    for name, files in (("skel", SKEL), ("other", OTHER)):
        empty = Lock(overlay_revision(root), {}, {}, {})
        found = inspect_upstream(upstreams[name], MappingTree(name, dict(files)), empty, pin="1.0")
        assert found.problems == ()
        known = {file.path: FilePin(file.before_sha256, file.after_sha256, file.scopes) for file in found.files}
        pins[name] = {
            "1.0": Pin("1.0", "registry", f"{name}-engine==1.0", None, None, None, "1.0", "1.0", False, {}, known)
        }
    return upstreams, Lock(revision, {}, pins, {})


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def write_metadata(site: Path, name: str, version: str = "1.0", requires: tuple[str, ...] = ()) -> Path:
    """Write a ``*.dist-info`` as an installer leaves it, without RECORD."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n\n")
    return info


def install(site: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    """Lay a package into a site folder as a wheel's installation does, with RECORD. Return its ``*.dist-info``."""
    write_tree(site, files)
    info = write_metadata(site, f"{name}-engine", version)
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    return info


def bare_site(site: Path) -> Path:
    """Make an environment with the skeleton, a new enough msprobe and this package: nothing is wrong in it."""
    install(site, "skel", SKEL)
    write_metadata(site, "mindstudio-probe", "26.0.0")
    write_tree(site, {"train_infer_consistency/__init__.py": b""})
    return site


def install_woven(site: Path, upstream: Upstream, lock: Lock, files: dict[str, bytes]) -> Path:
    """Install a wheel that was woven by this overlay: woven files and the provenance in ``*.dist-info``."""
    weave = weave_upstream(upstream, MappingTree("wheel", dict(files)), lock)
    info = install(
        site,
        upstream.name,
        {**files, **{file.path: file.after for file in weave.files}},
        f"1.0+consistency.{lock.revision}",
    )
    (info / FILE_NAME).write_bytes(render(provenance(weave)))
    return info


def make_editable(site: Path, name: str, checkout: Path, style: str) -> None:
    """Register a checkout in a site folder: ``finder`` or ``pth`` (PEP 660), ``develop`` (egg-link)."""
    site.mkdir(parents=True, exist_ok=True)
    if style == "develop":
        (site / "easy-install.pth").write_text(f"{checkout}\n")
        (site / f"{name}-engine.egg-link").write_text(f"{checkout}\n.")
        info = checkout / f"{name}_engine.egg-info"
        info.mkdir()
        (info / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}-engine\nVersion: 1.0\n\n")
        return
    info = write_metadata(site, f"{name}-engine")
    (info / "direct_url.json").write_text(json.dumps({"dir_info": {"editable": True}, "url": f"file://{checkout}"}))
    if style == "pth":
        (site / f"__editable__.{name}_engine-1.0.pth").write_text(f"{checkout}\n")
        return
    finder = f"__editable___{name}_engine_1_0_finder"
    (site / f"__editable__.{name}_engine-1.0.pth").write_text(f"import {finder}; {finder}.install()\n")
    (site / f"{finder}.py").write_text(
        "raise SystemExit('a finder must not be run')\n"
        f"MAPPING: dict[str, str] = {{'{name}': '{checkout / name}'}}\nNAMESPACES: dict[str, list[str]] = {{}}\n"
    )


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file below a folder with its bytes and mode, compiled files left out."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }
