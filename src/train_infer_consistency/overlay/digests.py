"""Digests of files and of scopes, the latter from syntax, so that formatting and comments do not change them.

A function's digest covers its whole body. A class's or the module's covers its own level only: what is defined in it
is taken by name, arguments and decorators, because an edit at that level depends on nothing deeper. The digest is
the same on every Python from 3.11 on. ``ast.dump`` is not: its output changed in 3.13, some releases put empty
constants into f-strings, and ``repr`` of a text depends on which characters the interpreter's Unicode knows.
"""

from __future__ import annotations

import ast
import hashlib

from .anchors import Scope

_IGNORED = frozenset({"kind", "type_comment", "type_ignores", "ctx"})


def sha256(data: bytes) -> str:
    """Return the hexadecimal sha256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def scope_digest(scope: Scope) -> str:
    """Return the hexadecimal sha256 of a scope's normalised syntax."""
    parts: list[str] = []
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        _write(scope, parts, outline=False)
    else:
        for name in ("name", "bases", "keywords", "decorator_list", "body"):
            _write(getattr(scope, name, None), parts, outline=True)
    return sha256("".join(parts).encode())


def _write(value: object, parts: list[str], *, outline: bool) -> None:
    """Append a canonical text of a node; empty fields are left out, because their set differs between Pythons."""
    if isinstance(value, ast.AST):
        parts.append(type(value).__name__)
        parts.append("(")
        inner = outline and isinstance(value, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for name in value._fields:
            if name in _IGNORED or (inner and name == "body"):
                continue
            field = getattr(value, name, None)
            if isinstance(value, ast.JoinedStr):
                field = [item for item in value.values if not _is_empty_text(item)]
            if field is None and not isinstance(value, ast.Constant):
                continue
            if isinstance(field, list) and not field:
                continue
            parts.append(name)
            parts.append("=")
            _write(field, parts, outline=outline)
        parts.append(")")
    elif isinstance(value, list):
        parts.append("[")
        for item in value:
            _write(item, parts, outline=outline)
            parts.append(",")
        parts.append("]")
    else:
        parts.append(f"{type(value).__name__}:{value!a}")


def _is_empty_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""
