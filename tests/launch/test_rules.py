"""Every rule's examples through the whole of check: the bad one gives its code, the good one does not."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from train_infer_consistency.capture import verl as capture
from train_infer_consistency.launch import defaults
from train_infer_consistency.launch import rules as registry
from train_infer_consistency.launch.check import Report, check
from train_infer_consistency.launch.examples import example
from train_infer_consistency.launch.rule import ERROR, NOTE, WARNING, Found, Rule, release
from train_infer_consistency.launch.rules import verl_capture
from train_infer_consistency.launch.run import VERL_FULLY_ASYNC, VERL_HYBRID
from train_infer_consistency.overlay.lock import load_lock

RULES = registry.all_rules()


def report(rule: Rule, kind: str) -> Report:
    """What checking says of an example."""
    scenario = (rule.scenarios or (VERL_HYBRID,))[0]
    return check(*example(scenario, getattr(rule, kind)))


def failures(tried: Iterable[Rule]) -> list[str]:
    """The rules whose examples do not show what they shall."""
    found = []
    for rule in tried:
        bad, good = report(rule, "bad"), report(rule, "good")
        unchecked = {one.rule.code for one in good.unchecked}
        shown = rule.code in {one.rule.code for one in bad.findings}
        held = rule.code in good.applied and rule.code not in {one.rule.code for one in good.findings} | unchecked
        if not (shown and held):
            found.append(rule.code)
    return found


def test_every_example_shows_its_rule() -> None:
    assert failures(RULES) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_that_never_fires_is_caught(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "check", lambda run: None)
    assert failures([rule]) == [rule.code]


def test_codes_are_unique() -> None:
    modules = {name for names in registry.MODULES.values() for name in names}
    written = [
        rule.code
        for name in sorted(modules)
        for rule in __import__(registry.__name__ + "." + name, fromlist=["x"]).RULES
    ]
    assert sorted(set(written)) == sorted(written)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_texts_are_whole(rule: Rule) -> None:
    names = [set(re.findall(r"{(\w+)}", text)) for text in (rule.en, rule.zh)]
    assert names[0] == names[1]
    assert rule.severity in (ERROR, WARNING, NOTE)
    assert rule.fact
    assert not rule.en.endswith(".")
    assert not rule.zh.endswith("。")
    assert re.search("[\u4e00-\u9fff]", rule.zh)
    assert not re.search("[\u4e00-\u9fff]", rule.en)
    for finding in report(rule, "bad").findings:
        assert "{" not in finding.en.replace("{dump_config_path", "")


#: These look at the versions alone.
VERSIONED = ("V225", "S312")


@pytest.mark.parametrize(
    "rule",
    [rule for rule in RULES if rule.code[0] in "VS" and rule.code not in VERSIONED],
    ids=lambda rule: rule.code,
)
def test_an_unknown_argument_is_never_fine(rule: Rule) -> None:
    """Where any argument may be set by ``$EXTRA``, a rule that holds by a default alone says so."""
    scenario = rule.scenarios[0]
    known = check(*example(scenario, "trainer.device=npu" if scenario in (VERL_HYBRID, VERL_FULLY_ASYNC) else "--lr 1"))
    given = "trainer.device=npu $EXTRA" if scenario in (VERL_HYBRID, VERL_FULLY_ASYNC) else "--lr 1 $EXTRA"
    unknown = check(*example(scenario, given))
    if rule.code in known.applied:
        assert rule.code in {one.rule.code for one in unknown.unchecked}


def test_an_own_configuration_is_unknown() -> None:
    found = check(*example(VERL_HYBRID, "--config-path=/c --config-name=mine trainer.balance_batch=True"))
    codes = {one.rule.code for one in found.findings if one.rule.code.startswith("V")}
    assert codes == {"V205"}
    assert {"V101", "V102", "V104", "V110", "V202", "V203"} <= {one.rule.code for one in found.unchecked}
    assert found.status == 1


def test_a_parent_set_to_null_takes_its_children() -> None:
    text = "algorithm.rollout_correction=null async_training.partial_rollout=False"
    found = check(*example(VERL_FULLY_ASYNC, text + " actor_rollout_ref.actor.strategy=fsdp"))
    assert "V306" in {one.rule.code for one in found.findings}


def test_the_engine_keywords_have_the_last_word() -> None:
    text = (
        "actor_rollout_ref.rollout.enforce_eager=True +actor_rollout_ref.rollout.engine_kwargs.vllm.enforce_eager=False"
    )
    found = [one for one in check(*example(VERL_HYBRID, text)).findings if one.rule.code == "V101"]
    assert [mend.text for mend in found[0].mends] == [
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.enforce_eager=True"
    ]


@pytest.mark.parametrize(
    ("given", "cards", "codes"),
    [
        ("--tensor-model-parallel-size 2 --n-samples-per-prompt 4 --global-batch-size 4", 8, set()),
        ("--tensor-model-parallel-size 2 --n-samples-per-prompt 8 --global-batch-size 8", 8, {"S103", "S104"}),
        ("--pipeline-model-parallel-size 4 --n-samples-per-prompt 2 --global-batch-size 2", 8, set()),
        ("--context-parallel-size 3", 8, {"S101"}),
        ("--rollout-batch-size 1 --n-samples-per-prompt 8 --num-steps-per-rollout 1", 8, set()),
    ],
)
def test_data_parallel_arithmetic(given: str, cards: int, codes: set[str]) -> None:
    found = check(*example("slime", f"--actor-num-gpus-per-node {cards} {given}"))
    assert {one.rule.code for one in found.findings} & {"S101", "S103", "S104"} == codes


def test_the_covered_strategies_are_the_captures() -> None:
    assert verl_capture.COVERED == capture._STRATEGIES


def test_the_covered_releases_are_the_locks() -> None:
    pins = load_lock().upstreams
    locked = {name: {release(version) for version in pins[name]} for name in defaults.COVERED}
    # 0.5.10.post1 counts as 0.5.10, a variant as what it is one of.
    assert {name: set(versions) for name, versions in defaults.COVERED.items()} == {
        name: {version[:3] for version in versions if version} for name, versions in locked.items()
    }


def test_a_mend_mends() -> None:
    """What a rule says to write makes it hold: each flag or override alone, added to the bad example."""
    missing = []
    for rule in RULES:
        if rule.code[0] not in "VS" or not isinstance(rule.bad, str) or "\n" in rule.bad:
            continue
        found = rule.check(example(rule.scenarios[0], rule.bad)[0])
        mends = found.mends if isinstance(found, Found) else ()
        if not mends or any(mend.value is None or mend.kind == "env" for mend in mends):
            continue
        mended = " ".join([rule.bad, *(mend.text for mend in mends)])
        if rule.code in {one.rule.code for one in check(*example(rule.scenarios[0], mended)).findings}:
            missing.append(rule.code)
    assert missing == []


def codes(scenario: str, given: str) -> set[str]:
    return {one.rule.code for one in check(*example(scenario, given)).findings}


@pytest.mark.parametrize(
    ("variables", "settings", "found"),
    [
        # Bypassed by default, and no added pass: nothing is dumped, and no weights are switched.
        ("DUMP_ON=1", "", {"V212"}),
        ("DUMP_ON=1 PROMPTS_ONLY=0", "", {"V212"}),
        # The added pass switches weights, which needs FSDP2.
        ("DUMP_ON=1 PROMPTS_ONLY=1", "", {"V306"}),
        ("DUMP_ON=1 PROMPTS_ONLY=1", "actor_rollout_ref.actor.strategy=fsdp2", set()),
        # So does the trainer's own forward.
        ("DUMP_ON=1", "algorithm.rollout_correction.bypass_mode=False", {"V306"}),
        ("DUMP_ON=1", "algorithm.rollout_correction=null actor_rollout_ref.actor.strategy=fsdp2", set()),
        ("DUMP_ON=1 PROMPTS_ONLY=1", "--config-name=fully_async_ppo_megatron_trainer.yaml", set()),
    ],
)
def test_bypass_and_sharding(variables: str, settings: str, found: set[str]) -> None:
    command = f"python3 -m verl.experimental.fully_async_policy.fully_async_main {settings} trainer.test_freq=-1"
    assert codes(VERL_FULLY_ASYNC, f"export {variables}\n{command}") & {"V212", "V306"} == found


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        ("--sglang-chunked-prefill-size 4096 --rollout-max-prompt-len 4095", False),
        ("--sglang-chunked-prefill-size 4096 --rollout-max-prompt-len 4096", True),
        ("--sglang-chunked-prefill-size 4096 --sglang-dp-size 2 --rollout-max-prompt-len 2047", False),
        ("--sglang-chunked-prefill-size 4096 --sglang-data-parallel-size 2 --rollout-max-prompt-len 2048", True),
        ("--sglang-chunked-prefill-size -1 --rollout-max-prompt-len 100000", False),
    ],
)
def test_a_chunk_against_the_prompt(given: str, broken: bool) -> None:
    assert ("S205" in codes("slime", given)) is broken


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("data.train_batch_size=8 trainer.n_gpus_per_node=8", set()),
        ("data.train_batch_size=4 trainer.n_gpus_per_node=8", {"V210"}),
        ("data.train_batch_size=4 actor_rollout_ref.rollout.n=2 trainer.n_gpus_per_node=8", set()),
        (
            (
                "data.train_batch_size=4 trainer.n_gpus_per_node=8 model_engine=megatron "
                "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"
            ),
            set(),
        ),
        ("data.train_batch_size=4 trainer.n_gpus_per_node=8 actor_rollout_ref.actor.use_dynamic_bsz=True", set()),
        ("data.train_batch_size=4 trainer.n_gpus_per_node=$1", set()),
    ],
)
def test_a_batch_against_the_cards(given: str, found: set[str]) -> None:
    assert codes(VERL_HYBRID, f"{given} actor_rollout_ref.actor.ppo_mini_batch_size=4") & {"V209", "V210"} == found


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        ("--rollout-num-gpus 1", False),
        ("--rollout-num-gpus 2", True),
        ("--rollout-num-gpus 2 --rollout-num-gpus-per-engine 2", False),
        ("--colocate --actor-num-gpus-per-node 2", True),
        ("--rollout-num-gpus 2 --router-policy round_robin", False),
    ],
)
def test_the_router_matters_where_there_are_several_engines(given: str, broken: bool) -> None:
    assert ("S211" in codes("slime", given)) is broken


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("--rollout-num-gpus 4", 4),
        ("--rollout-num-gpus 8 --rollout-num-gpus-per-engine 2", 4),
        ("--rollout-num-gpus 5 --rollout-num-gpus-per-engine 2", 2),
        ("--colocate --actor-num-gpus-per-node 4 --actor-num-nodes 3 --rollout-num-gpus-per-engine 2", 6),
        ("--colocate --actor-num-gpus-per-node 4 --rollout-num-gpus 64", 4),
    ],
)
def test_the_router_has_so_many_engines(given: str, count: int) -> None:
    (found,) = [one for one in check(*example("slime", given)).findings if one.rule.code == "S211"]
    assert f"one of {count} engines" in found.en
    assert f"{count} 个引擎" in found.zh


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0", set()),
        ("' 0 '", set()),
        ("1", {"E013"}),
        ("2", {"E013"}),
        ("false", {"E017"}),
        ("no", {"E017"}),
        ("true", {"E017"}),
        ("0.0", {"E017"}),
        ("''", {"E017"}),
    ],
)
def test_the_v2_runners_switch_is_a_number(value: str, found: set[str]) -> None:
    script = f"export VLLM_USE_V2_MODEL_RUNNER={value}\npython3 -m verl.trainer.main_ppo\n"
    assert codes(VERL_HYBRID, script) & {"E013", "E017"} == found
