"""Weaving changes exactly what is declared: every other byte stays, and the program is the declared one."""

from __future__ import annotations

import ast
import codecs
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_infer_consistency.overlay.digests import sha256
from train_infer_consistency.overlay.model import Edit, Kind
from train_infer_consistency.overlay.weave import Weaving, parse, read_notice, scope_digests, weave


def edit(kind: Kind, anchor: str, lines: str, scope: str = "", *, name: str = "only", count: int = 1) -> Edit:
    return Edit(name, kind, scope, anchor, {"default": count}, lines.strip("\n") + "\n", "why")


def run(source: str | bytes, *edits: Edit, revision: int = 7, expected: str | None = None) -> Weaving:
    data = source.encode() if isinstance(source, str) else source
    return weave("pkg/mod.py", data, edits, "1.0", revision, expected)


def woven(source: str | bytes, *edits: Edit) -> str:
    """The woven text without its notice line, after a check that the notice is right."""
    result = run(source, *edits)
    assert result.problems == ()
    assert result.after is not None
    notice = read_notice(result.after)
    assert notice is not None
    assert notice.revision == 7
    assert notice.intact
    return strip_notice(result.after).decode()


def strip_notice(data: bytes) -> bytes:
    (line,) = [line for line in data.splitlines(keepends=True) if b"# Modified by train-infer-consistency" in line]
    start = data.index(b"# Modified")
    return data[:start] + data[start + len(line.removeprefix(codecs.BOM_UTF8)) :]


def problem(source: str | bytes, *edits: Edit) -> str:
    """The only problem's text."""
    result = run(source, *edits)
    assert result.after is None
    (found,) = result.problems
    assert "\n" not in str(found)
    return str(found)


# ------------------------------------------------------------------------------------------------ generated programs

# "»" stands for one step of indentation.
FILLERS = [
    ["x = 1"],
    ["x = 1  # é"],
    ["x = 'é中文'; y = 2"],
    ["if (n := 5) > 3: y = n"],
    ['print(f"{x!r:>{y}} {{é}}")'],
    ["call(", "1,  # comment", ")"],
    ["text = '''first", "mark(1)", "      last'''"],
    ["# only a comment"],
    [""],
    ["\f"],
    ["def inner():", "»mark(1)", "»return mark(1)"],
    ["@call(1)", "async def other(): return mark(1)"],
    ["class Inner:", "»mark(1)"],
    ["late = lambda: mark(1)"],
    ["match x:", "»case [1, *rest]:", "»»y = rest", "»case _: pass"],
    ["while x: break"],
]
AROUND = [
    (["if x:"], []),
    (["if x: pass", "elif y:"], ["else: pass"]),
    (["for i in x:"], ["else:", "»y = 1"]),
    (["try:"], ["except ValueError as error:", "»y = error", "finally: pass"]),
    (["try: pass", "finally:"], []),
    (["with x as y, \\", "»»z as w:"], []),
    (["match x:", "»case {'a': 1}:"], []),
]
ALONE = [["mark(1)"], ["mark(1)  # é"], ["mark(", "1,", "k='é',", ")"], ["mark(", "»»'''", "text''')   "]]
SHARED = [["x = 1; mark(1)"], ["if x: mark(1)"], ["if x: \\", "»»»mark(1)"], ["mark(1); x = 1"], ["mark(1);"]]
FIRST = SHARED[3:]  # lines may still be put before these
HOSTS = [
    ["x = mark(1)"],
    ["x = 'é中文' + mark(1) + 'é'; y = 2"],
    ["return mark(1)"],
    ["for i in mark(1): pass"],
    ["with mark(1) as q, call() as r:", "»pass"],
    ["if mark(1): pass", "else: pass"],
    ["z = [i for i in mark(1)]"],
    ["z = [mark(1)]; '''é", "'''; y = 1"],
    ["assert mark(1), 'é'"],
    ["w = lambda a=mark(1): a"],
    ["@mark(1)", "def d(): return 1"],
    ["x = call(*mark(", "1,", "), **{})"],
    ["x = y if mark(1) else z"],
    ["x[mark(1)] = 1"],
    ["del x[mark(1)]"],
    ["mark(1)"],
    ["x: 'é' = -mark(1) ** 2"],
]


class Program:
    """A generated file with the function ``C.f`` that holds one anchor of its own."""

    def __init__(self, data: bytes, alone: tuple[bool, bool]) -> None:
        self.data = data
        self.alone = {"before": alone[0], "after": alone[1]}


@st.composite
def programs(draw: st.DrawFn, hosts: list[list[str]], shared: list[list[str]]) -> Program:
    unit = draw(st.sampled_from(["    ", "\t", "  "]))
    newline = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    host = draw(st.sampled_from(hosts + shared))

    def filler() -> list[list[str]]:
        return draw(st.lists(st.sampled_from(FILLERS), max_size=2))

    def body(depth: int) -> list[str]:
        lines = [line for piece in filler() for line in piece]
        if depth and draw(st.booleans()):
            head, tail = draw(st.sampled_from(AROUND))
            step = "»»" if "case" in head[-1] else "»"
            lines += head + [step + line if line else line for line in body(depth - 1)] + tail
        else:
            lines += host
        return lines + [line for piece in filler() for line in piece]

    keyword = draw(st.sampled_from(["def", "async def"]))
    inside = body(2)
    lines = ["class C:", f"»{keyword} f(self, x, y=2, z=3):", "»»'''é'''"]
    lines += ["»»" + line if line else line for line in inside]
    if draw(st.booleans()):
        lines += ["", "»@staticmethod", "»def g(): pass", ""]
    head = draw(st.sampled_from([[], ["#!/usr/bin/env python"], ["#!/bin/sh", "# -*- coding: utf-8 -*-"], ["# é"]]))
    text = "\n".join([*head, *lines]).replace("»", unit)
    data = text.encode().replace(b"\n", newline)
    if draw(st.booleans()):
        data += newline
    if draw(st.booleans()):
        data = codecs.BOM_UTF8 + data
    return Program(data, (host not in shared or host in FIRST, host not in shared))


def is_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "mark"


class Expected(ast.NodeTransformer):
    """Does on syntax what weaving must do on bytes; nested definitions and lambdas' bodies are not entered."""

    def __init__(self, change: Callable[[Any], Any], statement: bool) -> None:
        self.change = change
        self.statement = statement
        self.depth = 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self.depth += 1
            if self.depth > 2:  # C and f are the scope itself
                node.decorator_list = [self.visit(item) for item in node.decorator_list]
            else:
                node.body = [item for old in node.body for item in self.listed(old)]
            self.depth -= 1
            return node
        if isinstance(node, ast.Lambda):
            node.args.defaults = [self.visit(item) for item in node.args.defaults]
            return node
        if self.statement and isinstance(node, ast.Expr) and is_mark(node.value):
            return self.change(node)
        node = self.generic_visit(node)
        return self.change(node) if not self.statement and is_mark(node) else node

    def listed(self, node: ast.stmt) -> list[ast.stmt]:
        changed = self.visit(node)
        return changed if isinstance(changed, list) else [changed]


def same(left: ast.AST, right: ast.AST) -> bool:
    return ast.dump(left) == ast.dump(right)


def parses(data: bytes) -> bool:
    try:
        parse(data)
    except (SyntaxError, ValueError):
        return False
    return True


INSERTED = "if True:  # _consistency\n    _consistency_x = 1\n_consistency_y = 2\n"


@settings(max_examples=200, deadline=None)
@given(programs(ALONE, SHARED), st.sampled_from(["before", "after"]))
def test_inserted_lines_are_all_that_changes(program: Program, kind: Kind) -> None:
    assert parses(program.data), program.data
    result = run(program.data, edit(kind, "mark(...)", INSERTED, "C.f"))
    if not program.alone[kind]:
        (found,) = result.problems
        assert "shares its line" in str(found), program.data
        return
    assert result.problems == ()
    assert result.after is not None
    assert read_notice(result.after) is not None

    # Every byte that is not inserted is the original's.
    kept = b"".join(
        line for line in strip_notice(result.after).splitlines(keepends=True) if b"_consistency" not in line
    )
    if program.data.startswith(codecs.BOM_UTF8) and not kept.startswith(codecs.BOM_UTF8):
        kept = codecs.BOM_UTF8 + kept
    newline = b"" if program.data.endswith((b"\r", b"\n")) else kept[len(program.data) :]
    assert newline in (b"", b"\n", b"\r\n", b"\r")
    assert kept == program.data + newline

    # And the program is the one with the lines at the anchor.
    lines = ast.parse(INSERTED).body
    put = (lambda node: [*lines, node]) if kind == "before" else (lambda node: [node, *lines])
    assert same(parse(result.after), Expected(put, statement=True).visit(parse(program.data)))


@settings(max_examples=200, deadline=None)
@given(programs(HOSTS, []))
def test_wrapped_expression_is_all_that_changes(program: Program) -> None:
    assert parses(program.data), program.data
    result = run(program.data, edit("wrap", "mark(...)", "bool([{}, '_consistency'])", "C.f"))
    assert result.problems == ()
    assert result.after is not None
    kept = strip_notice(result.after).replace(b"(bool([", b"").replace(b", '_consistency']))", b"")
    assert kept == program.data

    def wrap(node: ast.expr) -> ast.expr:
        outer = ast.parse("bool([None, '_consistency'])", mode="eval").body
        assert isinstance(outer, ast.Call)
        assert isinstance(outer.args[0], ast.List)
        outer.args[0].elts[0] = node
        return outer

    assert same(parse(result.after), Expected(wrap, statement=False).visit(parse(program.data)))


@given(programs(ALONE, []), st.integers(1, 10**6))
def test_notice_tells_version_and_any_later_change(program: Program, revision: int) -> None:
    after = run(program.data, edit("before", "mark(...)", "print(1)", "C.f"), revision=revision).after
    assert after is not None
    notice = read_notice(after)
    assert notice is not None
    assert (notice.revision, notice.intact) == (revision, True)
    changed = read_notice(after + b"#")
    assert changed is not None
    assert not changed.intact
    assert read_notice(program.data) is None


# ----------------------------------------------------------------------------------------------------- file beginnings


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("head", "kept"),
    [
        ([], 0),
        (["#!/usr/bin/env python"], 1),
        (["# -*- coding: utf-8 -*-"], 1),
        (["#!/usr/bin/env python", "# vim: set fileencoding=UTF_8 :"], 2),
        (["# a word", "# -*- coding: utf-8 -*-"], 0),
        (['"""Docstring."""'], 0),
    ],
)
def test_notice_stands_first_but_for_what_must_stay_first(head: list[str], kept: int, bom: str, newline: str) -> None:
    source = bom + newline.join([*head, "anchor()", ""])
    after = run(source, edit("after", "anchor()", "pass")).after
    assert after is not None
    text = after.decode()
    assert text.startswith(bom)
    lines = text.removeprefix(bom).split(newline)
    assert lines[:kept] == head[:kept]
    notice = lines.pop(kept)
    digest = hashlib.sha256((bom + newline.join(lines)).encode()).hexdigest()
    assert notice == (
        f"# Modified by train-infer-consistency, overlay consistency.7; sha256 without this line: {digest}"
    )
    assert lines == [*head, "anchor()", "pass", ""]


@pytest.mark.parametrize("source", ["# -*- coding: latin-1 -*-\nx = 1\n", "#!/bin/x\n# coding=cp1252\nx = 1\n"])
def test_another_encoding_is_refused(source: str) -> None:
    assert "is latin-1" in (text := problem(source, edit("after", "x = 1", "pass"))) or "is cp1252" in text


def test_encoding_word_in_the_code_is_none() -> None:
    source = "x = 1\ny = 2\n# coding: latin-1\n"
    assert woven(source, edit("after", "x = 1", "pass")) == "x = 1\npass\ny = 2\n# coding: latin-1\n"


@pytest.mark.parametrize("source", [b"x = (\n", b"x = 1\n\xff\n", b"x = '\x00'\n", b"  x = 1\n"])
def test_file_that_is_no_python_is_one_problem(source: bytes) -> None:
    assert "no Python that this interpreter can parse" in problem(source, edit("after", "x = 1", "pass"))


# -------------------------------------------------------------------------------------------------------------- places


def test_order_at_one_place() -> None:
    source = "def f():\n    if x:\n        one()\n    two()\n@old\ndef g(): pass\n"
    text = woven(
        source,
        edit("after", "if x: ...", "a = 1", "f", name="a"),
        edit("after", "one()", "b = 1", "f", name="b"),
        edit("before", "two()", "c = 1", "f", name="c"),
        edit("before", "two()", "d = 1", "f", name="d"),
        edit("decorate", "def g", "@staticmethod", name="e"),
        edit("before", "def g", "e = 1", name="f"),
        edit("after", "two()", "g = 1", "f", name="g"),
    )
    assert text == (
        "def f():\n    if x:\n        one()\n        b = 1\n    a = 1\n    c = 1\n    d = 1\n    two()\n    g = 1\n"
        "e = 1\n@staticmethod\n@old\ndef g(): pass\n"
    )


def test_after_a_definition_there_is_an_empty_line_and_below_its_last_line() -> None:
    source = "class A:\n    @x\n    def f(self):\n        return (\n            1)\n\n    # next\n    y = 1\n"
    text = woven(source, edit("after", "def f", "z = 1\n\ndef g(self): pass", "A"))
    assert text == source.replace("1)\n", "1)\n\n    z = 1\n\n    def g(self): pass\n")


def test_decorators_go_above_the_old_ones() -> None:
    source = "class A:\n    @x\n    # c\n    @y(\n        1)\n    async def f(self): pass\n"
    text = woven(source, edit("decorate", "def f", "@property\n@staticmethod", "A"))
    assert text == "class A:\n    @property\n    @staticmethod\n" + source.removeprefix("class A:\n")


def test_empty_inserted_lines_carry_no_blanks() -> None:
    assert woven("if x:\n\ty()\n", edit("after", "y()", "a = 1\n\nb = 2")) == "if x:\n\ty()\n\ta = 1\n\n\tb = 2\n"


def test_all_matches_are_edited() -> None:
    source = "def f(s):\n    if s: return 1\n    s.stop()\n    x(s.stop())\n    return s.stop()\n"
    text = woven(source, edit("wrap", "s.stop()", "{} or {}", "f", count=3))
    assert text == source.replace("s.stop()", "(s.stop() or s.stop())")


@pytest.mark.parametrize(
    ("source", "anchor", "text"),
    [
        ("x = a + b\n", "a + b", "x = (((a + b), 1))\n"),
        ("x = (a + b) * c\n", "a + b", "x = ((((a + b), 1))) * c\n"),
        ("x = a if b else c\n", "a if b else c", "x = (((a if b else c), 1))\n"),
        ("x = 'a' 'é'\n", "'aé'", "x = (('a' 'é', 1))\n"),
        ("x = f(i for i in y)\n", "(i for i in y)", "x = f((((i for i in y)), 1))\n"),
        ("x = -a ** b\n", "a ** b", "x = -(((a ** b), 1))\n"),
        ("x = [\n  a  # c\n  .b\n]\n", "a.b", "x = [\n  ((a  # c\n  .b, 1))\n]\n"),
        ("x = a[b, c]\n", "(b, c)", "x = a[(((b, c), 1))]\n"),
    ],
)
def test_wrapped_expressions_keep_their_text_and_meaning(source: str, anchor: str, text: str) -> None:
    after = woven(source, edit("wrap", anchor, "({}, 1)"))
    wanted = ast.parse(anchor, mode="eval").body

    class Wrap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr) and same(node, wanted):
                return ast.Tuple([node, ast.Constant(1)], ast.Load())
            return self.generic_visit(node)

    assert same(ast.parse(after), Wrap().visit(ast.parse(source)))
    assert after == text


def test_long_file_with_wide_characters() -> None:
    many = "".join(f"def f{n}():\n    '''é中文𝕏 {n}'''\n    return '𝕏' + mark({n}) + 'é'\n\n" for n in range(4000))
    text = woven(many, edit("wrap", "mark(...)", "str({})", "f3999"))
    assert text == many.replace("mark(3999)", "(str(mark(3999)))")


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("a()\nif x: anchor()\n", ("before", "after")),
        ("a(); anchor()\n", ("before", "after")),
        ("anchor(); a()\n", ("after",)),
        ("anchor();\n", ("after",)),
        ("if x: \\\nanchor()\n", ("before", "after")),
        ("if x: \\\n    anchor()\n", ("before", "after")),
        ("try: anchor()\nfinally: a()\n", ("before", "after")),
        ("for a in b: anchor()\n", ("before", "after")),
    ],
)
def test_statement_that_shares_its_line_is_refused(source: str, kinds: tuple[Kind, ...]) -> None:
    for kind in kinds:
        assert "shares its line" in problem(source, edit(kind, "anchor()", "pass"))


@pytest.mark.parametrize("kind", ["before", "after"])
def test_elif_is_no_place(kind: Kind) -> None:
    source = "if a:\n    b()\nelif anchor:\n    c()\nelse:\n    d()\n"
    assert "shares its line" in problem(source, edit(kind, "if anchor: ...", "pass"))


def test_two_edits_of_the_same_bytes_are_refused() -> None:
    edits = edit("wrap", "f(...)", "({})", name="outer"), edit("wrap", "g(...)", "({})", name="inner")
    text = problem("x = f(g(1))\n", *edits)
    assert "two edits change the same bytes" in text


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("from __future__ import annotations\n", edit("before", "from __future__ import annotations", "pass")),
        ("x = 1\n", edit("after", "x = 1", "return")),
        ("def f():\n    a()\n", edit("after", "a()", "await f()", "f")),
        ("x = f(1)\n", edit("wrap", "1", "{}.real")),
    ],
)
def test_result_that_does_not_compile_is_refused(source: str, change: Edit) -> None:
    assert "the result does not parse" in problem(source, change)


@pytest.mark.parametrize("pattern", ["A.b", "A.b()", "[A.b]", "{A.b: 1}", "x if A.b"])
def test_what_stands_in_a_pattern_is_no_expression(pattern: str) -> None:
    source = f"match 1:\n    case {pattern}: pass\n"
    change = edit("wrap", "A.b", "bool({})")
    if " if " in pattern:  # the guard is one
        assert woven(source, change) == source.replace("A.b", "(bool(A.b))")
    else:
        assert "matches 0 times" in problem(source, change)


def test_wrap_inside_an_fstring_is_exact_or_refused() -> None:
    for source in (
        'x = f"é {anchor()} {{anchor()}}"\n',
        'x = (f"a"\n     f"b {anchor()}")\n',
        'x = f"""\n{anchor()}"""\n',
    ):
        result = run(source, edit("wrap", "anchor()", "str({})"))
        if result.after is None:
            assert "cannot be replaced" in str(result.problems[0])
            continue
        plain = source.replace("{anchor()}", "{(str(anchor()))}", 1)
        assert strip_notice(result.after).decode() == plain.replace("{{(str(anchor()))}}", "{{anchor()}}")


def test_count_says_where_and_what_is_expected() -> None:
    source = "def f():\n    a()\n    a()\n\ndef g():\n    def h():\n        b(1)\n"
    assert problem(source, edit("after", "a()", "pass", "f")) == (
        "pkg/mod.py, edit 'only': the anchor `a()` matches 2 times in f, 1 expected (lines 2, 3)"
    )
    assert problem(source, edit("after", "b(...)", "pass", "g")) == (
        "pkg/mod.py, edit 'only': the anchor `b(...)` matches 0 times in g, 1 expected (found in g.h line 7)"
    )
    assert problem(source, edit("after", "b(...)", "pass", "gg")).endswith("1 expected (found in g.h line 7)")
    assert problem(source, edit("after", "c(1)", "pass", "g.k")).endswith("(no scope g.k, nearest is g.h)")
    assert problem(source, edit("after", "bb(1)", "pass", "g.h")).endswith("(nearest candidate is line 7 (89% alike))")
    assert problem(source, edit("after", "def hh", "pass", "g")).endswith("(nearest definition is h)")
    assert problem(source, edit("after", "import x", "pass", "g")).endswith("(nothing like it there)")


def test_counts_by_pin() -> None:
    by_pin = Edit("only", "after", "", "a()", {"default": 1, "1.0": 2}, "pass\n", "why")
    assert weave("m.py", b"a()\na()\n", [by_pin], "1.0", 1).problems == ()
    assert len(weave("m.py", b"a()\na()\n", [by_pin], "2.0", 1).problems) == 1


def test_scope_defined_twice_is_refused() -> None:
    source = "if x:\n    def f():\n        a()\nelse:\n    def f():\n        b()\n"
    text = problem(source, edit("after", "a()", "pass", "f"))
    assert "scope f is defined 2 times (line 2; line 5)" in text


# ------------------------------------------------------------------------------------------------- woven a second time


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("def f():\n    a()\n", edit("after", "a()", "print(1)\nprint(2)", "f")),
        ("def f():\n    a()\n", edit("before", "a()", "if f:\n    print(1)", "f")),
        ("def f():\n    return a and b\n", edit("wrap", "a and ...", "{} and not f", "f")),
        ("@x\ndef f(): pass\n", edit("decorate", "def f", "@staticmethod")),
    ],
)
def test_woven_file_that_lost_its_notice_is_not_woven_again(source: str, change: Edit) -> None:
    again = woven(source, change)
    assert "its lines are there already" in problem(again, change)
    assert "its lines are there already" in problem(ast.unparse(ast.parse(again)) + "\n", change)


def test_part_of_the_lines_is_not_all_of_them() -> None:
    source = "def f():\n    print(1)\n    a()\n"
    assert "print(1)\n    print(2)" in woven(source, edit("after", "a()", "print(1)\nprint(2)", "f"))


# ---------------------------------------------------------------------------------------------------- the known result


def test_known_result_needs_no_second_look() -> None:
    source, change = "def f():\n    a()\n", edit("after", "a()", "print(unbound)", "f")
    refused = run(source, change)
    assert "uses" in str(refused.problems) or "use unbound" in str(refused.problems)
    plain = run(source, edit("after", "a()", "print(f)", "f")).after
    assert plain is not None
    assert run(source, edit("after", "a()", "print(f)", "f"), expected=sha256(plain)).after == plain
    assert run(source, change, expected="0" * 64).after is None


def test_same_input_same_bytes() -> None:
    source, change = "def f():\n    a()\n", edit("after", "a()", "pass", "f")
    assert run(source, change).after == run(source, change).after


def test_scope_digests_of_what_is_not_there_once() -> None:
    digests = scope_digests(b"def f(): pass\ndef g(): pass\ndef g(): pass\n", ["f", "g", "h", "<module>"])
    assert digests["g"] == digests["h"] == ""
    assert len(digests["f"]) == len(digests["<module>"]) == 64
    with pytest.raises(SyntaxError):
        scope_digests(b"def", ["f"])
