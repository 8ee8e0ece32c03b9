"""``make demo-plan``: a plan of ``consistency plan``, run by its own ``run.sh`` through verl's loop on a CPU.

The plan is what anybody gets, and `consistency check` must have nothing to say of it. Its script gets what a user gives
it, data and reward, and what the stand-ins need (``stand_ins`` of loops.py); the variables reach Ray's workers as the
plan hands them on, so none of them is in the shell. The two sides must then agree, and the report must name the plan.
All else is as in run_loop.py; everything is made anew below ``dist/demo-plan``; the status is compare's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from demo.loops import LOOPS, PROMPT_LENGTH, spelt, stand_ins
from demo.run import CONSISTENCY, ROOT, Demo, check_plan, ended
from demo.run_loop import TIMEOUT, LoopDemo, interrupt
from train_infer_consistency.errors import EvidenceError

#: scenario -> the loop that it runs.
SCENARIOS = {"verl-hybrid": LOOPS["loop"], "verl-fully-async": LOOPS["fully-async"]}
#: The fully asynchronous trainer goes on for a second step, with weights that the first one made.
STEPS = {"verl-hybrid": 1, "verl-fully-async": 2}
#: The folders below a plan's dump root.
SIDES = {"generate": "generate_sequence", "fsdp2": "update_actor"}


class PlanDemo(LoopDemo):
    """A plan through one of verl's loops.

    Args:
        folder: an empty one, for all that is made.
        scenario: one of :data:`SCENARIOS`.
        base: a demo whose wheels and model are used again.
        ranks: of the training side; in the hybrid scenario each holds a rollout of its own as well.
    """

    def __init__(self, folder: Path, scenario: str, base: Demo | None = None, ranks: int = 1) -> None:
        alone = scenario != "verl-hybrid"
        loop = replace(SCENARIOS[scenario], name=f"plan {scenario}", strategy="fsdp2", npus=ranks + alone)
        super().__init__(folder, loop, base)
        self.scenario, self.ranks = scenario, ranks
        self.plan = folder / "plan"
        self.root = folder / "dumps"
        self.asked = ranks * STEPS[scenario]

    def dump(self, engine: str) -> Path:
        """The plan's own folders."""
        return self.root / SIDES[engine]

    def make_plan(self) -> None:
        """Write the plan, and check it.

        Raises:
            EvidenceError: the check has something to say.
        """
        self.say(f"consistency plan {self.scenario}, consistency check")
        answers = {
            "model": self.model,
            "world-size": self.ranks,
            "prompt-length": PROMPT_LENGTH,
            "dump-root": self.root,
        }
        options = [word for name, value in answers.items() for word in (f"--{name}", str(value))]
        self._run([*CONSISTENCY, "plan", self.scenario, *options, "-o", str(self.plan)], "plan")
        check_plan(self.plan)

    def command(self, ray: Path) -> list[str]:
        """The plan's script, with a user's arguments."""
        own = stand_ins(self.loop.npus, self.folder, {"prompts": self.prompts, "ray": ray})
        # Of verl's engines that send weights to another process, none does without an accelerator.
        own |= {name: value for name, value in self.loop.overrides.items() if ".checkpoint_engine." in name}
        return ["bash", str(self.plan / "run.sh"), *spelt(own)]

    def loop_environment(self) -> dict[str, str]:
        """The shell's environment: the stand-ins', and no variable that the plan hands to the workers."""
        planned = json.loads((self.plan / "runtime_env.json").read_text())["env_vars"]
        found = {name: value for name, value in super().loop_environment().items() if name not in planned}
        # The plan calls python3.
        return found | {"PATH": os.pathsep.join((str(Path(sys.executable).parent), found["PATH"]))}

    def judge_loop(self) -> int:
        """As in run_loop.py; and the report must name the plan.

        Raises:
            EvidenceError: a request was not paired, or the plan is not named.
        """
        status = super().judge_loop()
        trees = [str(self.dump("generate")), str(self.dump(self.loop.strategy))]
        done = subprocess.run([*CONSISTENCY, "compare", "--json", *trees], capture_output=True, text=True, check=False)
        plan = json.loads(done.stdout)["plan"]
        if plan is None or not plan["fits"] or plan["folder"] != str(self.plan):
            raise EvidenceError(f"the report names the plan {plan}", f"it has to be that of {self.plan}")
        print(f"the report names {plan['folder']}, run {plan['run_id']}")
        return status


def run(folder: Path, scenario: str, ranks: int, timeout: float) -> int:
    """Run the demo and return the status: compare's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    demo = PlanDemo(folder, scenario, ranks=ranks)
    demo.install()
    demo.make_model()
    demo.write_prompts()
    demo.make_plan()
    demo.learn(timeout)
    return demo.judge_loop()


def main(arguments: list[str]) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="make demo-plan", description=__doc__)
    parser.add_argument("scenario", choices=SCENARIOS, nargs="?", default="verl-hybrid", help="what is planned")
    parser.add_argument(
        "--ranks", type=int, choices=(1, 2), default=1, help="of the training side; 2 in verl-hybrid alone"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "dist" / "demo-plan", help="where; it is wiped first")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="in seconds; %(default)s by default")
    options = parser.parse_args(arguments)
    if options.ranks > 1 and options.scenario != "verl-hybrid":
        parser.error("one rank: the demo's checkpoint engine sends weights from one process to one other")
    signal.signal(signal.SIGTERM, interrupt)
    return ended(parser.prog, lambda: run(options.folder.resolve(), options.scenario, options.ranks, options.timeout))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
