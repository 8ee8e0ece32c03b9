"""Build the wheels of a stack: choose each pin's source, weave, repack, and say what could not be had."""

from __future__ import annotations

import ast
import contextlib
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import __version__
from ..errors import ConsistencyError, EvidenceError, FoundError, UsageError
from ..overlay.inspect import UpstreamWeave
from ..overlay.lock import Artifact, Lock, Pin, Stack
from ..overlay.locking import refuse_contradictions
from ..overlay.model import Upstream
from .folder import ALONE, alone, clear, requirements_path, write_requirements, write_sums
from .own import NAME, build_own
from .record import WheelName, WheelReader
from .registry import MACHINES, OLDEST
from .repack import BuiltWheel, repack, weave_wheel
from .sources import Source, from_git, from_registry

_Item = tuple[Upstream, Pin, Artifact | None]  # None: not from a registry
_ALIASES = {"arm64": "aarch64", "amd64": "x86_64", "x86-64": "x86_64"}


@dataclass(frozen=True)
class Target:
    """What wheels are built for; ``python`` is None for each stack's own."""

    machine: str
    python: str | None

    @classmethod
    def of(cls, machine: str | None, python: str | None) -> Target:
        """Read the two words of the command line; this machine and the stack's Python by default.

        Raises:
            UsageError: a machine or a Python that nothing is built for.
        """
        machine = machine or platform.machine()
        machine = _ALIASES.get(machine.lower(), machine)
        if machine not in MACHINES:
            raise UsageError(f"no wheels are built for platform {machine}", f"use one of {', '.join(MACHINES)}")
        if python is not None:
            found = re.fullmatch(r"3\.(\d+)", python)
            if found is None:
                raise UsageError(f"Python {python!r} is no version such as 3.11", f"use {OLDEST} or newer")
            if int(found[1]) < 11:
                raise UsageError(f"Python {python} is not supported", f"use {OLDEST} or newer")
        return cls(machine, python)


@dataclass(frozen=True)
class Built:
    """One line of the closing table; ``seconds`` is wall time, source included."""

    upstream: str
    wheel: BuiltWheel
    origin: str
    seconds: float
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A wheel without a source; ``stack`` is None for what every stack needs."""

    stack: str | None
    upstream: str
    version: str
    error: ConsistencyError


@dataclass
class Outcome:
    """What a run did; ``requirements`` and ``wheels`` have one entry per complete stack."""

    built: list[Built] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    requirements: dict[str, Path] = field(default_factory=dict)
    wheels: dict[str, list[Path]] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """0 where every stack is complete, 3 where a source could not be had."""
        return EvidenceError.status if self.missing else 0


def choose_stacks(lock: Lock, name: str) -> list[Stack]:
    """The stack of that name, or all for ``all``.

    Raises:
        UsageError: there is no such stack.
        FoundError: its requirements contradict one another and no waiver says which wins.
    """
    if name != "all" and name not in lock.stacks:
        raise UsageError(f"there is no stack {name!r}", f"use one of {', '.join([*lock.stacks, 'all'])}")
    stacks = list(lock.stacks.values()) if name == "all" else [lock.stacks[name]]
    for stack in stacks:
        refuse_contradictions(stack)
    return stacks


def choose_artifact(upstream: str, pin: Pin, machine: str, python: str) -> Artifact:
    """The registry file of a pin that serves a machine and a Python.

    Raises:
        UsageError: the upstream publishes none; the message has those that it does publish for.
    """
    names = {artifact.file: WheelName.parse(artifact.file) for artifact in pin.artifacts.values()}
    here = {file: name for file, name in names.items() if name.fits_platform(machine)}
    if not here:
        others = [other for other in MACHINES if any(name.fits_platform(other) for name in names.values())]
        raise UsageError(
            f"{upstream} {pin.version} is not published for {machine}",
            f"use {' or '.join(others) or 'another pin'}",
        )
    fitting = sorted(file for file, name in here.items() if name.fits_python(python))
    if not fitting:
        pythons = [f"3.{minor}" for minor in range(11, 30)]
        others = [other for other in pythons if any(name.fits_python(other) for name in here.values())]
        raise UsageError(
            f"{upstream} {pin.version} is not published for Python {python}",
            f"use {' or '.join(others)}" if others else f"it has none from {OLDEST} on",
        )
    return pin.artifacts[fitting[0]]


class Factory:
    """Builds wheels into one folder, each upstream version once.

    Args:
        lock, upstreams: the pins and the overlays.
        dest: the folder.
        target: what for.
        given: registry files of the user's own.
        sources: the user's checkouts, by upstream.
        say: told what is going on, one line at a time.
        own: puts this distribution's own wheel into the folder.
    """

    def __init__(
        self,
        lock: Lock,
        upstreams: dict[str, Upstream],
        dest: Path,
        target: Target,
        *,
        given: Sequence[Path] = (),
        sources: Mapping[str, Path] | None = None,
        say: Callable[[str], None] = lambda _: None,
        own: Callable[[Path], BuiltWheel] = build_own,
    ) -> None:
        self._lock, self._upstreams, self._dest, self._target = lock, upstreams, dest, target
        self._given, self._say, self._make_own = given, say, own
        self._sources = sources or {}
        self._told: set[tuple[str, str]] = set()
        self._done: dict[tuple[str, str, str], Built] = {}

    def run(self, stacks: Sequence[Stack]) -> Outcome:
        """Build the wheels of the stacks, this distribution's own, and the files that go with them.

        A source that cannot be had is noted and the rest is built; anything else ends the run.

        Raises:
            UsageError: a wheel is not published for the target, or a given file belongs to no pin.
            FoundError: an edit cannot be woven.
            UnfinishedError: the folder cannot be written to, or another run writes to it.
        """
        plans = [(stack, list(self._plan(stack))) for stack in stacks]
        self._check_given([artifact for _, plan in plans for *_, artifact in plan if artifact])
        with alone(self._dest):
            clear(self._dest, [ALONE, *(stack.name for stack in stacks)])
            outcome = Outcome()
            own = self._own(outcome)
            for stack, plan in plans:
                self._run_stack(stack, plan, own, outcome)
            outcome.built = [*self._done.values(), *([own] if own else [])]
            if own:
                write_requirements(requirements_path(self._dest, ALONE), ALONE, [own.wheel])
            write_sums(self._dest)
        return outcome

    def _plan(self, stack: Stack) -> Iterator[_Item]:
        python = self._target.python or stack.python
        for name, version in stack.pins.items():
            pin = self._lock.pin(name, version)
            if pin.source == "registry":
                yield self._upstreams[name], pin, choose_artifact(name, pin, self._target.machine, python)
                if name in self._sources and (name, version) not in self._told:
                    self._told.add((name, version))
                    self._say(f"{self._sources[name]} is not used: {name} {version} comes from the registry")
            else:
                yield self._upstreams[name], pin, None

    def _check_given(self, artifacts: Sequence[Artifact]) -> None:
        names = {artifact.file for artifact in artifacts}
        for path in self._given:
            if path.name not in names:
                wanted = ", ".join(sorted(names))
                raise UsageError(f"--artifact {path}: no wheel of the stack has this name", f"use {wanted}")

    def _own(self, outcome: Outcome) -> Built | None:
        start = time.monotonic()
        try:
            wheel = self._make_own(self._dest)
        except EvidenceError as error:
            outcome.missing.append(Missing(None, NAME, __version__, error))
            return None
        return Built(NAME, wheel, "this distribution", time.monotonic() - start)

    def _run_stack(self, stack: Stack, plan: Sequence[_Item], own: Built | None, outcome: Outcome) -> None:
        wheels = [own.wheel] if own else []
        complete = own is not None
        for upstream, pin, artifact in plan:
            try:
                wheels.append(self._build(upstream, pin, artifact).wheel)
            except EvidenceError as error:
                complete = False
                outcome.missing.append(Missing(stack.name, upstream.name, pin.version, error))
        if complete:
            path = requirements_path(self._dest, stack.name)
            write_requirements(path, stack.name, wheels)
            outcome.requirements[stack.name] = path
            outcome.wheels[stack.name] = [wheel.path for wheel in wheels]

    def _build(self, upstream: Upstream, pin: Pin, artifact: Artifact | None) -> Built:
        key = (upstream.name, pin.version, artifact.file if artifact else "")
        if key not in self._done:
            start = time.monotonic()
            with self._source(upstream, pin, artifact) as source:
                wheel, cautions = self._weave(upstream, source)
            self._done[key] = Built(upstream.name, wheel, source.origin, time.monotonic() - start, cautions)
        return self._done[key]

    def _source(self, upstream: Upstream, pin: Pin, artifact: Artifact | None) -> AbstractContextManager[Source]:
        if artifact is None:
            return from_git(upstream, pin, self._lock, self._say, self._sources.get(upstream.name))
        self._say(f"{upstream.name} {pin.version}: {artifact.file}")
        return nullcontext(from_registry(pin, artifact, given=self._given))

    def _weave(self, upstream: Upstream, source: Source) -> tuple[BuiltWheel, tuple[str, ...]]:
        weave = _confirmed(weave_wheel(upstream, source.wheel, self._lock), source)
        version = wheel_version(source.pin, self._lock)
        wheel = repack(source.wheel, weave, version, self._dest, artifact=source.record(), vouched=source.vouched)
        _check_platform(wheel, upstream.name, self._target)
        return wheel, tuple(_cautions(upstream, wheel))


def _confirmed(weave: UpstreamWeave, source: Source) -> UpstreamWeave:
    """The weaving as one of the pin that the wheel was taken for.

    Two pins whose edited files are alike cannot be told apart by them; what they are woven to decides.

    Raises:
        FoundError: the wheel is another pin's.
    """
    pin = source.pin
    if {file.path: file.after_sha256 for file in weave.files} == {path: file.after for path, file in pin.files.items()}:
        return replace(weave, pin=pin.version)
    if weave.pin != pin.version:
        raise FoundError(
            f"{source.wheel.name}: its files are {weave.upstream.name} {weave.pin}, not {pin.version}",
            "see 'consistency lock check'",
        )
    return weave


def wheel_version(pin: Pin, lock: Lock) -> str:
    """The version of a pin's woven wheel; a variant's is its base version with the variant's own label."""
    template = pin.wheel_version
    public, _, local = template.partition("+")
    label = re.sub(r"[-_.+]+", ".", local)
    return f"{public}+{label}".format(N=lock.revision)


def _check_platform(wheel: BuiltWheel, upstream: str, target: Target) -> None:
    """A wheel that was built here serves this machine only, unless it is pure Python."""
    name = WheelName.parse(wheel.path.name)
    if not name.fits_platform(target.machine) or (target.python and not name.fits_python(target.python)):
        raise UsageError(
            f"{upstream}: its build gave {wheel.path.name}, which does not serve {target.machine}",
            "run it on such a machine with such a Python",
        )


def _cautions(upstream: Upstream, wheel: BuiltWheel) -> Iterator[str]:
    """Where a wheel cannot serve: vllm-ascend notes the device it was built for and refuses another."""
    member = f"{upstream.package}/_build_info.py"
    with WheelReader(wheel.path) as reader:
        if member not in reader.members:
            return
        text = reader.read(member).decode("utf-8", "replace")
    found = re.search(r"^__device_type__\s*=\s*(.+)$", text, re.MULTILINE)
    if found is None:
        return
    with contextlib.suppress(ValueError, SyntaxError):
        device = ast.literal_eval(found[1].strip())
        yield (
            f"{wheel.path.name} is built for {device} and refuses to start on any other device (an A3, say);"
            f" there, 'consistency overlay apply {upstream.name}' edits the installed package instead"
        )
