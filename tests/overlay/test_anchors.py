"""Anchors are found by syntax, in their own scope, and what is not found has its nearest candidate named."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_infer_consistency.overlay.anchors import (
    Definition,
    find,
    find_anywhere,
    find_scopes,
    has_lines,
    matches,
    nearest,
    own_nodes,
    parse_anchor,
    parse_pattern,
)
from train_infer_consistency.overlay.model import Edit, Kind


def edit(kind: Kind, anchor: str, scope: str = "", lines: str = "pass\n") -> Edit:
    return Edit("only", kind, scope, anchor, {"default": 1}, lines, "why")


def lines_of(source: str, kind: Kind, anchor: str, scope: str = "") -> list[int]:
    """The lines an anchor is found at in the only scope of that name."""
    (found,) = find_scopes(ast.parse(source), scope)
    return [node.lineno for node in find(found, parse_anchor(edit(kind, anchor, scope)))]


# Each line of an anchor is written in ways that mean the same.
WRITINGS = [
    ("f(a, b)", ["f(a, b)", "f( a,b )", "f(\n  a,  # c\n  b,\n)", "(f)(a, (b))", "f(a, \\\n b)"]),
    ('d["k"]', ["d['k']", 'd["k"]', "d['''k''']", "d['\\x6b']", "d[('k')]", 'd["" "k"]']),
    ("x.y.z", ["x.y.z", "(x\n.y\n.z)", "x . y . z"]),
    ("1000", ["1000", "1_000", "0x3e8"]),
    ("not a", ["not a", "not (a)", "(not(a))"]),
    ("{1: 2, **m}", ["{1: 2, **m}", "{\n1:2,**m,}"]),
]


@pytest.mark.parametrize(("anchor", "writings"), WRITINGS)
def test_formatting_does_not_matter(anchor: str, writings: list[str]) -> None:
    for text in writings:
        assert matches(parse_pattern(anchor, expression=True), parse_pattern(f"({text})", expression=True)), text


@pytest.mark.parametrize(
    ("anchor", "other"),
    [
        ("f(a, b)", "f(b, a)"),
        ("f(a)", "f(a=a)"),
        ("f(a)", "f(*a)"),
        ("f()", "f(a)"),
        ("x.y", "x.z"),
        ("1", "1.0"),
        ("1", "True"),
        ("0", "False"),
        ("'a'", "b'a'"),
        ("a and b", "a or b"),
        ("a and b", "a and b and c"),
        ("a < b", "a <= b"),
        ("[a]", "(a,)"),
        ("a if b else c", "a if c else b"),
        ("lambda x: x", "lambda y: y"),
        ("x[a]", "x[a:]"),
        ("f'{x}'", "f'{x!r}'"),
    ],
)
def test_other_syntax_does_not_match(anchor: str, other: str) -> None:
    one, two = parse_pattern(anchor, expression=True), parse_pattern(other, expression=True)
    assert not matches(one, two)
    assert not matches(two, one)


@pytest.mark.parametrize(
    ("anchor", "good", "bad"),
    [
        ("f(...)", ["f()", "f(1)", "f(1, *a, k=2, **b)"], ["g()", "a.f()", "f", "f()()"]),
        ("f(..., 1)", ["f(x, 1)", "f(g(2), 1)"], ["f(1)", "f(x, y, 1)", "f(x, 1, k=1)"]),
        ("f(k=...)", ["f(k=1)", "f(k=g())"], ["f()", "f(j=1)", "f(1)"]),
        ("a and ...", ["a and b", "a and (b or c)"], ["a and b and c", "b and a", "a"]),
        ("x[...]", ["x[1]", "x[a, b]", "x[...]", "x[1:2]"], ["y[1]", "x"]),
        ("(...).y", ["x.y", "f().y"], ["y", "x.z"]),
        ("lambda: ...", ["lambda: 1"], ["lambda x: 1"]),
    ],
)
def test_wildcards_in_expressions(anchor: str, good: list[str], bad: list[str]) -> None:
    pattern = parse_pattern(anchor, expression=True)
    for text in good:
        assert matches(pattern, parse_pattern(text, expression=True)), text
    for text in bad:
        assert not matches(pattern, parse_pattern(text, expression=True)), text


@pytest.mark.parametrize(
    ("anchor", "good", "bad"),
    [
        ("x = ...", ["x = 1", "x = yield"], ["y = 1", "x += 1", "x: int = 1", "x = y = 1", "x.a = 1", "x, y = 1, 2"]),
        ("x, y = f(...)", ["x, y = f(1)", "(x, y) = f()"], ["[x, y] = f()", "x = f()", "y, x = f()"]),
        ("return ...", ["return 1"], ["return", "yield 1"]),
        ("if c: ...", ["if c: a()", "if c:\n  a()\n  b()", "if c:\n a\nelse:\n b"], ["if d: a()", "while c: a()"]),
        ("if c: a()", ["if c:\n  a()"], ["if c: b()", "if c:\n a()\n b()", "if c: a()\nelse: b()"]),
        ("for i in x: ...", ["for i in x: a", "for i in x:\n a\nelse: b"], ["for j in x: a", "async for i in x: a"]),
        ("with f(...) as g: ...", ["with f(1) as g: a"], ["with f(1): a", "with f(1) as g, h: a"]),
        ("raise E(...)", ["raise E('a')"], ["raise E", "raise E() from None"]),
        ("d['k'] = ...", ['d["k"] = 1'], ["d['j'] = 1"]),
    ],
)
def test_wildcards_in_statements(anchor: str, good: list[str], bad: list[str]) -> None:
    pattern = parse_pattern(anchor, expression=False)
    for text in good:
        assert matches(pattern, parse_pattern(text, expression=False)), text
    for text in bad:
        assert not matches(pattern, parse_pattern(text, expression=False)), text


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "b.c", "1", "'t'", "None", "f'{a}'"]),
    lambda inner: (
        st.builds("f({}, k={})".format, inner, inner)
        | st.builds("({} + {})".format, inner, inner)
        | st.builds("[{}, *{}]".format, inner, inner)
        | st.builds("({} if {} else 0)".format, inner, inner)
        | st.builds("(lambda z: {})".format, inner)
        | st.builds("g[{}]".format, inner)
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, EXPRESSIONS)
def test_matching_is_equality_of_syntax(one: str, two: str) -> None:
    left, right = parse_pattern(one, expression=True), parse_pattern(two, expression=True)
    assert matches(left, right) == (ast.dump(left) == ast.dump(right))
    assert matches(left, parse_pattern(ast.unparse(left), expression=True))
    assert matches(parse_pattern("...", expression=True), left)


def test_reading_and_writing_a_name_differ() -> None:
    source = "ctx = 1\nwith ctx: pass\ndel ctx\nctx.x = 1\n"
    assert lines_of(source, "wrap", "ctx") == [2, 4]


SOURCE = """\
x = mark(0)
class A(mark(2), k=mark(2)):
    y = mark(3)
    if y:
        z = mark(5)
    @mark(6)
    def f(self, p=mark(7), *, q=mark(7)) -> mark(7):
        mark(8)
        def g(r=mark(9)):
            mark(10)
        class B(mark(11)):
            s = mark(12)
        t = lambda u=mark(13): mark(13)
        return [mark(14) for v in mark(14)], mark
    try:
        pass
    except mark(17):
        async def h(self):
            await mark(19)
    else:
        with mark(21):
            pass
"""


@pytest.mark.parametrize(
    ("scope", "lines"),
    [
        ("", [1, 2, 2]),
        ("A", [3, 5, 6, 7, 7, 17, 21]),
        ("A.f", [8, 9, 11, 13, 14, 14]),
        ("A.f.g", [10]),
        ("A.f.B", [12]),
        ("A.h", [19]),
    ],
)
def test_search_covers_a_scopes_own_code_and_no_more(scope: str, lines: list[int]) -> None:
    assert lines_of(SOURCE, "wrap", "mark(...)", scope) == lines


def test_every_node_is_in_exactly_one_scope() -> None:
    module = ast.parse(SOURCE)
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    found = [
        node
        for name in ("", "A", "A.f", "A.f.g", "A.f.B", "A.h")
        for node in own_nodes(find_scopes(module, name)[0])
        if isinstance(node, ast.Call)
    ]
    missing = {node.lineno for node in calls} - {node.lineno for node in found}
    assert len(found) == len({id(node) for node in found})
    assert missing == set()
    # The return annotation and the lambda's body are in none: they may run elsewhere or never.
    assert len(calls) - len(found) == 2


@pytest.mark.parametrize(
    ("anchor", "scope", "lines"),
    [
        ("def f", "A", [7]),
        ("def h", "A", [18]),
        ("class A", "", [2]),
        ("def A", "", []),
        ("class f", "A", []),
        ("def g", "A", []),
        ("def g", "A.f", [9]),
        ("class B", "A.f", [11]),
    ],
)
def test_definitions_by_name(anchor: str, scope: str, lines: list[int]) -> None:
    assert lines_of(SOURCE, "before", anchor, scope) == lines


def test_definition_anchor_is_parsed_as_one() -> None:
    assert parse_anchor(edit("after", "def run")) == Definition(False, "run")
    assert parse_anchor(edit("decorate", " class Run ")) == Definition(True, "Run")
    assert isinstance(parse_anchor(edit("after", "def run(): ...")), ast.FunctionDef)


@pytest.mark.parametrize(
    ("kind", "anchor"),
    [
        ("wrap", "x = 1"),
        ("wrap", "def f"),
        ("wrap", ""),
        ("decorate", "f()"),
        ("after", "x = 1\ny = 2"),
        ("after", "x = ("),
        ("before", "def f:"),
        ("after", "else: pass"),
    ],
)
def test_anchor_that_is_none(kind: Kind, anchor: str) -> None:
    with pytest.raises(SyntaxError):
        parse_anchor(edit(kind, anchor))


@pytest.mark.parametrize("anchor", ["return x", "yield", "await x", "break", "continue"])
def test_statements_of_a_function_are_anchors(anchor: str) -> None:
    assert isinstance(parse_anchor(edit("before", anchor)), ast.stmt)


def test_scopes_of_one_name() -> None:
    module = ast.parse("class A:\n def f(self): pass\nif x:\n class A:\n  def f(self): pass\n  def g(self): pass\n")
    assert [scope.lineno for scope in find_scopes(module, "A.f") if not isinstance(scope, ast.Module)] == [2, 5]
    assert len(find_scopes(module, "A.g")) == 1
    assert find_scopes(module, "") == [module]
    assert find_scopes(module, "A.x") == find_scopes(module, "f") == find_scopes(module, "A..f") == []


def test_property_and_its_setter_are_two_scopes() -> None:
    module = ast.parse("class A:\n @property\n def f(self): pass\n @f.setter\n def f(self, x): pass\n")
    assert len(find_scopes(module, "A.f")) == 2


def test_places_inside_the_scope_come_first() -> None:
    source = "def __init__(): pass\nclass A:\n def __init__(): pass\nclass B:\n def f():\n  def __init__(): pass\n"
    wanted = edit("after", "def __init__", "B")
    assert find_anywhere(ast.parse(source), parse_anchor(wanted), "B") == [("B.f", 6), ("", 1), ("A", 3)]
    assert nearest(ast.parse(source), wanted) == "found in B.f line 6, the module line 1, A line 3"


@pytest.mark.parametrize(
    ("kind", "lines", "source", "there"),
    [
        ("after", "a(1)\nb(2)\n", "def f():\n x\n a( 1 )\n b(2)", True),
        ("after", "a(1)\nb(2)\n", "def f():\n a(1)", False),
        ("after", "a(1)\n", "def f():\n def g(): a(1)", False),
        ("before", "if a:\n    b()\n", "def f():\n if a: b()", True),
        ("before", "if a:\n    b()\n", "def f():\n if a: c()", False),
        ("wrap", "{} if a else b({})", "def f():\n return (x if a else b(x))", True),
        ("wrap", "{} if a else b({})", "def f():\n return x if c else b(x)", False),
        ("wrap", "({})", "def f():\n return 1", False),
        ("wrap", "n := {}", "def f():\n g(n := 1)", True),
        ("decorate", "@a\n@b(1)\n", "def f():\n @a\n @b(1)\n @c\n def anchor(): pass", True),
        ("decorate", "@a\n@b(1)\n", "def f():\n @a\n def anchor(): pass", False),
    ],
)
def test_lines_that_are_there_already(kind: Kind, lines: str, source: str, there: bool) -> None:
    (scope,) = find_scopes(ast.parse(source), "f")
    assert has_lines(scope, edit(kind, "def anchor" if kind == "decorate" else "anchor", "f", lines)) is there
