"""msprobe's request slicing (26.2 and later): a packed forward whose dump has one request's tokens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from .runs import A, B, Run, dump, ours, reasons


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def packed(run: Run, *entries: dict[str, Any], dumped: int, **more: Any) -> None:
    run.forward(list(entries), step=0, **more)
    dump(run.inference.root / "17" / "step0" / "rank0", dumped)


def test_a_real_sliced_dump_is_used_for_its_request(run: Run, dumps: Path) -> None:
    source = dumps / "lookalike" / "vllm_packed_reqslice_prechigh_stat" / "step0" / "proc4416"
    entries = [{"request_id": f"{B}-aaaaaaaa", "type": "new", "tokens": 7}]
    entries += [{"request_id": f"{A}-1a2b3c4d", "type": "new", "tokens": 11}]
    run.forward(entries, step=0, pid=4416)
    shutil.copytree(source, run.inference.root / "4416" / "step0" / "proc4416")
    run.train(A, step=0)
    run.train(B, step=1, dumped=7)
    pairing = run.pair()
    (found,) = pairing.pairs
    assert found.request_id == A
    assert found.inference.sliced
    assert found.inference.tokens.count == 11
    assert reasons(pairing, "inference") == [(0, "used", "sliced to one request")]
    assert reasons(pairing, "training")[1][:2] == (1, "one-side-only")


def test_a_real_packed_dump_is_not(run: Run, dumps: Path) -> None:
    source = dumps / "lookalike" / "vllm_packed_7p11_stat" / "step0"
    run.forward([ours(B, 7), ours(A, 11)], step=0)
    shutil.copytree(source, run.inference.root / "17" / "step0")
    run.train(A)
    assert reasons(run.pair(), "inference") == [(0, "several-requests", "2 requests")]


@pytest.mark.parametrize(
    ("version", "used"), [("26.2.0", True), ("26.10", True), ("27.0", True), ("26.1.0.post1", False)]
)
def test_older_msprobe_cannot_slice(run: Run, version: str, used: bool) -> None:
    packed(run, ours(B, 7), ours(A, 11), dumped=11, msprobe=version)
    run.train(A)
    assert bool(run.pair().pairs) is used


def test_a_slice_beside_a_decode(run: Run) -> None:
    packed(run, ours(A, 11), ours(B, 1, type="cached", phase="decode", computed_tokens=40), dumped=11)
    run.train(A)
    assert len(run.pair().pairs) == 1


def test_a_sliced_decode_is_no_prompt(run: Run) -> None:
    packed(run, ours(A, 11), ours(B, 1, type="cached", phase="decode", computed_tokens=40), dumped=1)
    run.train(A)
    assert reasons(run.pair(), "inference") == [(0, "several-requests", "2 requests, 1 of them decoding")]


def test_a_sliced_part_of_a_prompt_is_not_used(run: Run) -> None:
    packed(run, ours(A, 11, prompt_length=30), ours(B, 7), dumped=11)
    run.train(A)
    assert run.pair().pairs == []


def test_two_requests_of_one_length_need_the_configured_id(run: Run) -> None:
    packed(run, ours(f"{A}-1a2b3c4d", 11), ours(f"{B}-1a2b3c4d", 11), ours("x", 3), dumped=11)
    run.train(A, step=0)
    run.train(B, step=1)
    pairing = run.pair()
    assert pairing.pairs == []
    detail = "2 of its requests have the dump's 11 tokens; name the sliced one with --request"
    assert reasons(pairing, "inference") == [(0, "ambiguous", detail)]
    for word in (B, f"{B}-1a2b3c4d"):
        (found,) = run.pair(sliced=word).pairs
        assert found.request_id == B
