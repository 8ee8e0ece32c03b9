"""`make demo-fully-async INTERRUPT=yes`: requests that a weight sync interrupts in verl's own loop.

Nothing here depends on how fast either engine is: the rollout's scheduler waits for the sync (demo/verl_cpu/held.py).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from demo.generate import PROMPTS
from demo.interrupted import attempts
from demo.loops import ANSWERS, INTERRUPTED
from demo.run import CONSISTENCY
from demo.run_loop import LoopDemo
from train_infer_consistency.errors import EvidenceError

from .test_loop import read_log, rollout_log, training_log

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.download]

HALF = len(PROMPTS) // 2 * ANSWERS


@pytest.fixture(scope="module")
def ran(base: LoopDemo, tmp_path_factory: pytest.TempPathFactory) -> LoopDemo:
    demo = LoopDemo(tmp_path_factory.mktemp("interrupted"), INTERRUPTED, base=base)
    demo.write_prompts()
    demo.learn()
    return demo


def entries(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the one request of each forward was, by the id that verl's client gave."""
    found = [(line["requests"][0], line) for line in lines]
    return {entry["request_id"].rpartition("-")[0] or entry["request_id"]: {**line, **entry} for entry, line in found}


def test_an_interrupted_request_is_known_by_its_first_id(ran: LoopDemo) -> None:
    prefilled, trained = entries(rollout_log(ran)), entries(training_log(ran))
    (later,) = (prefilled[key] for key in prefilled.keys() - trained.keys())
    held = [key for key, entry in trained.items() if prefilled[key]["weight_version"] != entry["weight_version"]]
    (first,) = (prefilled[key] for key in held)
    assert len(prefilled) == len(trained) + 1 == HALF * 2 + 1
    # The prompt and at least a token of the answer, of which one more may have been on its way.
    assert first["prompt_length"] < later["prompt_length"] < first["prompt_length"] + 4
    assert (first["weight_version"], later["weight_version"]) == (0, 1)
    assert {key: entry["prompt_hash"] for key, entry in trained.items()} == {
        key: entry["prompt_hash"] for key, entry in prefilled.items() if key in trained
    }
    versions = [entry["rollout_weight_versions"] for entry in trained.values()]
    assert versions == [[0, 0]] * HALF + [[0, 1]] * HALF
    answers = [line for line in read_log(ran.dump("generate"), "dispatch_log.jsonl") if line["phase"] == "decode"]
    mine = [line for line in answers if line["requests"][0]["request_id"] == first["request_id"]]
    assert len(mine) in (0, 1), "interrupted before its answer was whole"


def test_interrupted_requests_are_not_compared_and_it_is_said_why(
    ran: LoopDemo, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ran.judge_loop() == 0
    said = capfd.readouterr().out.splitlines()
    assert said[-1] == f"interrupted: consistent, status 0; {HALF} requests paired"
    assert sum("was interrupted after its first token" in line for line in said) == 1
    assert sum("was interrupted before its first token" in line for line in said) == HALF - 1
    assert sum("is such a request gone on" in line for line in said) == 1
    trees = [str(ran.dump("generate")), str(ran.dump(ran.loop.strategy))]
    done = subprocess.run([*CONSISTENCY, "pairs", "--json", *trees], capture_output=True, text=True, check=True)
    training = json.loads(done.stdout)["training"]
    assert (training["used"], training["weight-version"]) == (HALF, HALF)


def test_an_id_whose_prefill_is_not_the_prompt_is_no_success(ran: LoopDemo, tmp_path: Path) -> None:
    """As without the edit that keeps the first id."""
    (path,) = ran.dump(ran.loop.strategy).rglob("update_actor_log.jsonl")
    prefilled, trained = entries(rollout_log(ran)), entries(training_log(ran))
    (later,) = prefilled.keys() - trained.keys()
    (first,) = (key for key, entry in trained.items() if prefilled[key]["weight_version"] != entry["weight_version"])
    (tmp_path / path.name).write_text(path.read_text().replace(first, later))
    with pytest.raises(EvidenceError, match=f"{later} is in the training log, and is no prefill of its prompt alone"):
        attempts(ran.dump("generate"), tmp_path)
