"""Find scopes and anchors in a parsed upstream file, by syntax and never by text.

A formatter's line breaks, comments and CRLF therefore do not matter. An anchor is one statement or expression in
which ``...`` is a wildcard: as the only argument of a call for any arguments, as the only statement of a body for
any body, elsewhere for any one expression. ``def NAME`` and ``class NAME`` stand for a definition by its name.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .model import Edit

Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BLOCKS = ("cases", "finalbody", "orelse", "handlers", "body")
_DEFINITION = re.compile(r"(def|class) ([A-Za-z_]\w*)$")


@dataclass(frozen=True)
class Definition:
    """The anchor ``def NAME`` or ``class NAME``."""

    is_class: bool
    name: str


Anchor = ast.stmt | ast.expr | Definition


def parse_anchor(edit: Edit) -> Anchor:
    """Parse an edit's anchor.

    Raises:
        SyntaxError: it is not one statement (one expression for ``wrap``, one definition for ``decorate``).
    """
    if match := _DEFINITION.match(edit.anchor.strip()):
        if edit.kind == "wrap":
            raise SyntaxError("a wrap needs an expression")
        return Definition(match[1] == "class", match[2])
    if edit.kind == "decorate":
        raise SyntaxError("a decorate needs 'def NAME'")
    return parse_pattern(edit.anchor, expression=edit.kind == "wrap")


def parse_pattern(text: str, *, expression: bool) -> ast.stmt | ast.expr:
    """Parse one statement, or one expression where ``expression`` is set."""
    if expression:
        return ast.parse(text.strip(), mode="eval").body
    # Inside a function, so that 'return output' is a statement like any other.
    lines = "".join(f"    {line}\n" for line in text.strip().splitlines())
    body = ast.parse(f"async def _():\n{lines}").body[0]
    assert isinstance(body, ast.AsyncFunctionDef)
    if len(body.body) != 1:
        raise SyntaxError("more than one statement")
    return body.body[0]


def find_scopes(module: ast.Module, qualified: str) -> list[Scope]:
    """Return every definition with this qualified name (``Class.method``); the module itself for ``""``.

    More than one means that the file defines the name twice, which a caller must treat as ambiguous.
    """
    found: list[Scope] = [module]
    for name in qualified.split(".") if qualified else []:
        found = [node for scope in found for node in definitions(scope) if node.name == name]
    return found


def definitions(scope: Scope) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the classes and functions defined directly in a scope, also those inside its if, try or with blocks."""
    stack: list[ast.AST] = list(reversed(scope.body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            continue
        for name in _BLOCKS:  # only statements hold definitions, so expressions are not walked
            stack.extend(reversed(getattr(node, name, ())))


def own_nodes(scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a scope's body in source order, without the insides of nested functions and classes.

    A nested definition itself is yielded, and so are its decorators and defaults: they run in this scope.
    """
    stack: list[ast.AST] = list(reversed(scope.body))
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(_children(node)))


def _children(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, _NESTED):
        return _evaluated_outside(node)
    children: list[ast.AST] = []
    inner = ast.pattern if isinstance(node, ast.pattern) else ast.AST  # what stands in a pattern is no expression
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            children += [item for item in value if isinstance(item, inner)]
        elif isinstance(value, inner) and not isinstance(value, ast.expr_context):
            children.append(value)
    return children


def _evaluated_outside(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a nested definition that run in the scope around it."""
    children: list[ast.AST] = list(getattr(node, "decorator_list", []))
    if isinstance(node, ast.ClassDef):
        return [*children, *node.bases, *node.keywords]
    arguments = node.args  # type: ignore[attr-defined]
    return [*children, *arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def find(scope: Scope, anchor: Anchor) -> list[ast.stmt | ast.expr]:
    """Return every match of the anchor in the scope's own nodes, in source order."""
    if isinstance(anchor, Definition):
        return [
            node
            for node in definitions(scope)
            if node.name == anchor.name and isinstance(node, ast.ClassDef) == anchor.is_class
        ]
    kind = type(anchor)
    return [node for node in own_nodes(scope) if isinstance(node, kind) and matches(anchor, node)]


def has_lines(scope: Scope, edit: Edit) -> bool:
    """Tell whether a scope already has all that an edit would put there."""
    if edit.kind == "wrap":
        pattern = parse_pattern("(" + edit.lines.strip().replace("{}", "...") + ")", expression=True)
        return not _is_wildcard(pattern) and bool(find(scope, pattern))
    lines = edit.lines + ("def _(): ..." if edit.kind == "decorate" else "")
    function = ast.parse("async def _():\n" + "".join(f" {line}\n" for line in lines.splitlines())).body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    if edit.kind != "decorate":
        return all(find(scope, statement) for statement in function.body)
    (sample,) = function.body
    have = [node for found in find(scope, parse_anchor(edit)) for node in getattr(found, "decorator_list", [])]
    return all(any(matches(node, other) for other in have) for node in getattr(sample, "decorator_list", []))


def find_anywhere(module: ast.Module, anchor: Anchor, scope: str) -> list[tuple[str, int]]:
    """Return (qualified scope, line) of every match in the whole file, those inside a scope first."""
    found = []
    stack: list[tuple[str, Scope]] = [("", module)]
    while stack:
        name, inner = stack.pop(0)
        found += [(name, node.lineno) for node in find(inner, anchor)]
        stack += [(f"{name}.{node.name}".lstrip("."), node) for node in definitions(inner)]
    return sorted(found, key=lambda match: not match[0].startswith(scope))


def matches(anchor: ast.AST, node: ast.AST) -> bool:
    """Tell whether a node is the anchor, up to formatting, comments and the wildcards."""
    if _is_wildcard(anchor) and isinstance(node, ast.expr):
        return True
    if type(anchor) is not type(node):
        return False
    for name in anchor._fields:
        if name in ("type_comment", "kind"):
            continue
        wanted, have = getattr(anchor, name, None), getattr(node, name, None)
        if name == "args" and isinstance(anchor, ast.Call) and _any_arguments(anchor):
            continue
        if name == "keywords" and isinstance(anchor, ast.Call) and _any_arguments(anchor):
            continue
        if name == "body" and isinstance(wanted, list) and _any_body(wanted):
            continue
        if name == "orelse" and not wanted and _any_body(getattr(anchor, "body", [])):
            continue
        if not _same(wanted, have):
            return False
    return True


def _same(wanted: object, have: object) -> bool:
    if isinstance(wanted, ast.AST):
        return isinstance(have, ast.AST) and matches(wanted, have)
    if isinstance(wanted, list):
        return (
            isinstance(have, list)
            and len(wanted) == len(have)
            and all(_same(a, b) for a, b in zip(wanted, have, strict=True))
        )
    return type(wanted) is type(have) and wanted == have


def _is_wildcard(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _any_arguments(call: ast.Call) -> bool:
    return len(call.args) == 1 and not call.keywords and _is_wildcard(call.args[0])


def _any_body(body: object) -> bool:
    if not isinstance(body, list) or len(body) != 1:
        return False
    return isinstance(body[0], ast.Expr) and _is_wildcard(body[0].value)


def nearest(module: ast.Module, edit: Edit) -> str:
    """Describe the nearest candidate for an anchor that was not found as it must be, for the error message."""
    anchor = parse_anchor(edit)
    elsewhere = [f"{name or 'the module'} line {line}" for name, line in find_anywhere(module, anchor, edit.scope)]
    if elsewhere:
        return "found in " + ", ".join(elsewhere[:3])
    scopes = find_scopes(module, edit.scope)
    if not scopes:
        known = [name for name, _ in _all_scopes(module)]
        close = difflib.get_close_matches(edit.scope, known, n=1, cutoff=0.5)
        return f"no scope {edit.scope}" + (f", nearest is {close[0]}" if close else "")
    return _nearest_in(scopes[0], anchor)


def _all_scopes(module: ast.Module) -> Iterator[tuple[str, Scope]]:
    stack: list[tuple[str, Scope]] = [("", module)]
    while stack:
        prefix, scope = stack.pop(0)
        for node in definitions(scope):
            name = f"{prefix}.{node.name}".lstrip(".")
            yield name, node
            stack.append((name, node))


def _nearest_in(scope: Scope, anchor: Anchor) -> str:
    if isinstance(anchor, Definition):
        names = [node.name for node in definitions(scope)]
        close = difflib.get_close_matches(anchor.name, names, n=1, cutoff=0.5)
        return f"nearest definition is {close[0]}" if close else "no such definition"
    wanted = ast.unparse(anchor)
    best, line, kind = 0.0, 0, type(anchor)
    for node in own_nodes(scope):
        if type(node) is kind and isinstance(node, ast.stmt | ast.expr):
            head = ast.unparse(node).split("\n", 1)[0][:200]
            ratio = difflib.SequenceMatcher(None, wanted, head).ratio()
            if ratio > best:
                best, line = ratio, node.lineno
    return f"nearest candidate is line {line} ({best:.0%} alike)" if best >= 0.5 else "nothing like it there"
