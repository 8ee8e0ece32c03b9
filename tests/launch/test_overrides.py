"""Hydra's overrides: values, parents and children. tests/engines/test_hydra.py holds the same against Hydra."""

from __future__ import annotations

from typing import Any

import pytest

from train_infer_consistency.launch.overrides import OverrideError, apply, text_of, value_of
from train_infer_consistency.launch.run import Origin, Setting, Unknown
from train_infer_consistency.launch.shell_values import Field
from train_infer_consistency.launch.unknown import mark


def settings(*words: str) -> dict[str, Any]:
    found: dict[str, Setting] = {}
    for word in words:
        apply(Field(word, Origin("run.sh", 1)), found)
    return {key: one.stored for key, one in found.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True), ("false", False), ("null", None), ("1", 1), ("-3", -3), ("1_000", 1000), ("007", "007"),
        ("1e-6", 1e-6), ("1.", 1.0), (".5", 0.5), ("inf", float("inf")), ("1.0.0", "1.0.0"), ("abc", "abc"),
        ("a b", "a b"), ("'1'", "1"), ('"x"', "x"), (r"'a\'b'", "a'b"), ("/home/a.json", "/home/a.json"),
        ("hdfs://x", "hdfs://x"), ("", ""), ("[1,a,'b c']", [1, "a", "b c"]), ("[]", []), ("{}", {}),
        ('{dump_config_path:"/home/c.json"}', {"dump_config_path": "/home/c.json"}),
        ("{a: {b: [1, null]}, c: x y}", {"a": {"b": [1, None]}, "c": "x y"}), ("None", "None"),
    ],
)  # fmt: skip
def test_values(text: str, value: object) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


@pytest.mark.parametrize("text", ["{a:1", "[1,", "'a", "[1,,2]", "{a}", "a=b", "a'b", "{'a':1}", "a#b", "[1]]"])
def test_what_hydra_refuses_is_refused(text: str) -> None:
    with pytest.raises(OverrideError):
        value_of(text)


@pytest.mark.parametrize("text", ["a,b", "${x.y}", "int(3)", "choice(a,b)", mark("$1"), f"/d/{mark('$1')}"])
def test_what_cannot_be_known_is_unknown(text: str) -> None:
    assert isinstance(value_of(text), Unknown)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("a=1", "a=2"), {"a": 2}),
        (("+a.b=1", "++a.c=2"), {"a.b": 1, "a.c": 2}),
        (("a={b:1,c:{d:x}}",), {"a": {"b": 1, "c": {"d": "x"}}, "a.b": 1, "a.c": {"d": "x"}, "a.c.d": "x"}),
        (("a.b=1", "a=null"), {"a": None}),
        (("a=null", "a.b=1"), {"a": None, "a.b": 1}),
        (("a.b=1", "~a"), {"a": None}),
        (("a.b=1", "a={c:2}"), {"a.b": 1, "a": {"c": 2}, "a.c": 2}),
        (("trainer@x=1",), {"trainer": 1}),
    ],
)
def test_later_ones_win_and_a_parent_takes_its_children(words: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert settings(*words) == expected


@pytest.mark.parametrize("word", ["a", "=1", "a b=1", "a..b=1"])
def test_what_is_no_override(word: str) -> None:
    with pytest.raises(OverrideError):
        settings(word)


def test_a_value_is_written_as_it_is_read() -> None:
    value = {"a": [1, None, True], "b": {"c": "x"}}
    assert value_of(text_of(value)) == value
