"""Our reading of Hydra's override grammar against Hydra itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from train_infer_consistency.launch.overrides import OverrideError, value_of
from train_infer_consistency.launch.run import Unknown

pytestmark = pytest.mark.engines
parser = pytest.importorskip("hydra.core.override_parser.overrides_parser")

REFUSED = "refused"
NAMES = st.text("abz_", min_size=1, max_size=4)
PLAIN = st.one_of(
    NAMES,
    st.integers(-999, 9999).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["true", "False", "null", "NULL", "nan", "-inf", "1e-6", "1_0", "01", "/home/c.json", "a b", "1.", "-.5"]
    ),
    st.text("aB1 /.:_-+$%*@?|~#!;&()=`^<>", min_size=1, max_size=6),
)
QUOTED = st.tuples(st.sampled_from("'\""), st.text("ab1 ,:{}[]=#'\"\\", max_size=6)).map(
    lambda t: t[0] + t[1].replace("\\", "\\\\").replace(t[0], "\\" + t[0]) + t[0]
)
VALUES = st.recursive(
    PLAIN | QUOTED,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
        st.lists(st.tuples(NAMES, inner), max_size=3, unique_by=lambda item: item[0]).map(
            lambda items: "{" + ",".join(f"{key}: {value}" for key, value in items) + "}"
        ),
    ),
    max_leaves=5,
)


def hydra(text: str) -> Any:
    try:
        override = parser.OverridesParser.create().parse_override(f"key={text}")
    except Exception:  # each of its errors is a refusal
        return REFUSED
    return Unknown("a sweep") if override.is_sweep_override() else override.value()


def ours(text: str) -> Any:
    try:
        return value_of(text)
    except OverrideError:
        return REFUSED


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def holds_unknown(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(holds_unknown, value.values()))
    return any(map(holds_unknown, value)) if isinstance(value, list) else isinstance(value, Unknown)


@settings(max_examples=400, deadline=None)
@given(VALUES)
@example('{dump_config_path:"/home/config_generate.json"}')
@example("[console,'wandb']")
@example("a\\,b")
@example("'a\\\\'")
@example(" x ")
@example("")
def test_values_are_those_of_hydra(text: str) -> None:
    mine = ours(text)
    if not holds_unknown(mine):  # said to be unknown: not a claim
        assert same(mine, hydra(text))
