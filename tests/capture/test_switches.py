"""The parser of switches: every word it takes, and that nothing else passes silently."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capture.conftest import Process
from train_infer_consistency.capture import switches as module
from train_infer_consistency.capture.switches import CaptureError, Switches, parse_integer, parse_switch

ON = ["1", "true", "TRUE", "yes", " on ", "On"]
OFF = ["0", "false", "no", "off", "", "  ", "OFF", None]


@pytest.mark.parametrize("word", ON)
def test_on(word: str) -> None:
    assert parse_switch("DUMP_ON", word) is True


@pytest.mark.parametrize("word", OFF)
def test_off(word: str | None) -> None:
    assert parse_switch("DUMP_ON", word) is False


@given(st.text())
def test_every_other_word_is_an_error_that_names_the_variable(word: str) -> None:
    if word.strip().lower() in {"1", "true", "yes", "on", "", "0", "false", "no", "off"}:
        return
    with pytest.raises(CaptureError, match="DUMP_ON") as caught:
        parse_switch("DUMP_ON", word)
    assert len(str(caught.value).splitlines()) == 1


@given(st.integers(-10, 10**10))
def test_integers_within_their_range_and_no_others(number: int) -> None:
    if 0 <= number <= 2**32 - 1:
        assert parse_integer("MSPROBE_SEED", f" {number} ", None, 0, 2**32 - 1) == number
    else:
        with pytest.raises(CaptureError, match="MSPROBE_SEED"):
            parse_integer("MSPROBE_SEED", str(number), None, 0, 2**32 - 1)


@pytest.mark.parametrize("word", ["1_000", "0x10", "1.0", "--1", "-", "١", "one"])
def test_what_is_no_integer(word: str) -> None:
    with pytest.raises(CaptureError, match="MSPROBE_SEED"):
        Switches.parse({"MSPROBE_SEED": word})


def test_defaults_are_upstream_behaviour() -> None:
    assert Switches.parse({}) == Switches(
        dump_on=False,
        prompts_only=False,
        dump_phase="log_prob",
        config_path=None,
        seed=None,
        sglang_dump=False,
        generate_config=None,
        min_dump_tokens=2,
        run_id=None,
        rollout_id=None,
        dump_all=False,
    )


def test_every_variable_is_read() -> None:
    parsed = Switches.parse(
        {
            "DUMP_ON": "yes",
            "PROMPTS_ONLY": "true",
            "DUMP_PHASE": "all",
            "MSPROBE_CONFIG_PATH": "/a.json",
            "MSPROBE_SEED": "7",
            "SGLANG_MSPROBE_DUMP": "on",
            "MSPROBE_GENERATE_CONFIG": "/b.json",
            "MSPROBE_MIN_DUMP_TOKENS": "5",
            "CONSISTENCY_RUN_ID": "run",
            "CONSISTENCY_ROLLOUT_ID": "3",
            "CONSISTENCY_DUMP_ALL": "1",
        }
    )
    assert parsed == Switches(True, True, "all", "/a.json", 7, True, "/b.json", 5, "run", 3, True)


@pytest.mark.parametrize(
    ("phase", "wanted"),
    [("log_prob", {"log_prob"}), ("update_actor", {"update_actor"}), ("all", {"log_prob", "update_actor"})],
)
def test_phase(phase: str, wanted: set[str]) -> None:
    parsed = Switches.parse({"DUMP_PHASE": phase})
    assert {name for name in ("log_prob", "update_actor") if parsed.wants(name)} == wanted


def test_an_unknown_phase_is_an_error() -> None:
    with pytest.raises(CaptureError, match=r"DUMP_PHASE.*log_prob, update_actor, all"):
        Switches.parse({"DUMP_PHASE": "logprob"})


def test_read_once_per_process(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    process.env(DUMP_ON="1")
    assert module.switches().dump_on
    monkeypatch.setenv("DUMP_ON", "nonsense")
    assert module.switches().dump_on


def test_seed_defaults_to_the_procedures_own() -> None:
    assert Switches().seed_or_default() == 1234
    assert Switches(seed=0).seed_or_default() == 0


def test_actor_config_falls_back_to_the_documented_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documented = tmp_path / "config_actor.json"
    monkeypatch.setattr(module, "DOCUMENTED_ACTOR_CONFIG", str(documented))
    with pytest.raises(CaptureError, match=r"MSPROBE_CONFIG_PATH.*config_actor\.json"):
        Switches().actor_config()
    documented.touch()
    assert Switches().actor_config() == str(documented)
    assert Switches(config_path="/given.json").actor_config() == "/given.json"
