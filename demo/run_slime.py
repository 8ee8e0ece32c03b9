"""``make demo-slime``: one prompt through SGLang's engine and slime's actor on a CPU, then the verdict.

The status is compare's. The folders, msprobe's files and the switches are those of the published procedure for slime:
one root, the rollout's dumps in ``generate``, training's in ``old_log_prob``. Everything is made anew below
``dist/demo-slime``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from demo.rollouts import ON_A_CPU, sglang
from demo.run import CONSISTENCY, ROOT, WORDS, Demo, ended
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

    def generate(self) -> None:
        """Let SGLang answer the prompt, as often as there are ranks."""
        self.say("the prompt through SGLang's engine")
        config = self._write_config("generate", self.root / "generate")
        env = sglang.environment(self.environment(), self.site, config) | {"MSPROBE_MIN_DUMP_TOKENS": "2"}
        self._worker("slime_generate", [self.model, self.requests, str(RANKS)], env, "generate")

    def train_ranks(self) -> None:
        """Let slime's actor see the same prompt, on each data-parallel rank."""
        self.say(f"the same prompt through slime's actor over megatron-core, {RANKS} data-parallel ranks")
        env = self.environment() | {
            "DUMP_ON": "1",
            "PROMPTS_ONLY": "1",
            "MSPROBE_CONFIG_PATH": str(self._write_config("actor", self.root)),
            **ON_A_CPU,
        }
        with ThreadPoolExecutor(RANKS) as pool:
            list(pool.map(lambda rank: self._train_rank(rank, env), range(RANKS)))

    def _train_rank(self, rank: int, env: dict[str, str]) -> None:
        env = env | group_of(self.folder / "ranks.store", RANKS, rank)
        self._worker("slime_train", [self.model, self.requests], env, f"train-rank{rank}")

    def judge_prompt(self) -> int:
        """Pair and compare the two sides, and with them the ranks among each other; return compare's status."""
        return self.compare(self.root / "generate", self.root, self.folder / "report")

    def _write_config(self, name: str, dumps: Path) -> Path:
        statistics = {"scope": [], "list": [], "tensor_list": [], "data_mode": ["all"], "summary_mode": "statistics"}
        content = {"task": "statistics", "dump_path": str(dumps), "rank": [], "step": [0], "level": "mix"}
        path = self.folder / f"config_{name}.json"
        path.write_text(json.dumps({**content, "async_dump": False, "extra_info": True, "statistics": statistics}))
        return path


def run(folder: Path, stack: str) -> int:
    """Run the demo and return the status: compare's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    demo = SlimeDemo(folder, stack)
    demo.install()
    demo.make_model()
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
