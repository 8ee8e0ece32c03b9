"""A name that inserted lines use must be bound where they are inserted, and must not be another's."""

from __future__ import annotations

import pytest

from train_infer_consistency.overlay.model import Edit, Kind
from train_infer_consistency.overlay.names import names_of
from train_infer_consistency.overlay.weave import weave

SOURCE = """\
import os.path
from a import b as c, d

LIMIT = 1
for LOOP in []: pass
with open() as HANDLE: pass
[HIDDEN for HIDDEN in []]

def outer(p, /, q=1, *args, r, **kwargs):
    global DECLARED
    local = 1
    DECLARED = 1
    try:
        anchor()
    except ValueError as error:
        anchor2(error)
    if (walrus := 2): pass
    later = 1
    [inner for inner in args]
    match p:
        case {"k": matched, **rest}: pass
        case [*star] as whole: pass
    def nested(own):
        nested_local = own
        anchor3()
    class Inner:
        attribute = 1
        anchor4()
    end()
    after_end = 1

class K:
    import json
    first = 1
    anchor5()
    second = 2
    def method(self): anchor6(); return 1
    def other(self):
        anchor7()
    class Deep:
        anchor8()

def below(): pass
LAST = 1
"""


def problems(anchor: str, lines: str, scope: str, kind: Kind = "after", source: str = SOURCE) -> list[str]:
    edit = Edit("only", kind, scope, anchor, {"default": 1}, lines + "\n", "why")
    return [problem.reason for problem in weave("m.py", source.encode(), [edit], "1", 1).problems]


def is_bound(name: str, anchor: str, scope: str, kind: Kind = "after") -> bool:
    found = problems(anchor, f"print({name})", scope, kind)
    assert found in ([], [f"the inserted lines use {name}, not bound there"])
    return not found


@pytest.mark.parametrize(
    ("scope", "anchor", "yes", "no"),
    [
        # In a function: parameters, locals bound above, everything of the module, builtins.
        (
            "outer",
            "anchor()",
            "p q args r kwargs local os c d LIMIT LOOP HANDLE DECLARED K outer below LAST len __name__",
            "b a path HIDDEN error walrus later inner matched rest star whole nested Inner after_end own json first",
        ),
        (
            "outer",
            "end()",
            "local error walrus later matched rest star whole nested Inner",
            "inner after_end own nested_local attribute",
        ),
        # In a nested function also what the function around it binds anywhere.
        ("outer.nested", "anchor3()", "own nested_local local later after_end p kwargs LAST", "attribute inner"),
        # A class body runs while the module does.
        ("K", "anchor5()", "json first os LIMIT outer len", "second K below LAST method local"),
        ("K.other", "anchor7()", "self K below LAST", "json first second method"),
        ("K.Deep", "anchor8()", "os outer", "first json K Deep below"),
        # Module level: what stands above.
        ("", "LIMIT = 1", "os c d LIMIT len", "LOOP outer K LAST"),
        ("", "LAST = 1", "os LOOP HANDLE outer K below LAST", "HIDDEN local json"),
    ],
)
def test_what_is_bound_where(scope: str, anchor: str, yes: str, no: str) -> None:
    assert [name for name in yes.split() if not is_bound(name, anchor, scope)] == ["DECLARED"] * ("DECLARED" in yes)
    assert [name for name in no.split() if is_bound(name, anchor, scope)] == []


def test_before_an_anchor_its_own_names_are_not_bound() -> None:
    assert is_bound("later", "later = 1", "outer", "after")
    assert not is_bound("later", "later = 1", "outer", "before")
    assert not is_bound("below", "def below", "", "before")
    assert is_bound("below", "def below", "")


def test_wrapped_expression_does_not_see_its_own_statements_names() -> None:
    source = "def f(a):\n    for i in a:\n        b = g(i)\n    with a as c:\n        d = h(c)\n"
    assert problems("a", "{} or i", "f", "wrap", source.replace("with a", "with z")) == [
        "the inserted lines use i, not bound there"
    ]
    assert problems("g(...)", "{} or i", "f", "wrap", source) == []
    assert problems("g(...)", "{} or b", "f", "wrap", source) == ["the inserted lines use b, not bound there"]
    assert problems("h(...)", "{} or c or b", "f", "wrap", source) == []


def test_attributes_are_not_judged() -> None:
    assert problems("anchor7()", "self.anything.at_all = self.more", "K.other") == []


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        ("def g(x, y=gone):\n    return x, z", "gone, z"),
        ("print([x for x in local])", ""),
        ("print([x for x in gone])", "gone"),
        ("print(lambda x: x + y)", "y"),
        ("import os as o, gone.x\nprint(o, gone)", ""),
        ("from x import y as z\nprint(y)", "y"),
        ("try:\n    print(1)\nexcept Gone as e:\n    print(e)", "Gone"),
        ("x: Gone = 1", "Gone"),
        ("@gone\ndef g(): return p", "gone"),
        ("class G(Gone):\n    x = local", "Gone"),
        ("print(f'{gone!r:>{wide}}')", "gone, wide"),
        ("global gone\ngone = 1", ""),
        ("if (w := local):\n    print(w)", ""),
    ],
)
def test_every_use_in_inserted_lines_is_seen(lines: str, missing: str) -> None:
    wanted = [f"the inserted lines use {missing}, not bound there"] if missing else []
    assert problems("anchor()", lines, "outer") == wanted


def test_functions_in_inserted_lines_do_not_see_class_names() -> None:
    assert problems("anchor5()", "def g(self):\n    return first", "K") == [
        "the inserted lines use first, not bound there"
    ]
    # They run later than the class body: what the module binds below it is there by then.
    assert problems("anchor5()", "def g(self):\n    return LAST, K", "K") == []


@pytest.mark.parametrize(
    ("scope", "anchor", "lines", "clash"),
    [
        ("outer", "anchor()", "local = 2", "local"),
        ("outer", "anchor()", "p = 2", "p"),
        ("outer", "anchor()", "kwargs = 2", "kwargs"),
        ("outer", "anchor()", "after_end = 2", "after_end"),
        ("outer", "anchor()", "import x as end", "end"),
        ("outer", "anchor()", "def nested(): return 1", "nested"),
        ("outer", "anchor()", "if (matched := 1): print(1)", "matched"),
        ("outer", "anchor()", "fresh = 1", ""),
        ("outer", "anchor()", "nested_local = 1", ""),
        ("K", "anchor5()", "def method(self): return 2", "method"),
        ("K", "anchor5()", "second = 3", "second"),
        ("K", "anchor5()", "third = 3", ""),
        ("", "LIMIT = 1", "LAST = 2", "LAST"),
        ("", "LIMIT = 1", "def below(): return 2", "below"),
    ],
)
def test_names_of_the_scope_are_not_taken(scope: str, anchor: str, lines: str, clash: str) -> None:
    wanted = [f"the inserted lines use {clash}, already used there for something else"] if clash else []
    assert problems(anchor, lines, scope) == wanted


def edits(*given: tuple[str, Kind, str, str]) -> list[Edit]:
    return [Edit(name, kind, "f", anchor, {"default": 1}, lines + "\n", "why") for name, kind, anchor, lines in given]


@pytest.mark.parametrize(
    ("binds", "uses", "good"),
    [
        (("before", "first()", "_n = 1"), ("after", "second()", "print(_n)"), True),
        (("after", "second()", "_n = 1"), ("before", "first()", "print(_n)"), False),
        (("before", "second()", "_n = 1"), ("wrap", "second()", "{} or _n"), True),
        (("after", "second()", "_n = 1"), ("wrap", "second()", "{} or _n"), False),
        (("wrap", "first()", "_n := {}"), ("after", "first()", "print(_n)"), True),
        (("wrap", "first()", "_n := {}"), ("before", "first()", "print(_n)"), False),
        (("wrap", "second()", "_n := {}"), ("after", "first()", "print(_n)"), False),
    ],
)
def test_edits_use_each_others_names_in_the_order_they_run(
    binds: tuple[Kind, str, str], uses: tuple[Kind, str, str], good: bool
) -> None:
    source = b"def f():\n    first()\n    second()\n"
    for order in (1, -1):
        both = edits(("binds", *binds), ("uses", *uses))[::order]
        found = [str(problem) for problem in weave("m.py", source, both, "1", 1).problems]
        assert (found == []) is good, found
        assert all("edit 'uses': the inserted lines use _n, not bound there" in text for text in found)


def test_names_of_inserted_code() -> None:
    found = names_of("import a.b\nc = d.e\ndef f(g):\n    return c, g, h\n[i for i in j]\n")
    assert found.bound == {"a", "c", "f"}
    assert found.read == {"d", "j"}
    assert found.read_inside >= {"h"}
    assert not found.read_inside & {"g", "i", "d"}
