"""The example commands of the two published procedures, as lists of settings: exactly the findings the facts imply."""

from __future__ import annotations

import json

import pytest

from train_infer_consistency.launch.check import Finding, Report, check
from train_infer_consistency.launch.examples import example
from train_infer_consistency.launch.rule import ERROR, NOTE, WARNING

ADDITIONAL = (
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config={dump_config_path:/home/config_generate.json}"
)
BOTH_VERL = [
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.actor.use_dynamic_bsz=False",
    "actor_rollout_ref.rollout.enforce_eager=True",
    ADDITIONAL,
    "trainer.val_before_train=False",
]
HYBRID = [*BOTH_VERL, "trainer.balance_batch=False"]
FULLY_ASYNC = [
    *BOTH_VERL,
    "data.train_batch_size=0",
    "data.shuffle=False",
    "actor_rollout_ref.hybrid_engine=False",
    "algorithm.rollout_correction.bypass_mode=False",
    "algorithm.rollout_correction=null",
]
SLIME = {
    "--num-rollout": "1",
    "--rollout-batch-size": "1",
    "--n-samples-per-prompt": "4",
    "--global-batch-size": "4",
    "--actor-num-gpus-per-node": "4",
    "--tensor-model-parallel-size": "1",
    "--pipeline-model-parallel-size": "1",
    "--context-parallel-size": "1",
    "--data-pad-size-multiplier": "1",
    "--no-gradient-accumulation-fusion": "",
    "--sglang-disable-cuda-graph": "",
    "--sglang-chunked-prefill-size": "16384",
}
DP_ATTENTION = {
    "--rollout-num-gpus-per-engine": "4",
    "--sglang-dp-size": "4",
    "--sglang-enable-dp-attention": "",
}
SLIME_VARIABLES = {
    "DUMP_ON": "1",
    "PROMPTS_ONLY": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "MSPROBE_SEED": "1234",
    "MSPROBE_CONFIG_PATH": "/dump/config_actor.json",
    "SGLANG_MSPROBE_DUMP": "1",
    "MSPROBE_GENERATE_CONFIG": "/dump/config_generate.json",
    "MSPROBE_MIN_DUMP_TOKENS": "2",
}


def msprobe(folder: str, level: str, steps: list[int]) -> str:
    """An msprobe file of statistics as both procedures print it."""
    lists: dict[str, object] = {"scope": [], "list": [], "tensor_list": []}
    statistics = {**lists, "data_mode": ["all"], "summary_mode": "statistics"}
    whole = {"task": "statistics", "dump_path": folder, "rank": [], "step": steps, "level": level, "async_dump": False}
    return json.dumps({**whole, "statistics": statistics}, indent=1)


VERL_FILES = {
    "config_generate.json": msprobe("/dump_data/generate_sequence", "L0", []),
    "config_actor.json": msprobe("/dump_data/update_actor", "L0", []),
}
SLIME_FILES = {
    "config_generate.json": msprobe("/dumps/generate", "mix", [0]),
    "config_actor.json": msprobe("/dumps", "mix", [0]),
}


def verl(entry: str, settings: list[str], variables: dict[str, str]) -> Report:
    """Check a verl command of the procedure's form."""
    exports = "".join(f"export {name}={value}\n" for name, value in variables.items())
    words = " \\\n    ".join(f"'{setting}'" for setting in settings)
    return check(*example("", {"run.sh": f"{exports}python3 -m {entry} \\\n    {words}\n", **VERL_FILES}))


def hybrid(settings: list[str], **variables: str) -> Report:
    return verl("verl.trainer.main_ppo", settings, {"DUMP_ON": "1", "PROMPTS_ONLY": "1", **variables})


def fully_async(settings: list[str], **variables: str) -> Report:
    entry = "verl.experimental.fully_async_policy.fully_async_main"
    return verl(entry, settings, {"DUMP_ON": "1", "PROMPTS_ONLY": "1", "TORCHDYNAMO_DISABLE": "1", **variables})


def slime(flags: dict[str, str], stack: str = "slime-0.2.2", **variables: str) -> Report:
    """Check a slime command that is submitted as the procedure says."""
    words = " ".join(f"{flag} {value}".rstrip() for flag, value in flags.items())
    environment = json.dumps({"env_vars": {**SLIME_VARIABLES, **variables}})
    script = f"ray job submit --runtime-env-json='{environment}' \\\n -- python3 train.py {words}\n"
    return check(*example("", {"run.sh": script, **SLIME_FILES}, stack))


def by_severity(report: Report) -> dict[str, list[str]]:
    assert report.unread == []
    found: dict[str, list[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.rule.severity, []).append(finding.rule.code)
    return found


def target_only(report: Report) -> list[str]:
    """What only the target machine can show; nothing else may be left unchecked."""
    assert all(one.target for one in report.unchecked)
    return [one.rule.code for one in report.unchecked]


def test_verl_hybrid() -> None:
    report = hybrid(HYBRID)
    assert by_severity(report) == {
        # Prefix caching, and the two micro-batch sizes, without which verl stops.
        ERROR: ["V104", "V206", "V207"],
        # Variables of one shell, TorchDynamo, packed prefills.
        WARNING: ["E008", "E016", "V107"],
        # The documented place of the training side's file, the run's id, the ends, the shuffle, 30 epochs.
        NOTE: ["E011", "E014", "E015", "V219", "V220"],
    }
    assert report.status == 1
    assert target_only(report) == ["M014"]


def test_verl_fully_async() -> None:
    report = fully_async(FULLY_ASYNC)
    assert by_severity(report) == {
        # As above, and FSDP2, which the switched-off bypass needs.
        ERROR: ["V104", "V206", "V207", "V306"],
        # The procedure leaves balance_batch out here, and the three settings that let weights drift apart.
        WARNING: ["E008", "V107", "V205", "V303", "V304", "V305"],
        NOTE: ["E011", "E014", "E015"],
    }
    assert target_only(report) == ["M014"]


def test_slime() -> None:
    report = slime(SLIME)
    assert by_severity(report) == {ERROR: ["S204"], WARNING: ["S206"], NOTE: ["E014", "S212", "S309"]}
    # The prompt's length is the data's: said, and the status is left alone.
    assert target_only(report) == ["M014", "S205"]


def test_slime_with_the_newer_sglang() -> None:
    report = slime(SLIME, "slime-0.2.4")
    assert by_severity(report) == {ERROR: ["S204"], WARNING: ["S202", "S206"], NOTE: ["E014", "S212", "S309"]}


def test_the_four_cards_example_of_slime() -> None:
    report = slime(SLIME | DP_ATTENTION)
    assert by_severity(report) == {ERROR: ["S204", "S209"], WARNING: ["S206"], NOTE: ["E014", "S212", "S309"]}
    assert "4096" in next(one.en for one in report.unchecked if one.rule.code == "S205")


def test_sglang_with_msprobe_of_its_own() -> None:
    report = slime(SLIME, "slime=0.2.4,sglang=0.5.11")
    assert "S213" in by_severity(report)[ERROR]
    native = slime(SLIME | {"--sglang-msprobe-dump-config": "/dump/config_generate.json"}, "slime=0.2.4,sglang=0.5.11")
    assert {"S215"} <= set(by_severity(native)[ERROR])
    assert "S213" not in by_severity(native)[ERROR]


def written(findings: list[Finding], kind: str) -> list[str]:
    return [mend.text for finding in findings for mend in finding.mends if mend.kind == kind and mend.value is not None]


@pytest.mark.parametrize(("run", "settings"), [(hybrid, HYBRID), (fully_async, FULLY_ASYNC)])
def test_what_is_said_mends_verl(run: object, settings: list[str]) -> None:
    assert callable(run)
    first = run(settings)
    mended = run([*settings, *written(first.findings, "hydra")])
    assert {one.rule.code for one in mended.broken if one.rule.code[0] == "V"} == set()


def test_what_is_said_mends_slime() -> None:
    first = slime(SLIME | DP_ATTENTION)
    flags = SLIME | DP_ATTENTION
    for finding in first.findings:
        for mend in finding.mends:
            if mend.kind == "flag" and mend.value is None:
                del flags[mend.key]
            elif mend.kind == "flag":
                flags[mend.key] = str(mend.value)
    mended = slime(flags)
    assert mended.broken == []
    assert mended.status == 0
