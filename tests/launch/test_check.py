"""What a report says and which status it has: never fine where something was not read or not known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from train_infer_consistency.launch import check as module
from train_infer_consistency.launch.check import Report, check
from train_infer_consistency.launch.examples import example
from train_infer_consistency.launch.inputs import read
from train_infer_consistency.launch.rule import ERROR, NOTE, OUT, WARNING, Found, NotChecked, Rule
from train_infer_consistency.launch.run import SLIME, VERL, VERL_HYBRID, Origin, Run
from train_infer_consistency.launch.words import Said


def one_rule(answer: object, severity: str = ERROR, scenarios: tuple[str, ...] = ()) -> Rule:
    def judge(run: Run) -> Any:
        return answer

    return Rule("M999", severity, scenarios, judge, fact="f", en="is {value}", zh="为 {value}", good="", bad="")


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Any:
    def judge(rule: Rule, run: Run | None = None) -> Report:
        monkeypatch.setattr(module, "rules_of", lambda scenario: [rule])
        return check(run or Run())

    return judge


FOUND = Found(Origin("run.sh", 3), value=7)


@pytest.mark.parametrize(
    ("answer", "severity", "status"),
    [
        (None, ERROR, 0),
        (OUT, ERROR, 3),
        (FOUND, ERROR, 1),
        (FOUND, WARNING, 1),
        (FOUND, NOTE, 0),
        ([FOUND, FOUND], ERROR, 1),
        (NotChecked("e", "z"), ERROR, 3),
        (NotChecked("e", "z", target=True), ERROR, 0),
    ],
)
def test_status_of_an_answer(judged: Any, answer: object, severity: str, status: int) -> None:
    assert judged(one_rule(answer, severity)).status == status


def test_unread_input_is_3_and_a_broken_rule_outranks_it(judged: Any) -> None:
    run = Run()
    run.unread.append((Origin("a.sh"), Said("no-utf8")))
    assert judged(one_rule(None), run).status == 3
    assert judged(one_rule(FOUND), run).status == 1


def test_what_only_the_target_can_show_leaves_the_status_alone(judged: Any) -> None:
    run = Run()
    run.target_only.append(Said("target-packages"))
    assert judged(one_rule(None), run).status == 0


def test_an_unknown_value_is_never_fine() -> None:
    known = check(*example(VERL_HYBRID, "actor_rollout_ref.rollout.enforce_eager=True"))
    unknown = check(*example(VERL_HYBRID, "actor_rollout_ref.rollout.enforce_eager=$EAGER"))
    assert "V101" not in [one.rule.code for one in known.unchecked]
    (one,) = [one for one in unknown.unchecked if one.rule.code == "V101"]
    assert (one.en, str(one.origin)) == ("actor_rollout_ref.rollout.enforce_eager is unknown here: $EAGER", "run.sh:1")
    assert "V101" in unknown.applied


def test_texts_are_filled_in_both_languages(judged: Any) -> None:
    (finding,) = judged(one_rule(FOUND)).findings
    assert (finding.en, finding.zh, str(finding.origin)) == ("is 7", "为 7", "run.sh:3")


def test_a_rule_applies_to_its_scenarios_and_versions() -> None:
    rule = one_rule(None, scenarios=VERL)
    rule.needs = {"verl": ">=0.9"}
    run = Run(VERL_HYBRID)
    assert rule.applies(run)
    run.stack = {"verl": "0.8.0"}
    assert not rule.applies(run)
    run.stack = {"verl": "0.9.1"}
    assert rule.applies(run)
    assert not rule.applies(Run(SLIME))


def test_several_runs_say_what_they_share_once() -> None:
    text = "python3 -m verl.trainer.main_ppo $EXTRA\n" * 2
    runs = example("", {"run.sh": "export DUMP_ON=maybe\n" + text})
    report = check(*runs)
    assert len(runs) == 2
    assert [str(one.origin) for one in report.findings if one.rule.code == "E001"] == ["run.sh:1"]
    assert len({(one.rule.code, one.en) for one in report.unchecked}) == len(report.unchecked)


def test_nothing_recognised_is_3(tmp_path: object) -> None:
    assert check(*read([], ["ls"])).status == 3


def test_an_msprobe_file_alone_is_judged() -> None:
    text = json.dumps({"task": "statistics", "dump_path": "/d/generate", "level": "L0"})
    assert check(*example("", {"config_generate.json": text})).status == 0
    assert check(*example("", {"config_generate.json": text.replace("L0", "l0")})).status == 1


def test_an_msprobe_file_that_is_known_in_part() -> None:
    text = '{"task": "statistics", "dump_path": "$ROOT/generate", "level": "L0", "rank": []}'
    script = (
        f"cat > /h/config_generate.json <<EOF\n{text}\nEOF\nexport MSPROBE_GENERATE_CONFIG=/h/config_generate.json\n"
    )
    report = check(*example("", {"run.sh": script + "python3 train.py --lr 1\n"}))
    unknown = {one.rule.code: str(one.origin) for one in report.unchecked if one.rule.code.startswith("M")}
    assert unknown["M001"] == unknown["M008"] == "run.sh:2"
    assert "M004" not in unknown
    assert not [one for one in report.findings if one.rule.code.startswith("M")]
