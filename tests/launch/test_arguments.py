"""slime's flags as a command line has them."""

from __future__ import annotations

from typing import Any

import pytest

from train_infer_consistency.launch.arguments import flag_of, read
from train_infer_consistency.launch.run import Origin, Setting, Unknown
from train_infer_consistency.launch.shell_values import Field
from train_infer_consistency.launch.unknown import mark


def parse(*words: str) -> tuple[dict[str, Any], list[str], list[str]]:
    found: dict[str, Setting] = {}
    unknown, stray = read([Field(word, Origin("run.sh", 1)) for word in words], found)
    values = {key: one.stored for key, one in found.items()}
    return values, [word for _, word in unknown], [word for _, word in stray]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--a-b", "1"], {"a_b": 1}),
        (["--a-b=1"], {"a_b": 1}),
        (["--a_b"], {"a_b": True}),
        (["--lr", "1e-6", "--x", "-1", "--y", "-0.5"], {"lr": 1e-6, "x": -1, "y": -0.5}),
        (["--eval-prompt-data", "aime", "/d/a.jsonl"], {"eval_prompt_data": ["aime", "/d/a.jsonl"]}),
        (["--a", "1", "--a", "2"], {"a": 2}),
        (["--load", "/m/x", "--colocate"], {"load": "/m/x", "colocate": True}),
        (["--path="], {"path": ""}),
        (["--version", "1.2.3"], {"version": "1.2.3"}),
    ],
)
def test_flags(words: list[str], values: dict[str, Any]) -> None:
    assert parse(*words) == (values, [], [])


def test_a_word_that_may_be_any_flag_is_kept_apart() -> None:
    values, unknown, stray = parse("x", "--a", mark("$A"), mark("${MORE[@]}"), "--b")
    assert isinstance(values["a"], Unknown)
    assert values["b"] is True
    assert unknown == ["${MORE[@]}"]
    assert stray == ["x"]


def test_a_flag_is_written_with_hyphens() -> None:
    assert flag_of("sglang_chunked_prefill_size") == "--sglang-chunked-prefill-size"
