"""The log files and the words in them: hashes, phases, whole lines, and what happens on a full disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.capture.conftest import Process
from train_infer_consistency.capture.log import JsonLines, identity, prompt_hash, request_phase
from train_infer_consistency.capture.switches import CaptureError

TOKENS = st.lists(st.integers(0, 2**40))


@given(TOKENS)
def test_prompt_hash_is_what_its_documentation_says(ids: list[int]) -> None:
    expected = hashlib.sha256(struct.pack(f"<{len(ids)}q", *ids)).hexdigest()[:16]
    assert prompt_hash(ids) == expected


@given(TOKENS, st.integers(0, 2**40))
def test_prompt_hash_sees_one_more_token_and_order(ids: list[int], more: int) -> None:
    assert prompt_hash([*ids, more]) != prompt_hash(ids)
    if len(set(ids)) > 1 and ids != ids[::-1]:
        assert prompt_hash(ids[::-1]) != prompt_hash(ids)


@given(st.integers(1, 500), st.data())
def test_a_request_is_in_prefill_exactly_while_prompt_tokens_are_left(length: int, data: st.DataObject) -> None:
    """However a prompt is cut into chunks: each is prefill, also one of a single token; then comes decode."""
    computed = 0
    while computed < length:
        assert request_phase(computed, length, 0) == "prefill"
        computed += data.draw(st.integers(1, length - computed))
    # One token or several (a draft that is being verified): still a decode.
    for output in range(1, 4):
        assert request_phase(computed, length, output) == "decode"
        computed += 1


def test_phase_of_a_request_whose_prompt_is_unknown() -> None:
    assert request_phase(10, None, 0) == "prefill"
    assert request_phase(10, None, 1) == "decode"


def test_a_preempted_request_computes_its_prompt_again() -> None:
    assert request_phase(0, 5, 3) == "prefill"


def test_a_line_has_constants_timestamp_and_record(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl", {"source": "x", "pid": 1})
    log.write({"step": 0, "name": "π\n"})
    log.close()
    (line,) = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    assert (record["source"], record["pid"], record["step"], record["name"]) == ("x", 1, 0, "π\n")
    assert len(record["timestamp"]) == len("2026-05-13T10:00:00")
    assert record["timestamp"][10] == "T"


def test_one_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "log.jsonl", {"pid": 1})
    writes: list[bytes] = []
    real = os.write

    def spy(descriptor: int, data: bytes) -> int:
        writes.append(data)
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", spy)
    log.write({"requests": list(range(5000))})
    log.write({"step": 1})
    assert len(writes) == 2
    assert all(write.endswith(b"\n") for write in writes)
    # And it is there without a flush or a close.
    assert len((tmp_path / "log.jsonl").read_bytes().splitlines()) == 2
    log.close()


def test_creation_is_exclusive(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("earlier\n")
    with pytest.raises(CaptureError, match=r"log\.jsonl"):
        JsonLines(path, {"pid": 1})
    assert path.read_text() == "earlier\n"


@pytest.mark.parametrize("failure", ["short", "error"])
def test_a_full_disk_is_loud_and_leaves_whole_lines(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = JsonLines(tmp_path / "log.jsonl", {"pid": 1})
    log.write({"step": 0})
    before = (tmp_path / "log.jsonl").read_bytes()
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        written = real(descriptor, data[: len(data) // 2])
        if failure == "error":
            raise OSError(errno.ENOSPC, "No space left on device")
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(CaptureError, match="useless"):
            log.write({"step": 1})
    assert (tmp_path / "log.jsonl").read_bytes() == before
    log.write({"step": 2})
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [0, 2]
    log.close()


def test_a_really_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full refuses every write, as a full disk does."""
    real = os.open
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *_: real("/dev/full", os.O_WRONLY))
        log = JsonLines(tmp_path / "log.jsonl", {"pid": 1})
    with pytest.raises(CaptureError, match="No space left"):
        log.write({"step": 0})
    log.close()


def test_writing_to_a_closed_log_is_an_error(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl", {"pid": 1})
    log.close()
    log.close()
    with pytest.raises(CaptureError, match="closed"):
        log.write({"step": 0})


def test_identity(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_REPLICA_RANK", "3")
    fields = identity("update_actor", "verl-fsdp", None, {"tp_size": 2}, run_id="r", msprobe="26.2.0", overlay=None)
    assert fields["source"] == "update_actor"
    assert fields["pid"] == os.getpid()
    assert fields["rank"] == 0
    assert fields["replica"] == "3"
    assert fields["parallel"] == {"tp_size": 2}
    assert {"host", "engine", "run_id", "msprobe", "overlay"} <= fields.keys()
