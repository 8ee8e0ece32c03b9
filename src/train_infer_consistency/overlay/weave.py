"""Weave the declared edits into one upstream file, on byte ranges, so that every other byte stays as it was.

The file is parsed once, each anchor is looked for in its scope, and the insertions are spliced into the original
bytes: CRLF, comments and formatting survive. A woven file begins with one notice line that names the overlay and
carries the sha256 of all the other bytes, so that a woven file can be told from a changed one without any record.
"""

from __future__ import annotations

import ast
import codecs
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .anchors import Definition, find, find_scopes, has_lines, matches, nearest, parse_anchor, parse_pattern
from .digests import scope_digest, sha256
from .model import Edit
from .names import Position, names_of, rebound, unbound

MODULE = "<module>"
_NOTICE = re.compile(
    rb"# Modified by train-infer-consistency, overlay consistency\.(\d+); "
    rb"sha256 without this line: ([0-9a-f]{64})\r?\n?$"
)
_LINE = re.compile(rb"[^\r\n]*(\r\n|\r|\n)")
_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


@dataclass(frozen=True)
class Problem:
    """Why an edit or a file cannot be woven.

    Attributes:
        path: the upstream file.
        edit: the edit's id, or None where it concerns the whole file.
        reason: one line.
        candidate: the nearest candidate for the anchor, where there is one to name.
    """

    path: str
    edit: str | None
    reason: str
    candidate: str | None = None

    def __str__(self) -> str:
        where = self.path if self.edit is None else f"{self.path}, edit '{self.edit}'"
        return f"{where}: {self.reason}" + (f" ({self.candidate})" if self.candidate else "")


@dataclass(frozen=True)
class Notice:
    """What the notice line of a woven file says, and whether the rest of the file still agrees with it."""

    revision: int
    intact: bool


@dataclass(frozen=True)
class Weaving:
    """The outcome for one file.

    Attributes:
        after: the woven bytes, or None where there are problems.
        lines: for each edit's id the line numbers of its matches in the upstream file.
        problems: in the order of the edits; empty where ``after`` is given.
    """

    after: bytes | None
    lines: dict[str, tuple[int, ...]]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _Splice:
    """Bytes to put in place of a range. ``rank`` orders insertions at one place: what ends there comes before what
    begins there, and the end of an inner block before that of the block around it."""

    start: int
    end: int
    rank: tuple[int, int]
    text: bytes


@dataclass
class _File:
    """An upstream file while it is woven: its bytes, its syntax and where its lines begin."""

    path: str
    source: bytes
    module: ast.Module
    starts: list[int]
    newline: bytes
    problems: list[Problem] = field(default_factory=list)

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def continues(self, line: int) -> bool:
        """Tell whether a line goes on with the one above it, which ends with a backslash."""
        above = self.source[self.starts[line - 2] : self.starts[line - 1]] if line > 1 else b""
        return above.rstrip(b"\r\n").endswith(b"\\")

    def line_rest(self, line: int, column: int) -> bytes:
        end = self.starts[line] if line < len(self.starts) else len(self.source)
        return self.source[self.offset(line, column) : end]


def read_notice(source: bytes) -> Notice | None:
    """Return what a woven file's notice says, or None where the file carries no notice."""
    for line in source.removeprefix(codecs.BOM_UTF8).splitlines(keepends=True)[:3]:
        if match := _NOTICE.match(line):
            rest = source.replace(line, b"", 1)
            return Notice(int(match[1]), sha256(rest) == match[2].decode())
    return None


def weave(
    path: str, source: bytes, edits: Sequence[Edit], pin: str, revision: int, expected: str | None = None
) -> Weaving:
    """Weave edits into a file's bytes.

    Args:
        path: the file, for messages.
        source: its bytes, UTF-8, any newlines.
        edits: none of kind ``lay``.
        pin: the pin whose match counts hold.
        revision: N of ``consistency.N``.
        expected: sha256 that the lock has for the result. A result with this digest was checked when the lock was
            written, so that names and syntax need not be checked again.
    """
    try:
        file = _parse(path, source)
    except (SyntaxError, ValueError) as error:
        return Weaving(None, {}, (Problem(path, None, f"it is no Python that this interpreter can parse: {error}"),))
    found = {edit.id: _matches(file, edit, pin) for edit in edits}
    lines = {name: tuple(node.lineno for node in nodes) for name, nodes in found.items()}
    splices = [splice for edit in edits for node in found[edit.id] if (splice := _splice(file, edit, node))]
    after = None if file.problems else _assemble(file, splices, revision)
    if after is not None and sha256(after) == expected:
        return Weaving(after, lines, ())
    _check_names(file, edits, found)
    if after is not None and not file.problems:
        _check_result(file, after)
    return Weaving(None if file.problems else after, lines, tuple(file.problems))


def _assemble(file: _File, splices: list[_Splice], revision: int) -> bytes | None:
    splices.sort(key=lambda splice: (splice.start, splice.end, splice.rank))  # stable: equals keep their order
    pieces, at = [], 0
    for splice in splices:
        if splice.start < at:
            file.problems.append(Problem(file.path, None, "two edits change the same bytes"))
            return None
        pieces += [file.source[at : splice.start], splice.text]
        at = splice.end
    return _with_notice(b"".join([*pieces, file.source[at:]]), revision, file.newline)


def _check_result(file: _File, after: bytes) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # upstream's own, such as an invalid escape in a docstring
            compile(after, file.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        file.problems.append(Problem(file.path, None, f"the result does not parse: {error}"))


def scope_digests(source: bytes, scopes: Sequence[str]) -> dict[str, str]:
    """Return the digest of each scope of a file; ``""`` for one that is not there exactly once.

    Raises:
        SyntaxError, ValueError: the file is no Python.
    """
    module = parse(source)
    return {name: _digest(module, name) for name in scopes}


def _digest(module: ast.Module, name: str) -> str:
    scopes = find_scopes(module, "" if name == MODULE else name)
    return scope_digest(scopes[0]) if len(scopes) == 1 else ""


def parse(source: bytes) -> ast.Module:
    """Parse a file without upstream's own warnings, such as an invalid escape in a docstring.

    Raises:
        SyntaxError, ValueError: it is no Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _parse(path: str, source: bytes) -> _File:
    for line in source.removeprefix(codecs.BOM_UTF8)[:4096].splitlines()[:2]:
        if (match := _CODING.match(line)) and match[1].lower().replace(b"_", b"-") not in (b"utf-8", b"utf8", b"ascii"):
            raise ValueError(f"its encoding is {match[1].decode()}, not UTF-8")
    module = parse(source)
    starts = [0] + [match.end() for match in re.finditer(rb"\r\n|\r|\n", source)]
    # Column offsets of the first line do not count the byte order mark.
    if source.startswith(codecs.BOM_UTF8):
        starts[0] = len(codecs.BOM_UTF8)
    return _File(path, source, module, starts, _newline(source))


def _newline(source: bytes) -> bytes:
    """Return what most of a file's lines end with."""
    both = source.count(b"\r\n")
    counts = {b"\n": source.count(b"\n") - both, b"\r\n": both, b"\r": source.count(b"\r") - both}
    return max(counts, key=counts.__getitem__)


def _matches(file: _File, edit: Edit, pin: str) -> list[ast.stmt | ast.expr]:
    """Return the anchor's matches; any other number than the declared one is a problem, and returns none."""
    scopes = find_scopes(file.module, edit.scope)
    wanted = edit.count(pin)
    if len(scopes) > 1:
        reason = f"scope {edit.scope} is defined {len(scopes)} times"
        file.problems.append(Problem(file.path, edit.id, reason, "; ".join(f"line {s.lineno}" for s in scopes)))  # type: ignore[union-attr]
        return []
    found = find(scopes[0], parse_anchor(edit)) if scopes else []
    if len(found) != wanted:
        where = edit.scope or "the module"
        reason = f"the anchor `{_short(edit.anchor)}` matches {len(found)} times in {where}, {wanted} expected"
        places = "lines " + ", ".join(str(node.lineno) for node in found) if found else nearest(file.module, edit)
        file.problems.append(Problem(file.path, edit.id, reason, places))
        return []
    return found


def _short(anchor: str) -> str:
    first = anchor.strip().splitlines()[0]
    return first if len(first) <= 70 else first[:67] + "..."


def _plain_code(edit: Edit) -> str:
    if edit.kind == "wrap":
        return "(" + edit.lines.strip().replace("{}", "None") + ")"
    return edit.lines + ("def _consistency_decorated(): ..." if edit.kind == "decorate" else "")


def _splice(file: _File, edit: Edit, node: ast.stmt | ast.expr) -> _Splice | None:
    return _wrap(file, edit, node) if edit.kind == "wrap" else _insert(file, edit, node)


def _check_names(file: _File, edits: Sequence[Edit], found: Mapping[str, Sequence[ast.stmt | ast.expr]]) -> None:
    inserted = {edit.id: names_of(_plain_code(edit)) for edit in edits}
    first = {edit.id: min((_order(edit, node) for node in found[edit.id]), default=(0, 0, 0)) for edit in edits}
    for edit in edits:
        if not found[edit.id]:
            continue
        if has_lines(find_scopes(file.module, edit.scope)[0], edit):
            text = "its lines are there already: the file was woven before and has lost its notice"
            file.problems.append(Problem(file.path, edit.id, text))
            continue
        names = inserted[edit.id]
        clash = [] if edit.kind == "decorate" else rebound(file.module, edit.scope, names)
        for node in found[edit.id]:
            also: frozenset[str] = frozenset().union(
                *(
                    inserted[other.id].bound
                    for other in edits
                    if other is not edit and other.scope == edit.scope and first[other.id] <= _order(edit, node)
                )
            )
            missing = unbound(file.module, edit.scope, _place(file, edit, node), names, also - names.bound)
            for wrong, reason in ((missing, "not bound there"), (clash, "already used there for something else")):
                if wrong:
                    text = f"the inserted lines use {', '.join(wrong)}, {reason}"
                    file.problems.append(Problem(file.path, edit.id, text, f"line {node.lineno}"))


def _order(edit: Edit, node: ast.stmt | ast.expr) -> tuple[int, int, int]:
    """Return where an edit's lines run, to tell which of a scope's edits runs first."""
    if edit.kind == "after":
        return (node.end_lineno or 0, node.end_col_offset or 0, 2)
    return (node.lineno, node.col_offset, int(edit.kind == "wrap"))


def _place(file: _File, edit: Edit, node: ast.stmt | ast.expr) -> Position:
    """Return the position before which a local must be bound for the inserted lines to use it."""
    if edit.kind == "after":
        return (node.end_lineno or node.lineno, (node.end_col_offset or 0) + 1)
    if edit.kind == "wrap":
        return _statement_start(file, edit, node)
    return (node.lineno, node.col_offset)


def _statement_start(file: _File, edit: Edit, node: ast.stmt | ast.expr) -> Position:
    """Return where the innermost statement that holds an expression begins: its own targets are not bound yet."""
    best: Position = (0, 0)
    for other in ast.walk(find_scopes(file.module, edit.scope)[0]):
        if isinstance(other, ast.stmt) and (other.lineno, other.col_offset) <= (node.lineno, node.col_offset):
            best = max(best, (other.lineno, other.col_offset))
    return best


def _wrap(file: _File, edit: Edit, node: ast.stmt | ast.expr) -> _Splice | None:
    assert isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None
    start, end = file.offset(node.lineno, node.col_offset), file.offset(node.end_lineno, node.end_col_offset)
    original = file.source[start:end]
    try:
        again = parse_pattern("(" + original.decode() + ")", expression=True)
    except (SyntaxError, UnicodeDecodeError):
        again = None
    if again is None or not matches(again, node):
        file.problems.append(
            Problem(file.path, edit.id, "the anchor stands where it cannot be replaced", f"line {node.lineno}")
        )
        return None
    if not isinstance(node, _PLAIN):
        original = b"(" + original + b")"
    return _Splice(start, end, (0, 0), b"(" + edit.lines.strip().encode().replace(b"{}", original) + b")")


def _insert(file: _File, edit: Edit, node: ast.stmt | ast.expr) -> _Splice | None:
    first, column, last, last_column = _extent(node)
    indent = file.source[file.starts[first - 1] : file.offset(first, column)]
    alone = not indent.strip() and not file.continues(first)
    lines = edit.lines.splitlines()
    if edit.kind == "after":
        rest = file.line_rest(last, last_column).strip()
        alone = alone and (not rest or rest.startswith(b"#"))
        if isinstance(parse_anchor(edit), Definition):
            lines.insert(0, "")
    if isinstance(node, ast.If) and file.source.startswith(b"elif", file.offset(first, column)):
        alone = False  # beside it there is no place of the same depth
    if not alone:
        reason = "the anchor shares its line with another statement"
        file.problems.append(Problem(file.path, edit.id, reason, f"line {node.lineno}"))
        return None
    text = b"".join((indent + line.encode() if line else b"") + file.newline for line in lines)
    if edit.kind != "after":
        at = file.starts[first - 1]
    elif last < len(file.starts):
        at = file.starts[last]
    else:  # the last line of a file that does not end with a newline
        at, text = len(file.source), file.newline + text
    rank = {"after": (0, -len(indent)), "before": (1, 0), "decorate": (2, 0)}[edit.kind]
    return _Splice(at, at, rank, text)


def _extent(node: ast.stmt | ast.expr) -> tuple[int, int, int, int]:
    """Return first line, its column, last line and its end column; decorators belong to a definition."""
    first, column = node.lineno, node.col_offset
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.decorator_list:
        first = min(decorator.lineno for decorator in node.decorator_list)
    assert node.end_lineno is not None and node.end_col_offset is not None
    return first, column, node.end_lineno, node.end_col_offset


def _with_notice(body: bytes, revision: int, newline: bytes) -> bytes:
    """Put the notice at the top, below a shebang and an encoding line, which must stay first."""
    at = len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0
    for number in range(2):
        line = _LINE.match(body, at)
        if line is None or not ((number == 0 and line[0].startswith(b"#!")) or _CODING.match(line[0])):
            break
        at = line.end()
    notice = b"# Modified by train-infer-consistency, overlay consistency.%d; sha256 without this line: %s" % (
        revision,
        sha256(body).encode(),
    )
    return body[:at] + notice + newline + body[at:]
