"""Read ``VERSIONS.lock``: every upstream pin with its artifacts and digests, and the stacks that go together.

The lock is TOML, written by ``consistency lock write`` (see :mod:`.locking`) and never by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import EvidenceError, UsageError
from ..resources import lock_path
from .reading import read_toml

SCHEMA = 1


@dataclass(frozen=True)
class Artifact:
    """One registry file of a release: its name, sha256 and size in bytes."""

    file: str
    sha256: str
    size: int


@dataclass(frozen=True)
class FilePin:
    """One edited or laid file of a pin.

    Attributes:
        before: sha256 of the upstream file; None for a laid file.
        after: sha256 of the woven file.
        scopes: digest of each edited scope before and after.
    """

    before: str | None
    after: str
    scopes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pin:
    """One pinned version of an upstream.

    Attributes:
        version: the pin's name.
        source: ``registry``, ``git`` or ``variant``.
        requirement: ``name==version`` in a package registry, or None.
        git, commit: a public repository and the full commit, or None.
        variant_of: the pin whose tree somebody's patch was applied to, or None.
        built_version: the version that the upstream's own build gives; the release for a registry pin.
        wheel_version: the woven wheel's version, with ``{N}`` for the overlay revision.
        tested_only: woven in tests, in no stack.
        artifacts: the registry files, by name.
        files: the edited and laid files, by path.
    """

    version: str
    source: str
    requirement: str | None
    git: str | None
    commit: str | None
    variant_of: str | None
    built_version: str
    wheel_version: str
    tested_only: bool
    artifacts: Mapping[str, Artifact]
    files: Mapping[str, FilePin]


@dataclass(frozen=True)
class Demand:
    """What one party of a stack asks of a package: ``requires`` is a PEP 508 requirement."""

    package: str
    by: str
    requires: str
    source: str


@dataclass(frozen=True)
class Waiver:
    """A contradiction between demands that is known and accepted: both demands, which wins, and why."""

    package: str
    demands: tuple[str, ...]
    wins: str
    why: str


@dataclass(frozen=True)
class Fact:
    """One version that belongs to a stack, and where it was read.

    Attributes:
        distribution: whose installed version ``consistency doctor --stack`` compares; None where none has it.
        match: how it is compared: a PEP 440 specifier (``==value`` where it is empty and a distribution is named),
            ``commit`` (the value is the beginning of a git commit), ``cann`` (CANN's own version file).
        also: specifiers of versions that are accepted besides; ``why`` says why.
        optional: a run of the stack may do without it.
    """

    name: str
    value: str
    source: str
    distribution: str | None = None
    match: str = ""
    also: tuple[str, ...] = ()
    why: str = ""
    optional: bool = False


@dataclass(frozen=True)
class ImageBase:
    """The base of a stack's image for one chip.

    Attributes:
        image: ``repository:tag`` as it is published; empty where none is, and the user brings one.
        digest: ``sha256:...`` of what the tag names (an index over both platforms); empty where nobody could read it.
        source: where the tag was read, and why the digest is missing where it is.
    """

    image: str
    digest: str
    source: str


@dataclass(frozen=True)
class Stack:
    """Upstream pins that go together, with the versions around them.

    Attributes:
        images: the base of its image by chip; empty where no image is made of the stack.
        in_place: by upstream, further pins that an installed tree may be where the overlay is laid in place.
    """

    name: str
    title: str
    python: str
    pins: Mapping[str, str]
    facts: tuple[Fact, ...]
    demands: tuple[Demand, ...]
    waivers: tuple[Waiver, ...]
    images: Mapping[str, ImageBase] = field(default_factory=dict)
    in_place: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def image_name(self) -> str:
        """The name of its image: one for all stacks of a trainer, whose versions are its tags."""
        return f"{self.name.partition('-')[0]}-ascend"


@dataclass(frozen=True)
class Lock:
    """The whole lock. ``overlays`` holds the sha256 of each overlay TOML (with the file it lays), by its path."""

    revision: int
    overlays: Mapping[str, str]
    upstreams: Mapping[str, Mapping[str, Pin]]
    stacks: Mapping[str, Stack]

    def pin(self, upstream: str, version: str) -> Pin:
        """Return a pin.

        Raises:
            EvidenceError: the lock does not have it.
        """
        try:
            return self.upstreams[upstream][version]
        except KeyError:
            raise EvidenceError(
                f"VERSIONS.lock has no {upstream} {version}", "run 'consistency lock write' for it"
            ) from None

    def stack(self, name: str) -> Stack:
        """Return a stack.

        Raises:
            UsageError: there is none of that name; the message has those that there are.
        """
        if name not in self.stacks:
            raise UsageError(f"there is no stack {name!r}", f"use one of {', '.join(self.stacks)}")
        return self.stacks[name]


def load_lock(path: Path | None = None) -> Lock:
    """Read the lock; the distribution's own by default.

    Raises:
        EvidenceError: it is missing, unreadable or not of this schema.
    """
    path = path or lock_path()
    data = read_toml(path)
    if data.get("schema") != SCHEMA:
        raise EvidenceError(f"{path} has schema {data.get('schema')}, not {SCHEMA}", "use the tool it belongs to")
    try:
        return Lock(
            revision=data["revision"],
            overlays=data["overlays"],
            upstreams={
                name: {version: _pin(version, pin) for version, pin in pins.items()}
                for name, pins in data["upstream"].items()
            },
            stacks={name: read_stack(name, stack) for name, stack in data.get("stack", {}).items()},
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise EvidenceError(f"{path} is not complete: {error}", "restore it, or run 'consistency lock write'") from None


def _pin(version: str, data: Mapping[str, Any]) -> Pin:
    return Pin(
        version=version,
        source=data["source"],
        requirement=data.get("requirement"),
        git=data.get("git"),
        commit=data.get("commit"),
        variant_of=data.get("variant-of"),
        built_version=data["built-version"],
        wheel_version=data["wheel-version"],
        tested_only=data.get("tested-only", False),
        artifacts={item["file"]: Artifact(**item) for item in data.get("artifacts", [])},
        files={
            path: FilePin(
                before=file.get("before"),
                after=file["after"],
                scopes={scope: (pair[0], pair[1]) for scope, pair in file.get("scopes", {}).items()},
            )
            for path, file in data.get("file", {}).items()
        },
    )


def read_stack(name: str, data: Mapping[str, Any]) -> Stack:
    """Read one stack, from the lock or from ``overlays/stacks.toml``: both write it alike.

    Raises:
        KeyError, TypeError: a key is missing or unknown.
    """
    return Stack(
        name=name,
        title=data["title"],
        python=data["python"],
        pins=data["pins"],
        facts=tuple(Fact(**{**fact, "also": tuple(fact.get("also", ()))}) for fact in data.get("fact", [])),
        demands=tuple(Demand(**demand) for demand in data.get("demand", [])),
        waivers=tuple(
            Waiver(waiver["package"], tuple(waiver["demands"]), waiver["wins"], waiver["why"])
            for waiver in data.get("waiver", [])
        ),
        images={chip: ImageBase(**base) for chip, base in data.get("image", {}).items()},
        in_place={upstream: tuple(pins) for upstream, pins in data.get("in-place", {}).items()},
    )
