"""Run the tests of many mutants quickly: pytest is imported once, and each mutant is a fork of that process.

``python runner.py BASE WORKERS`` reads a JSON list of jobs (``folder``, ``file``, ``old``, ``new``, ``tests``) from its
input. BASE is an unchanged copy of the checkout; a job's folder is made of hard links to it, with the one file changed.
The outcome of each test goes into the folder's ``outcome.json``, and what pytest printed into ``output.txt``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies
import pytest

#: Seconds. A guard against a mutant that never ends; with engines there is none, because they guard themselves.
TIMEOUT = 60


class Outcomes:
    """The worst outcome of each test, by its node id without parameters."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_sessionstart(self) -> None:
        # Examples need not be small to fail, and must not be the same ones that an earlier run kept.
        found = hypothesis.settings(
            database=None,
            derandomize=True,
            deadline=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.register_profile("mutants", found)
        hypothesis.settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        if report.failed or name not in self.found:
            self.found[name] = report.outcome


def prepare(base: Path, job: dict[str, Any]) -> Path:
    """Make a job's folder."""
    folder = Path(job["folder"])
    shutil.copytree(
        base, folder, copy_function=os.link, ignore=shutil.ignore_patterns("outcome.json", "output.txt", "tmp")
    )
    changed = folder / job["file"]
    text = changed.read_text(encoding="utf-8")
    changed.unlink()
    changed.write_text(text.replace(job["old"], job["new"]), encoding="utf-8")
    for compiled in changed.parent.glob(f"__pycache__/{changed.stem}.*"):
        compiled.unlink()
    return folder


def run(folder: Path, tests: list[str], marks: str) -> None:
    """Run tests in a copy of the checkout; never returns to a caller that is not about to end."""
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.path[:0] = [str(folder / "src")]
    outcomes = Outcomes()
    with (
        (folder / "output.txt").open("w", encoding="utf-8") as output,
        redirect_stdout(output),
        redirect_stderr(output),
    ):
        options = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            marks,
            f"--basetemp={folder / 'tmp'}",
            "--rootdir",
            str(folder),
        ]
        pytest.main([*options, "-W", "default", *tests], plugins=[outcomes])
    package = sys.modules.get("train_infer_consistency")
    where = None if package is None else str(package.__file__)
    (folder / "outcome.json").write_text(json.dumps({"tests": outcomes.found, "package": where}))


def fork(folder: Path, tests: list[str], marks: str) -> int:
    """Start :func:`run` in a fork, and return its process id."""
    child = os.fork()
    if child:
        return child
    if marks != "engines":
        signal.alarm(TIMEOUT)
    try:
        run(folder, tests, marks)
    finally:
        os._exit(0)


def main(base: Path, workers: int, marks: str) -> None:
    """Run all jobs of the input, some of them at a time."""
    # The run of BASE leaves compiled files, and links to them serve all others.
    sys.dont_write_bytecode = False
    running = 0
    for job in json.load(sys.stdin):
        if running == workers:
            os.wait()
            running -= 1
        fork(prepare(base, job) if job["file"] else base, job["tests"], marks)
        running += 1
    for _ in range(running):
        os.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
