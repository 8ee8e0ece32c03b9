"""Runs, processes and ranks do not write over one another, whatever repeats between them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.capture.conftest import Process
from train_infer_consistency.capture import folders
from train_infer_consistency.capture.folders import claim_rank, host_name, join_run, process_folder

Refusal = Callable[[Callable[[], Any]], str]


def other_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def claim_as(root: Path, pid: int, run_id: str | None = None, host: str | None = None) -> None:
    """What another process leaves behind."""
    (root / folders.CLAIMS).mkdir(parents=True)
    claim = {
        "run_id": run_id,
        "host": host or host_name(),
        "pid": pid,
        "started": folders._started(pid),
    }
    (root / folders.CLAIMS / "run.json").write_text(json.dumps(claim))


def test_the_log_folder_is_the_pid(process: Process) -> None:
    assert process_folder(process.root, 4711) == process.root / "4711"
    assert (process.root / "4711").is_dir()


def test_a_taken_folder_is_avoided_by_host_and_then_by_number(process: Process) -> None:
    host = host_name()
    for expected in ("7", f"{host}-7", f"{host}-7-2", f"{host}-7-3"):
        assert process_folder(process.root, 7).name == expected
        process.restart()


def test_a_process_has_one_folder(process: Process) -> None:
    assert process_folder(process.root, 7) == process_folder(process.root, 7)


def test_host_names_are_fit_for_msprobe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node@1 ü")
    assert host_name() == "node-1--"


def test_the_same_run_is_joined_and_another_refused(process: Process, refusal: Refusal) -> None:
    join_run(process.root, "a")
    join_run(process.root, "a")
    assert "'a'" in refusal(lambda: join_run(process.root, "b"))
    assert "CONSISTENCY_RUN_ID" in refusal(lambda: join_run(process.root, None))


def test_a_run_with_an_id_is_joined_from_another_host_after_its_first_process(process: Process) -> None:
    claim_as(process.root, pid=1, run_id="a", host="elsewhere")
    join_run(process.root, "a")


def test_a_run_without_an_id_is_joined_while_its_first_process_lives(process: Process, refusal: Refusal) -> None:
    first = other_process()
    claim_as(process.root, first.pid)
    join_run(process.root, None)
    assert first.stdin is not None
    first.stdin.close()
    first.wait()
    assert "earlier run" in refusal(lambda: join_run(process.root, None))


def test_a_run_without_an_id_is_not_joined_over_a_reused_pid_or_from_another_host(
    process: Process, refusal: Refusal
) -> None:
    claim_as(process.root, os.getpid())
    marker = process.root / folders.CLAIMS / "run.json"
    claim = json.loads(marker.read_text())
    marker.write_text(json.dumps({**claim, "started": (claim["started"] or 0) - 1}))
    assert "earlier run" in refusal(lambda: join_run(process.root, None))
    marker.write_text(json.dumps({**claim, "host": "elsewhere"}))
    assert "another host" in refusal(lambda: join_run(process.root, None))


def test_a_half_written_claim_is_waited_for_and_then_refused(
    process: Process, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = process.root / folders.CLAIMS / "run.json"
    marker.parent.mkdir(parents=True)
    marker.touch()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            marker.write_text(json.dumps({"run_id": "a"}))

    monkeypatch.setattr(time, "sleep", sleep)
    join_run(process.root, "a")
    assert len(waits) == 3
    marker.write_text("")
    assert "cannot be read" in refusal(lambda: join_run(process.root, "a"))


def test_a_rank_is_claimed_once(process: Process) -> None:
    assert claim_rank(process.root, "rank0")
    assert not claim_rank(process.root, "rank0")
    assert claim_rank(process.root, "rank1")


@pytest.mark.parametrize("old", ["step0/rank0", "step_3/rank_0"])
def test_a_rank_that_has_dumps_is_not_claimed(process: Process, old: str) -> None:
    (process.root / old).mkdir(parents=True)
    assert not claim_rank(process.root, "rank0")
    assert claim_rank(process.root, "rank1")
