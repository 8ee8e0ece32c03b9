"""Make ``VERSIONS.lock`` from the overlays and the upstream trees, write it as TOML, and check that all agree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import EvidenceError, FoundError
from ..resources import overlays_dir
from .facts import wanted
from .inspect import inspect_upstream
from .lock import SCHEMA, Artifact, FilePin, ImageBase, Lock, Pin, Stack, read_stack
from .model import PinSource, Upstream
from .reading import load_upstreams, overlay_revision, read_toml
from .requirements import idle_waivers, is_specifier, judge
from .trees import Tree

HEADER = """\
# VERSIONS.lock: every upstream pin, its artifacts, the digests of each edited file and scope (before, after), and the
# stacks that go together. Written by `consistency lock write`; never edit it by hand.
"""

#: The chips that images are made for: a2 is Ascend 910B.
CHIPS = ("a2", "a3")
_IMAGE = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def read_stacks(root: Path | None = None) -> dict[str, Stack]:
    """Read the declared stacks from ``overlays/stacks.toml``."""
    path = (root or overlays_dir()) / "stacks.toml"
    data = read_toml(path)
    try:
        return {name: read_stack(name, stack) for name, stack in data["stack"].items()}
    except (KeyError, TypeError) as error:
        raise EvidenceError(f"{path} is not complete: {error}", "docs/overlays.md has the format") from None


def empty_lock(root: Path | None = None) -> Lock:
    """Return a lock that knows the overlays and stacks, and no pin yet."""
    upstreams = load_upstreams(root)
    overlays = {file.origin: file.digest for upstream in upstreams.values() for file in upstream.files}
    return Lock(overlay_revision(root), dict(sorted(overlays.items())), {}, read_stacks(root))


def make_pin(upstream: Upstream, source: PinSource, tree: Tree, artifacts: Iterable[Artifact], lock: Lock) -> Pin:
    """Weave a pin's tree and return what the lock records of it.

    Args:
        upstream: the upstream.
        source: the pin as declared.
        tree: its pristine source.
        artifacts: the registry files of the release; empty for a commit or a variant.
        lock: for the overlay revision.

    Raises:
        FoundError: an edit cannot be woven.
        EvidenceError: the tree cannot be read.
    """
    found = inspect_upstream(upstream, tree, lock, allow_unknown_base=True, pin=source.version)
    if found.problems:
        raise FoundError(f"{upstream.name} {source.version} in {tree.label}: {found.problems[0]}", "mend the edit")
    if any(file.already for file in found.files):
        what = f"{upstream.name} {source.version} in {tree.label} is woven already"
        raise FoundError(what, "give its pristine source")
    return replace(
        _declared(source),
        artifacts={artifact.file: artifact for artifact in sorted(artifacts, key=lambda item: item.file)},
        files={file.path: FilePin(file.before_sha256, file.after_sha256, file.scopes) for file in found.files},
    )


def _declared(source: PinSource) -> Pin:
    """Return what the overlays alone say of a pin."""
    built = source.built_version or (source.registry or source.version).split("==")[-1]
    return Pin(
        version=source.version,
        source="registry" if source.registry else "git" if source.git else "variant",
        requirement=source.registry,
        git=source.git,
        commit=source.commit,
        variant_of=source.variant_of,
        built_version=built,
        wheel_version=source.wheel_version or f"{built}+consistency.{{N}}",
        tested_only=source.tested_only,
        artifacts={},
        files={},
    )


def check_lock(lock: Lock, root: Path | None = None) -> list[str]:
    """Return every disagreement between overlays, stacks and lock, one line each; none means that they agree.

    The woven digests themselves are checked wherever an upstream is woven: by ``overlay check``, by ``apply`` and
    by ``wheels``.
    """
    upstreams = load_upstreams(root)
    wanted = empty_lock(root)
    problems = []
    if lock.revision != wanted.revision:
        problems.append(f"the lock is of consistency.{lock.revision}, the overlays are consistency.{wanted.revision}")
    for origin in sorted({*wanted.overlays, *lock.overlays}):
        if wanted.overlays.get(origin) != lock.overlays.get(origin):
            word = "is not in the lock" if origin not in lock.overlays else "changed since the lock was written"
            problems.append(f"overlays/{origin} {word if origin in wanted.overlays else 'is in the lock only'}")
    problems += [f"{name} is in the lock only" for name in sorted(set(lock.upstreams) - set(upstreams))]
    for upstream in upstreams.values():
        problems += _check_pins(upstream, lock.upstreams.get(upstream.name, {}))
    for name in sorted({*wanted.stacks, *lock.stacks}):
        problems += _check_stack(name, wanted.stacks.get(name), lock)
    return problems


def _check_pins(upstream: Upstream, locked: Mapping[str, Pin]) -> Iterable[str]:
    declared = {pin.version for pin in upstream.pins}
    for version in sorted(declared ^ set(locked)):
        yield f"{upstream.name} {version} is in {'the overlays' if version in declared else 'the lock'} only"
    for source in upstream.pins:
        pin = locked.get(source.version)
        if pin is None:
            continue
        for key, value in vars(_declared(source)).items():
            have = getattr(pin, key)
            if key not in ("artifacts", "files") and value != have:
                yield f"{upstream.name} {pin.version}: {key} is {have} in the lock and {value} in the overlays"
        if pin.source == "registry" and not pin.artifacts:
            yield f"{upstream.name} {pin.version}: the lock has no artifact"
        files = {file.path: file for file in upstream.files if file.edits_for(source.version)}
        for path in sorted(set(files) ^ set(pin.files)):
            yield f"{upstream.name} {pin.version}: {path} is in {'the overlays' if path in files else 'the lock'} only"
        for path in sorted(set(files) & set(pin.files)):
            if files[path].lays != (pin.files[path].before is None):
                yield f"{upstream.name} {pin.version}: {path} is laid in one and edited in the other"


def _check_stack(name: str, declared: Stack | None, lock: Lock) -> Iterable[str]:
    stack = lock.stacks.get(name)
    if stack is None or declared is None:
        yield f"stack {name} is in {'the lock' if declared is None else 'overlays/stacks.toml'} only"
        return
    if stack != declared:
        yield f"stack {name} changed since the lock was written"
    for upstream, version in stack.pins.items():
        pin = lock.upstreams.get(upstream, {}).get(version)
        if pin is None:
            yield f"stack {name} names {upstream} {version}, which is no pin"
        elif pin.tested_only or pin.source == "variant":
            yield f"stack {name} names {upstream} {version}, which is no source of a wheel"
    for contradiction in judge(stack)[0]:
        if contradiction.waiver is None:
            yield f"stack {name}: {contradiction}, and no waiver for these demands says which wins"
    for package in idle_waivers(stack):
        yield f"stack {name}: the waiver for {package} accepts nothing that contradicts"
    yield from _check_in_place(stack, lock)
    yield from _check_facts(stack)
    for chip, base in stack.images.items():
        yield from _check_image(f"stack {name}, image for {chip}", chip, base)


def _check_in_place(stack: Stack, lock: Lock) -> Iterable[str]:
    for upstream, versions in stack.in_place.items():
        if upstream not in stack.pins:
            yield f"stack {stack.name}: in-place names {upstream}, which the stack does not pin"
        for version in versions:
            if version not in lock.upstreams.get(upstream, {}):
                yield f"stack {stack.name}: in-place names {upstream} {version}, which is no pin"


def _check_facts(stack: Stack) -> Iterable[str]:
    for fact in stack.facts:
        compared = fact.distribution is not None or fact.match == "cann"
        rules = [wanted(fact)] if compared and fact.match != "commit" else []
        for rule in [*rules, *fact.also]:
            if is_specifier(rule) is False:
                yield f"stack {stack.name}, fact {fact.name}: {rule!r} is no version specifier such as ==1.0"
        if not compared and (fact.match or fact.also or fact.optional):
            yield f"stack {stack.name}, fact {fact.name}: it names no distribution to compare"
        if bool(fact.also) != bool(fact.why):
            yield f"stack {stack.name}, fact {fact.name}: also and why go together"


def _check_image(where: str, chip: str, base: ImageBase) -> Iterable[str]:
    if chip not in CHIPS:
        yield f"{where}: there is no such chip, use one of {', '.join(CHIPS)}"
    if base.image and (not _IMAGE.fullmatch(base.image) or base.image.endswith(":latest")):
        yield f"{where}: {base.image!r} is no repository:tag of a release"
    if base.digest and not _DIGEST.fullmatch(base.digest):
        yield f"{where}: {base.digest!r} is no digest: sha256: and 64 hexadecimal digits"
    if base.digest and not base.image:
        yield f"{where}: a digest of no image"
    if not base.source:
        yield f"{where}: nothing says where it was read"


def refuse_contradictions(stack: Stack) -> None:
    """Stop where a stack has a contradiction without a waiver.

    Raises:
        FoundError: naming both demands and who makes them.
    """
    for contradiction in judge(stack)[0]:
        if contradiction.waiver is None:
            raise FoundError(
                f"stack {stack.name}: {contradiction}", "add a waiver to overlays/stacks.toml that says which wins"
            )


def render_lock(lock: Lock) -> str:
    """Return the lock as TOML text."""
    lines = [HEADER, f"schema = {SCHEMA}", f"revision = {lock.revision}", "", "[overlays]"]
    lines += [f"{_key(origin)} = {_text(digest)}" for origin, digest in lock.overlays.items()]
    for name in sorted(lock.upstreams):
        for pin in lock.upstreams[name].values():
            lines += _pin_lines(name, pin)
    for stack in lock.stacks.values():
        lines += _stack_lines(stack)
    return "\n".join(lines) + "\n"


def _pin_lines(name: str, pin: Pin) -> list[str]:
    head = f"upstream.{_key(name)}.{_key(pin.version)}"
    lines = ["", f"[{head}]", f"source = {_text(pin.source)}"]
    for key, value in (
        ("requirement", pin.requirement),
        ("git", pin.git),
        ("commit", pin.commit),
        ("variant-of", pin.variant_of),
        ("built-version", pin.built_version),
        ("wheel-version", pin.wheel_version),
    ):
        if value is not None:
            lines.append(f"{key} = {_text(value)}")
    if pin.tested_only:
        lines.append("tested-only = true")
    if pin.artifacts:
        lines.append("artifacts = [")
        lines += [
            f"  {{ file = {_text(item.file)}, sha256 = {_text(item.sha256)}, size = {item.size} }},"
            for item in pin.artifacts.values()
        ]
        lines.append("]")
    for path, file in pin.files.items():
        lines += ["", f"[{head}.file.{_key(path)}]"]
        if file.before is not None:
            lines.append(f"before = {_text(file.before)}")
        lines.append(f"after = {_text(file.after)}")
        if file.scopes:
            lines.append(f"[{head}.file.{_key(path)}.scopes]")
            lines += [f"{_key(scope)} = [{_text(a)}, {_text(b)}]" for scope, (a, b) in file.scopes.items()]
    return lines


def _stack_lines(stack: Stack) -> list[str]:
    head = f"stack.{_key(stack.name)}"
    pins = ", ".join(f"{_key(name)} = {_text(version)}" for name, version in stack.pins.items())
    lines = [
        "",
        f"[{head}]",
        f"title = {_text(stack.title)}",
        f"python = {_text(stack.python)}",
        f"pins = {{ {pins} }}",
    ]
    if stack.in_place:
        pairs = ", ".join(f"{_key(name)} = {_value(versions)}" for name, versions in stack.in_place.items())
        lines.append(f"in-place = {{ {pairs} }}")
    for chip, base in stack.images.items():
        lines += ["", f"[{head}.image.{_key(chip)}]"]
        lines += [f"{key} = {_text(value)}" for key, value in vars(base).items()]
    for name, rows in (("fact", stack.facts), ("demand", stack.demands), ("waiver", stack.waivers)):
        for row in rows:
            lines += ["", f"[[{head}.{name}]]"]
            given = {key: value for key, value in vars(row).items() if value != getattr(type(row), key, None)}
            lines += [f"{key} = {_value(value)}" for key, value in given.items()]
    return lines


def _key(text: str) -> str:
    return text if text.replace("-", "").replace("_", "").isalnum() and text.isascii() else _text(text)


def _text(text: str) -> str:
    # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, str) else "[" + ", ".join(_text(item) for item in value) + "]"
