"""What checking says besides its rules is there in both languages."""

from __future__ import annotations

import re
import string

import pytest

from train_infer_consistency.launch.words import WORDS, Said, language_of

CHINESE = re.compile("[\u4e00-\u9fff]")


def names(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_words_are_in_both_languages() -> None:
    for key, (english, chinese) in WORDS.items():
        assert CHINESE.search(chinese), key
        assert not CHINESE.search(english), key
        assert names(english) == names(chinese), key


def test_a_sentence_is_said_in_a_language() -> None:
    said = Said("not-here", path="a.sh")
    assert (str(said), said.text("zh")) == ("a.sh is not here", "此处没有 a.sh")


def test_a_long_text_is_cut() -> None:
    said = Said("no-override", word="x" * 100_000)
    assert len(said.text()) < 400
    assert said.text().startswith("Hydra takes xxx")


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "C", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LC_ALL": "", "LANG": "zh"}, "zh"),
    ],
)
def test_the_language_is_the_locales(environment: dict[str, str], language: str) -> None:
    assert language_of(environment) == language
