"""``make demo-loop`` and ``make demo-fully-async``: verl's own training loop on a CPU, then the verdict.

``make demo-fully-async INTERRUPT=yes`` is the second one with a weight sync that interrupts requests.

Real are Ray, verl 0.8.0's trainer, agent loop, rollout server, weight sync and FSDP engine, vLLM 0.18's engine and
vllm-ascend 0.18.0's runner, all of them as woven; what stands in is said in docs/demo.md. Request ids go the whole way,
from the server's client to the training engine's log. Everything is made anew below ``dist/demo-loop`` or
``dist/demo-fully-async``, or ``dist/demo-interrupted``; the status is compare's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from demo.generate import PROMPTS
from demo.interrupted import attempts
from demo.loops import ANSWERS, INTERRUPTED, LOOPS, Loop, overrides
from demo.run import CONSISTENCY, ROOT, WORDS, Demo, ended
from train_infer_consistency.errors import EvidenceError, UnfinishedError

#: The switches of Ray, verl and vLLM must not leak in from the shell: RAY_ADDRESS would use somebody's cluster.
FOREIGN = ("RAY_", "VERL_", "VLLM_", "HYDRA_")
#: Runs a command, and ends every process of it.
CONTAINED = (sys.executable, "-m", "demo.contained")
#: Seconds after which a loop is taken to hang; it takes one and a half to three minutes on two cores.
TIMEOUT = 900
#: Ray puts sockets below its folder, and a socket's path holds 107 characters.
RAY_FOLDER = 107 - len("/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
#: What the loop's output says when something was reached, and how it is told.
MILESTONES = {
    "Started a local Ray instance": "Ray runs; trainer and rollout start their processes",
    "['serve',": "the rollout server starts vLLM",
    "reset_connector called": "the trainer's weights are in the rollout; it answers the prompts",
    "Dump data will be saved": "the training engine has seen the first prompt",
    "Training Progress: 100%": "all training steps are done",
}


class LoopDemo(Demo):
    """The prompts through one of verl's loops.

    Args:
        folder: an empty one, for all that is made.
        loop: which.
        base: a demo whose wheels and model are used again.
    """

    def __init__(self, folder: Path, loop: Loop, base: Demo | None = None) -> None:
        super().__init__(folder, base=base)
        self.loop = loop
        #: Requests that the rollout has to answer.
        self.asked = len(PROMPTS) * ANSWERS
        self.prompts = folder / "prompts.json"
        self.metrics = folder / "metrics.jsonl"

    def install(self) -> None:
        """Do as `make demo`, and call vLLM by its name: verl asks for the version of that distribution."""
        super().install()
        metadata = self.tree / "vllm-0.18.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.18.0\n")

    def write_prompts(self) -> None:
        """Write the prompts as verl's dataset has them."""
        rows = [
            {
                "data_source": "demo",
                "prompt": [{"role": "user", "content": text}],
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"index": index},
            }
            for index, text in enumerate(PROMPTS)
        ]
        self.prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def learn(self, timeout: float = TIMEOUT) -> None:
        """Run the loop to its end, and end every process of it.

        Args:
            timeout: in seconds.

        Raises:
            UnfinishedError: it failed, or did not end in time.
        """
        self.say(f"{self.loop.main}: Ray, trainer, agent loop, rollout server; one and a half to three minutes")
        log = self.folder / "logs" / "loop"
        log.parent.mkdir(exist_ok=True)
        with self._ray_folder() as ray:
            command = [*CONTAINED, *self.command(ray)]
            with log.open("wb") as file:
                job = subprocess.Popen(command, env=self.loop_environment(), cwd=self.folder, stdout=file, stderr=file)
            try:
                status = self._watch(job, log, timeout)
            finally:
                job.terminate()
                job.wait()
        if status != 0:
            _show_end(log)
            what = f"did not end within {timeout:.0f} s" if status is None else f"ended with status {status}"
            mend = "give it longer with TIMEOUT=SECONDS; " if status is None else ""
            raise UnfinishedError(f"{self.loop.main} {what}", f"{mend}its whole output is in {log}")

    def command(self, ray: Path) -> list[str]:
        """The words that start the loop.

        Args:
            ray: Ray's folder.
        """
        places = {"model": self.model, "prompts": self.prompts, "ray": ray, "config": self._configure("generate")}
        return [sys.executable, "-m", self.loop.main, *overrides(self.loop, self.folder, places)]

    def judge_loop(self) -> int:
        """Pair and compare the two sides; return compare's status.

        Raises:
            EvidenceError: a request was not paired.
        """
        status = self.judge(self.loop.strategy)
        trees = [str(self.dump("generate")), str(self.dump(self.loop.strategy))]
        done = subprocess.run([*CONSISTENCY, "pairs", "--json", *trees], capture_output=True, text=True, check=False)
        paired = json.loads(done.stdout)["pairs"] if done.returncode == 0 else []
        joined, asked = sum(pair["joined_by"] == "request-id" for pair in paired), self.asked - self.loop.interrupted
        if joined != asked:
            raise EvidenceError(f"{joined} of {asked} requests were paired by their ids", "the tables above say why")
        if self.loop.interrupted:
            self._tell_attempts()
        requests = f"{joined} request{'' if joined == 1 else 's'}"
        print(f"{self.loop.name}: {WORDS.get(status, 'could not finish')}, status {status}; {requests} paired")
        return status

    def _tell_attempts(self) -> None:
        """Say under which ids the interrupted requests are known.

        Raises:
            EvidenceError: as :func:`~demo.interrupted.attempts`.
        """
        for attempt in attempts(self.dump("generate"), self.dump(self.loop.strategy)):
            print(f"{self.loop.name}: {attempt}")

    def _watch(self, job: subprocess.Popen[bytes], log: Path, timeout: float) -> int | None:
        """Tell what the loop reaches until it ends; return its status, None for one that took too long."""
        started, told = time.monotonic(), set[str]()
        while job.poll() is None:
            if time.monotonic() - started > timeout:
                return None
            text = log.read_text(errors="replace")
            for sign in [sign for sign in MILESTONES if sign in text and sign not in told]:
                told.add(sign)
                self.say(f"  {MILESTONES[sign]}")
            time.sleep(1)
        return job.returncode

    @contextmanager
    def _ray_folder(self) -> Iterator[Path]:
        """Where Ray puts its session: beside everything else, where the path is short enough."""
        folder = self.folder / "ray"
        if len(str(folder)) <= RAY_FOLDER:
            yield folder
            return
        with tempfile.TemporaryDirectory(prefix="demo-ray-", ignore_cleanup_errors=True) as short:
            yield Path(short)

    def loop_environment(self) -> dict[str, str]:
        """The environment of every process of the loop: verl hands it on through Ray, and vLLM to its workers."""
        inherited = {name: value for name, value in self.environment().items() if not name.startswith(FOREIGN)}
        return self.rollout.environment(inherited, self.tree, Path()) | {
            "VERL_USE_EXTERNAL_MODULES": "verl_cpu,verl_cpu.cluster",
            "VERL_FILE_LOGGER_PATH": str(self.metrics),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "DUMP_ON": "1",
            "PROMPTS_ONLY": "1",
            "MSPROBE_CONFIG_PATH": str(self._configure(self.loop.strategy)),
            "CONSISTENCY_KEEP_ENDS": "1",
            "HF_HOME": str(self.folder / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_COLOR_PREFIX": "0",
            "PYTHONUNBUFFERED": "1",
        }


def _show_end(log: Path, lines: int = 20) -> None:
    print("\n".join(log.read_text(errors="replace").splitlines()[-lines:]), file=sys.stderr)


def run(folder: Path, loop: Loop, timeout: float = TIMEOUT) -> int:
    """Run the demo and return the status: compare's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    demo = LoopDemo(folder, loop)
    demo.install()
    demo.make_model()
    demo.write_prompts()
    demo.learn(timeout)
    return demo.judge_loop()


def interrupt(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does: also when `make` is asked to stop, all of Ray's processes are to end."""
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="make demo-loop", description=__doc__)
    loops = {**LOOPS, INTERRUPTED.name: INTERRUPTED}
    parser.add_argument("loop", choices=loops, nargs="?", default="loop", help="which of verl's loops")
    parser.add_argument("--folder", type=Path, help="where; it is wiped first")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="in seconds; %(default)s by default")
    options = parser.parse_args(arguments)
    folder = options.folder or ROOT / "dist" / f"demo-{options.loop}"
    name = "make demo-fully-async INTERRUPT=yes" if options.loop == INTERRUPTED.name else f"make demo-{options.loop}"
    signal.signal(signal.SIGTERM, interrupt)
    return ended(name, lambda: run(folder.resolve(), loops[options.loop], options.timeout))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
