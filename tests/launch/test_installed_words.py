"""Every sentence that doctor may put into a check has its Chinese: the sentences are taken from doctor's own source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from train_infer_consistency.launch.installed_words import _SENTENCES, chinese
from train_infer_consistency.overlay import demands, doctor, status

CHINESE = re.compile("[\u4e00-\u9fff]")
#: What a check shows of doctor's findings.
SHOWN = ("wrong", "warning")


def text_of(node: ast.expr) -> str | None:
    """A sentence of the source, with X for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    if isinstance(node, ast.BoolOp):  # "; ".join(…) or "its files …"
        return text_of(node.values[-1])
    return None


def functions(module: object) -> Iterator[ast.FunctionDef]:
    tree = ast.parse(Path(str(getattr(module, "__file__"))).read_text(encoding="utf-8"))  # noqa: B009
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def said_by_doctor() -> Iterator[str]:
    for function in (*functions(doctor), *functions(demands)):
        values: dict[str, str] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                text = text_of(node.value)
                if text is not None:
                    values[f"{node.targets[0].id}:{node.lineno}"] = text
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"):
                continue
            level = node.args[0]
            if isinstance(level, ast.Constant) and level.value not in SHOWN:
                continue
            for argument in node.args[2:]:
                if isinstance(argument, ast.Name):  # the last one that was written before the call
                    lines = [int(key.partition(":")[2]) for key in values if key.startswith(argument.id + ":")]
                    before = [line for line in lines if line < node.lineno]
                    text = values[f"{argument.id}:{max(before)}"] if before else None
                else:
                    text = text_of(argument)
                if text is not None:
                    yield text


def notes_of_status() -> Iterator[str]:
    for function in functions(status):
        for node in ast.walk(function):
            found: list[ast.expr] = []
            if isinstance(node, ast.keyword) and node.arg == "note":
                found = [node.value]
            elif isinstance(node, (ast.Assign, ast.AugAssign)):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    found = [
                        value
                        for name, value in zip(target.elts, node.value.elts, strict=True)
                        if isinstance(name, ast.Name) and name.id == "note"
                    ]
                elif isinstance(target, ast.Name) and target.id in ("note", "notes"):
                    found = list(node.value.elts) if isinstance(node.value, ast.Tuple) else [node.value]
            yield from (text for text in map(text_of, found) if text)


SAID = sorted({*said_by_doctor(), *notes_of_status()})


def test_the_source_is_read() -> None:
    assert len(SAID) > 30
    assert "X requires X, installed is X" in SAID
    assert "it was removed since" in SAID


@pytest.mark.parametrize("text", SAID)
def test_every_sentence_has_its_chinese(text: str) -> None:
    translated = chinese(text)
    assert "英文原文" not in translated
    assert CHINESE.search(translated) or text.startswith(("consistency ", "pip "))


def test_no_sentence_is_translated_that_nobody_says() -> None:
    ours = {one for one in _SENTENCES if one.startswith("is installed without the overlay")}
    assert {one.replace("{}", "X") for one in _SENTENCES.keys() - ours} <= set(SAID)


def test_sentences_are_filled_in() -> None:
    assert chinese("verl 0.8.0 requires ray>=2.41, installed is 2.40") == "verl 0.8.0 要求 ray>=2.41，已安装 2.40"
    assert chinese("only some of its files are woven; a/b.py is it was removed since") == (
        "只有部分文件已织入；a/b.py：之后被删除"
    )
    assert chinese("something else") == "something else（doctor 的英文原文）"
    assert chinese("consistency overlay apply verl") == "consistency overlay apply verl"


def test_both_languages_fill_in_the_same() -> None:
    assert all(english.count("{}") == translation.count("{}") for english, translation in _SENTENCES.items())
