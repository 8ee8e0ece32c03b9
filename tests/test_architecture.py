"""Which room may import which, and that the package needs the standard library alone.

The rooms and the arrows between them are the ones of the architecture: an import against an arrow fails here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT

NAME = "train_infer_consistency"
PACKAGE = ROOT / "src" / NAME
MODULES = sorted(PACKAGE.rglob("*.py"))

# What each room may import besides itself. "" is the package's own __init__ (its version).
COMMON = {"", "errors"}
ALLOWED: dict[str, set[str]] = {
    "": set(),
    "errors": set(),
    "resources": {"errors"},
    "cluster": {"errors"},
    "overlay": COMMON | {"resources", "cluster"},
    "wheels": COMMON | {"resources", "overlay"},
    "capture": set(),
    "dumps": COMMON,
    "pairing": COMMON | {"dumps"},
    "comparing": COMMON | {"dumps", "pairing"},
    "hosts": COMMON | {"cluster", "dumps", "pairing", "comparing"},
    "reporting": COMMON | {"dumps", "pairing", "comparing"},
    "selftest": COMMON | {"overlay", "capture"},
    "launch": COMMON | {"overlay"},
    "cli": COMMON
    | {"resources", "overlay", "wheels", "dumps", "pairing", "comparing", "reporting", "hosts", "selftest", "launch"},
    "__main__": {"cli"},
}

# What a function (never a module) of a room may import where it happens to be installed.
OPTIONAL: dict[str, set[str]] = {
    "cluster": {"ray"},
    "hosts": {"ray"},
    "overlay": {"packaging", "ray"},
    "capture": {"msprobe", "torch"},
    "launch": {"yaml"},
    "dumps": {"numpy"},
    "comparing": {"numpy"},
    "reporting": {"plotly"},
}


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module below the package, by its path's parts: ("overlay", "weave") is in "overlay"."""
    return "" if parts == ("__init__",) else parts[0]


def imports(tree: ast.Module, parts: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], bool, int]]:
    """Every import as (the dotted name's parts, whether it is inside a function or for types alone, line)."""
    inside = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING")
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split(".")), id(node) in inside, node.lineno
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                module = (NAME, *parts)[: len(parts) + 1 - node.level] + module
            for alias in node.names:
                yield (*module, alias.name), id(node) in inside, node.lineno


def violations(source: str, path: str) -> list[str]:
    """What a module at ``path`` (relative to the package) imports and may not."""
    parts = tuple(path.removesuffix(".py").split("/"))
    room = room_of(parts)
    found = []
    for target, in_function, line in imports(ast.parse(source), parts):
        if target[0] == NAME:
            # `from train_infer_consistency import __version__` names no room: it is the package itself.
            imported = target[1] if len(target) > 1 and target[1] in ROOMS else ""
            good = imported in ALLOWED[room] | {room}
        else:
            optional = OPTIONAL.get(room, set()) if in_function else set()
            good = target[0] in sys.stdlib_module_names or target[0] in optional
        if not good:
            found.append(f"{path}:{line}: {room or NAME} may not import {'.'.join(target)}")
    return found


ROOMS = {room_of(path.relative_to(PACKAGE).with_suffix("").parts) for path in MODULES} | ALLOWED.keys()


def test_every_room_is_in_the_table() -> None:
    assert ALLOWED.keys() >= ROOMS


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_module_keeps_to_the_arrows_and_says_what_it_is_for(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert violations(source, path.relative_to(PACKAGE).as_posix()) == []
    assert ast.get_docstring(ast.parse(source)), f"{path.name} does not say what it is for"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("capture/session.py", "from train_infer_consistency.errors import ConsistencyError"),
        ("capture/session.py", "def f():\n    from .. import errors"),
        ("capture/session.py", "import torch"),
        ("capture/session.py", "def f():\n    import numpy"),
        ("overlay/weave.py", "from ..wheels import archive"),
        ("overlay/weave.py", "import train_infer_consistency.cli.main"),
        ("overlay/doctor.py", "import packaging"),
        ("wheels/repack.py", "from ..capture.switches import read"),
        ("wheels/repack.py", "from ..cli import main"),
        ("dumps/reader.py", "from ..pairing import model"),
        ("dumps/tensors.py", "import numpy"),
        ("pairing/join.py", "from ..overlay import lock"),
        ("errors.py", "from .overlay import model"),
    ],
)
def test_forbidden_import_is_seen(path: str, source: str) -> None:
    assert len(violations(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("capture/session.py", "from .log import x\nfrom train_infer_consistency.capture import switches"),
        ("capture/session.py", "def f():\n    import torch"),
        ("overlay/doctor.py", "def f():\n    from packaging.requirements import Requirement"),
        ("dumps/tensors.py", "if TYPE_CHECKING:\n    import numpy as np\ndef f():\n    import numpy as np"),
        ("overlay/weave.py", "import ast\nfrom ..errors import FoundError\nfrom .model import Edit"),
        ("wheels/repack.py", "from .. import __version__\nfrom ..overlay.weave import weave"),
        ("cli/main.py", "def f():\n    from ..wheels import bundle\n    from . import wheels"),
    ],
)
def test_allowed_import_is_let_pass(path: str, source: str) -> None:
    assert violations(source, path) == []
