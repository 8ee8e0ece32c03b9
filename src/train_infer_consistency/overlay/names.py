"""Check that inserted lines only use names that are bound where they are inserted.

A name that upstream renamed or binds later would otherwise fail inside a training run, hours after the build. The
order of binding is taken from the source text: a local counts as bound from the end of the statement that binds it.
Attributes are not judged.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator
from dataclasses import dataclass

from .anchors import Scope, find_scopes, own_nodes

Position = tuple[int, int]
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__package__", "__spec__"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Inserted:
    """The names of some inserted code: read at its own level, read inside functions it defines, and bound by it."""

    read: frozenset[str]
    read_inside: frozenset[str]
    bound: frozenset[str]


def names_of(code: str) -> Inserted:
    """Analyse inserted code that is valid at module level or inside an ``async def``.

    Raises:
        SyntaxError: the code is no Python.
    """
    text = "async def _():\n" + "".join(f" {line}\n" for line in code.splitlines())
    top = symtable.symtable(text, "", "exec").get_children()[0]
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    bound = {name for name, _ in bindings(function)}
    read, inside = set(), set()
    for symbol in top.get_symbols():
        # Python 3.13's table has a comprehension's own variable among the function's: bound there, and by nobody else.
        if symbol.get_name() not in bound and symbol.is_referenced() and not symbol.is_assigned():
            read.add(symbol.get_name())
    for child in _descendants(top):
        if child.get_type() != "function":
            continue
        for symbol in child.get_symbols():
            if symbol.is_referenced() and not symbol.is_local() and not symbol.is_parameter():
                inside.add(symbol.get_name())
    return Inserted(frozenset(read), frozenset(inside), frozenset(bound))


def _descendants(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _descendants(child)


def unbound(module: ast.Module, qualified: str, at: Position, inserted: Inserted, also: frozenset[str]) -> list[str]:
    """Return the names that inserted lines use and that are not bound at a place.

    Args:
        module: the upstream file.
        qualified: the scope that is edited, found exactly once in the module.
        at: line and column before which a local must have been bound.
        inserted: what the inserted lines use.
        also: names that other edits of this file bind at this scope's level.
    """
    outer = _BUILTINS | {name for name, _ in bindings(module)}
    scope = find_scopes(module, qualified)[0]
    if isinstance(scope, ast.Module):
        here = _BUILTINS | _before(scope, at) | also
        return sorted((inserted.read - here) | (inserted.read_inside - outer - inserted.bound - also))
    if isinstance(scope, ast.ClassDef):
        # A class body runs while the module does: what the module binds below it is not there yet.
        now = outer if _in_function(module, qualified) else _BUILTINS | _before(module, _start(module, qualified))
        here = now | _before(scope, at) | also
        return sorted((inserted.read - here) | (inserted.read_inside - outer))
    for name in _enclosing_functions(qualified):
        for enclosing in find_scopes(module, name):
            if not isinstance(enclosing, ast.ClassDef):
                outer = outer | {bound for bound, _ in bindings(enclosing)} | _parameters(enclosing)
    local = _locals(scope)
    here = (outer - local) | _before(scope, at) | _parameters(scope) | also
    return sorted((inserted.read | inserted.read_inside) - here - inserted.bound)


def rebound(module: ast.Module, qualified: str, inserted: Inserted) -> list[str]:
    """Return the names bound by inserted lines that the edited scope uses for something else."""
    scope = find_scopes(module, qualified)[0]
    used = {node.id for node in own_nodes(scope) if isinstance(node, ast.Name)}
    used |= {name for name, _ in bindings(scope)}
    if not isinstance(scope, ast.Module | ast.ClassDef):
        used |= _parameters(scope)
    return sorted(inserted.bound & used)


def bindings(scope: Scope) -> Iterator[tuple[str, Position]]:
    """Yield every name that a scope's own statements bind, with the place where it is bound (a definition's end)."""
    hidden = {
        id(inner)
        for node in own_nodes(scope)
        if isinstance(node, _COMPREHENSIONS)
        for generator in node.generators
        for inner in ast.walk(generator.target)
    }
    declared: set[str] = set()
    for node in own_nodes(scope):
        if isinstance(node, ast.Global | ast.Nonlocal):
            declared |= set(node.names)
    for node in own_nodes(scope):
        for name in _bound_by(node):
            if id(node) not in hidden and name not in declared:
                yield name, _position(node)


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest is not None:
        yield node.rest


def _position(node: ast.AST) -> Position:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.end_lineno or 0, node.end_col_offset or 0)
    return (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))


def _before(scope: Scope, at: Position) -> frozenset[str]:
    return frozenset(name for name, position in bindings(scope) if position < at)


def _locals(scope: Scope) -> frozenset[str]:
    return frozenset(name for name, _ in bindings(scope))


def _parameters(scope: Scope) -> frozenset[str]:
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return frozenset()
    arguments = scope.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return frozenset(argument.arg for argument in every if argument is not None)


def _start(module: ast.Module, qualified: str) -> Position:
    outermost = find_scopes(module, qualified.partition(".")[0])[0]
    return (getattr(outermost, "lineno", 0), 0)


def _in_function(module: ast.Module, qualified: str) -> bool:
    around = [scope for name in _enclosing_functions(qualified) for scope in find_scopes(module, name)]
    return not all(isinstance(scope, ast.ClassDef) for scope in around)


def _enclosing_functions(qualified: str) -> Iterator[str]:
    parts = qualified.split(".")
    for length in range(1, len(parts)):
        yield ".".join(parts[:length])
