"""Whatever stands in a script or a file: it is judged or named, and never an exception."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train_infer_consistency.launch.check import check
from train_infer_consistency.launch.diff import corrections
from train_infer_consistency.launch.examples import example
from train_infer_consistency.launch.rules import all_rules
from train_infer_consistency.launch.run import SCENARIOS, SLIME, Run, Setting

ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 99), st.floats(), st.text("aL0-/ 3", max_size=4)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=4,
)
MSPROBE_KEYS = st.sampled_from(
    ["task", "dump_path", "rank", "step", "level", "precision", "dump_enable", "load", "statistics", "tensor"]
)
PIECES = st.sampled_from(
    ["python3 -m verl.trainer.main_ppo", " python3 train.py ", "--lr", " a.b=", "1", "'", '"', "$(", ")", "${", "}",
     "$A", "if x; then", "fi", "for", "case", "esac", ";;", "done", "{", "(", "<<EOF", "EOF", "\n", "\\\n", "|", "&&",
     "export A=", "A=(", "#", " ", "[", ",", "ray job submit --runtime-env-json=", "--", "~", "`", "$((", "))", "中"]
)  # fmt: skip


def keys_that_rules_ask_for(scenario: str) -> set[str]:
    """Every key that a rule looks at, by watching it ask."""
    seen: set[str] = set()

    class Watched(dict[str, Setting]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            seen.add(key)
            return super().get(key, default)

        def __contains__(self, key: object) -> bool:
            seen.add(str(key))
            return super().__contains__(key)

    run: Run = example(scenario, "--lr 1" if scenario == SLIME else "a.b=1")[0]
    run.hydra, run.slime = Watched(run.hydra), Watched(run.slime)
    check(run)
    return {key for key in seen if key and not key.startswith("-")}


KEYS = {scenario: sorted(keys_that_rules_ask_for(scenario)) for scenario in SCENARIOS}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_script(text: str) -> None:
    report = check(*example("", {"run.sh": text}))
    assert report.status in (0, 1, 3)
    corrections(report, "en")


@pytest.mark.parametrize("inside", ["$(", "${", "`", "$((", "${A:-$(}", "$'"])
@pytest.mark.parametrize(
    "text",
    ["cat > a.json <<EOF\n{}\nEOF\n", "run <<EOF\n{}\nEOF\n", 'run "${{A:-{}}}"\n', "run ${{A:-{}}}\n", "A={}\n"],
)
def test_what_has_no_end_wherever_it_stands(text: str, inside: str) -> None:
    text = text.format(inside) + "python3 -m verl.trainer.main_ppo a=1\n"
    assert check(*example("", {"run.sh": text})).status in (1, 3)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(MSPROBE_KEYS, ANYTHING, max_size=6))
def test_any_msprobe_file(content: dict[str, object]) -> None:
    files = {"config_generate.json": json.dumps(content), "config_actor.json": json.dumps(content)}
    report = check(*example("", files))
    assert report.status in (0, 1, 3)
    corrections(report, "zh")


@pytest.mark.parametrize("scenario", SCENARIOS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_values_of_the_settings_that_rules_look_at(scenario: str, data: st.DataObject) -> None:
    assert len(KEYS[scenario]) > 10
    values = st.sampled_from(["1", "0", "-1", "null", "true", "x", "[1]", "{a:1}", "''", "1.5", "$X", "'1'"])
    chosen = data.draw(st.dictionaries(st.sampled_from(KEYS[scenario]), values, max_size=6))
    if scenario == SLIME:
        words = [f"--{key.replace('_', '-')} {value}" for key, value in chosen.items()]
    else:
        words = [f"'+{key}={value}'".replace("''", "") for key, value in chosen.items()]
    report = check(*example(scenario, " ".join(["--lr 1" if scenario == SLIME else "a.b=1", *words])))
    assert report.status in (0, 1, 3)
    corrections(report, "en")


def test_there_are_rules_for_every_scenario() -> None:
    for scenario in SCENARIOS:
        assert sum(scenario in rule.scenarios for rule in all_rules()) > 20
