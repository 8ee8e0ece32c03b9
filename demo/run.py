"""``make demo``: one prompt set through two real engines on a CPU, then the verdict; its status is compare's.

Everything is made anew below ``dist/demo`` (``dist/demo-ENGINE`` for another rollout engine than vllm-ascend's): the
overlay wheels and their installation (``site``), the rollout engine's woven files (``rollout``), the tiny model, the
dump trees, logs and reports. Each engine is a process of its own, so that this one needs neither torch nor msprobe.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from demo import rollouts
from demo.faults import FAULTS
from demo.rollouts import ENGINES, ON_A_CPU, Rollout
from train_infer_consistency.errors import ConsistencyError, EvidenceError, UnfinishedError
from train_infer_consistency.selftest.run import group_of, write_config

ROOT = rollouts.ROOT
STACK = "verl-0.8"
STRATEGIES = ("fsdp", "fsdp2")
#: Switches that must not leak in from the shell, and places of it where engines would write.
FOREIGN = ("DUMP_", "PROMPTS_ONLY", "MSPROBE_", "CONSISTENCY_", "SGLANG_", "VLLM_", "PYTHONPATH", "XDG_")
RUN_ID = "demo"
CONSISTENCY = (str(Path(sys.executable).with_name("consistency")),)
WORDS = {0: "consistent", 1: "different", 3: "not enough evidence"}


class Demo:
    """One set of prompts through both engines.

    Args:
        folder: an empty one, for all that is made.
        task: what msprobe dumps, ``statistics`` or ``tensor``.
        fault: the name of the one to plant; empty for none.
        base: a demo of the same engine whose wheels and model are used again.
        engine: the rollout's, one of ``ENGINES``.
    """

    def __init__(
        self, folder: Path, task: str = "statistics", fault: str = "", base: Demo | None = None, engine: str = "ascend"
    ) -> None:
        self.folder, self.task, self.fault, self.engine = folder, task, fault, engine
        self.rollout: Rollout = importlib.import_module(f"demo.rollouts.{engine}")
        self.site: Path = base.site if base else folder / "site"
        self.tree: Path = base.tree if base else folder / "rollout"
        self.model: Path = base.model if base else folder / "model"
        self.home: Path = base.home if base else folder / "home"
        self.requests = folder / "requests.json"
        self._started = time.monotonic()

    @property
    def python(self) -> Path:
        """Of the rollout engine's environment."""
        return self.rollout.FOLDER / "bin" / "python"

    def say(self, text: str) -> None:
        """Tell what comes next, and when: seconds since the start."""
        print(f"[{time.monotonic() - self._started:4.0f} s] {text}", flush=True)

    def dump(self, engine: str) -> Path:
        """The dump_path of ``generate``, ``fsdp`` or ``fsdp2``."""
        return self.folder / "dumps" / engine

    def install(self) -> None:
        """Build the stack's wheels, and put them into ``site`` and the rollout engine into ``rollout``.

        Beside the environment, not into it: other tests need its msprobe as released.
        """
        wheels = self.folder / "wheels"
        self.say(f"building the overlay wheels of {STACK}; the first time 36 MB are fetched")
        self._run([*CONSISTENCY, "wheels", "--stack", STACK, "--python", "3.11", "--dest", str(wheels)], "wheels")
        self.say("installing them: pip install --no-deps --require-hashes")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--require-hashes"]
        listed = wheels / f"requirements-{STACK}.txt"
        self._run([*pip, "--target", str(self.site), "--requirement", str(listed)], "install")
        self.say(f"weaving {self.rollout.TITLE}; the first time its wheel is fetched, 75 MB at most")
        self.rollout.install(self.tree)

    def make_model(self) -> None:
        """Write the model that both engines load."""
        self.say("making a tiny random Qwen2")
        shape = ["--heads", str(self.rollout.HEADS)]
        self._worker("tiny_model", [self.model, *shape], self.environment(), "model")

    def generate(self) -> None:
        """Let the rollout engine answer the prompts."""
        self.say(f"the prompts through {self.rollout.TITLE}" + self._planted("inference"))
        model = self.model
        if self._planted("inference"):
            model = self.folder / "model-spoilt"
            self._worker("faults", [self.fault, self.model, model], self.environment(), "fault")
        config = self._configure("generate")
        env = self.rollout.environment(self.environment(), self.tree, config)
        self._worker("generate", [self.engine, model, config, self.requests], env, "generate", self.python)

    def train(self, strategy: str, requests: Path | None = None) -> None:
        """Let the training engine see the same prompts.

        Args:
            strategy: ``fsdp`` or ``fsdp2``.
            requests: a rollout's, by default this demo's.
        """
        self.say(f"the same prompts through verl 0.8.0's engine, strategy {strategy}" + self._planted("training"))
        env = self.environment() | {
            "VERL_USE_EXTERNAL_MODULES": "verl_cpu",
            "DUMP_ON": "1",
            "PROMPTS_ONLY": "1",
            "MSPROBE_CONFIG_PATH": str(self._configure(strategy)),
            "CONSISTENCY_KEEP_ENDS": "1",
            **group_of(self.folder / f"{strategy}.store"),
            **ON_A_CPU,
        }
        self._worker("train", [self.model, requests or self.requests, strategy, self.fault], env, strategy)

    def judge(self, strategy: str) -> int:
        """Pair and compare the two dump trees; return compare's status."""
        trees = self.dump("generate"), self.dump(strategy)
        return self.compare(*trees, self.folder / "report" / strategy, f", strategy {strategy}")

    def compare(self, generate: Path, train: Path, report: Path, which: str = "") -> int:
        """Pair and compare two dump trees; return compare's status.

        Args:
            generate: the rollout's.
            train: training's.
            report: a folder for the page.
            which: said behind what is done.
        """
        trees = [str(generate), str(train)]
        self.say(f"consistency pairs{which}")
        subprocess.run([*CONSISTENCY, "pairs", *trees], check=False)
        self.say(f"consistency compare{which}")
        return subprocess.run([*CONSISTENCY, "compare", *trees, "-o", str(report)], check=False).returncode

    def _planted(self, engine: str) -> str:
        fault = FAULTS.get(self.fault)
        return f"; planted: {fault.story}" if fault is not None and fault.engine == engine else ""

    def _configure(self, engine: str) -> Path:
        return Path(write_config(self.folder / f"{engine}.json", self.dump(engine), self.task))

    def environment(self) -> dict[str, str]:
        """The environment of an engine, whose caches stay here; verl loads its adapter by name, from its folder."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        path = os.pathsep.join(map(str, (self.site, ROOT, ROOT / "demo")))
        return {**inherited, "PYTHONPATH": path, "CONSISTENCY_RUN_ID": RUN_ID, "HOME": str(self.home)}

    def _worker(
        self,
        module: str,
        arguments: Sequence[str | Path],
        env: Mapping[str, str],
        log: str,
        python: str | Path = sys.executable,
    ) -> None:
        self._run([str(python), "-m", f"demo.{module}", *map(str, arguments)], log, env)

    def _run(self, command: Sequence[str], log: str, env: Mapping[str, str] | None = None) -> None:
        path = self.folder / "logs" / log
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            done = subprocess.run(command, env=env, cwd=self.folder, stdout=file, stderr=file, check=False)
        if done.returncode:
            print("\n".join(path.read_text(errors="replace").splitlines()[-20:]), file=sys.stderr)
            raise UnfinishedError(f"{log} ended with status {done.returncode}", f"its output is in {path}")


def run(demo: Demo, strategies: Sequence[str]) -> int:
    """Run the demo and return the status: compare's, of the first strategy where it is not 0."""
    fault = demo.fault
    demo.rollout.check()
    if not demo.python.exists():
        raise EvidenceError(f"no {demo.rollout.FOLDER.name}", f"make demo ENGINE={demo.engine} sets it up")
    shutil.rmtree(demo.folder, ignore_errors=True)
    demo.folder.mkdir(parents=True)
    demo.install()
    demo.make_model()
    demo.generate()
    with ThreadPoolExecutor(len(strategies)) as pool:
        list(pool.map(demo.train, strategies))
    statuses = {strategy: demo.judge(strategy) for strategy in strategies}
    if fault:
        print(f"planted in {FAULTS[fault].module} of the {FAULTS[fault].engine} engine: {FAULTS[fault].story}")
    for strategy, status in statuses.items():
        print(f"{strategy}: {WORDS.get(status, 'could not finish')}, status {status}")
    return next(filter(None, statuses.values()), 0)


def main(arguments: list[str]) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--engine", choices=ENGINES, default="ascend", help="the rollout's; vllm-ascend's runner by default"
    )
    parser.add_argument("--strategy", choices=STRATEGIES, action="append", help="fsdp or fsdp2; both by default")
    parser.add_argument("--fault", choices=("", *FAULTS), default="", help="plant this fault in one engine")
    parser.add_argument("--task", choices=("statistics", "tensor"), default="statistics", help="what msprobe dumps")
    parser.add_argument("--folder", type=Path, help="where; it is wiped first")
    parser.add_argument("--check", action="store_true", help="say what of the system is missing, and do no more")
    options = parser.parse_args(arguments)
    folder = options.folder or ROOT / "dist" / ("demo" if options.engine == "ascend" else f"demo-{options.engine}")
    demo = Demo(folder.resolve(), options.task, options.fault, engine=options.engine)
    if options.check:
        return ended(parser.prog, demo.rollout.check)
    return ended(parser.prog, lambda: run(demo, options.strategy or STRATEGIES))


def check_plan(folder: Path) -> None:
    """Let `consistency check` judge a plan.

    Without the woven packages: they ask for another torch than the CPU's, which the check would rightly name.

    Raises:
        EvidenceError: it has something to say.
    """
    done = subprocess.run([*CONSISTENCY, "check", str(folder)], capture_output=True, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise EvidenceError(f"consistency check {folder}: status {done.returncode}", "the table above says why")


def ended(name: str, work: Callable[[], int | None]) -> int:
    """Do what a command asks for and return its status; what goes wrong is one line."""
    try:
        return work() or 0
    except ConsistencyError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the next run starts afresh", file=sys.stderr)
        return 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
