"""The corrected lines: what a mend says is put into the file, and nothing else is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest

from train_infer_consistency.launch import check as module
from train_infer_consistency.launch.check import check
from train_infer_consistency.launch.diff import corrections
from train_infer_consistency.launch.examples import example
from train_infer_consistency.launch.rule import (
    ERROR,
    Found,
    Mend,
    Rule,
    drop_flag,
    drop_msprobe,
    drop_override,
    drop_variable,
    set_flag,
    set_msprobe,
    set_override,
    set_variable,
)
from train_infer_consistency.launch.run import Run

VERL = "ARGS=(\n  a.b=1\n  c.d='x y'  # why\n)\npython3 -m verl.trainer.main_ppo \\\n  \"${ARGS[@]}\" \\\n  +e.f=3\n"
SLIME = "ARGS=(\n   --a-b 1\n   # --a-b 7\n   --flag\n   --many 1 2\n)\npython3 train.py --lr 1 ${ARGS[@]}\n"


@pytest.fixture
def diff(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(files: dict[str, str], *mends: Mend) -> list[str]:
        def judge(run: Run) -> Found:
            keys = [mend.key.lstrip("+-~").replace("-", "_") for mend in mends] + [
                mend.key.lstrip("+") for mend in mends
            ]
            return Found(run.where(*keys), *mends)

        rule = Rule("M999", ERROR, (), judge, fact="f", en="e", zh="z", good="", bad="")
        monkeypatch.setattr(module, "rules_of", lambda scenario: [rule])
        lines = corrections(check(*example("", files)), "en").splitlines()
        return [line for line in lines if line[0] in "+-#" and not line.startswith(("+++", "---"))]

    return make


@pytest.mark.parametrize(
    ("script", "mend", "expected"),
    [
        (VERL, set_override("a.b", 2), ["-  a.b=1", "+  a.b=2"]),
        (VERL, set_override("c.d", "z"), ["-  c.d='x y'  # why", "+  c.d=z  # why"]),
        (VERL, set_override("+e.f", 4), ["-  +e.f=3", "+  +e.f=4"]),
        (VERL, set_override("new.key", True), ["+  new.key=True \\"]),
        (VERL, drop_override("a.b"), ["-  a.b=1"]),
        ("python3 -m verl.trainer.main_ppo a=1 b=2\n", set_override("c", 3),
         ["-python3 -m verl.trainer.main_ppo a=1 b=2", "+python3 -m verl.trainer.main_ppo c=3 a=1 b=2"]),
        ("python3 -m verl.trainer.main_ppo a=1 b=2\n", drop_override("a"),
         ["-python3 -m verl.trainer.main_ppo a=1 b=2", "+python3 -m verl.trainer.main_ppo b=2"]),
        ("python3 -m verl.trainer.main_ppo '+a={b:1}'\n", set_override("+a.b", 2),
         ["# to be changed by hand:", "#   M999 run.sh:1: +a.b=2"]),
        (SLIME, set_flag("--a-b", 2), ["-   --a-b 1", "+   --a-b 2"]),
        (SLIME, drop_flag("--flag"), ["-   --flag"]),
        (SLIME, drop_flag("--many"), ["-   --many 1 2"]),
        (SLIME, set_flag("--new", 5),
         ["-python3 train.py --lr 1 ${ARGS[@]}", "+python3 train.py --new 5 --lr 1 ${ARGS[@]}"]),
        ('ARGS="\n # --a-b 7\n #was --a-b 8\n --a-b 1\n"\npython3 train.py --lr 1 ${ARGS}\n', set_flag("--a-b", 2),
         ["- --a-b 1", "+ --a-b 2"]),
        ("bash -c \"\n# python3 train.py\npython3 train.py --lr 1\"\n", set_flag("--new", 5),
         ["-python3 train.py --lr 1\"", "+python3 train.py --new 5 --lr 1\""]),
        ("CMD=(\n  # python3 train.py\n  python3 train.py --lr 1\n)\n${CMD[@]}\n", set_flag("--new", 5),
         ["-  python3 train.py --lr 1", "+  python3 train.py --new 5 --lr 1"]),
        ("python3 train.py --lr=1 --b -2\n", set_flag("--b", 3),
         ["-python3 train.py --lr=1 --b -2", "+python3 train.py --lr=1 --b 3"]),
    ],
)  # fmt: skip
def test_a_script(diff: Any, script: str, mend: Mend, expected: list[str]) -> None:
    assert diff({"run.sh": script}, mend) == expected


SUBMIT = (
    'JSON="{\n  \\"env_vars\\": {\n    \\"A\\": \\"1\\"\n  }\n}"\n'
    'ray job submit --runtime-env-json="${JSON}" -- python3 train.py --lr 1\n'
)


@pytest.mark.parametrize(
    ("script", "mend", "expected"),
    [
        (SUBMIT, set_variable("A", "0"), ['-    \\"A\\": \\"1\\"', '+    \\"A\\": \\"0\\"']),
        (
            SUBMIT,
            set_variable("B", "2"),
            ['+    \\"B\\": \\"2\\",'],
        ),
        ("export A=1\npython3 train.py --lr 1\n", drop_variable("A"), ["-export A=1"]),
        ("export A=1\npython3 train.py --lr 1\n", set_variable("A", "2"), ["# to be changed by hand:"]),
    ],
)
def test_variables(diff: Any, script: str, mend: Mend, expected: list[str]) -> None:
    found = diff({"run.sh": script}, mend)
    assert [line for line in found if line in expected] == expected


FILE = '{\n  "task": "statistics",\n  "level": "l0",\n  "step": [0],\n  "dump_path": "/d/generate"\n}\n'


@pytest.mark.parametrize(
    ("mend", "expected"),
    [
        (("level", '"L0"'), ['-  "level": "l0",', '+  "level": "L0",']),
        (("step", "[]"), ['-  "step": [0],', '+  "step": [],']),
        (("rank", "[]"), ['+  "rank": [],']),
        (("step", None), ['-  "step": [0],']),
        (("dump_path", None), ['-  "step": [0],', '-  "dump_path": "/d/generate"', '+  "step": [0]']),
    ],
)
def test_an_msprobe_file(diff: Any, mend: tuple[str, str | None], expected: list[str]) -> None:
    key, value = mend
    change = drop_msprobe("g.json", key) if value is None else set_msprobe("g.json", key, value)
    found = diff({"g.json": FILE}, change)
    assert sorted(found) == sorted(expected)


def test_what_is_corrected_is_valid_json_still() -> None:
    report = check(*example("", {"g.json": FILE.replace("[0]", '"0"')}))
    lines = corrections(report, "en").splitlines()[2:]
    corrected = "\n".join(line[1:] for line in lines if line[0] in " +" and not line.startswith("@@"))
    assert json.loads(corrected)["level"] == "L0"


def test_nothing_to_change() -> None:
    text = FILE.replace("l0", "L0")
    assert corrections(check(*example("", {"g.json": text})), "zh") == "# 无需修改"
