"""What an overlay is made of: upstreams, their pins, the files edited in them and the edits, as frozen records.

The records are read from ``overlays/`` by :mod:`.reading`; nothing here touches a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["before", "after", "decorate", "wrap", "lay"]
KINDS: tuple[Kind, ...] = ("before", "after", "decorate", "wrap", "lay")


@dataclass(frozen=True)
class Edit:
    """One declared edit of one upstream file.

    Attributes:
        id: name of the edit, unique in its file.
        kind: where ``lines`` go in relation to the anchor; ``lay`` adds a whole file.
        scope: qualified name of the class or function that is searched, ``""`` for the module's own level.
        anchor: one Python statement or expression that is looked for as syntax; ``""`` for ``lay``.
        counts: how often the anchor must match, by pin version; ``"default"`` holds for all others.
        lines: the inserted lines, the decorator lines, the expression template, or the laid file's text.
        why: the reason for this edit.
        pins: the pin versions it belongs to; ``None`` for every pin of the upstream.
    """

    id: str
    kind: Kind
    scope: str
    anchor: str
    counts: Mapping[str, int]
    lines: str
    why: str
    pins: tuple[str, ...] | None = None

    def count(self, pin: str) -> int:
        """Return how many matches the edit must have in the given pin."""
        return self.counts.get(pin, self.counts["default"])

    def serves(self, pin: str) -> bool:
        """Tell whether the edit belongs to the given pin."""
        return self.pins is None or pin in self.pins


@dataclass(frozen=True)
class FileOverlay:
    """All edits to one upstream file, as declared by one TOML.

    Attributes:
        upstream: the overlay folder's name.
        path: the file, as it lies in site-packages, with forward slashes.
        origin: the TOML, relative to ``overlays/``.
        digest: sha256 of the TOML and of the file it lays.
        why, switch, status, until: the reason, what turns it on, its Yocto ``Upstream-Status`` and from which
            upstream version it can go.
        edits: in the order they are declared.
        pins: the pin versions it belongs to; ``None`` for every pin of the upstream.
    """

    upstream: str
    path: str
    origin: str
    digest: str
    why: str
    switch: str
    status: str
    until: str
    edits: tuple[Edit, ...]
    pins: tuple[str, ...] | None = None

    @property
    def lays(self) -> bool:
        """Whether the file is new to the upstream."""
        return self.edits[0].kind == "lay"

    def edits_for(self, pin: str) -> tuple[Edit, ...]:
        """Return the edits that belong to the given pin; empty where the file is not edited there."""
        if self.pins is not None and pin not in self.pins:
            return ()
        return tuple(edit for edit in self.edits if edit.serves(pin))


@dataclass(frozen=True)
class Refusal:
    """A version of an upstream that must not be woven, known by what its tree holds and never by a version string.

    It matches where ``file`` exists, and ``scope`` in it where that is given, and ``anchor`` in that scope where
    that is given.
    """

    name: str
    file: str
    scope: str | None
    anchor: str | None
    why: str
    mend: str


@dataclass(frozen=True)
class PinSource:
    """Where one pinned version of an upstream comes from, as declared in ``upstream.toml``.

    Exactly one of ``registry`` (a requirement ``name==version``), ``git`` with ``commit``, or ``variant_of``
    (a tree that a user has, made from that pin by somebody's patch) is given.
    """

    version: str
    registry: str | None = None
    git: str | None = None
    commit: str | None = None
    variant_of: str | None = None
    built_version: str | None = None
    wheel_version: str | None = None
    note: str | None = None
    tested_only: bool = False


@dataclass(frozen=True)
class Upstream:
    """One upstream distribution and everything laid over it.

    Attributes:
        name: the overlay folder's name, as used on the command line.
        package: its import package.
        distribution: its name in the registry and in ``*.dist-info``.
        licence: SPDX identifier.
        overlays: the folder its file overlays are read from (another upstream's where the source is the same).
        pins: the known versions, oldest first.
        refusals: versions refused by name.
        files: the file overlays.
        imports: the distributions of its requirements that it imports at its start.
    """

    name: str
    package: str
    distribution: str
    licence: str
    overlays: str
    pins: tuple[PinSource, ...]
    refusals: tuple[Refusal, ...]
    files: tuple[FileOverlay, ...]
    imports: tuple[str, ...] = ()

    def pin(self, version: str) -> PinSource | None:
        """Return the declared pin of that version, or None."""
        return next((pin for pin in self.pins if pin.version == version), None)
