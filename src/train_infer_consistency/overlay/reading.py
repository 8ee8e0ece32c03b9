"""Read ``overlays/`` into records, and refuse whatever is not written as the format says.

This is the one validator of the format that docs/overlays.md describes; a misspelt key is an error.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import EvidenceError, FoundError
from ..resources import overlays_dir
from .model import KINDS, Edit, FileOverlay, PinSource, Refusal, Upstream

SCHEMA = 1
_STATUS = re.compile(r"(Pending|Denied)( \[.+\])?$|(Submitted|Backport|Inappropriate) \[.+\]$")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*$")


class _Table:
    """One TOML table that is read key by key; what nobody asked for at the end is an error."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._left = dict(data)
        self.where = where

    def fail(self, what: str, mend: str = "docs/overlays.md has the format") -> FoundError:
        return FoundError(f"{self.where}: {what}", mend)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._left.pop(key, default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.fail(f"'{key}' must be a text" if value is not None else f"'{key}' is missing")
        return value

    def optional(self, key: str) -> str | None:
        return self.text(key) if key in self._left else None

    def flag(self, key: str) -> bool:
        value = self._left.pop(key, False)
        if not isinstance(value, bool):
            raise self.fail(f"'{key}' must be true or false")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        value = self._left.pop(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(f"'{key}' must be a whole number")
        return value

    def names(self, key: str) -> tuple[str, ...] | None:
        value = self._left.pop(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise self.fail(f"'{key}' must be a list of texts")
        return tuple(value)

    def raw(self, key: str, default: Any) -> Any:
        return self._left.pop(key, default)

    def tables(self, key: str) -> list[_Table]:
        value = self._left.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.fail(f"'{key}' must be an array of tables")
        return [_Table(item, f"{self.where}, {key} {number}") for number, item in enumerate(value, 1)]

    def done(self) -> None:
        if self._left:
            unknown = ", ".join(f"'{key}'" for key in sorted(self._left))
            raise self.fail(f"unknown key {unknown}")


def read_toml(path: Path) -> dict[str, Any]:
    """Parse one TOML file; an unreadable or malformed one is an :class:`EvidenceError` that names it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"{path} cannot be read: {error}", "restore it from the distribution") from None
    except tomllib.TOMLDecodeError as error:
        raise EvidenceError(f"{path} is no valid TOML: {error}", "mend that line") from None


def overlay_revision(root: Path | None = None) -> int:
    """Return N of ``consistency.N``: what a woven file's notice and a woven wheel's local version carry."""
    path = (root or overlays_dir()) / "overlays.toml"
    table = _Table(read_toml(path), "overlays.toml")
    if table.number("schema") != SCHEMA:
        raise table.fail(f"'schema' must be {SCHEMA}")
    revision = table.number("revision")
    table.done()
    if revision < 1:
        raise table.fail("'revision' must be above 0")
    return revision


def load_upstreams(root: Path | None = None) -> dict[str, Upstream]:
    """Read every overlay.

    Args:
        root: the ``overlays/`` folder; the distribution's own by default.

    Returns:
        The upstreams by name, in alphabetical order.

    Raises:
        FoundError: a TOML is not as the format says, or a file lies in the tree that no TOML declares.
        EvidenceError: a file cannot be read.
    """
    root = root or overlays_dir()
    folders = sorted(path.parent for path in root.glob("*/upstream.toml"))
    if not folders:
        raise EvidenceError(f"{root} holds no overlays", "install the distribution again")
    for path in sorted(root.iterdir()):
        if path.is_dir() and path not in folders and path.name != "__pycache__":
            raise FoundError(f"{path.name}/ has no upstream.toml", "write it, or remove the folder")
    files = {folder.name: _read_files(root, folder) for folder in folders}
    upstreams = {}
    for folder in folders:
        upstream = _read_upstream(folder, files)
        upstreams[upstream.name] = upstream
    return upstreams


def _read_upstream(folder: Path, files: Mapping[str, tuple[FileOverlay, ...]]) -> Upstream:
    table = _Table(read_toml(folder / "upstream.toml"), f"{folder.name}/upstream.toml")
    if table.number("schema") != SCHEMA:
        raise table.fail(f"'schema' must be {SCHEMA}")
    overlays = table.text("overlays", folder.name)
    if overlays not in files or not files[overlays]:
        raise table.fail(f"there are no overlays in '{overlays}'")
    if overlays != folder.name and files[folder.name]:
        raise table.fail(f"'overlays' takes those of '{overlays}', so {files[folder.name][0].origin} would be left out")
    upstream = Upstream(
        name=folder.name,
        package=table.text("package"),
        distribution=table.text("distribution"),
        licence=table.text("licence"),
        overlays=overlays,
        pins=tuple(_read_pin(pin) for pin in table.tables("pin")),
        refusals=tuple(_read_refusal(refusal) for refusal in table.tables("refuse")),
        files=files[overlays],
        imports=table.names("imports") or (),
    )
    table.done()
    versions = [pin.version for pin in upstream.pins]
    if not versions or len(set(versions)) != len(versions):
        raise table.fail("there must be at least one [[pin]], each 'version' once")
    for pin in upstream.pins:
        if pin.variant_of is not None and pin.variant_of not in versions:
            raise table.fail(f"pin {pin.version} is a variant of {pin.variant_of}, which is no pin")
    if overlays == upstream.name:
        _check_pin_names(upstream, set(versions))
    return upstream


def _check_pin_names(upstream: Upstream, versions: set[str]) -> None:
    for file in upstream.files:
        for edit in file.edits:
            named = set(file.pins or ()) | set(edit.pins or ()) | (set(edit.counts) - {"default"})
            for name in sorted(named - versions):
                raise FoundError(
                    f"{file.origin}, edit '{edit.id}': {name} is no pin of {upstream.name}",
                    f"use one of {', '.join(sorted(versions))}",
                )


def _read_pin(table: _Table) -> PinSource:
    pin = PinSource(
        version=table.text("version"),
        registry=table.optional("registry"),
        git=table.optional("git"),
        commit=table.optional("commit"),
        variant_of=table.optional("variant-of"),
        built_version=table.optional("built-version"),
        wheel_version=table.optional("wheel-version"),
        note=table.optional("note"),
        tested_only=table.flag("tested-only"),
    )
    table.done()
    if [pin.registry, pin.git, pin.variant_of].count(None) != 2:
        raise table.fail("give exactly one of 'registry', 'git' and 'variant-of'")
    if (pin.git is None) != (pin.commit is None):
        raise table.fail("'git' and 'commit' go together")
    if pin.commit is not None and not re.fullmatch(r"[0-9a-f]{40}", pin.commit):
        raise table.fail("'commit' must be 40 hexadecimal digits")
    if pin.registry is not None and "==" not in pin.registry:
        raise table.fail("'registry' must be name==version")
    return pin


def _read_refusal(table: _Table) -> Refusal:
    refusal = Refusal(
        name=table.text("name"),
        file=table.text("file"),
        scope=table.optional("scope"),
        anchor=table.optional("anchor"),
        why=table.text("why"),
        mend=table.text("mend"),
    )
    table.done()
    if refusal.anchor is not None and refusal.scope is None:
        raise table.fail("'anchor' needs a 'scope'")
    return refusal


def _read_files(root: Path, folder: Path) -> tuple[FileOverlay, ...]:
    tomls = [path for path in sorted(folder.rglob("*.toml")) if path != folder / "upstream.toml"]
    files = tuple(_read_file(root, folder, path) for path in tomls)
    laid = {folder / file.path for file in files if file.lays}
    for path in _others(folder):
        if path not in laid:
            raise FoundError(
                f"{path.relative_to(root)} is declared by no TOML", "write its .toml beside it, or remove it"
            )
    return files


def _others(folder: Path) -> Iterable[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".toml" and "__pycache__" not in path.parts:
            yield path


def _read_file(root: Path, folder: Path, path: Path) -> FileOverlay:
    origin = path.relative_to(root).as_posix()
    table = _Table(read_toml(path), origin)
    if table.number("schema") != SCHEMA:
        raise table.fail(f"'schema' must be {SCHEMA}")
    digest = hashlib.sha256(path.read_bytes())
    edits = []
    for sub in table.tables("edit"):
        edit = _read_edit(sub, path)
        if edit.kind == "lay":
            digest.update(edit.lines.encode())
        edits.append(edit)
    file = FileOverlay(
        upstream=folder.name,
        path=path.relative_to(folder).as_posix().removesuffix(".toml"),
        origin=origin,
        digest=digest.hexdigest(),
        why=table.text("why"),
        switch=table.text("switch"),
        status=table.text("upstream-status"),
        until=table.text("until"),
        edits=tuple(edits),
        pins=table.names("pins"),
    )
    table.done()
    if not edits:
        raise table.fail("there is no [[edit]]")
    ids = [edit.id for edit in edits]
    if len(set(ids)) != len(ids):
        raise table.fail("two edits have the same 'id'")
    if any(edit.kind == "lay" for edit in edits) and len(edits) > 1:
        raise table.fail("a laid file has no other edit")
    if not _STATUS.match(file.status):
        raise table.fail(
            "'upstream-status' must be Pending, Submitted [..], Backport [..], Denied or Inappropriate [..]"
        )
    return file


def _read_edit(table: _Table, path: Path) -> Edit:
    kind = table.text("kind")
    if kind not in KINDS:
        raise table.fail(f"'kind' must be one of {', '.join(KINDS)}")
    lay = kind == "lay"
    edit = Edit(
        id=table.text("id"),
        kind=kind,
        scope="" if lay else table.text("scope", ""),
        anchor="" if lay else table.text("anchor"),
        counts={"default": 1} if lay else _read_counts(table),
        lines=_laid_text(table, path) if lay else table.text("lines").strip("\n") + "\n",
        why=table.text("why"),
        pins=table.names("pins"),
    )
    table.done()
    table.where += f" ('{edit.id}')"
    if not _ID.match(edit.id):
        raise table.fail("'id' must be lower-case words joined by '-'")
    if not lay:
        _check_syntax(edit, table)
    return edit


def _read_counts(table: _Table) -> dict[str, int]:
    value = table.raw("count", 1)
    counts = value if isinstance(value, dict) else {"default": value}
    counts = {"default": 1, **counts}
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in counts.values()):
        raise table.fail("'count' must be a whole number above 0, or a table of such numbers by pin")
    return counts


def _laid_text(table: _Table, path: Path) -> str:
    name = table.text("lay")
    if name != path.name.removesuffix(".toml"):
        raise table.fail(f"'lay' must be '{path.name.removesuffix('.toml')}', the file beside the TOML")
    try:
        text = path.with_name(name).read_text(encoding="utf-8")
        ast.parse(text)
    except (OSError, ValueError, SyntaxError) as error:
        raise table.fail(f"the laid file {name} cannot be used: {error}") from None
    return text


def _check_syntax(edit: Edit, table: _Table) -> None:
    """Refuse an anchor or lines that are no Python, before any upstream is looked at."""
    from .anchors import parse_anchor

    try:
        parse_anchor(edit)
    except (SyntaxError, ValueError) as error:
        kind = "expression" if edit.kind == "wrap" else "statement"
        raise table.fail(f"the anchor is no Python {kind}: {getattr(error, 'msg', error)}") from None
    sample = edit.lines
    if edit.kind == "wrap":
        if "{}" not in sample or "\n" in sample.strip():
            raise table.fail("'lines' of a wrap is one line with at least one {}")
        sample = "(" + sample.strip().replace("{}", "_") + ")"
    if edit.kind == "decorate":
        sample += "def _(): ...\n"
    # In a function, because 'return' and 'await' are fine where the scope is one.
    sample = "async def _():\n" + "".join(f"    {line}\n" for line in sample.splitlines())
    try:
        compile(sample, edit.id, "exec", dont_inherit=True)
        body = getattr(ast.parse(sample).body[0], "body", [])
    except (SyntaxError, ValueError) as error:
        raise table.fail(f"'lines' are no Python: {getattr(error, 'msg', error)}") from None
    if edit.kind == "decorate" and (len(body) > 1 or not getattr(body[0], "decorator_list", [])):
        raise table.fail("'lines' of a decorate are decorators and nothing else")
