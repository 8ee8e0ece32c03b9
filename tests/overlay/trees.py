"""Upstream trees for the tests: skeletons of our own, real files, and a lock that knows them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from train_infer_consistency.overlay.lock import Lock, Pin
from train_infer_consistency.overlay.locking import empty_lock, make_pin
from train_infer_consistency.overlay.model import Edit, FileOverlay, PinSource, Upstream
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import MappingTree, Tree

SKELETONS = Path(__file__).parent / "skeletons"


@cache
def upstreams() -> dict[str, Upstream]:
    """The distribution's own overlays."""
    return load_upstreams()


@cache
def skeleton(name: str) -> dict[str, bytes]:
    """The files of an upstream's skeleton, by their path in site-packages."""
    root = SKELETONS / upstreams()[name].overlays
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*.py"))
        if "__pycache__" not in path.parts
    }


def newest(upstream: Upstream) -> PinSource:
    """The pin whose edits and counts a skeleton follows: the newest of those that most edits belong to."""
    pins = [pin for pin in reversed(upstream.pins) if pin.variant_of is None]
    return max(pins, key=lambda pin: sum(len(file.edits_for(pin.version)) for file in upstream.files))


def lock_of(upstream: Upstream, tree: Tree, source: PinSource | None = None) -> Lock:
    """A lock that knows this tree as one pin of the upstream, and nothing else."""
    empty = replace(empty_lock(), upstreams={})
    source = source or newest(upstream)
    pin: Pin = make_pin(upstream, source, tree, [], empty)
    return replace(empty, upstreams={upstream.name: {source.version: pin}})


@cache
def skeleton_lock(name: str) -> Lock:
    """A lock that knows an upstream's skeleton as the pin it follows."""
    return lock_of(upstreams()[name], MappingTree(name, skeleton(name)))


def edits_of(name: str) -> list[tuple[FileOverlay, Edit]]:
    """Every edit of the skeleton's pin that needs an anchor, with its file."""
    upstream = upstreams()[name]
    version = newest(upstream).version
    return [(file, edit) for file in upstream.files if not file.lays for edit in file.edits_for(version)]
