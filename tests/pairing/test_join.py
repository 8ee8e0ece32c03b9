"""Joining by request id: real runs, suffixes, ambiguity, shards, replicas, hosts, and repeated runs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train_infer_consistency.dumps.tree import scan
from train_infer_consistency.pairing.ids import base_id
from train_infer_consistency.pairing.join import pair
from train_infer_consistency.pairing.model import Pairing

from .runs import A, B, C, Run, copy_into, dump, ours, reasons


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def joined(pairing: Pairing) -> list[tuple[str | None, int | None, int | None]]:
    return [(found.request_id, found.inference.step, found.training.step) for found in pairing.pairs]


LOOPS = {
    "hybrid_qwen2_fsdp1": [(0, 0)],
    "hybrid_qwen2_fsdp2": [(0, 0)],
    "single_qwen3_fsdp1": [(0, 0)],
    "ascend_hybrid_qwen2_fsdp1": [(0, 0)],
    "fully_async_qwen3_fsdp2": [],
    "fully_async_qwen3_fsdp2_ids": [(0, 2), (17, 4)],
}


@pytest.mark.parametrize("loop", LOOPS)
def test_real_runs(dumps: Path, loop: str) -> None:
    folder = dumps / "loop" / loop
    pairing = pair(scan(folder / "generate_sequence"), scan(folder / "update_actor"))
    assert [steps[1:] for steps in joined(pairing)] == LOOPS[loop]
    assert pairing.problems == []
    training = [reason for _, reason, _ in reasons(pairing, "training")]
    inference = [reason for _, reason, _ in reasons(pairing, "inference")]
    if loop == "fully_async_qwen3_fsdp2":
        assert training == ["no-request-id"] * 8
        assert set(inference) == {"one-side-only", "several-requests", "decode"}
    elif loop != "single_qwen3_fsdp1":
        assert training.count("used") == len(LOOPS[loop])
        # Their prompts were packed with others, and that is what is said of them too.
        assert set(training) == {"used", "several-requests"}
        assert set(inference) == {"used", "several-requests", "decode"}
    for found in pairing.pairs:
        assert found.inference.tokens.count == found.training.tokens.count
        assert found.joined == "request-id"
        assert found.notes == ()


def test_a_prompt_computed_in_two_steps_by_the_real_runner(dumps: Path, run: Run) -> None:
    copy_into(dumps / "loop" / "ascend_chunked_fabricated", run.inference.root)
    run.train("reqA", step=0, dumped=27)
    run.train("reqB", step=1, requests=[{"request_id": "reqB", "prompt_length": 6, "response_length": 0}], dumped=6)
    pairing = run.pair()
    assert joined(pairing) == [("reqA", 0, 0)]
    assert reasons(pairing, "inference") == [
        (0, "used", ""),
        (1, "decode", ""),
        (2, "several-requests", "2 requests, 1 of them decoding"),
        (3, "decode", ""),
    ]
    detail = "on the inference side: prefill in 2 steps or more: 5 of 6 tokens in the first"
    assert reasons(pairing, "training") == [(0, "used", ""), (1, "chunked", detail)]


def test_pipeline_stages_of_the_real_runner_are_one_side(dumps: Path, run: Run) -> None:
    copy_into(dumps / "loop" / "ascend_pp2", run.inference.root)
    run.train("0", dumped=27)
    (found,) = run.pair().pairs
    assert [(part.rank, part.name) for part in found.inference.parts] == [(0, "rank0"), (1, "rank1")]
    assert found.inference.tokens.count == 27


def test_tensor_parallel_ranks_of_real_verl_are_one_side(dumps: Path, run: Run) -> None:
    copy_into(dumps / "megatron" / "verl_tp2_n12_sp", run.training.root)
    run.prefill("req-0001-1a2b3c4d", 12)
    (found,) = run.pair().pairs
    assert [(part.rank, part.step) for part in found.training.parts] == [(0, 0), (1, 0)]


def test_virtual_chunks_of_real_verl_are_one_side(dumps: Path, run: Run) -> None:
    copy_into(dumps / "megatron" / "verl_core0161_pp2_vpp2_4layers_n11", run.training.root)
    run.prefill("req-0001-1a2b3c4d", 11)
    pairing = run.pair()
    (found,) = pairing.pairs
    assert [(part.rank, part.step) for part in found.training.parts] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert [reason for _, reason, _ in reasons(pairing, "training")].count("used") == 4


def test_virtual_chunks_by_our_logger(run: Run) -> None:
    run.prefill(A)
    for chunk, step in enumerate((0, 2)):
        run.train(A, step=step, virtual_chunk=chunk, virtual_chunks=2, first_layer=2 * chunk, phase="log_prob")
    run.train(A, step=4, virtual_chunk=0, virtual_chunks=2, first_layer=0, phase="log_prob")
    pairing = run.pair()
    (found,) = pairing.pairs
    assert [(part.step, part.virtual_chunk, part.first_layer) for part in found.training.parts] == [
        (0, 0, 0),
        (2, 1, 2),
    ]
    assert reasons(pairing, "training")[-1] == (4, "repeated", "")


SUFFIXED = f"{A}-1a2b3c4d"


@pytest.mark.parametrize(
    ("dispatched", "trained", "base"),
    [
        (SUFFIXED, A, A),
        (A, A, A),
        (f"chatcmpl-{A}-1a2b3c4d", A, A),
        (f"chatcmpl-{A}", A, A),
        ("det-4", "det-4", "det-4"),
        ("det-4-0a1b2c3d", "det-4", "det-4"),
        # It ends like a suffix, and is none.
        (C, C, C),
        (f"{C}-0a1b2c3d", C, C),
        (C, "det-4", "det-4"),
        # No hex, too short, too long, upper case.
        (f"{A}-1a2b3c4g", A, None),
        (f"{A}-1a2b3c4", A, None),
        (f"{A}-1a2b3c4d5", A, None),
        (f"{A}-1A2B3C4D", A, None),
        (f"{A}1a2b3c4d", A, None),
        (f"{B}-1a2b3c4d", A, None),
        ("-1a2b3c4d", A, None),
    ],
)
def test_ids_with_and_without_suffix(run: Run, dispatched: str, trained: str, base: str | None) -> None:
    assert base_id(dispatched, {trained}) == base
    run.prefill(dispatched)
    run.train(trained)
    pairing = run.pair()
    assert [found.request_id for found in pairing.pairs] == ([] if base is None else [base])
    if base is None:
        assert reasons(pairing, "inference") == [(0, "one-side-only", "")]
        assert reasons(pairing, "training") == [(0, "one-side-only", "")]


@given(st.text("0123456789abcdef-", min_size=1, max_size=20), st.text("0123456789abcdef", min_size=8, max_size=8))
def test_a_suffix_is_removed_from_any_known_id(known: str, suffix: str) -> None:
    assert base_id(known, {known}) == known
    assert base_id(f"{known}-{suffix}", {known}) == known
    assert base_id(f"{known}-{suffix}", set()) is None
    # The longer one wins where both are known.
    assert base_id(f"{known}-{suffix}", {known, f"{known}-{suffix}"}) == f"{known}-{suffix}"


def test_both_forms_in_one_log(run: Run) -> None:
    run.prefill(f"{A}-1a2b3c4d", step=0)
    run.prefill(B, step=1)
    run.train(B, step=0)
    run.train(A, step=1)
    assert joined(run.pair()) == [(A, 0, 1), (B, 1, 0)]


def test_two_ids_with_one_base_are_ambiguous(run: Run) -> None:
    run.prefill(f"{A}-1a2b3c4d", step=0)
    run.prefill(f"{A}-ffffffff", step=1)
    run.train(A)
    pairing = run.pair()
    assert pairing.pairs == []
    detail = f"{A}-1a2b3c4d and {A}-ffffffff both stand for {A}"
    assert reasons(pairing, "inference") == [(0, "ambiguous", detail), (1, "ambiguous", detail)]
    assert reasons(pairing, "training") == [(0, "ambiguous", detail)]


def test_one_id_computed_by_two_processes_is_ambiguous(run: Run) -> None:
    run.prefill(A, pid=17)
    run.prefill(A, pid=18)
    run.train(A)
    pairing = run.pair()
    assert pairing.pairs == []
    assert [reason for _, reason, _ in reasons(pairing, "inference")] == ["ambiguous"] * 2


def test_the_same_request_in_two_replicas_of_our_logger_is_ambiguous(run: Run) -> None:
    for pid, replica in ((17, "0"), (18, "1")):
        run.forward([ours(A, 11)], step=0, pid=pid, replica=replica)
        dump(run.inference.root / str(pid) / "step0" / "rank0")
    run.train(A)
    assert [reason for _, reason, _ in reasons(run.pair(), "inference")] == ["ambiguous"] * 2


def test_replicas_each_with_ranks_from_0(run: Run) -> None:
    for pid, name, replica in ((17, A, "0"), (18, B, "1")):
        run.forward([ours(name, 11)], step=0, pid=pid, replica=replica, parallel={"tp_size": 1, "pp_size": 1})
        dump(run.inference.root / str(pid) / "step0" / "rank0")
    run.train(B, step=0, rank=0)
    run.train(A, step=0, rank=1)
    pairing = run.pair()
    assert {(found.request_id, found.training.parts[0].rank) for found in pairing.pairs} == {(A, 1), (B, 0)}
    assert {found.request_id: found.inference.parts[0].path.parts[-3] for found in pairing.pairs} == {A: "17", B: "18"}


def test_a_shard_without_dump_makes_its_forward_useless(run: Run) -> None:
    for rank in (0, 1):
        parallel = {"tp_size": 2, "pp_size": 1, "tp_rank": rank}
        run.forward([ours(A, 11)], step=0, pid=17 + rank, rank=rank, parallel=parallel)
    dump(run.inference.root / "17" / "step0" / "rank0")
    run.train(A)
    assert reasons(run.pair(), "inference") == [(0, "no-dump", "rank 1"), (0, "no-dump", "rank 1")]
    dump(run.inference.root / "18" / "step0" / "rank1")
    (found,) = run.pair().pairs
    assert [part.parallel("tp_rank") for part in found.inference.parts] == [0, 1]
    (run.inference.root / "18" / "dispatch_log.jsonl").unlink()
    assert reasons(run.pair(), "inference")[0] == (0, "no-dump", "only 1 of 2 ranks have one")


def test_ranks_are_never_paired_by_their_sorted_position(run: Run) -> None:
    run.prefill(A, rank=5)
    run.train(B, rank=0, step=0)
    run.train(A, rank=2, step=0)
    (found,) = run.pair().pairs
    assert (found.inference.parts[0].rank, found.training.parts[0].rank) == (5, 2)


def test_trees_spread_over_hosts(tmp_path: Path) -> None:
    one, two = Run(tmp_path / "host1"), Run(tmp_path / "host2")
    one.prefill(A, step=0)
    two.prefill(B, step=0)
    one.train(B, rank=0)
    two.train(A, rank=8)
    pairing = pair(scan(two.inference.root, one.inference.root), scan(one.training.root, two.training.root))
    assert {(found.request_id, found.training.parts[0].rank) for found in pairing.pairs} == {(A, 8), (B, 0)}
    # The same with both hosts below one folder.
    together = pair(scan(*(run.inference.root for run in (one, two))), scan(*(run.training.root for run in (two, one))))
    assert [found.request_id for found in together.pairs] == [found.request_id for found in pairing.pairs]


def test_one_pid_on_two_hosts(run: Run) -> None:
    for folder, name, host in (("17", A, "node1"), ("node2-17", B, "node2")):
        run.inference.line(
            folder=folder, host=host, step=0, phase="prefill", total_num_scheduled_tokens=11, requests=[ours(name, 11)]
        )
        dump(run.inference.root / folder / "step0" / "rank0")
    run.train(A, step=0)
    run.train(B, step=1)
    pairing = run.pair()
    assert {found.request_id: found.inference.parts[0].path.parts[-3] for found in pairing.pairs} == {
        A: "17",
        B: "node2-17",
    }
    assert {found.inference.process for found in pairing.pairs} == {"node1/17 rank0", "node2/17 rank0"}


def test_a_rerun_into_the_same_log_and_folder(run: Run) -> None:
    run.prefill(A, step=0)
    run.prefill(B, step=1)
    run.train(B, step=0, timestamp="2026-05-13T09:00:00")
    run.train(A, step=0, timestamp="2026-05-13T11:00:00")
    pairing = run.pair()
    assert joined(pairing) == [(A, 0, 0)]
    assert reasons(pairing, "training") == [(0, "other-run", "a later run wrote over its dump"), (0, "used", "")]


def test_two_lines_of_one_moment_that_claim_one_dump(run: Run) -> None:
    run.prefill(A, step=0)
    run.train(B, step=0)
    run.train(A, step=0)
    pairing = run.pair()
    assert pairing.pairs == []
    assert [reason for _, reason, _ in reasons(pairing, "training")] == ["ambiguous", "ambiguous"]


def test_another_run_id(run: Run) -> None:
    run.forward([ours(A, 11)], step=0, run_id="r1")
    dump(run.inference.root / "17" / "step0" / "rank0")
    run.train(A, run_id="r2")
    pairing = run.pair()
    assert pairing.pairs == []
    assert reasons(pairing, "inference") == [(0, "other-run", "the training side's is of another run")]
    assert reasons(pairing, "training") == [(0, "other-run", "the inference side's is of another run")]


def test_the_layout_of_the_documents(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.prefill(SUFFIXED, dumped=None)
    run.train(A, dumped=None)
    dump(run.inference.root / "17" / "step_0" / "rank_0")
    dump(run.training.root / "step_0" / "rank_0")
    (found,) = run.pair().pairs
    assert [part.name for side in (found.inference, found.training) for part in side.parts] == ["rank_0", "rank_0"]


@pytest.mark.parametrize("name", ["proc17", "rank"])
def test_a_process_without_distributed_ranks(run: Run, name: str) -> None:
    run.prefill(A, dumped=None)
    dump(run.inference.root / "17" / "step0" / name)
    run.train(A)
    (found,) = run.pair().pairs
    assert found.inference.parts[0].name == name


def test_our_logger_says_where_the_dump_is(run: Run) -> None:
    run.forward([ours(A, 11)], step=0, dump="elsewhere/step0/rank3")
    dump(run.inference.root / "elsewhere" / "step0" / "rank3")
    dump(run.inference.root / "17" / "step0" / "rank0", 7)
    run.train(A)
    (found,) = run.pair().pairs
    assert found.inference.parts[0].name == "rank3"


def summary(pairing: Pairing) -> tuple[object, ...]:
    """All that pairing found, without line numbers and temporary folders."""
    pairs = sorted(
        (str(found.request_id), [(part.rank, part.step, part.path.parts[-3:]) for part in side.parts])
        for found in pairing.pairs
        for side in (found.inference, found.training, *found.replicas)
    )
    steps = sorted(
        (side, verdict.process, str(verdict.step), verdict.reason.value, verdict.detail, str(verdict.request_id))
        for side in ("inference", "training")
        for verdict in pairing.steps(side)
    )
    return pairs, steps


@pytest.mark.parametrize("loop", ["fully_async_qwen3_fsdp2_ids", "ascend_hybrid_qwen2_fsdp1"])
@given(seed=st.integers(0, 10**6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=8)
def test_no_order_of_files_and_lines_changes_anything(dumps: Path, tmp_path: Path, loop: str, seed: int) -> None:
    source = dumps / "loop" / loop
    target = tmp_path / loop
    if not target.exists():
        copy_into(source, target)
    shuffle = random.Random(seed).shuffle
    for path in target.rglob("*.jsonl"):
        lines = (source / path.relative_to(target)).read_text().splitlines(keepends=True)
        shuffle(lines)
        path.write_text("".join(lines))
    trees = [scan(target / name) for name in ("generate_sequence", "update_actor")]
    for tree in trees:
        shuffle(tree.steps)
        shuffle(tree.dispatch_logs)
    assert summary(pair(*trees)) == summary(
        pair(*(scan(source / name) for name in ("generate_sequence", "update_actor")))
    )


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_a_changed_byte_in_a_log_never_makes_a_pair_of_two_prompts(
    dumps: Path, tmp_path: Path, data: st.DataObject
) -> None:
    source = dumps / "loop" / "fully_async_qwen3_fsdp2_ids"
    target = tmp_path / "run"
    if not target.exists():
        copy_into(source, target)
    side = data.draw(st.sampled_from(["generate_sequence", "update_actor"]))
    (path,) = (target / side).rglob("*.jsonl")
    text = bytearray((source / path.relative_to(target)).read_bytes())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(text)
    pairing = pair(scan(target / "generate_sequence"), scan(target / "update_actor"))
    (other,) = (target / ("update_actor" if side == "generate_sequence" else "generate_sequence")).rglob("*.jsonl")
    other.write_bytes((source / other.relative_to(target)).read_bytes())
    path.write_bytes((source / path.relative_to(target)).read_bytes())
    right = {(0, 2), (17, 4)}
    found = {(item.inference.step, item.training.step) for item in pairing.pairs}
    # A changed digit of a step number points to another dump, whose tokens are then compared first of all.
    assert len(found - right) <= 1
    assert len(found & right) >= 1
