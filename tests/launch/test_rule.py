"""A rule's parts: version ranges, and mends as they are pasted."""

from __future__ import annotations

import pytest

from train_infer_consistency.launch.rule import Mend, drop_flag, set_flag, set_msprobe, set_override, within


@pytest.mark.parametrize(
    ("version", "wanted", "answer"),
    [
        ("0.8.0", ">=0.8,<0.9", True),
        ("0.9.1", ">=0.8,<0.9", False),
        ("0.8.0.dev0+gb7dabd83", ">=0.8,<0.9", True),
        ("0.5.10.post1", ">=0.5.10", True),
        ("0.5.9", ">=0.5.10", False),
        ("26.1.0.post1", ">=26.1", True),
        ("26.0.0", "==26.0", True),
        ("26.0.0", "==26", True),
        ("0.18.0", "<=0.18.0", True),
        ("0.18.0", ">0.18.0", False),
        ("0.8", ">=0.8.0", True),
        ("0.8", "<0.8.0", False),
    ],
)
def test_version_ranges(version: str, wanted: str, answer: bool) -> None:
    assert within(version, wanted) is answer


@pytest.mark.parametrize(
    ("mend", "text"),
    [
        (set_override("a.b", True), "a.b=True"),
        (set_override("a.b", None), "a.b=null"),
        (set_override("+a.b", '{c:"/d"}'), "'+a.b={c:\"/d\"}'"),
        (set_override("a.b", "'1'"), "\"a.b='1'\""),
        (set_flag("--a-b", 1), "--a-b 1"),
        (set_flag("--a-b"), "--a-b"),
        (drop_flag("--a-b"), "--a-b"),
        (set_msprobe("f.json", "step", "[]"), '"step": []'),
    ],
)
def test_mends_are_text_to_paste(mend: Mend, text: str) -> None:
    assert mend.text == text
