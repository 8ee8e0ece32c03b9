"""Look at one environment: what is woven by what, does it agree with its record, and what contradicts.

Everything is read from files and metadata; no upstream package is imported. The findings are typed records, so that a
terminal, ``--json`` and the nodes of a Ray cluster (:mod:`.ray_nodes`) all show the same.
"""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

from .. import __version__
from .demands import requirements_said
from .facts import Compared
from .finding import LEVELS, Finding, Level
from .fitting import check_names, fit
from .locate import Environment, Location, distributions, doubled, environment, locate_all, normal_name
from .lock import Lock, Stack
from .model import Upstream
from .status import UpstreamStatus, describe, status
from .trees import DirectoryTree

OWN_PACKAGE = "train_infer_consistency"
MSPROBE = "mindstudio-probe"
# The first mindstudio-probe whose module dumps carry what SGLang's and verl's overlays rely on (start with a rank).
MSPROBE_MINIMUM = (26, 0, 0)
# From this one on `precision: high` writes null for Mean and Norm of PyTorch tensors.
MSPROBE_NULL_HIGH = (26, 1)


@dataclass(frozen=True)
class Report:
    """What was found in one environment.

    Attributes:
        label, python: the environment, and the version of the interpreter that looked.
        version, revision: of this tool and its overlays.
        upstreams: the status of every upstream that is there.
        findings: in the order of :data:`.finding.LEVELS`.
        stack: the stack that the environment was judged by, or None.
        facts: every version fact of that stack beside what is installed.
    """

    label: str
    python: str
    version: str
    revision: int
    upstreams: tuple[UpstreamStatus, ...]
    findings: tuple[Finding, ...]
    stack: str | None = None
    facts: tuple[Compared, ...] = ()

    @property
    def status(self) -> int:
        """The exit status: 0 all fine, 1 something is wrong, 3 nothing to look at or a part of the stack is missing."""
        levels = {finding.level for finding in self.findings}
        if "wrong" in levels:
            return 1
        return 3 if not self.upstreams or "missing" in levels else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON can hold it."""
        return {**asdict(self), "status": self.status}


def examine(
    upstreams: Mapping[str, Upstream],
    lock: Lock,
    site: Path | None = None,
    stack: Stack | None = None,
    without: Collection[str] = (),
) -> Report:
    """Look at an environment, without writing.

    Args:
        upstreams: every known upstream.
        lock: the known digests, stacks and waivers.
        site: see :func:`.locate.environment`.
        stack: judge also whether the environment fits it; contradictions are then waived by this stack alone.
        without: upstreams of the stack that are not looked at, because they are brought later.

    Raises:
        EvidenceError: ``site`` is no folder.
        UsageError: ``without`` names what the stack does not have.
    """
    every = upstreams
    if stack is not None:
        check_names(stack, without)
        upstreams = {name: upstream for name, upstream in upstreams.items() if name not in without}
    where = environment(site)
    found = locate_all(upstreams, where)
    rows = tuple(row for row in status(upstreams, lock, where) if row.state != "absent")
    woven = any(row.state == "woven" for row in rows)
    installed = {normal_name(str(dist.metadata["Name"])): dist for _, dist in distributions(where)}
    findings = [*_of_states(rows), *_of_installs(upstreams, found, where), *_of_device(found, upstreams)]
    compared: list[Compared] = []
    if stack is not None:
        more, compared = fit(stack, rows, installed, without)
        findings += [*more, *_of_python(stack, site)]
    if installed:  # a checkout or plain tree given with --site says nothing about what is installed
        findings += _of_msprobe(installed) if MSPROBE not in without else ()
        starting = {name: upstream.imports for name, upstream in upstreams.items() if name in found}
        starting |= {name: every[name].imports for name in without}  # brought with pip install --no-deps
        findings += _of_imports(starting, installed)
        findings += _of_own_package(where, woven)
        stacks = list(lock.stacks.values()) if stack is None else [stack]
        waivers = [waiver for item in stacks for waiver in item.waivers]
        accepted = {
            normal_name(one.distribution): one.why for one in compared if one.verdict == "waived" and one.distribution
        }
        asking = [upstreams[name].distribution for name in found]
        findings += requirements_said(asking, installed, waivers, accepted)
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return Report(
        where.label,
        platform.python_version(),
        __version__,
        lock.revision,
        rows,
        tuple(findings),
        None if stack is None else stack.name,
        tuple(compared),
    )


def _of_states(rows: Sequence[UpstreamStatus]) -> Iterator[Finding]:
    for row in rows:
        bad = [f"{file.path} is {file.note or file.state}" for file in row.files if file.state in ("changed", "absent")]
        if row.state == "interrupted":
            yield Finding("wrong", row.upstream, "; ".join(row.notes), f"consistency overlay revert {row.upstream}")
        elif row.state == "changed":
            what = "; ".join([*row.notes, *bad]) or "its files do not agree with their record"
            yield Finding("wrong", row.upstream, what, "reinstall the upstream package, then apply the overlay again")
        elif row.state == "woven" and not row.this_version:
            what = f"woven by consistency.{row.revision}, and this version is another"
            yield Finding("wrong", row.upstream, what, "revert it and apply this version's overlay")
        elif row.state == "woven" and row.record is None:
            yield Finding("warning", row.upstream, "; ".join(row.notes))
        if row.state == "pristine":
            for said in row.notes:
                yield Finding("warning", row.upstream, said)
            for said in dict.fromkeys(file.note for file in row.files if file.note):
                paths = [file.path for file in row.files if file.note == said]
                more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
                yield Finding("note", row.upstream, f"{paths[0]}{more}: {said}")


def _of_installs(
    upstreams: Mapping[str, Upstream], found: Mapping[str, Location], where: Environment
) -> Iterator[Finding]:
    for name, infos in doubled(where).items():
        yield Finding("warning", name, f"several versions are recorded: {', '.join(infos)}", "reinstall it")
    for name, at in found.items():
        for hidden in at.shadowed:
            yield Finding("warning", name, f"{at.package} hides another copy, {hidden}", "uninstall one of them")
        if at.kind == "editable":
            what = f"an editable install of {at.root}: a woven wheel would displace it"
            yield Finding("warning", name, what, f"use 'consistency overlay apply {name}' instead of a wheel")
        elif at.kind == "tree":
            yield Finding("note", name, f"{at.root} has no metadata for it, so its version is not known")
        here = Path.cwd() / upstreams[name].package
        if here.is_dir() and here.resolve() != at.package.resolve() and where.label.startswith("the environment"):
            what = f"Python started in {Path.cwd()} would import {here}, and not {at.package}"
            yield Finding("warning", name, what, "start it in another folder")


def _of_msprobe(installed: Mapping[str, PathDistribution]) -> Iterator[Finding]:
    if MSPROBE not in installed:
        yield Finding("warning", MSPROBE, "not installed: nothing can be dumped", "install the stack's wheels")
        return
    version = installed[MSPROBE].version
    numbers = _numbers(version)
    if numbers < MSPROBE_MINIMUM:
        what = f"{version} is older than {'.'.join(map(str, MSPROBE_MINIMUM))}, the first that serves"
        yield Finding("wrong", MSPROBE, what, "install the stack's wheel of it")
    elif numbers >= MSPROBE_NULL_HIGH:
        what = (
            f"{version} writes null for Mean and Norm where its configuration has 'precision': 'high' (26.1 and later)"
        )
        yield Finding("note", MSPROBE, what, "leave 'precision' out of the dump configuration")


def _of_imports(starting: Mapping[str, Sequence[str]], installed: Mapping[str, PathDistribution]) -> Iterator[Finding]:
    """Name what an upstream imports at its start and is not installed: wheels are installed with ``--no-deps``."""
    for name, imports in starting.items():
        absent = [need for need in imports if normal_name(need) not in installed]
        if absent:
            what = f"it imports {', '.join(absent)} when it starts, and that is not installed"
            yield Finding("wrong", name, what, f"pip install {' '.join(absent)}")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def _of_device(found: Mapping[str, Location], upstreams: Mapping[str, Upstream]) -> Iterator[Finding]:
    """Tell which Ascend generation vllm-ascend was built for, as its ``_build_info.py`` says: it refuses any other."""
    at = found.get("vllm-ascend")
    if at is None:
        return
    source = DirectoryTree(at.root, upstreams["vllm-ascend"].package).read("vllm_ascend/_build_info.py")
    try:
        module = ast.parse(source or b"")
    except (SyntaxError, ValueError):
        return
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__device_type__")], value=ast.Constant(value=str(device))):
                what = f"built for {device}: it refuses to start on another generation"
                yield Finding(
                    "note",
                    "vllm-ascend",
                    what,
                    "on an A3 build it there and use 'consistency overlay apply vllm-ascend'",
                )


def _of_python(stack: Stack, site: Path | None) -> Iterator[Finding]:
    here = platform.python_version()
    if site is None and not here.startswith(f"{stack.python}."):
        what = f"this is {here}, and what belongs to stack {stack.name} is for {stack.python}"
        yield Finding("warning", "Python", what, f"use Python {stack.python}")


def _of_own_package(where: Environment, woven: bool) -> Iterator[Finding]:
    folders = [folder / OWN_PACKAGE for folder in where.folders]
    if OWN_PACKAGE in where.mapped:
        folders.append(where.mapped[OWN_PACKAGE])
    if any((folder / "__init__.py").is_file() for folder in folders):
        return
    what = (
        f"train-infer-consistency itself is not in {where.label}: with its switch on, a woven engine stops at start-up"
    )
    level: Level = "wrong" if woven else "warning"
    yield Finding(level, "train-infer-consistency", what, "install its wheel there with pip install --no-deps")


def lines(report: Report) -> list[str]:
    """Return the report as lines for a terminal, each with its level in front for the caller to colour."""
    tool = f"train-infer-consistency {report.version} (consistency.{report.revision})"
    out = [f"{report.label}: Python {report.python}, {tool}"]
    width = max((len(row.upstream) for row in report.upstreams), default=0)
    for row in report.upstreams:
        record = f", agrees with its {row.record}" if row.record and row.state == "woven" else ""
        out.append(f"  {row.upstream:<{width}}  {row.version or '?'} ({row.kind})  {describe(row)}{record}  {row.root}")
    if report.stack is not None:
        agreed = [f"{one.fact} {one.installed}" for one in report.facts if one.verdict == "agrees"]
        out.append(f"stack {report.stack}: {', '.join(agreed) or 'no version'} as in the lock")
    for finding in report.findings:
        mend = f"; {finding.mend}" if finding.mend else ""
        out.append(f"{finding.level}: {finding.subject}: {finding.what}{mend}")
    if not report.upstreams:
        out.append("none of the upstream packages is here")
    return out
