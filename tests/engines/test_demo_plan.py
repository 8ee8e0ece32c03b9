"""``make demo-plan``: plans of ``consistency plan``, run by their own scripts through verl's loops on a CPU."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from demo.run_loop import LoopDemo
from demo.run_plan import PlanDemo

pytestmark = [pytest.mark.engines, pytest.mark.download]

Ran = Callable[[str, int], PlanDemo]


@pytest.fixture(scope="module")
def ran(base: LoopDemo, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """``ran(scenario, ranks)``: a plan that has been run to its end, each once."""
    done: dict[tuple[str, int], PlanDemo] = {}

    def run(scenario: str, ranks: int) -> PlanDemo:
        if (scenario, ranks) not in done:
            demo = PlanDemo(tmp_path_factory.mktemp("plan"), scenario, base, ranks)
            demo.write_prompts()
            demo.make_plan()
            demo.learn()
            done[scenario, ranks] = demo
        return done[scenario, ranks]

    return run


#: The first one is in CI; each of the others takes minutes more.
RUNS = [
    ("verl-hybrid", 1),
    pytest.param("verl-hybrid", 2, marks=pytest.mark.long),
    pytest.param("verl-fully-async", 1, marks=pytest.mark.long),
]


def dumped(demo: PlanDemo, engine: str) -> list[dict[str, Any]]:
    """The lines of a side's logs about forwards that were dumped."""
    logs = demo.dump(engine).rglob("*_log.jsonl")
    lines = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    return [line for line in lines if line["skipped"] is None]


@pytest.mark.parametrize(("scenario", "ranks"), RUNS)
def test_a_plan_is_consistent_and_named(scenario: str, ranks: int, ran: Ran, capfd: pytest.CaptureFixture[str]) -> None:
    demo = ran(scenario, ranks)
    capfd.readouterr()
    assert demo.judge_loop() == 0
    said = capfd.readouterr().out.splitlines()
    run_id = tomllib.loads((demo.plan / "plan.toml").read_text())["run_id"]
    name = f"{scenario}, stack verl-0.8, run {run_id}, {demo.plan} ({demo.root}/plan.toml)"
    assert {f"plan: {name}", f"plan      {name}"} <= set(said)
    assert said[-2:] == [
        f"plan {scenario}: consistent, status 0; {demo.asked} request{'s' if demo.asked > 1 else ''} paired",
        f"the report names {demo.plan}, run {run_id}",
    ]


@pytest.mark.parametrize(("scenario", "ranks"), RUNS)
def test_the_plan_alone_hands_its_variables_to_the_workers(scenario: str, ranks: int, ran: Ran) -> None:
    demo = ran(scenario, ranks)
    variables = json.loads((demo.plan / "runtime_env.json").read_text())["env_vars"]
    assert not variables.keys() & demo.loop_environment().keys()
    for engine in ("generate", "fsdp2"):
        lines = dumped(demo, engine)
        assert {line["run_id"] for line in lines} == {variables["CONSISTENCY_RUN_ID"]}
        assert len(lines) == demo.asked
    training = dumped(demo, "fsdp2")
    assert {(line["phase"], line["prompt_only"]) for line in training} == {("log_prob", True)}
    assert {line["rank"] for line in training} == set(range(ranks))
    assert len({line["requests"][0]["request_id"] for line in dumped(demo, "generate")}) == demo.asked


def test_a_second_run_into_the_same_folders_is_refused(ran: Ran) -> None:
    demo = ran("verl-hybrid", 1)
    assert "step:1 - " in (demo.plan / "run.log").read_text(), "the trainer's step went on after the dumps"
    done = subprocess.run(["bash", str(demo.plan / "run.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{demo.dump('generate')} is there already" in done.stderr
