"""``make demo-slime``: one prompt through SGLang's engine and slime's actor on a CPU, then the verdict.

The status is compare's. The folders, msprobe's files, the switches and all settings are those of a plan that
`consistency plan slime` writes, as in the published procedure: one root, the rollout's dumps in ``generate``,
training's in ``old_log_prob``. The plan's own ``run.sh`` is run; in Ray's place a program writes down what it submits,
and both sides are started with that. Everything is made anew below ``dist/demo-slime``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from demo.rollouts import ON_A_CPU, sglang
from demo.run import CONSISTENCY, ROOT, WORDS, Demo, check_plan, ended
from train_infer_consistency.errors import EvidenceError, UnfinishedError
from train_infer_consistency.selftest.run import group_of

STACKS = ("slime-0.2.4", "slime-0.2.2")
#: Data-parallel ranks of the training side, and answers to the one prompt.
RANKS = 2
#: What the line that ends a run without slime's source begins with.
NO_SOURCE = "not run: no source"
#: megatron-core, with its digest.
REQUIREMENTS = ROOT / "requirements" / "engines-slime.txt"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--require-hashes")


def core_command(folder: Path) -> list[str]:
    """The command that puts slime's megatron-core into a folder."""
    return [*PIP, "--target", str(folder), "--requirement", str(REQUIREMENTS)]


class SlimeDemo(Demo):
    """One prompt through both engines.

    Args:
        folder: an empty one, for all that is made.
        stack: one of :data:`STACKS`.
    """

    def __init__(self, folder: Path, stack: str = STACKS[0]) -> None:
        super().__init__(folder)
        self.stack = stack
        self.root = folder / "msprobe_dump"
        self.plan = folder / "plan"
        self.words = folder / "words.json"

    def install(self) -> None:
        """Build the stack's wheels, and put them and megatron-core into ``site``.

        Raises:
            EvidenceError: slime's source, or another one, cannot be had.
        """
        wheels = self.folder / "wheels"
        self.say(f"building the overlay wheels of {self.stack}; the first time 10 MB and slime's commit are fetched")
        command = [*CONSISTENCY, "wheels", "--stack", self.stack, "--python", "3.11", "--dest", str(wheels), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == EvidenceError.status:
            (missing, *_) = json.loads(done.stdout)["missing"]
            raise EvidenceError(f"{NO_SOURCE}: {missing['error']}")
        if done.returncode:
            raise UnfinishedError(f"the wheels were not built: {done.stderr.strip().splitlines()[-1]}")
        self.say("installing them and megatron-core: pip install --no-deps --require-hashes")
        listed = wheels / f"requirements-{self.stack}.txt"
        self._run([*PIP, "--target", str(self.site), "--requirement", str(listed)], "install")
        self._run(core_command(self.site), "install-megatron")

    def submit(self) -> None:
        """Make the plan, check it, and run its script up to the job that it submits.

        Raises:
            EvidenceError: the check has something to say.
        """
        self.say(f"consistency plan slime --stack {self.stack}, consistency check, run.sh")
        sizes = ["--model", str(self.model), "--world-size", str(RANKS), "--dump-root", str(self.root)]
        self._run([*CONSISTENCY, "plan", "slime", "--stack", self.stack, *sizes, "-o", str(self.plan)], "plan")
        check_plan(self.plan)
        programs = self.folder / "programs"
        programs.mkdir()
        record = f"import json, sys; json.dump(sys.argv[1:], open({str(self.words)!r}, 'w'))"
        (programs / "ray").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{record}" "$@"\n')
        (programs / "ray").chmod(0o755)
        path = os.pathsep.join((str(programs), os.environ["PATH"]))
        self._run(["bash", str(self.plan / "run.sh"), "--rm-type", "math"], "submit", {**os.environ, "PATH": path})

    def job(self) -> dict[str, str]:
        """The environment that Ray would give to a job's processes."""
        words = json.loads(self.words.read_text())
        given = json.loads(Path(words[words.index("--runtime-env") + 1]).read_text())["env_vars"]
        return {**self.environment(), **given}

    def generate(self) -> None:
        """Let SGLang answer the prompt, as often as there are ranks."""
        self.say("the prompt through SGLang's engine")
        job = self.job()
        env = sglang.environment(job, self.site, Path(job["MSPROBE_GENERATE_CONFIG"]))
        self._worker("slime_generate", [self.model, self.requests, str(RANKS), self.words], env, "generate")

    def train_ranks(self) -> None:
        """Let slime's actor see the same prompt, on each data-parallel rank."""
        self.say(f"the same prompt through slime's actor over megatron-core, {RANKS} data-parallel ranks")
        env = self.job() | ON_A_CPU
        with ThreadPoolExecutor(RANKS) as pool:
            list(pool.map(lambda rank: self._train_rank(rank, env), range(RANKS)))

    def _train_rank(self, rank: int, env: dict[str, str]) -> None:
        env = env | group_of(self.folder / "ranks.store", RANKS, rank)
        self._worker("slime_train", [self.model, self.requests, self.words], env, f"train-rank{rank}")

    def judge_prompt(self) -> int:
        """Pair and compare the two sides, and with them the ranks among each other; return compare's status."""
        return self.compare(self.root / "generate", self.root, self.folder / "report")


def run(folder: Path, stack: str) -> int:
    """Run the demo and return the status: compare's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    demo = SlimeDemo(folder, stack)
    demo.install()
    demo.make_model()
    demo.submit()
    demo.generate()
    demo.train_ranks()
    status = demo.judge_prompt()
    print(f"{stack}: {WORDS.get(status, 'could not finish')}, status {status}")
    return status


def main(arguments: list[str]) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="make demo-slime", description=__doc__)
    parser.add_argument("--stack", choices=STACKS, default=STACKS[0], help="whose versions")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist" / "demo-slime", help="where; it is wiped first")
    options = parser.parse_args(arguments)
    return ended(parser.prog, lambda: run(options.folder.resolve(), options.stack))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
