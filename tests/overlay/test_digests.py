"""A scope's digest changes with the program and with nothing else, and is the same on every Python."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_infer_consistency.overlay import digests
from train_infer_consistency.overlay.anchors import find_scopes
from train_infer_consistency.overlay.digests import scope_digest, sha256

from .mutants import commented, crlf, unparsed
from .trees import skeleton, upstreams

SOURCE = '''\
"""Module."""
import os
if os:
    LIMIT = [1, 2.5, -3j, b"b", "é", None, True, ...]

@decorate(1)
class A(Base, metaclass=Meta):
    """Class."""
    x: int = 1

    @property
    async def f(self, a, /, b: int = 1, *c, d=2, **e) -> str:
        """Docstring."""
        with open(a) as g, h:
            for i, *j in b:
                yield f"{i!r:>{j}} {{}} text"
        match a:
            case [1, *_] | {"k": v, **w} if v: return
            case B(x=1) as y: del y
        try:
            z = lambda q=1: [r async for r in q if r]
        except* (E, F) as error:
            raise error from None
        global GLOBAL
        GLOBAL = (await a)[1:2, ::3]

    def g(self): return "text"
'''
SCOPES = ("", "A", "A.f", "A.g")


def digest(source: str | bytes, scope: str) -> str:
    (found,) = find_scopes(ast.parse(source), scope)
    return scope_digest(found)


def all_digests(source: str | bytes) -> dict[str, str]:
    return {scope: digest(source, scope) for scope in SCOPES}


@pytest.mark.parametrize("how", [unparsed, commented, crlf, lambda data: data.replace(b"    ", b"\t")])
def test_formatting_and_comments_do_not_matter(how: object) -> None:
    assert callable(how)
    changed = how(SOURCE.encode())
    assert changed != SOURCE.encode()
    assert all_digests(changed) == all_digests(SOURCE)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('"""Module."""', '"""Other."""', {""}),
        ("import os", "import os as os2", {""}),
        ("2.5", "2.25", {""}),
        ("True", "1", {""}),
        ("None, True", "'None', True", {""}),
        ('b"b"', '"b"', {""}),
        ('"é"', '"e"', {""}),
        ("decorate(1)", "decorate(2)", {"", "A"}),
        ("Base, metaclass", "metaclass", {"", "A"}),
        ('"""Class."""', '"""Other."""', {"A"}),
        ("x: int", "x: str", {"A"}),
        ("@property", "@cached", {"A", "A.f"}),
        ("async def f", "def f", {"A", "A.f"}),
        ("a, /, b", "a, b", {"A", "A.f"}),
        ("d=2", "d=3", {"A", "A.f"}),
        ("-> str", "-> int", {"A", "A.f"}),
        ('"""Docstring."""', '"""Other."""', {"A.f"}),
        ("i, *j", "i, j", {"A.f"}),
        ("!r", "!s", {"A.f"}),
        (":>{j}", ":<{j}", {"A.f"}),
        ('text"\n        match', 'test"\n        match', {"A.f"}),
        ("if v", "if w", {"A.f"}),
        ("async for", "for", {"A.f"}),
        ("except*", "except", {"A.f"}),
        ("from None", "from error", {"A.f"}),
        ("global GLOBAL", "GLOBAL", {"A.f"}),
        ("1:2, ::3", "1:2, :3", {"A.f"}),
        ('return "text"', 'return "text2"', {"A.g"}),
        ("def g(self)", "def g(this)", {"A", "A.g"}),
    ],
)
def test_any_other_change_changes_the_scopes_it_is_in(old: str, new: str, changed: set[str]) -> None:
    assert SOURCE.count(old) == 1
    source = SOURCE.replace(old, new)
    if old == "async def f":
        source = source.replace("(await a)", "(a)").replace("async for", "for")
    before, after = all_digests(SOURCE), all_digests(source)
    assert {scope for scope in SCOPES if before[scope] != after[scope]} == changed


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(
    TEXTS
    | st.binary(max_size=3)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=6,
)


@given(VALUES, VALUES)
def test_values_are_told_apart(one: object, two: object) -> None:
    left, right = digest(f"x = {one!r}", ""), digest(f"x = {two!r}", "")
    assert (left == right) == (ast.dump(ast.parse(repr(one))) == ast.dump(ast.parse(repr(two))))


@given(st.lists(TEXTS, min_size=2, max_size=4), st.lists(TEXTS, min_size=2, max_size=4))
def test_no_text_can_pass_for_structure(one: list[str], two: list[str]) -> None:
    sources = [f"f({', '.join(map(repr, texts))})" for texts in (one, two)]
    assert (digest(sources[0], "") == digest(sources[1], "")) == (one == two)


# What Pythons write differently: texts of a newer Unicode, f-strings' empty parts, empty lists, type comments.
TRICKY = [
    '"\\U0001FAE8 \\u2028 \\x7f \\U0001F6DC"',
    "'\U0001fae8\U0001fae9\u1c89'",
    'f""',
    'f"" "a" f"{x}" ""',
    'f"{x:}"',
    'f"{x = !r:>{w}}"',
    'f"{x=}"',
    'f"{{}} {{{x}}} {x:{{}}}"',
    'f"{x:%Y-%m}{y:{z}.{w}}"',
    "f'''\n{\nx\n}\n'''",
    'rf"\\d{x}\\\\"',
    'u"x"',
    "1e999, 1_000j, 0x_ff, 1.0",
    "lambda: (yield)",
    "f(*a, **b)[1:2, ...]",
]
SCRIPT = """\
import ast, json, sys
sys.path.insert(0, sys.argv[1])
from train_infer_consistency.overlay.anchors import find_scopes
from train_infer_consistency.overlay.digests import scope_digest
found = []
for text, scope in json.load(sys.stdin):
    found.append(scope_digest(find_scopes(ast.parse(text), scope)[0]))
json.dump(found, sys.stdout)
"""


def cases() -> list[tuple[str, str]]:
    made = [(SOURCE, scope) for scope in SCOPES] + [(f"x = {text}\n", "") for text in TRICKY]
    for name in upstreams():
        files = skeleton(name)
        for file in upstreams()[name].files:
            made += [(files[file.path].decode(), edit.scope) for edit in file.edits if not file.lays]
    return made


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_same_on_every_python(version: str) -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    other = sys.executable if version == here else shutil.which(f"python{version}")
    if other is None:
        pytest.skip(f"no python{version} on PATH")
    answers = subprocess.run([other, "-c", "print('works')"], capture_output=True, text=True, check=False)
    if answers.stdout != "works\n":
        pytest.skip(f"python{version} on PATH does not start")
    root = Path(digests.__file__).parents[2]
    run = subprocess.run(
        [other, "-I", "-W", "ignore", "-c", SCRIPT, str(root)],
        input=json.dumps(cases()),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == [digest(text, scope) for text, scope in cases()]


def test_known_digests_stay() -> None:
    """The lock holds such digests: a change of the method makes every scope of every pin unknown."""
    assert digest("def f(): pass", "f") == sha256(b"FunctionDef(name=str:'f'args=arguments()body=[Pass(),])")
    assert digest("class A(B):\n x = 'é'\n def f(self): return 1\n", "A") == sha256(
        b"str:'A'[Name(id=str:'B'),]list:[]".replace(b"list:[]", b"[][]")
        + b"[Assign(targets=[Name(id=str:'x'),]value=Constant(value=str:'\\xe9')),"
        b"FunctionDef(name=str:'f'args=arguments(args=[arg(arg=str:'self'),])),]"
    )


@settings(max_examples=50)
@given(st.binary())
def test_sha256_is_the_hexadecimal_one(data: bytes) -> None:
    assert len(sha256(data)) == 64
    assert int(sha256(data), 16) >= 0


def test_sha256_of_nothing() -> None:
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
