"""Ways in which an upstream file can change under an edit. They change bytes, and know nothing of weaving."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from train_infer_consistency.overlay.anchors import Definition, find, find_scopes, matches, own_nodes, parse_anchor
from train_infer_consistency.overlay.model import Edit

Block = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Source:
    """A file's bytes and syntax, with the places an edit's anchor stands at."""

    def __init__(self, data: bytes, edit: Edit) -> None:
        self.data = data
        self.module = ast.parse(data)
        self.edit = edit
        self.anchor = parse_anchor(edit)
        (self.scope,) = find_scopes(self.module, edit.scope)
        self.node = find(self.scope, self.anchor)[0]
        self._starts = [0, *(match.end() for match in re.finditer(rb"\n", data))]

    def at(self, line: int, column: int) -> int:
        """The offset of a line and a column in bytes."""
        return self._starts[line - 1] + column

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Where a node begins and ends; a definition begins with its decorators."""
        first, column = node.lineno, node.col_offset
        if isinstance(node, Block) and node.decorator_list:
            first, column = node.decorator_list[0].lineno, node.decorator_list[0].col_offset - 1
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(first, column), self.at(node.end_lineno, node.end_col_offset)

    def replaced(self, node: ast.stmt | ast.expr, text: bytes) -> bytes:
        """The file with other text in the place of a node."""
        start, end = self.span(node)
        return self.data[:start] + text + self.data[end:]

    def text(self, node: ast.stmt | ast.expr) -> bytes:
        start, end = self.span(node)
        return self.data[start:end]

    def indent(self, node: ast.stmt) -> bytes:
        return b" " * node.col_offset

    def statement(self) -> ast.stmt:
        """The anchor itself, or the innermost statement around it."""
        if isinstance(self.node, ast.stmt):
            return self.node
        holds = [
            node
            for node in own_nodes(self.scope)
            if isinstance(node, ast.stmt) and any(inner is self.node for inner in ast.walk(node))
        ]
        return holds[-1]


def renamed(data: bytes, edit: Edit) -> bytes:
    """One name of the anchor is another one."""
    source = Source(data, edit)
    if isinstance(source.anchor, Definition):
        pattern = rb"\b(def|class) %s\b" % source.anchor.name.encode()
        start = source.at(source.node.lineno, source.node.col_offset)
        return data[:start] + re.sub(pattern, rb"\g<0>_renamed", data[start:], count=1)
    for changed in _with_another_name(source.node):
        if not matches(source.anchor, changed):
            text = ast.unparse(changed).replace("\n", "\n" + " " * source.node.col_offset)
            return source.replaced(source.node, text.encode())
    raise AssertionError("the anchor has no name")


def _with_another_name(node: ast.stmt | ast.expr) -> Iterator[ast.stmt | ast.expr]:
    for number, inner in enumerate(ast.walk(node)):
        for field in ("id", "attr", "module"):
            if getattr(inner, field, None) not in (None, "self"):
                changed = copy.deepcopy(node)
                setattr(list(ast.walk(changed))[number], field, f"{getattr(inner, field)}_renamed")
                yield changed


def doubled(data: bytes, edit: Edit) -> bytes:
    """The statement with the anchor stands there twice."""
    source = Source(data, edit)
    statement = source.statement()
    text = source.text(statement)
    return source.replaced(statement, text + b"\n" + source.indent(statement) + text)


def removed(data: bytes, edit: Edit) -> bytes:
    """The anchor is gone; the file still parses."""
    source = Source(data, edit)
    return source.replaced(source.node, b"pass" if isinstance(source.node, ast.stmt) else b"None")


def nested(data: bytes, edit: Edit) -> bytes:
    """The statement with the anchor moved into a function of its own in the same scope."""
    source = Source(data, edit)
    statement = source.statement()
    indent = source.indent(statement)
    body = source.text(statement).replace(b"\n", b"\n    ")
    return source.replaced(statement, b"async def moved():\n" + indent + b"    " + body)


def twice(data: bytes, edit: Edit) -> bytes:
    """The edited class, with its method, is defined a second time at the end of the file."""
    source = Source(data, edit)
    (outer,) = find_scopes(source.module, edit.scope.split(".")[0])
    assert isinstance(outer, Block)
    return data.rstrip(b"\n") + b"\n\n\n" + source.text(outer) + b"\n"


def unparsed(data: bytes) -> bytes:
    """The file as the interpreter itself would write it: no comment and no line break is left."""
    return ast.unparse(ast.parse(data)).encode() + b"\n"


def commented(data: bytes) -> bytes:
    """The file with a comment and an empty line above every statement, and one behind it."""
    lines = data.split(b"\n")
    above: dict[int, int] = {}
    behind: set[int] = set()
    for node in ast.walk(ast.parse(data)):
        if not isinstance(node, ast.stmt):
            continue
        first = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
        if not lines[first - 1][: node.col_offset].strip() and not lines[first - 1].lstrip().startswith(b"elif"):
            above[first] = node.col_offset
        last, end = node.end_lineno or 0, node.end_col_offset or 0
        if not lines[last - 1][end:].strip():
            behind.add(last)
    out = []
    for number, line in enumerate(lines, 1):
        if number in above:
            out += [b"", b" " * above[number] + b"# above"]
        out.append(line.rstrip() + b"   # behind" if number in behind else line)
    return b"\n".join(out)


def crlf(data: bytes) -> bytes:
    """The file with Windows line ends."""
    return data.replace(b"\n", b"\r\n")


BROKEN = {"renamed": renamed, "doubled": doubled, "removed": removed, "nested": nested, "twice": twice}
KEPT = {"unparsed": unparsed, "commented": commented, "crlf": crlf}
